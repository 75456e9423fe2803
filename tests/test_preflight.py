"""Every preflight rule, on both sides of its condition and of its versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.cell import Cell, cell_of
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.memory import Load
from pytest_r1perf.modelshape import ModelShape, shape_of
from pytest_r1perf.preflight import Finding, Severity, check
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.topology import Topology
from tests.test_memory import H100_BYTES, H200_BYTES, LLAMA_8B, R1, R1_MINI

CATALOG = load_catalog()
NONE: Mapping[str, Any] = MappingProxyType({})
R1_SHAPE = shape_of(dict(R1), "R1")
REFUSE, WARN, NOTE = Severity.REFUSE, Severity.WARN, Severity.NOTE

TP8 = Topology("tp8", tp_size=8)
PP2 = Topology("pp2", tp_size=8, pp_size=2, nnodes=2)
DP1 = Topology("dp1", tp_size=8, enable_dp_attention=True)
DP8 = Topology("dp8", tp_size=8, dp_size=8, enable_dp_attention=True)


def cell(
    topology: str | Topology = "tp8",
    flags: Mapping[str, FlagValue] = NONE,
    env: Mapping[str, str] = NONE,
    platform: str = "h200x16",
    recipe: str = "default",
) -> Cell:
    name = topology if isinstance(topology, str) else "tp8"
    spec = PerfSpec(name, 5000, recipe=recipe, flags=tuple(flags.items()), env=tuple(env.items()))
    made = cell_of(spec, CATALOG.platform(platform), CATALOG)
    return made if isinstance(topology, str) else replace(made, topology=topology)


def found(
    made: Cell,
    version: str | None = "0.5.9",
    shape: ModelShape | None = None,
    gpu_bytes: int | None = None,
    gpus: int | None = None,
    load: Load | None = None,
) -> dict[str, list[Finding]]:
    by_rule: dict[str, list[Finding]] = {}
    for finding in check(
        made, sglang_version=version, shape=shape, gpu_bytes=gpu_bytes, gpus_available=gpus, load=load
    ):
        by_rule.setdefault(finding.rule, []).append(finding)
    return by_rule


def one(by_rule: Mapping[str, list[Finding]], rule: str) -> Finding:
    [finding] = by_rule[rule]
    return finding


# --- layout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "severity", "words"),
    [
        ("0.4.3.post2", WARN, "changes dp_size 1 to tp_size 8"),
        ("0.4.6.post5", REFUSE, "AssertionError"),
        ("0.5.1.post3", REFUSE, "AssertionError"),
        ("0.5.2", WARN, "without a word"),
        ("0.5.23", WARN, "without a word"),
    ],
)
def test_dp_attention_with_dp_1_has_three_eras(version: str, severity: Severity, words: str) -> None:
    finding = one(found(cell(DP1), version), "dp-attention-with-dp-1")
    assert finding.severity is severity
    assert words in finding.text


@pytest.mark.parametrize("version", [None, "main-2026-11-30"])
def test_an_unknown_version_rules_nothing_out_and_refuses_nothing(version: str | None) -> None:
    findings = found(cell(DP1), version)["dp-attention-with-dp-1"]
    assert [finding.severity for finding in findings] == [WARN] * 3
    assert any(finding.text.startswith("with SGLang >=0.4.6.post5,<=0.5.1.post3: ") for finding in findings)


@pytest.mark.parametrize("topology", [TP8, DP8, Topology("dp2", tp_size=8, dp_size=2)])
def test_other_layouts_are_not_dp_attention_with_dp_1(topology: Topology) -> None:
    assert "dp-attention-with-dp-1" not in found(cell(topology))


@pytest.mark.parametrize(("dp", "refused"), [(2, False), (3, True), (8, False), (16, True)])
def test_tp_over_dp(dp: int, refused: bool) -> None:
    findings = found(cell(Topology("t", tp_size=8, dp_size=dp, enable_dp_attention=True)))
    assert ("tp-over-dp" in findings) is refused
    if refused:
        assert one(findings, "tp-over-dp").severity is REFUSE
    assert "tp-over-dp" not in found(cell(Topology("t", tp_size=8, dp_size=dp)))


def test_a_rule_of_every_version_refuses_with_an_unknown_one() -> None:
    made = cell(Topology("t", tp_size=8, dp_size=3, enable_dp_attention=True))
    assert one(found(made, None), "tp-over-dp").severity is REFUSE


@pytest.mark.parametrize(
    ("topology", "refused"),
    [
        (PP2, False),
        (Topology("t", tp_size=1, pp_size=2, nnodes=2), False),
        (Topology("t", tp_size=3, nnodes=2), True),
        (Topology("t", tp_size=3, dp_size=2, nnodes=2), True),
    ],
)
def test_ranks_over_nodes(topology: Topology, refused: bool) -> None:
    findings = found(cell(topology))
    assert ("ranks-over-nodes" in findings) is refused
    if refused:
        assert "3 ranks" in one(findings, "ranks-over-nodes").text


@pytest.mark.parametrize(
    ("topology", "refused"),
    [
        (Topology("t", tp_size=8, dp_size=2, nnodes=2), True),
        (Topology("t", tp_size=4, dp_size=2, nnodes=1), False),
        (Topology("t", tp_size=16, dp_size=2, nnodes=2, enable_dp_attention=True), False),
        (PP2, False),
    ],
)
def test_multi_node_dp(topology: Topology, refused: bool) -> None:
    findings = found(cell(topology))
    assert ("multi-node-dp" in findings) is refused
    if refused:
        assert one(findings, "multi-node-dp").severity is REFUSE


@pytest.mark.parametrize(
    ("version", "flags", "words"),
    [
        ("0.5.9", {"speculative_algorithm": "EAGLE"}, "not compatible"),
        ("0.5.20", {"speculative_algorithm": "EAGLE", "disaggregation_mode": "prefill"}, "not compatible"),
        ("0.5.21", {"speculative_algorithm": "EAGLE"}, "only on prefill nodes"),
        ("0.5.23", {"speculative_algorithm": "NGRAM", "disaggregation_mode": "prefill"}, "EAGLE alone"),
        ("0.5.21", {"speculative_algorithm": "EAGLE", "disaggregation_mode": "prefill"}, None),
    ],
)
def test_pipeline_with_speculation(version: str, flags: Mapping[str, FlagValue], words: str | None) -> None:
    findings = found(cell(PP2, flags), version)
    if words is None:
        assert "pipeline-with-speculation" not in findings
    else:
        finding = one(findings, "pipeline-with-speculation")
        assert finding.severity is REFUSE
        assert words in finding.text
    assert "pipeline-with-speculation" not in found(cell(TP8, flags), version)


@pytest.mark.parametrize(
    ("text", "shape", "words"),
    [
        ("32,29", R1_SHAPE, None),
        ("32,29", None, None),
        ("32,28", None, None),  # without the model nobody knows its layers
        ("32,28", R1_SHAPE, "sums to 60, but the model has 61"),
        ("32,29", shape_of(R1_MINI, "mini"), "sums to 61, but the model has 6 "),
        ("61", R1_SHAPE, "1 entries for 2"),
        ("20,20,21", R1_SHAPE, "3 entries for 2"),
        ("61,0", R1_SHAPE, "no list of layer counts"),
        ("32;29", R1_SHAPE, "no list of layer counts"),
        ("", R1_SHAPE, "no list of layer counts"),
    ],
)
def test_layer_partition(text: str, shape: ModelShape | None, words: str | None) -> None:
    findings = found(cell(PP2, env={"SGLANG_PP_LAYER_PARTITION": text}), shape=shape)
    if words is None:
        assert "layer-partition" not in findings
    else:
        finding = one(findings, "layer-partition")
        assert finding.severity is REFUSE
        assert words in finding.text


@pytest.mark.parametrize(("version", "severity"), [("0.5.9", REFUSE), ("0.5.20", WARN)])
def test_layer_partition_without_a_pipeline(version: str, severity: Severity) -> None:
    made = cell(TP8, env={"SGLANG_PP_LAYER_PARTITION": "32,29"})
    finding = one(found(made, version), "layer-partition")
    assert finding.severity is severity
    assert "without pipeline parallelism" in finding.text


@pytest.mark.parametrize(
    ("ep", "runner", "version", "refused"),
    [
        (1, "flashinfer_cutlass", "0.5.9", False),
        (8, "flashinfer_cutlass", "0.5.9", False),
        (4, "flashinfer_cutlass", "0.5.9", True),
        (4, "flashinfer_cutlass", "0.4.9", False),
        (4, "cutlass", "0.5.9", False),
        (16, "triton", "0.5.10.post1", True),
        (16, "triton", "0.5.9", False),
    ],
)
def test_expert_parallel_size(ep: int, runner: str, version: str, refused: bool) -> None:
    made = cell(Topology("t", tp_size=8, ep_size=ep), {"moe_runner_backend": runner})
    assert ("expert-parallel-size" in found(made, version)) is refused


def test_idle_gpus_are_counted_as_sglang_counts_them() -> None:
    finding = one(found(cell("tp4-dp4-pp2")), "gpus-idle")
    assert finding.severity is WARN
    assert "8 of 16 GPUs stay idle" in finding.text
    assert "gpus-idle" not in found(cell("tp16"))
    assert "gpus-idle" not in found(cell("tp1", platform="cpu"))


@pytest.mark.parametrize(
    ("topology", "gpus", "words"),
    [
        ("tp8", 8, None),
        ("tp8", 4, "takes 8 GPUs on each of its nodes, and there are 4"),
        ("pp2", 8, None),
        ("pp2", 7, "takes 8 GPUs"),
        ("tp4-dp4-pp2", 4, None),
        ("tp8", None, None),
    ],
)
def test_gpus_missing(topology: str, gpus: int | None, words: str | None) -> None:
    findings = found(cell(topology), gpus=gpus)
    if words is None:
        assert "gpus-missing" not in findings
    else:
        assert words in one(findings, "gpus-missing").text


def test_cores_missing_on_a_cpu_platform() -> None:
    assert "takes 2 cores" in one(found(cell("tp2", platform="cpu"), gpus=1), "gpus-missing").text


# --- memory ---------------------------------------------------------------------------------------------------------


def test_pure_dp_of_r1_needs_whole_copies_that_80_gb_do_not_hold() -> None:
    """Optimisation notes: 'R1 does not fit twice in 80 GB x 8. OOM during weight load', viable on H200 only."""
    twice = Topology("dp2", tp_size=8, dp_size=2)
    finding = one(found(cell(twice, platform="h100x16"), None, R1_SHAPE, H100_BYTES), "weights-do-not-fit")
    assert finding.severity is REFUSE
    assert "each of the 2 whole copies" in finding.text
    assert "weights-do-not-fit" not in found(cell(twice), None, R1_SHAPE, H200_BYTES)


def test_r1_on_16_h100_fits_when_sharded() -> None:
    assert "weights-do-not-fit" in found(cell("tp8", platform="h100x16"), shape=R1_SHAPE, gpu_bytes=H100_BYTES)
    assert "weights-do-not-fit" not in found(cell("tp16", platform="h100x16"), shape=R1_SHAPE, gpu_bytes=H100_BYTES)


@pytest.mark.parametrize(("shape", "gpu_bytes"), [(None, H100_BYTES), (R1_SHAPE, None)])
def test_without_shape_or_memory_nothing_is_said_of_weights(shape: ModelShape | None, gpu_bytes: int | None) -> None:
    assert "weights-do-not-fit" not in found(cell("tp8", platform="h100x16"), shape=shape, gpu_bytes=gpu_bytes)


@pytest.mark.parametrize(
    ("load", "rule", "words"),
    [
        (Load(100, 1000, longest=1000), None, ""),
        (Load(100, 2000, longest=1000), "requests-queue", "about 50 of 100 requests fit"),
        (
            Load(100, 1000, longest=1001),
            "kv-below-longest-request",
            "holds 1,000 tokens and the longest request has 1,001",
        ),
        (Load(2, 2100), "kv-below-longest-request", "mean request has 1,050"),
    ],
)
def test_a_workload_against_the_kv_cache(load: Load, rule: str | None, words: str) -> None:
    made = cell("tp1", {"max_total_tokens": 1000}, platform="cpu")
    findings = {
        key: value
        for key, value in found(made, load=load).items()
        if key in ("requests-queue", "kv-below-longest-request")
    }
    assert list(findings) == ([rule] if rule else [])
    if rule:
        assert words in one(findings, rule).text


def test_queueing_is_a_note_and_not_a_warning() -> None:
    """R1 on 8 H200: about 640,000 tokens of KV; 7,000 requests of 420 tokens are 2.9 million."""
    made = cell("tp8", recipe="tp8-champion")
    finding = one(
        found(made, "0.5.9", R1_SHAPE, H200_BYTES, load=Load(7000, 2_940_000, longest=4000)), "requests-queue"
    )
    assert finding.severity is NOTE
    count = re.search(r"about ([\d,]+) of 7,000", finding.text)
    assert count is not None
    assert 1400 < int(count.group(1).replace(",", "")) < 1600


def test_weights_that_do_not_fit_are_said_once() -> None:
    findings = found(
        cell("tp8", platform="h100x16"), shape=R1_SHAPE, gpu_bytes=H100_BYTES, load=Load(10, 1000, longest=200)
    )
    assert "weights-do-not-fit" in findings
    assert "kv-below-longest-request" not in findings


@pytest.mark.parametrize(("fraction", "refused"), [(0.87, False), (0, True), (1, True), ("1.2", True), (-0.1, True)])
def test_a_fraction_is_one(fraction: FlagValue, refused: bool) -> None:
    findings = found(cell("tp8", {"mem_fraction_static": fraction}), shape=R1_SHAPE, gpu_bytes=H200_BYTES)
    assert ("mem-fraction-out-of-range" in findings) is refused
    assert "weights-do-not-fit" not in findings  # which would blame the model


@pytest.mark.parametrize(
    ("topology", "platform", "fraction", "best"),
    [
        ("tp8", "h200x16", 0.87, None),
        ("tp8", "h200x16", 0.85, "0.87"),
        ("tp8", "h200x16", "0.9", "0.87"),
        ("tp16", "h200x16", 0.83, "0.87"),
        ("pp2", "h200x16", 0.83, None),
        ("pp2", "h200x16", 0.87, "0.83"),
        ("tp8", "h100x16", 0.8, None),
        ("tp4", "h200x16", 0.8, None),
        ("tp8-ep8", "h200x16", 0.8, None),
        ("tp4-dp4-pp2", "h200x16", 0.8, None),
    ],
)
def test_mem_fraction_off_its_sweet_spot(topology: str, platform: str, fraction: FlagValue, best: str | None) -> None:
    """Best-practice guide: 0.87 for TP8 (and in playbook C for TP16), 0.83 for the PP2 peak profile, on H200."""
    findings = found(cell(topology, {"mem_fraction_static": fraction}, platform=platform))
    if best is None:
        assert "mem-fraction-off-sweet-spot" not in findings
    else:
        finding = one(findings, "mem-fraction-off-sweet-spot")
        assert finding.severity is WARN
        assert f"take {best}" in finding.text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, None),
        ({"mem_fraction_static": 0.8, "cuda_graph_max_bs": 4096}, None),
        ({"mem_fraction_static": 0.8}, "moves mem_fraction_static to 0.8 and keeps cuda_graph_max_bs=2048"),
        ({"cuda_graph_max_bs": 4096}, "moves cuda_graph_max_bs to 4096 and keeps mem_fraction_static=0.87"),
        ({"chunked_prefill_size": 8192}, None),
    ],
)
def test_a_test_that_moves_half_of_the_memory_pair(flags: Mapping[str, FlagValue], words: str | None) -> None:
    findings = found(cell("tp8", flags, recipe="tp8-champion"))
    assert ("memory-pair-half-moved" in findings) is (words is not None)
    if words is not None:
        assert words in one(findings, "memory-pair-half-moved").text


@pytest.mark.parametrize("flags", [{"cuda_graph_max_bs": 512}, {"mem_fraction_static": 0.87}])
def test_a_pair_of_which_the_recipe_has_nothing_is_the_antipatterns_business(flags: Mapping[str, FlagValue]) -> None:
    assert "memory-pair-half-moved" not in found(cell("tp8", flags))


# --- flags ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "flags", "version", "words"),
    [
        (TP8, {"chunked_prefill_size": 8192, "page_size": 64}, "0.5.9", None),
        (TP8, {"chunked_prefill_size": 1000, "page_size": 64}, "0.5.9", "1000 is no multiple of page_size 64"),
        (TP8, {"chunked_prefill_size": "1000", "page_size": "64"}, "0.5.9", "1000 is no multiple"),
        (TP8, {"chunked_prefill_size": 1000, "page_size": 64}, "0.4.3.post2", None),
        (TP8, {"chunked_prefill_size": 1000}, "0.5.9", None),
        (TP8, {"chunked_prefill_size": -1, "page_size": 64}, "0.5.9", None),
        (TP8, {"chunked_prefill_size": 1000, "attention_backend": "flashmla"}, "0.5.9", "page_size 64"),
        (TP8, {"chunked_prefill_size": 8256, "decode_attention_backend": "cutlass_mla"}, "0.5.9", "page_size 128"),
        (DP8, {"chunked_prefill_size": 8192, "page_size": 256}, "0.5.18", "which becomes 128 under DP attention"),
        (DP8, {"chunked_prefill_size": 8192, "page_size": 256}, "0.5.19", None),
    ],
)
def test_chunk_over_pages(topology: Topology, flags: Mapping[str, FlagValue], version: str, words: str | None) -> None:
    findings = found(cell(topology, flags), version)
    if words is None:
        assert "chunk-over-pages" not in findings
    else:
        finding = one(findings, "chunk-over-pages")
        assert finding.severity is REFUSE
        assert words in finding.text


def test_the_default_chunk_is_divided_too() -> None:
    """An H200's default of 8192 over dp 16, twice: 32 tokens, less than a page of 64."""
    made = cell(Topology("t", tp_size=16, dp_size=16, nnodes=2, enable_dp_attention=True), {"page_size": 64})
    assert "8192 (which becomes 32" in one(found(made, "0.5.9", gpu_bytes=H200_BYTES), "chunk-over-pages").text
    assert "chunk-over-pages" not in found(made, "0.5.9")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.5.18", "so 128 tokens are in force"),
        ("0.4.6.post5", "so 128 tokens are in force"),
        ("0.5.19", "so 1024 tokens are in force"),
        ("0.4.3.post2", "so 2048 tokens are in force"),
        (None, "so 1024 tokens are in force"),
    ],
)
def test_arguments_resolved_twice(version: str | None, words: str) -> None:
    """8192 at dp 8: 8192 / 8 / 8 = 128 up to 0.5.18, 1024 from 0.5.19 on; 0.4.3 halves instead."""
    finding = one(found(cell(DP8, {"chunked_prefill_size": 8192}), version), "arguments-resolved-twice")
    assert finding.severity is NOTE
    assert words in finding.text


