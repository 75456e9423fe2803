"""Logical flags on the command lines of 41 SGLang releases, judged by argparse parsers with their options."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from pytest_r1perf.sglang.options import OptionTable
from pytest_r1perf.sglang.translate import CannotExpress, NoteKind, Translation, translate
from pytest_r1perf.sglang.translate_backends import BACKEND_RULES, SAME_VALUES
from pytest_r1perf.sglang.translate_env import TWINS
from pytest_r1perf.sglang.translate_graphs import GRAPH_RULES
from pytest_r1perf.sglang.translate_layout import LAYOUT_RULES
from pytest_r1perf.sglang.translate_rules import RENAMES, RULES
from tests.tools.releases import RELEASES, entries, parse, releases, table

Flags: TypeAlias = Mapping[str, str | int | float | bool]

TP8_CHAMPION: Flags = {
    "load_format": "dummy",
    "mem_fraction_static": 0.87,
    "schedule_policy": "lof",
    "moe_runner_backend": "cutlass",
    "enable_piecewise_cuda_graph": True,
    "decode_attention_backend": "flashinfer",
    "enable_flashinfer_allreduce_fusion": True,
    "chunked_prefill_size": 32768,
    "cuda_graph_max_bs": 2048,
    "disable_radix_cache": True,
    "tp_size": 8,
}
PP2_CHAMPION: Flags = {
    "load_format": "dummy",
    "mem_fraction_static": 0.83,
    "disable_radix_cache": True,
    "chunked_prefill_size": 32768,
    "tp_size": 8,
    "pp_size": 2,
    "nnodes": 2,
    "node_rank": 1,
    "dist_init_addr": "10.0.0.1:5000",
}
TP16_REFERENCE: Flags = {
    "load_format": "dummy",
    "mem_fraction_static": 0.87,
    "schedule_policy": "lof",
    "moe_runner_backend": "cutlass",
    "decode_attention_backend": "flashinfer",
    "chunked_prefill_size": 32768,
    "tp_size": 16,
    "nnodes": 2,
}
NOTES_WINNER: Flags = {
    "load_format": "dummy",
    "dtype": "bfloat16",
    "enable_torch_compile": True,
    "enable_dp_lm_head": True,
    "attention_backend": "fa3",
    "mem_fraction_static": 0.85,
    "cuda_graph_max_bs": 256,
    "warmups": "compile-deep-gemm",
    "trust_remote_code": True,
    "tp_size": 4,
    "dp_size": 4,
    "pp_size": 2,
    "nnodes": 2,
    "enable_dp_attention": True,
}
PRIVATE_DEPLOYMENT: Flags = {"tp_size": 16, "nnodes": 2, "node_rank": 0, "trust_remote_code": True}
EXPERT_PARALLEL: Flags = {"tp_size": 8, "ep_size": 8}
DEEPEP: Flags = {"tp_size": 8, "ep_size": 8, "moe_a2a_backend": "deepep"}
FP4_KV: Flags = {"tp_size": 8, "kv_cache_dtype": "fp4_e2m1"}
SPECULATIVE: Flags = {"tp_size": 8, "speculative_algorithm": "EAGLE", "speculative_num_steps": 3}
PARTITION = {"SGLANG_PP_LAYER_PARTITION": "32,29"}

FIRST: list[tuple[str, Flags, Mapping[str, str], str]] = [
    ("tp8-champion", TP8_CHAMPION, {}, "0.5.3.post3"),  # CUTLASS as a choice, piecewise graphs
    ("pp2-champion", PP2_CHAMPION, PARTITION, "0.4.6.post5"),  # pipeline parallelism
    ("tp16-reference", TP16_REFERENCE, {}, "0.5.3.post3"),  # CUTLASS as a choice
    ("notes-winner", NOTES_WINNER, {}, "0.4.6.post5"),  # pipeline parallelism, dp-lm-head
    ("private-deployment", PRIVATE_DEPLOYMENT, {}, "0.4.3.post2"),
    ("ep", EXPERT_PARALLEL, {}, "0.4.3.post2"),
    ("deepep", DEEPEP, {}, "0.4.4.post4"),  # --enable-deepep-moe
    ("fp4-kv", FP4_KV, {}, "0.5.4.post3"),
    ("speculative", SPECULATIVE, {}, "0.4.3.post2"),
]
"""The first release that can say a recipe. By hand, from the presence and choices of SGLang's own options."""


