"""The champions against the seed documents; every value here is typed by hand from their command lines.

Documents: "DeepSeek R1 Inference Optimization Best Practice" (the guide: playbooks A, B, C, workloads) and
"SGLang Optimisations" (the notes).
"""

from __future__ import annotations

import pytest

from pytest_r1perf.antipatterns import matching
from pytest_r1perf.catalog import Catalog, load_catalog
from pytest_r1perf.cell import cell_of
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.sglang.translate import translate
from tests.tools.releases import table

# Guide, playbook A: --tp 8 --mem-fraction-static 0.87 --schedule-policy lof --moe-runner-backend cutlass
# --enable-piecewise-cuda-graph --decode-attention-backend flashinfer --enable-flashinfer-allreduce-fusion
# --chunked-prefill-size 32768 --cuda-graph-max-bs 2048 --disable-radix-cache --num-prompts 7000
TP8 = {
    "mem_fraction_static": 0.87,
    "schedule_policy": "lof",
    "moe_runner_backend": "cutlass",
    "enable_piecewise_cuda_graph": True,
    "decode_attention_backend": "flashinfer",
    "enable_flashinfer_allreduce_fusion": True,
    "chunked_prefill_size": 32768,
    "cuda_graph_max_bs": 2048,
    "disable_radix_cache": True,
}
# Guide, playbook B: SGLANG_PP_LAYER_PARTITION=32,29 ... --tp 8 --pp-size 2 --nnodes 2
# --mem-fraction-static 0.83 --disable-radix-cache --chunked-prefill-size 32768 --num-prompts 7000
PP2 = {"mem_fraction_static": 0.83, "disable_radix_cache": True, "chunked_prefill_size": 32768}
# Guide, playbook C: --tp 16 --nnodes 2 --mem-fraction-static 0.87 --schedule-policy lof
# --moe-runner-backend cutlass --decode-attention-backend flashinfer --chunked-prefill-size 32768
# --num-prompts 8000
TP16 = {
    "mem_fraction_static": 0.87,
    "schedule_policy": "lof",
    "moe_runner_backend": "cutlass",
    "decode_attention_backend": "flashinfer",
    "chunked_prefill_size": 32768,
}
PARTITION = {"SGLANG_PP_LAYER_PARTITION": "32,29"}

CHAMPIONS = [
    ("tp8-champion", "tp8", TP8, {}, 7000, 22854),
    ("pp2-champion", "pp2", PP2, PARTITION, 7000, 29426),
    ("tp16-reference", "tp16", TP16, {}, 8000, 21416),
]
champions = pytest.mark.parametrize(("recipe", "topology", "flags", "env", "n", "tokps"), CHAMPIONS)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@champions
def test_tuning_is_word_for_word(
    catalog: Catalog,
    recipe: str,
    topology: str,
    flags: dict[str, object],
    env: dict[str, str],
    n: int,
    tokps: float,
) -> None:
    found = catalog.recipe(recipe)
    assert dict(found.flags) == flags
    assert {name: type(value) for name, value in found.flags.items()} == {
        name: type(value) for name, value in flags.items()
    }
    assert dict(found.env) == env
    assert found.topology == topology
    assert found.published is not None
    assert (found.published.n, found.published.value) == (n, tokps)
    assert found.published.metric == "total_throughput"
    assert "assumed" in found.published.assumed  # the guide never names its metric
    assert "guide" in found.source
    assert "guide" in found.published.source


@champions
def test_protocol_and_rendezvous_are_kept_apart(
    catalog: Catalog, recipe: str, topology: str, flags: object, env: object, n: int, tokps: float
) -> None:
    """Guide, workloads: dummy weights; node rank and head address stand nowhere in a recipe."""
    del topology, flags, env, n, tokps
    found = catalog.recipe(recipe)
    assert dict(found.protocol) == {"load_format": "dummy"}
    assert set(found.sources) == {"load_format"}
    assert "dummy weights" in found.sources["load_format"]
    assert not {*found.flags, *found.protocol} & {"node_rank", "dist_init_addr", "nnodes", "seed", "num_prompts"}


@champions
def test_champions_match_no_rule(
    catalog: Catalog, recipe: str, topology: str, flags: object, env: object, n: int, tokps: float
) -> None:
    del flags, env, tokps
    platform = catalog.platform("h200x16")
    cell = cell_of(PerfSpec(topology, n, recipe=recipe), platform, catalog)
    for version in (None, "0.4.6.post5", "0.5.9", "0.5.20"):
        assert matching(catalog.rules.values(), cell, version) == ()


@champions
def test_champions_are_the_defaults_of_their_cluster(
    catalog: Catalog, recipe: str, topology: str, flags: dict[str, object], env: dict[str, str], n: int, tokps: float
) -> None:
    del tokps
    cell = cell_of(PerfSpec(topology, n), catalog.platform("h200x16"), catalog)
    assert cell.recipe.name == recipe
    assert {name: cell.flags[name] for name in flags} == flags
    assert cell.flags["load_format"] == "dummy"
    assert dict(cell.env) == env