def test_the_default_chunk_of_an_h200_is_8192() -> None:
    findings = found(cell(DP8), "0.5.9", gpu_bytes=H200_BYTES)
    assert "chunked_prefill_size 8192 by 8 twice" in one(findings, "arguments-resolved-twice").text


@pytest.mark.parametrize("topology", [TP8, DP1, Topology("dp2", tp_size=8, dp_size=2)])
def test_only_dp_attention_scales_the_chunk(topology: Topology) -> None:
    assert "arguments-resolved-twice" not in found(cell(topology, {"chunked_prefill_size": 8192}))


def test_a_mode_that_is_not_the_offline_benchmark_resolves_once() -> None:
    served = replace(cell(DP8, {"chunked_prefill_size": 8192}), mode="serve")
    assert "so 1024 tokens" in one(found(served, "0.5.9"), "arguments-resolved-twice").text


@pytest.mark.parametrize(
    ("flags", "version", "refused"),
    [
        ({"kv_cache_dtype": "fp4_e2m1", "attention_backend": "fa3"}, "0.5.8.post1", True),
        ({"kv_cache_dtype": "fp4_e2m1"}, "0.5.9", True),  # fa3 is Hopper's default
        ({"kv_cache_dtype": "fp4_mx_block16", "attention_backend": "triton"}, "0.5.20", True),
        ({"kv_cache_dtype": "fp4_e2m1", "attention_backend": "fa3"}, "0.5.6.post2", False),
        ({"kv_cache_dtype": "fp4_e2m1", "attention_backend": "flashmla"}, "0.5.9", False),
        ({"kv_cache_dtype": "fp4_e2m1", "attention_backend": "flashinfer"}, "0.5.9", False),
        ({"kv_cache_dtype": "fp4_e2m1", "decode_attention_backend": "flashinfer"}, "0.5.9", False),  # mixed: a warning
        ({"kv_cache_dtype": "fp8_e4m3", "attention_backend": "fa3"}, "0.5.9", False),
        ({"attention_backend": "fa3"}, "0.5.9", False),
    ],
)
def test_fp4_kv_backend(flags: Mapping[str, FlagValue], version: str, refused: bool) -> None:
    assert ("fp4-kv-backend" in found(cell(TP8, flags), version, R1_SHAPE)) is refused