def since(release: str, first: str) -> bool:
    return Version(release) >= Version(first)


def said(release: str, flags: Flags, env: Mapping[str, str] | None = None) -> tuple[Namespace, Translation]:
    """What the release understands of the translated flags."""
    translation = translate(flags, env or {}, table(release))
    return parse(release, translation.argv), translation


def size(got: Namespace, short: str, long: str) -> int:
    """A layout size: 0.5.14 renamed where argparse stores it, and releases without the option do 1."""
    value = getattr(got, short, getattr(got, long, 1))
    assert isinstance(value, int)
    return value


def layout(got: Namespace) -> tuple[int, int, int, int]:
    return (
        size(got, "tp_size", "tensor_parallel_size"),
        size(got, "pp_size", "pipeline_parallel_size"),
        size(got, "dp_size", "data_parallel_size"),
        size(got, "ep_size", "expert_parallel_size"),
    )


# --- every recipe in every release


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("name", "flags", "env", "first"), FIRST, ids=[row[0] for row in FIRST])
def test_recipe_is_said_or_refused(name: str, flags: Flags, env: Mapping[str, str], first: str, release: str) -> None:
    if not since(release, first):
        with pytest.raises(CannotExpress, match=f"cannot be said to SGLang {release}: "):
            translate(flags, env, table(release))
        return
    got, translation = said(release, flags, env)
    for flag in ("load_format", "mem_fraction_static", "chunked_prefill_size", "disable_radix_cache", "nnodes"):
        if flag in flags:
            assert getattr(got, flag) == flags[flag], name
    spelt = {option: entry["action"] for entry in entries(release) for option in entry["opts"]}
    for word in (word for word in translation.argv if word.startswith("-")):
        assert word in spelt  # nothing that argparse would have to complete
        assert not spelt[word].startswith("Deprecated"), word


@pytest.mark.parametrize("release", releases("0.5.3.post3"))
def test_tp8_champion(release: str) -> None:
    got, translation = said(release, TP8_CHAMPION)
    assert layout(got) == (8, 1, 1, 1)
    assert (got.mem_fraction_static, got.chunked_prefill_size, got.disable_radix_cache) == (0.87, 32768, True)
    assert (got.schedule_policy, got.moe_runner_backend, got.decode_attention_backend) == (
        "lof",
        "cutlass",
        "flashinfer",
    )
    if since(release, "0.5.14"):
        assert got.cuda_graph_max_bs_decode == 2048
        assert got.flashinfer_allreduce_fusion_backend == "auto"
        assert got.cuda_graph_backend_prefill == ("breakable" if since(release, "0.5.22") else "tc_piecewise")
    else:
        assert got.cuda_graph_max_bs == 2048
        assert got.enable_flashinfer_allreduce_fusion is True
    if not since(release, "0.5.10"):
        assert got.enable_piecewise_cuda_graph is True
    elif not since(release, "0.5.14"):
        assert (got.disable_piecewise_cuda_graph, got.enforce_piecewise_cuda_graph) == (False, False)
        assert not any("piecewise" in word for word in translation.argv)  # the switch only warns there
    matters = {note.flag for note in translation.notes if note.matters}
    expected = {"enable_piecewise_cuda_graph"} if since(release, "0.5.22") else set()
    assert matters == (expected if since(release, "0.5.4.post3") else {"moe_runner_backend"})


@pytest.mark.parametrize("release", releases("0.4.6.post5"))
def test_pp2_champion(release: str) -> None:
    got, translation = said(release, PP2_CHAMPION, PARTITION)
    assert layout(got) == (8, 2, 1, 1)
    assert (got.nnodes, got.node_rank, got.dist_init_addr) == (2, 1, "10.0.0.1:5000")
    assert translation.env == PARTITION
    assert translation.notes == ()


@pytest.mark.parametrize("release", releases("0.4.6.post5"))
def test_notes_winner(release: str) -> None:
    got, translation = said(release, NOTES_WINNER)
    assert got.enable_torch_compile
    assert got.enable_dp_lm_head
    assert got.trust_remote_code
    assert (got.attention_backend, got.dtype, got.warmups) == ("fa3", "bfloat16", "compile-deep-gemm")
    if since(release, "0.5.22"):
        assert layout(got) == (4, 2, 1, 1)
        assert got.attn_dp_size == 4
        assert got.enable_dp_attention is False  # deprecated there; the size says it
    else:
        assert layout(got) == (4, 2, 4, 1)
        assert got.enable_dp_attention is True
    twice = any("twice" in note.text and note.matters for note in translation.notes)
    assert twice is not since(release, "0.5.19")