@pytest.mark.parametrize(
    ("name", "layout", "gpus"),
    [
        ("tp1", {}, 1),
        ("tp2", {"tp_size": 2}, 2),
        ("tp8", {"tp_size": 8}, 8),  # guide A: --tp 8
        ("pp2", {"tp_size": 8, "pp_size": 2, "nnodes": 2}, 16),  # guide B: --tp 8 --pp-size 2 --nnodes 2
        ("tp16", {"tp_size": 16, "nnodes": 2}, 16),  # guide C: --tp 16 --nnodes 2
        ("tp8-ep8", {"tp_size": 8, "ep_size": 8}, 8),  # notes: --ep-size 8
        (
            "tp4-dp4-pp2",  # notes: --tp 4 --dp 4 --pp 2 --nnodes 2 --enable-dp-attention, which shares the TP group
            {"tp_size": 4, "dp_size": 4, "pp_size": 2, "nnodes": 2, "enable_dp_attention": True},
            8,
        ),
        (
            "tp4-dp4-pp2-one-node",  # notes: 'That shape ... landed 17,417 tok/s on one node'
            {"tp_size": 4, "dp_size": 4, "pp_size": 2, "enable_dp_attention": True},
            8,
        ),
        ("tp4-dp2", {"tp_size": 4, "dp_size": 2}, 8),  # notes: pure DP, two whole copies
        ("tp8-dpa1", {"tp_size": 8, "enable_dp_attention": True}, 8),  # notes: --enable-dp-attention with dp=1
    ],
)
def test_topologies(catalog: Catalog, name: str, layout: dict[str, object], gpus: int) -> None:
    topology = catalog.topology(name)
    assert topology.flags() == layout
    assert topology.gpus_used == gpus


def test_the_published_efficiencies_follow_from_the_topologies(catalog: Catalog) -> None:
    """Guide, summary: 2,857 tok/s/GPU for TP8, 1,839 for PP2, 1,338 for TP16."""
    stated = {"tp8": 2857, "pp2": 1839, "tp16": 1338}  # of 1338.5: the guide rounds down
    for _, topology, _, _, _, tokps in CHAMPIONS:
        assert tokps / catalog.topology(topology).gpus_used == pytest.approx(stated[topology], abs=0.5)


def test_workloads(catalog: Catalog) -> None:
    """Guide, workloads: ShareGPT V3 style, seed 2025; N=5000 is the standard comparison load."""
    assert catalog.workload("sharegpt").seed == 2025
    assert catalog.workload("sharegpt-like").seed == 2025
    assert {
        catalog.platform(name).min_conclusive_n for name in ("h200x1", "h200x2", "h200x8", "h200x16", "h100x16")
    } == {5000}


@pytest.mark.parametrize(
    ("name", "accelerator", "per_node", "nodes"),
    [
        ("cpu", "cpu", None, 1),
        ("h200x1", "NVIDIA H200", 1, 1),
        ("h200x2", "NVIDIA H200", 2, 1),
        ("h200x8", "NVIDIA H200", 8, 1),
        ("h200x16", "NVIDIA H200", 8, 2),
        ("h100x16", "NVIDIA H100 80GB HBM3", 8, 2),
    ],
)
def test_platforms(catalog: Catalog, name: str, accelerator: str, per_node: int | None, nodes: int) -> None:
    platform = catalog.platform(name)
    assert (platform.accelerator, platform.gpus_per_node, platform.nodes) == (accelerator, per_node, nodes)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.10", "0.5.11", "0.5.17", "0.5.20", "0.5.23"])
@pytest.mark.parametrize("topology", ["tp2", "twin-tp2", "twin-ep2"])
def test_two_h200_never_fuse_the_all_reduce(catalog: Catalog, topology: str, version: str) -> None:
    """From 0.5.10 on it is on by itself, and where NVLink multicast is forbidden tp 2 hangs in it; by no pin."""
    cell = cell_of(PerfSpec(topology, 1000), catalog.platform("h200x2"), catalog)
    said = translate(cell.flags, cell.env, table(version)).argv
    assert "--enable-flashinfer-allreduce-fusion" not in said
    assert ("--enforce-disable-flashinfer-allreduce-fusion" in said) == (version != "0.5.9")


def test_no_published_figure_is_above_what_the_gpus_compute(catalog: Catalog) -> None:
    """FP8 dense 1,979 TFLOPS a GPU over 2 x 37e9 FLOP a token: 26,743 tok/s a GPU."""
    for platform, gpus in (("h200x8", 8), ("h200x16", 16), ("h100x16", 16)):
        gpu = catalog.gpu_of(catalog.platform(platform))
        assert gpu is not None
        ceiling = gpus * gpu.flops["fp8"] / 74e9
        assert ceiling == pytest.approx(gpus * 26743, rel=1e-3)
        assert ceiling > 29426