def test_fp4_kv_of_a_model_without_mla_is_another_list() -> None:
    made = cell(TP8, {"kv_cache_dtype": "fp4_e2m1"})
    assert "fp4-kv-backend" not in found(made, "0.5.9", shape_of(LLAMA_8B, "llama"))


@pytest.mark.parametrize(("version", "refused"), [("0.5.17", False), ("0.5.20", True)])
def test_nvfp4_needs_blackwell(version: str, refused: bool) -> None:
    made = cell(TP8, {"kv_cache_dtype": "nvfp4", "attention_backend": "flashinfer"})
    assert ("fp4-kv-backend" in found(made, version)) is refused


@pytest.mark.parametrize(
    ("rule", "flags", "version", "refused"),
    [
        ("micro-batch-size", {"pp_max_micro_batch_size": 0}, "0.5.12.post1", True),
        ("micro-batch-size", {"pp_max_micro_batch_size": -4}, "0.5.23", True),
        ("micro-batch-size", {"pp_max_micro_batch_size": 0}, "0.5.10.post1", False),
        ("micro-batch-size", {"pp_max_micro_batch_size": 1}, "0.5.23", False),
        ("conservativeness", {"schedule_conservativeness": -0.1}, "0.5.5.post3", True),
        ("conservativeness", {"schedule_conservativeness": -0.1}, "0.5.3.post3", False),
        ("conservativeness", {"schedule_conservativeness": 0}, "0.5.9", False),
    ],
)
def test_values_out_of_range(rule: str, flags: Mapping[str, FlagValue], version: str, refused: bool) -> None:
    findings = found(cell(PP2, flags), version)
    assert (rule in findings) is refused
    if refused:
        assert one(findings, rule).severity is REFUSE
        assert one(found(cell(PP2, flags), None), rule).severity is WARN


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, None),
        ({"NCCL_IB_HCA": "mlx5"}, None),
        ({"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}, "NCCL_ALGO=Ring and NCCL_PROTO=LL128 is a request"),
        ({"NCCL_PROTO": "LL128"}, "run once with NCCL_DEBUG=INFO"),
        ({"NCCL_PROTO": "LL128", "NCCL_DEBUG": "INFO"}, "look for it in the NCCL_DEBUG=INFO lines"),
    ],
)
def test_nccl_requests(env: Mapping[str, str], words: str | None) -> None:
    findings = found(cell("tp16", env=env))
    assert ("nccl-requests" in findings) is (words is not None)
    if words is not None:
        finding = one(findings, "nccl-requests")
        assert finding.severity is NOTE
        assert words in finding.text