@pytest.mark.parametrize("release", RELEASES)
def test_expert_parallelism(release: str) -> None:
    got, _ = said(release, EXPERT_PARALLEL)
    assert layout(got) == (8, 1, 1, 8)
    switch = getattr(got, "enable_ep_moe", None)
    assert switch is True if not since(release, "0.4.10.post2") else not switch


@pytest.mark.parametrize("release", releases("0.4.4.post4"))
def test_deepep(release: str) -> None:
    got, _ = said(release, DEEPEP)
    assert layout(got) == (8, 1, 1, 8)
    if since(release, "0.4.10.post2"):
        assert got.moe_a2a_backend == "deepep"
        assert not getattr(got, "enable_deepep_moe", False)
    else:
        assert got.enable_deepep_moe is True
        assert got.enable_ep_moe is False


@pytest.mark.parametrize("release", releases("0.5.4.post3"))
def test_fp4_kv_cache(release: str) -> None:
    got, _ = said(release, FP4_KV)
    assert got.kv_cache_dtype == ("fp4_mx_block16" if since(release, "0.5.16") else "fp4_e2m1")


# --- single flags, release by release: (flag, value, release, what argparse understands)

SAYS: list[tuple[Flags, str, str, dict[str, object]]] = [
    # CUDA graphs: false means off, wherever it became the default
    ({"enable_piecewise_cuda_graph": False}, "0.5.10", "0.5.13.post1", {"disable_piecewise_cuda_graph": True}),
    ({"enable_piecewise_cuda_graph": False}, "0.5.14", "0.5.23", {"cuda_graph_backend_prefill": "disabled"}),
    ({"enable_piecewise_cuda_graph": False}, "0.5.3.post3", "0.5.9", {"enable_piecewise_cuda_graph": False}),
    ({"disable_piecewise_cuda_graph": True}, "0.5.14", "0.5.23", {"cuda_graph_backend_prefill": "disabled"}),
    ({"disable_prefill_cuda_graph": True}, "0.5.10", "0.5.13.post1", {"disable_piecewise_cuda_graph": True}),
    ({"enforce_piecewise_cuda_graph": True}, "0.5.3.post3", "0.5.9", {"enable_piecewise_cuda_graph": True}),
    ({"enforce_piecewise_cuda_graph": True}, "0.5.10", "0.5.13.post1", {"enforce_piecewise_cuda_graph": True}),
    ({"enforce_piecewise_cuda_graph": True}, "0.5.14", "0.5.21", {"cuda_graph_backend_prefill": "tc_piecewise"}),
    ({"disable_cuda_graph": True}, "0.4.3.post2", "0.5.23", {"disable_cuda_graph": True}),
    ({"disable_cuda_graph": True}, "0.5.10", "0.5.13.post1", {"disable_piecewise_cuda_graph": True}),
    ({"cuda_graph_max_bs": 64}, "0.4.3.post2", "0.5.13.post1", {"cuda_graph_max_bs": 64}),
    ({"cuda_graph_max_bs": 64}, "0.5.14", "0.5.23", {"cuda_graph_max_bs_decode": 64}),
    ({"cuda_graph_max_bs_decode": 64}, "0.4.3.post2", "0.5.13.post1", {"cuda_graph_max_bs": 64}),
    ({"cuda_graph_bs": "1 2 4"}, "0.4.3.post2", "0.5.13.post1", {"cuda_graph_bs": [1, 2, 4]}),
    ({"cuda_graph_bs": "1 2 4"}, "0.5.14", "0.5.23", {"cuda_graph_bs_decode": [1, 2, 4]}),
    ({"piecewise_cuda_graph_max_tokens": 99}, "0.5.3.post3", "0.5.13.post1", {"piecewise_cuda_graph_max_tokens": 99}),
    ({"piecewise_cuda_graph_max_tokens": 99}, "0.5.14", "0.5.23", {"cuda_graph_max_bs_prefill": 99}),
    # the fused all-reduce
    (
        {"enable_flashinfer_allreduce_fusion": False},
        "0.5.10",
        "0.5.23",
        {"enforce_disable_flashinfer_allreduce_fusion": True, "enable_flashinfer_allreduce_fusion": False},
    ),
    (
        {"enable_flashinfer_allreduce_fusion": False},
        "0.4.9",
        "0.5.9",
        {"enable_flashinfer_allreduce_fusion": False},
    ),
    (
        {"enable_flashinfer_allreduce_fusion": True},
        "0.4.9",
        "0.5.13.post1",
        {"enable_flashinfer_allreduce_fusion": True},
    ),
    ({"enable_flashinfer_allreduce_fusion": True}, "0.5.14", "0.5.23", {"flashinfer_allreduce_fusion_backend": "auto"}),
    # pipeline micro-batches, under both names
    ({"pp_max_micro_batch_size": 4}, "0.4.6.post5", "0.5.3", {"max_micro_batch_size": 4}),
    ({"pp_max_micro_batch_size": 4}, "0.5.3.post3", "0.5.23", {"pp_max_micro_batch_size": 4}),
    ({"max_micro_batch_size": 4}, "0.4.6.post5", "0.5.3", {"max_micro_batch_size": 4}),
    ({"max_micro_batch_size": 4}, "0.5.3.post3", "0.5.23", {"pp_max_micro_batch_size": 4}),
    # mixtures of experts
    ({"moe_a2a_backend": "none"}, "0.5.1", "0.5.23", {"moe_a2a_backend": "none"}),
    ({"moe_a2a_backend": "none"}, "0.4.10.post2", "0.4.10.post2", {"moe_a2a_backend": None}),
    ({"moe_runner_backend": "triton"}, "0.5.1", "0.5.23", {"moe_runner_backend": "triton"}),
    ({"moe_runner_backend": "deep_gemm"}, "0.5.3.post3", "0.5.23", {"moe_runner_backend": "deep_gemm"}),
    (
        {"moe_runner_backend": "flashinfer_cutlass"},
        "0.4.9.post6",
        "0.4.10.post2",
        {"enable_flashinfer_cutlass_moe": True},
    ),
    ({"enable_flashinfer_cutlass_moe": True}, "0.5.3", "0.5.23", {"moe_runner_backend": "flashinfer_cutlass"}),
    ({"enable_ep_moe": True, "tp_size": 8}, "0.4.3.post2", "0.5.1.post3", {"enable_ep_moe": True}),
    ({"enable_ep_moe": True, "tp_size": 8}, "0.5.14", "0.5.23", {"ep_size": 8}),
    ({"enable_ep_moe": True, "tp_size": 8}, "0.5.3", "0.5.13.post1", {"expert_parallel_size": 8}),
    ({"enable_deepep_moe": True}, "0.4.4.post4", "0.5.1.post3", {"enable_deepep_moe": True}),
    ({"enable_deepep_moe": True}, "0.5.3", "0.5.23", {"moe_a2a_backend": "deepep"}),
    ({"tp_size": 8, "ep_size": 4}, "0.4.10.post2", "0.5.13.post1", {"expert_parallel_size": 4}),
    # data parallelism
    ({"tp_size": 4, "dp_size": 2}, "0.5.14", "0.5.23", {"dp_size": 2}),
    ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, "0.4.3.post2", "0.5.21", {"enable_dp_attention": True}),
    ({"attn_dp_size": 4, "tp_size": 8}, "0.5.14", "0.5.21", {"enable_dp_attention": True, "dp_size": 4}),
    ({"attn_dp_size": 4, "tp_size": 8}, "0.5.22", "0.5.23", {"attn_dp_size": 4, "dp_size": 1}),
    ({"load_balance_method": "round_robin"}, "0.4.3.post2", "0.5.23", {"load_balance_method": "round_robin"}),
    ({"load_balance_method": "auto"}, "0.4.3.post2", "0.5.7", {"load_balance_method": "round_robin"}),
    ({"load_balance_method": "auto"}, "0.5.8", "0.5.23", {"load_balance_method": "auto"}),
    ({"load_balance_method": "shortest_queue"}, "0.5.3", "0.5.7", {"load_balance_method": "shortest_queue"}),
    ({"load_balance_method": "shortest_queue"}, "0.5.8", "0.5.23", {"load_balance_method": "total_requests"}),
    ({"load_balance_method": "total_requests"}, "0.5.3", "0.5.7", {"load_balance_method": "shortest_queue"}),
    (
        {"load_balance_method": "minimum_tokens"},
        "0.4.10.post2",
        "0.5.1.post3",
        {"load_balance_method": "minimum_tokens"},
    ),
    ({"load_balance_method": "minimum_tokens"}, "0.5.8", "0.5.23", {"load_balance_method": "total_tokens"}),
    # types and kernels
    ({"kv_cache_dtype": "fp4_mx_block16"}, "0.5.4.post3", "0.5.15.post1", {"kv_cache_dtype": "fp4_e2m1"}),
    ({"kv_cache_dtype": "nvfp4"}, "0.5.16", "0.5.23", {"kv_cache_dtype": "nvfp4"}),
    ({"kv_cache_dtype": "bf16"}, "0.5.4.post3", "0.5.23", {"kv_cache_dtype": "bf16"}),
    ({"kv_cache_dtype": "bfloat16", "dtype": "bfloat16"}, "0.4.3.post2", "0.5.3.post3", {"kv_cache_dtype": "auto"}),
    ({"attention_backend": "dsa"}, "0.5.3", "0.5.12.post1", {"attention_backend": "nsa"}),
    ({"attention_backend": "nsa"}, "0.5.13", "0.5.23", {"attention_backend": "dsa"}),
    ({"decode_attention_backend": "nsa"}, "0.5.13", "0.5.23", {"decode_attention_backend": "dsa"}),
    ({"speculative_algorithm": "NEXTN"}, "0.4.3.post2", "0.5.23", {"speculative_algorithm": "NEXTN"}),
    # argparse's own --no- switches
    ({"dllm_fdfo": False}, "0.5.16", "0.5.23", {"dllm_fdfo": False}),
    # plain switches
    ({"disable_radix_cache": False}, "0.4.3.post2", "0.5.23", {"disable_radix_cache": False}),
    ({"chunked_prefill_size": -1}, "0.4.3.post2", "0.5.23", {"chunked_prefill_size": -1}),
]


@pytest.mark.parametrize(("flags", "first", "last", "expected"), SAYS)
def test_says(flags: Flags, first: str, last: str, expected: dict[str, object]) -> None:
    for release in releases(first, last):
        got, _ = said(release, flags)
        assert {name: getattr(got, name) for name in expected} == expected, release


REFUSES: list[tuple[Flags, str, str, str]] = [
    ({"pp_size": 2}, "0.4.3.post2", "0.4.6", "--pp-size"),
    ({"enable_piecewise_cuda_graph": True}, "0.4.3.post2", "0.5.3", "first in 0.5.3.post3"),
    ({"piecewise_cuda_graph_max_tokens": 99}, "0.4.3.post2", "0.5.3", "--piecewise-cuda-graph-max-tokens"),
    (
        {"enable_flashinfer_allreduce_fusion": True},
        "0.4.3.post2",
        "0.4.8.post1",
        "--enable-flashinfer-allreduce-fusion",
    ),
    ({"schedule_policy": "lof"}, "0.4.3.post2", "0.4.10.post2", "no choice 'lof'"),
    ({"decode_attention_backend": "fa3"}, "0.4.3.post2", "0.4.9", "--decode-attention-backend"),
    ({"attention_backend": "cutlass_mla"}, "0.5.20", "0.5.23", "no choice 'cutlass_mla'"),
    ({"attention_backend": "dsa"}, "0.4.3.post2", "0.5.1.post3", "no choice 'dsa'"),
    ({"moe_runner_backend": "cutlass"}, "0.4.9.post6", "0.5.3", "SGLANG_CUTLASS_MOE=1"),
    ({"moe_runner_backend": "triton"}, "0.4.3.post2", "0.4.10.post2", "first in 0.5.1"),
    ({"moe_runner_backend": "flashinfer_cutlass"}, "0.4.3.post2", "0.4.9", "first in 0.5.1"),
    ({"moe_a2a_backend": "deepep"}, "0.4.3.post2", "0.4.3.post2", "--moe-a2a-backend"),
    ({"moe_a2a_backend": "mooncake"}, "0.4.3.post2", "0.5.3", "moe-a2a-backend"),
    ({"tp_size": 8, "ep_size": 4}, "0.4.3.post2", "0.4.9.post6", "give ep_size 8"),
    ({"tp_size": 8, "ep_size": 4, "moe_a2a_backend": "deepep"}, "0.4.4.post4", "0.5.23", "give ep_size 8"),
    ({"tp_size": 8, "enable_dp_attention": True}, "0.4.3.post2", "0.5.1.post3", "give a dp_size above 1"),
    ({"tp_size": 8, "dp_size": 4, "enable_dp_attention": True}, "0.4.3.post2", "0.4.3.post2", "dp_size to tp_size"),
    ({"attn_dp_size": 2, "dp_size": 2}, "0.4.3.post2", "0.5.21", "go together in no release"),
    ({"load_balance_method": "shortest_queue"}, "0.4.3.post2", "0.5.1.post3", "not implemented"),
    ({"load_balance_method": "minimum_tokens"}, "0.5.3", "0.5.7", "falls back to round_robin"),
    ({"load_balance_method": "follow_bootstrap_room"}, "0.4.3.post2", "0.5.7", "no choice"),
    ({"kv_cache_dtype": "fp4_e2m1"}, "0.4.3.post2", "0.5.3.post3", "no choice 'fp4_e2m1'"),
    ({"kv_cache_dtype": "nvfp4"}, "0.4.3.post2", "0.5.15.post1", "no choice 'nvfp4'"),
    ({"kv_cache_dtype": "bf16"}, "0.4.3.post2", "0.5.3.post3", "give dtype bfloat16"),
    ({"warmups": "compile-deep-gemm"}, "0.4.3.post2", "0.4.3.post2", "--warmups"),
    ({"speculative_algorithm": "EAGEL"}, "0.4.3.post2", "0.5.23", "EAGLE"),
    ({"speculative_algorithm": "DFLASH"}, "0.4.3.post2", "0.5.10.post1", "no choice 'DFLASH'"),
    # mistakes, refused in every release
    ({"mem_fraction_statik": 0.8}, "0.4.3.post2", "0.5.23", "nearest: --mem-fraction-static"),
    ({"disable_radix_cache": "yes"}, "0.4.3.post2", "0.5.23", "is a switch"),
    ({"chunked_prefill_size": True}, "0.4.3.post2", "0.5.23", "takes a value"),
    ({"chunked_prefill_size": False}, "0.4.3.post2", "0.5.23", "takes a value"),
    ({"chunked_prefill_size": "8k"}, "0.4.3.post2", "0.5.23", "whole number"),
    ({"tp_size": 0, "ep_size": 2}, "0.4.3.post2", "0.5.23", "at least 1"),
    ({"tp": 8}, "0.4.3.post2", "0.5.23", "no option --tp"),  # an abbreviation
    ({"pp_max_micro_batch_size": 4, "max_micro_batch_size": 8}, "0.4.6.post5", "0.5.23", "leave one of the two out"),
    (
        {"disable_piecewise_cuda_graph": True, "enable_piecewise_cuda_graph": True},
        "0.5.3.post3",
        "0.5.23",
        "leave one of the two out",
    ),
]