# --- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["tp8-champion", "pp2-champion", "tp16-reference"])
@pytest.mark.parametrize("version", ["0.5.9", None])
def test_champions_have_nothing_but_notes(recipe: str, version: str | None) -> None:
    topology = CATALOG.recipe(recipe).topology
    assert topology is not None
    load = Load(7000, 2_940_000, longest=4000)
    findings = check(
        cell(topology, recipe=recipe),
        sglang_version=version,
        shape=R1_SHAPE,
        gpu_bytes=H200_BYTES,
        gpus_available=8,
        load=load,
    )
    assert {finding.severity for finding in findings} <= {NOTE}


def test_the_cpu_rig_has_no_finding() -> None:
    made = cell("tp1", platform="cpu")
    assert not check(made, sglang_version="0.5.20", shape=None, gpu_bytes=None, gpus_available=2)


def test_the_worst_comes_first() -> None:
    """The rules find, in their own order: idle GPUs (warning), scaled chunk (note), negative value (refusal)."""
    made = cell("tp4-dp4-pp2", {"chunked_prefill_size": 8192, "schedule_conservativeness": -1})
    findings = check(made, sglang_version="0.5.20", shape=None, gpu_bytes=None, gpus_available=None)
    assert [finding.severity for finding in findings] == [REFUSE, WARN, NOTE]