@pytest.mark.parametrize(("flags", "first", "last", "reason"), REFUSES)
def test_refuses(flags: Flags, first: str, last: str, reason: str) -> None:
    for release in releases(first, last):
        with pytest.raises(CannotExpress) as refused:
            translate(flags, {}, table(release))
        sentence = str(refused.value)
        assert reason in sentence, release
        assert sentence.startswith(tuple(flags)), release
        assert f"SGLang {release}:" in sentence
        assert "\n" not in sentence


# --- notes


def notes(release: str, flags: Flags, env: Mapping[str, str] | None = None) -> list[tuple[NoteKind, str, bool]]:
    return [(note.kind, note.flag, note.matters) for note in translate(flags, env or {}, table(release)).notes]


def test_what_is_said_as_it_is_has_no_note() -> None:
    assert notes("0.5.20", {"tp_size": 8, "mem_fraction_static": 0.87, "disable_radix_cache": True}) == []


def test_dp_attention_with_dp_1_is_ignored_and_that_matters() -> None:
    for release in releases("0.5.3"):
        assert (NoteKind.DROPPED, "enable_dp_attention", True) in notes(
            release, {"tp_size": 8, "enable_dp_attention": True}
        )


@pytest.mark.parametrize(
    "other",
    [
        {"pp_size": 2},
        {"enable_torch_compile": True},
        {"moe_a2a_backend": "deepep"},
        {"speculative_algorithm": "EAGLE"},
        {"moe_runner_backend": "flashinfer_trtllm"},
        {"dp_size": 8, "enable_dp_attention": True},
    ],
)
def test_what_turns_prefill_graphs_off_unasked_is_noted(other: Flags) -> None:
    asked = {"tp_size": 8, "enable_piecewise_cuda_graph": True}
    alone = notes("0.5.10", asked)
    assert alone == [(NoteKind.CHANGED, "enable_piecewise_cuda_graph", False)]
    assert (NoteKind.CHANGED, "enable_piecewise_cuda_graph", True) in notes("0.5.10", {**asked, **other})


def test_the_rewritten_load_balancing_matters() -> None:
    assert notes("0.5.8", {"load_balance_method": "shortest_queue"}) == [
        (NoteKind.CHANGED, "load_balance_method", True)
    ]
    assert notes("0.5.7", {"load_balance_method": "auto"}) == [(NoteKind.CHANGED, "load_balance_method", False)]


def test_a_switch_that_cannot_be_turned_off() -> None:
    assert notes("0.5.20", {"enable_multimodal": False}) == [(NoteKind.DROPPED, "enable_multimodal", True)]
    assert notes("0.5.20", {"disable_radix_cache": False}) == [(NoteKind.DROPPED, "disable_radix_cache", False)]


def test_cutlass_needs_its_variable_in_0_5_3_post3() -> None:
    asked = {"moe_runner_backend": "cutlass"}
    assert notes("0.5.3.post3", asked) == [(NoteKind.DROPPED, "moe_runner_backend", True)]
    assert notes("0.5.3.post3", asked, {"SGLANG_CUTLASS_MOE": "1"}) == [(NoteKind.DROPPED, "moe_runner_backend", False)]
    assert notes("0.5.4.post3", asked) == []


def test_what_was_said_stands_under_the_releases_own_names() -> None:
    """To be compared with what SGLang resolved; the logical flags would differ without any downgrade."""
    flags: Flags = {"tp_size": 8, "kv_cache_dtype": "fp4_e2m1", "cuda_graph_max_bs": 64, "attention_backend": "nsa"}
    assert translate(flags, {}, table("0.5.20")).said == {
        "tp_size": 8,
        "kv_cache_dtype": "fp4_mx_block16",
        "cuda_graph_max_bs_decode": 64,
        "attention_backend": "dsa",
    }
    assert translate({"dllm_fdfo": False}, {}, table("0.5.20")).said == {"dllm_fdfo": False}