FLAGS = st.dictionaries(
    st.sampled_from(
        [
            "attention_backend",
            "chunked_prefill_size",
            "cuda_graph_max_bs",
            "kv_cache_dtype",
            "max_total_tokens",
            "mem_fraction_static",
            "moe_runner_backend",
            "page_size",
            "pp_max_micro_batch_size",
            "schedule_conservativeness",
            "speculative_algorithm",
        ]
    ),
    st.one_of(
        st.booleans(),
        st.integers(-10, 10**6),
        st.floats(-2, 2, allow_nan=False),
        st.sampled_from(["", "auto", "fa3", "fp4_e2m1", "nan", "0.87", "8192", "flashmla"]),
    ),
)
TOPOLOGIES = st.builds(
    Topology,
    name=st.just("t"),
    tp_size=st.integers(1, 16),
    pp_size=st.integers(1, 4),
    dp_size=st.integers(1, 16),
    ep_size=st.integers(1, 16),
    nnodes=st.integers(1, 4),
    enable_dp_attention=st.booleans(),
)


@settings(deadline=None)
@given(
    topology=TOPOLOGIES,
    flags=FLAGS,
    partition=st.one_of(st.none(), st.text(max_size=6), st.just("32,29")),
    version=st.sampled_from([None, "0.4.3.post2", "0.5.1.post3", "0.5.9", "0.5.18", "0.5.23", "?"]),
    shape=st.sampled_from([None, R1_SHAPE, shape_of(LLAMA_8B, "llama")]),
    gpu_bytes=st.sampled_from([None, 1, H100_BYTES, H200_BYTES]),
    longest=st.one_of(st.none(), st.integers(1, 10**7)),
)
def test_whatever_is_asked_for_each_finding_is_one_sentence_with_a_source(
    topology: Topology,
    flags: Mapping[str, FlagValue],
    partition: str | None,
    version: str | None,
    shape: ModelShape | None,
    gpu_bytes: int | None,
    longest: int | None,
) -> None:
    made = replace(
        cell(topology),
        flags=flags,
        extra_flags=flags,
        env={} if partition is None else {"SGLANG_PP_LAYER_PARTITION": partition.replace("\n", " ")},
    )
    findings = check(
        made,
        sglang_version=version,
        shape=shape,
        gpu_bytes=gpu_bytes,
        gpus_available=8,
        load=Load(100, 42000, longest),
    )
    for finding in findings:
        assert finding.rule
        assert finding.source
        assert "\n" not in finding.text
        assert not finding.text.endswith(".")
        assert "--" not in finding.text.replace(str(partition), "")  # logical names, never a command line's spelling
    if version in (None, "?"):
        bound = {"dp-attention-with-dp-1", "pipeline-with-speculation", "fp4-kv-backend", "chunk-over-pages"}
        assert not any(finding.rule in bound and finding.severity is REFUSE for finding in findings)