def test_every_rule_has_a_source_and_every_flag_one_rule() -> None:
    rules = [*LAYOUT_RULES, *GRAPH_RULES, *BACKEND_RULES]
    flags = [flag for rule in rules for flag in rule.flags] + [flag for row in RENAMES for flag in row.flags]
    assert sorted(flags) == sorted(RULES)
    sources = [rule.source for rule in RULES.values()] + [row.source for row in SAME_VALUES]
    assert all(sources + [row.source for row in TWINS])


# --- variables


@pytest.mark.parametrize("given_name", ["SGL_DG_CACHE_DIR", "SGLANG_DG_CACHE_DIR"])
def test_both_names_of_the_deep_gemm_cache_are_set(given_name: str) -> None:
    for release in ("0.4.6.post5", "0.5.3.post3", "0.5.23"):
        translation = translate({}, {given_name: "/kernels"}, table(release))
        assert translation.env == {"SGL_DG_CACHE_DIR": "/kernels", "SGLANG_DG_CACHE_DIR": "/kernels"}
        assert [note.flag for note in translation.notes] == [given_name]


def test_two_names_with_two_values_are_refused() -> None:
    env = {"SGL_ENABLE_JIT_DEEPGEMM": "1", "SGLANG_ENABLE_JIT_DEEPGEMM": "0"}
    with pytest.raises(CannotExpress, match="is its other name and is '0'; give one of them"):
        translate({}, env, table("0.5.9"))
    same = {"SGL_ENABLE_JIT_DEEPGEMM": "1", "SGLANG_ENABLE_JIT_DEEPGEMM": "1"}
    assert translate({}, same, table("0.5.9")).notes == ()


@pytest.mark.parametrize(
    ("layers", "pp", "reason"),
    [
        ("32,29", 1, "give a pp_size"),
        ("32,29", 3, "give 3 numbers"),
        ("32,x", 2, "give 2 numbers"),
        ("61,0", 2, "give 2 numbers"),
        ("", 2, "give 2 numbers"),
    ],
)
def test_a_layer_partition_fits_the_pipeline(layers: str, pp: int, reason: str) -> None:
    with pytest.raises(CannotExpress, match=reason):
        translate({"pp_size": pp}, {"SGLANG_PP_LAYER_PARTITION": layers}, table("0.5.9"))


def test_other_variables_pass() -> None:
    env = {"NCCL_ALGO": "Ring", "SGLANG_CACHE_DIR": "/c"}
    assert translate({}, env, table("0.5.9")).env == env
    old = translate({}, env, table("0.5.1"))
    assert old.env == env
    assert [(note.kind, note.flag) for note in old.notes] == [(NoteKind.DROPPED, "SGLANG_CACHE_DIR")]


# --- properties

LOGICAL: dict[str, list[str | int | float | bool]] = {
    "tp_size": [1, 4, 8],
    "pp_size": [1, 2],
    "dp_size": [1, 2, 8],
    "ep_size": [1, 4, 8],
    "nnodes": [2],
    "enable_dp_attention": [True, False],
    "enable_dp_lm_head": [True, False],
    "mem_fraction_static": [0.87],
    "schedule_policy": ["fcfs", "lof", "priority"],
    "moe_runner_backend": ["auto", "cutlass", "triton", "flashinfer_cutlass"],
    "moe_a2a_backend": ["none", "deepep", "mooncake"],
    "enable_piecewise_cuda_graph": [True, False],
    "piecewise_cuda_graph_max_tokens": [4096],
    "cuda_graph_max_bs": [256],
    "cuda_graph_bs": ["1 2", "8"],
    "disable_cuda_graph": [True, False],
    "enable_flashinfer_allreduce_fusion": [True, False],
    "attention_backend": ["fa3", "nsa", "dsa", "triton"],
    "decode_attention_backend": ["flashinfer"],
    "kv_cache_dtype": ["auto", "bf16", "fp4_e2m1", "fp8_e4m3", "nvfp4"],
    "load_balance_method": ["auto", "round_robin", "shortest_queue", "total_tokens"],
    "speculative_algorithm": ["EAGLE", "DFLASH", "nonsense"],
    "warmups": ["compile-deep-gemm"],
    "max_micro_batch_size": [8],
    "page_size": [1, 64],
    "disable_radix_cache": [True, False],
    "enable_torch_compile": [True, False],
    "max_running_requests": [2048],
    "no_such_flag": [True],
}


def outcome(flags: Flags, options: OptionTable) -> Translation | str:
    try:
        return translate(flags, {}, options)
    except CannotExpress as refused:
        return str(refused)


def some_flags() -> st.SearchStrategy[dict[str, str | int | float | bool]]:
    pairs = st.sampled_from([(flag, value) for flag, values in LOGICAL.items() for value in values])
    return st.lists(pairs, min_size=1, max_size=6, unique_by=lambda pair: pair[0]).map(dict)


@given(release=st.sampled_from(RELEASES), flags=some_flags())
def test_no_flag_vanishes(release: str, flags: dict[str, str | int | float | bool]) -> None:
    """A flag that is taken away changes the arguments or the notes; and the parser takes what is said."""
    whole = outcome(flags, table(release))
    if isinstance(whole, str):
        assert f"SGLang {release}: " in whole
        return
    parse(release, whole.argv)
    for flag in flags:
        rest = outcome({name: value for name, value in flags.items() if name != flag}, table(release))
        assert rest != whole, flag


@given(flags=some_flags())
def test_the_newest_release_is_judged_by_its_options(flags: dict[str, str | int | float | bool]) -> None:
    """A build whose version says nothing is translated like the release whose options it has."""
    built = OptionTable(table("0.5.23").options, "0.0.0+checkout~x")
    ours, its = outcome(flags, table("0.5.23")), outcome(flags, built)
    if isinstance(ours, Translation):
        assert ours == its
    else:
        assert ours == str(its).replace("0.0.0+checkout~x", "0.5.23")
