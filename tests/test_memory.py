"""The model's shape and the memory estimate: published counts, hand arithmetic, recorded H200 logs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.cell import Cell, cell_of
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.memory import (
    GIB,
    GPU_BYTES,
    MIB,
    Fit,
    Load,
    default_chunk,
    estimate,
    fits,
    kv_bytes_per_token,
    partition,
    stages,
    weights_bytes,
)
from pytest_r1perf.modelshape import ModelShape, read_shape, shape_of
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.topology import Topology

CATALOG = load_catalog()
RECORDED = Path(__file__).parent / "recorded"
H200_BYTES = 143771 * MIB  # the recorded host's own figure
H100_BYTES = 81559 * MIB

# DeepSeek-V3/R1: inference/configs/config_671B.json and the README of deepseek-ai/DeepSeek-V3.
R1: Mapping[str, Any] = MappingProxyType(
    {
        "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "first_k_dense_replace": 3,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 129280,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    }
)
# What the recorded runs loaded: R1's layers, four of them; and a small BF16 model of the same architecture.
R1_SLICE = {**R1, "num_hidden_layers": 4, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0}
R1_MINI = {key: value for key, value in R1_SLICE.items() if key != "quantization_config"} | {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 8192,
}
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
MIXTRAL = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}


def r1() -> ModelShape:
    return shape_of(dict(R1), "R1")


def cell(
    topology: str | Topology = "tp8",
    platform: str = "h200x16",
    flags: Mapping[str, FlagValue] = MappingProxyType({}),
    env: Mapping[str, str] = MappingProxyType({}),
) -> Cell:
    name = topology if isinstance(topology, str) else "tp8"
    spec = PerfSpec(name, 5000, recipe="default", flags=tuple(flags.items()), env=tuple(env.items()))
    made = cell_of(spec, CATALOG.platform(platform), CATALOG)
    return made if isinstance(topology, str) else replace(made, topology=topology)


def test_parameters_of_r1_are_the_published_ones() -> None:
    shape = r1()
    assert shape.total_params == pytest.approx(671e9, rel=0.001)  # README: 671B
    assert shape.active_params == pytest.approx(36.7e9, rel=0.01)  # README_WEIGHTS.md: 36.7B
    assert round(shape.active_params / 1e9) == 37  # README: 37B
    assert shape.mtp_params == pytest.approx(11.5e9, rel=0.01)  # README_WEIGHTS.md: 11.5B of its own


def test_r1_is_counted_to_the_last_parameter() -> None:
    """deepseek-ai/DeepSeek-R1 on Hugging Face: 680,571,043,840 FP8 and 3,918,786,560 BF16 parameters.

    Its float32 ones are block scales, and a bias for each of 256 experts in 59 layers (MTP's included). MTP's
    embedding and head are stored a second time.
    """
    shape = r1()
    on_disk = shape.total_params + shape.mtp_params + 2 * shape.embedding
    assert on_disk == 680_571_043_840 + 3_918_786_560 + 59 * 256
    attention = shape.attention_replicated() + shape.attention_sharded()
    assert sum(attention + shape.mlp(layer) for layer in range(62)) == 680_571_043_840


def test_parameters_of_plain_and_mixtral_shapes_are_the_published_ones() -> None:
    llama = shape_of(LLAMA_8B, "llama")
    assert not llama.is_mla
    assert llama.total_params == pytest.approx(8.03e9, rel=0.001)  # its model card: 8.03B
    assert llama.active_params == llama.total_params - llama.embedding
    mixtral = shape_of(MIXTRAL, "mixtral")
    assert mixtral.total_params == pytest.approx(46.7e9, rel=0.001)  # Mixtral of Experts: 46.7B, 12.9B active
    assert mixtral.active_params == pytest.approx(12.9e9, rel=0.02)


def test_tied_embeddings_have_no_head_and_a_text_config_counts() -> None:
    tied = shape_of({**LLAMA_8B, "tie_word_embeddings": True}, "tied")
    assert shape_of(LLAMA_8B, "untied").total_params - tied.total_params == 128256 * 4096
    nested = {"architectures": ["Some"], "text_config": {k: v for k, v in LLAMA_8B.items() if k != "architectures"}}
    assert shape_of(nested, "nested").total_params == 8030261248


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("auto", 70272), ("bf16", 70272), ("fp8_e4m3", 35136), ("fp8_e5m2", 35136), ("fp4_e2m1", 17568 + 2196)],
)
def test_kv_bytes_of_r1(kind: str, expected: int) -> None:
    """61 x (512 + 64) elements; FP4 has half a byte and a scale byte for every 16."""
    assert kv_bytes_per_token(r1(), cell(flags={"kv_cache_dtype": kind}), 61) == expected


@pytest.mark.parametrize("topology", ["tp1", "tp8", "tp16", "tp4-dp4-pp2"])
def test_mla_keeps_the_whole_token_on_every_rank(topology: str) -> None:
    assert kv_bytes_per_token(r1(), cell(topology), 61) == 70272


@pytest.mark.parametrize(("topology", "expected"), [("tp1", 131072), ("tp8", 16384), ("tp16", 16384)])
def test_gqa_splits_its_heads_and_replicates_what_is_left(topology: str, expected: int) -> None:
    """32 layers x (K and V) x 8 heads x 128 x 2 bytes = 131,072; from 8 ranks on one head a rank."""
    assert kv_bytes_per_token(shape_of(LLAMA_8B, "llama"), cell(topology), 32) == expected


def test_float32_on_the_cpu_doubles_the_kv() -> None:
    assert kv_bytes_per_token(r1(), cell("tp1", "cpu", {"dtype": "float32"}), 61) == 140544


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, (30, 31)), ("32,29", (32, 29)), ("32,28", (30, 31)), ("61", (30, 31)), ("a,b", (30, 31))],
)
def test_partition(text: str | None, expected: tuple[int, ...]) -> None:
    """SGLang gives the last stages the layers that are left over; a list that it refuses counts as none."""
    made = cell("pp2", env={"SGLANG_PP_LAYER_PARTITION": text} if text else {})
    assert partition(r1(), made) == expected
    assert stages(r1(), made) == [(0, expected[0]), (expected[0], 61)]


def test_weights_of_r1_over_eight_gpus() -> None:
    """By hand, in 1e9 elements: MLA 0.923 on every rank; of 10.490 + 1.189 + 656.464 an eighth; FP8 with scales."""
    replicated = 61 * 7168 * (1536 + 512 + 64)
    heads = 61 * (1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168)
    mlp = 3 * 3 * 7168 * 18432 + 58 * 257 * 3 * 7168 * 2048
    linear = (replicated + (heads + mlp) / 8) * (1 + 4 / 128**2)
    outer = 2 * 129280 * 7168 / 8 * 2
    absorbed = 61 * 128 * 512 * 256 / 8 * 2
    found = weights_bytes(r1(), cell("tp8"), 0, 61)
    assert found == pytest.approx(linear + outer + absorbed, rel=0.005)  # routers and norms are the rest
    assert found / GIB == pytest.approx(79.3, abs=0.5)


def test_dp_attention_splits_attention_over_fewer_ranks() -> None:
    """With tp 8 as 8 DP-attention ranks: each holds attention whole, and of experts an eighth as before."""
    dp = Topology("dp8", tp_size=8, dp_size=8, enable_dp_attention=True)
    more = weights_bytes(r1(), cell(dp), 3, 60) - weights_bytes(r1(), cell("tp8"), 3, 60)
    heads = 57 * (1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168)
    absorbed = 57 * 128 * 512 * 256
    assert more == pytest.approx(7 / 8 * (heads * (1 + 4 / 128**2) + absorbed * 2), rel=1e-6)


def test_a_pure_dp_replica_is_a_whole_copy() -> None:
    copies = Topology("dp2", tp_size=8, dp_size=2)
    assert weights_bytes(r1(), cell(copies), 0, 61) == weights_bytes(r1(), cell("tp8"), 0, 61)


def test_expert_parallel_ranks_hold_as_much_as_tensor_parallel_ones() -> None:
    assert weights_bytes(r1(), cell("tp8-ep8"), 0, 61) == weights_bytes(r1(), cell("tp8"), 0, 61)


@given(cut=st.integers(1, 60))
def test_stages_together_weigh_what_the_model_does(cut: int) -> None:
    made = cell("tp8")
    parts = weights_bytes(r1(), made, 0, cut) + weights_bytes(r1(), made, cut, 61)
    assert parts == pytest.approx(weights_bytes(r1(), made, 0, 61), abs=2)


@given(tp=st.sampled_from([1, 2, 4, 8]), shape=st.sampled_from([r1(), shape_of(LLAMA_8B, "llama")]))
def test_more_ranks_hold_less_each_and_more_together(tp: int, shape: ModelShape) -> None:
    one, two = (weights_bytes(shape, cell(Topology("t", tp_size=ranks)), 0, shape.num_layers) for ranks in (tp, 2 * tp))
    assert one / 2 <= two < one


def test_online_quantization_of_a_plain_model() -> None:
    shape = shape_of(LLAMA_8B, "llama")
    plain = weights_bytes(shape, cell("tp1"), 0, 32)
    assert plain == pytest.approx(2 * 8.03e9, rel=0.001)
    fp8 = weights_bytes(shape, cell("tp1", flags={"quantization": "fp8"}), 0, 32)
    assert plain - fp8 == pytest.approx(8.03e9 - 2 * 128256 * 4096, rel=0.001)  # embedding and head stay


def test_an_unknown_quantization_counts_in_full() -> None:
    plain = {key: value for key, value in R1.items() if key != "quantization_config"}
    odd = {**plain, "quantization_config": {"quant_method": "brand-new"}}
    made = cell("tp8")
    assert weights_bytes(shape_of(odd, "odd"), made, 0, 61) == weights_bytes(shape_of(plain, "plain"), made, 0, 61)
    four = {**plain, "quantization_config": {"quant_method": "awq", "bits": 4}}
    # 84.44e9 elements a rank at half a byte, 0.86e9 of embedding, head and routers at two, 0.26e9 bytes absorbed
    assert weights_bytes(shape_of(four, "awq"), made, 0, 61) == pytest.approx(42.22e9 + 0.68e9 + 0.26e9, rel=0.003)


# --- against recorded runs ------------------------------------------------------------------------------------------


def recorded(log: str) -> dict[str, float]:
    """The memory lines of a recorded log: GiB (SGLang writes GB and means 2**30), tokens."""
    text = (RECORDED / log).read_text(encoding="utf-8")
    patterns = {
        "weights": r"Load weight end.*mem usage=([\d.]+) GB",
        "tokens": r"KV Cache is allocated\. #tokens: (\d+)",
        "kv": r"KV size: ([\d.]+) GB",
        "graphs": r"Capture cuda graph end\..*?mem usage=([\d.]+) GB",
        "outside": r"Memory pool end\. avail mem=([\d.]+) GB",
        "fraction": r"mem_fraction_static=([\d.]+)",
    }
    return {name: float(re.findall(pattern, text)[0]) for name, pattern in patterns.items()}


@pytest.mark.parametrize(
    ("log", "config", "flags", "error"),
    [
        # R1's own layer shapes, FP8: weights 36.29 for 36.35 GiB.
        (
            "r1-slice_n1000_fa3_fresh2.log",
            R1_SLICE,
            {"mem_fraction_static": 0.87, "chunked_prefill_size": 32768, "cuda_graph_max_bs": 128},
            0.003,
        ),
        # Small: the log's 0.69 GiB is rounded to 1.4 % of itself, and we say 0.68.
        ("r1-mini_n500_triton_0.5.11.log", R1_MINI, {"mem_fraction_static": 0.896}, 0.025),
    ],
)
def test_estimate_against_recorded_h200_runs(
    log: str, config: Mapping[str, Any], flags: Mapping[str, FlagValue], error: float
) -> None:
    """Weights within ``error``; tokens within 0.3 % (context memory is a constant of ours, to 0.02 GiB)."""
    seen = recorded(log)
    found = estimate(shape_of(config, log), cell("tp1", "h200x1", flags), H200_BYTES)
    assert found.weights_bytes_per_gpu / GIB == pytest.approx(seen["weights"], rel=error)
    assert found.free_for_kv / GIB == pytest.approx(seen["kv"], rel=0.003)
    assert found.max_tokens == pytest.approx(seen["tokens"], rel=0.003)
    assert seen["kv"] * GIB / seen["tokens"] == pytest.approx(found.kv_bytes_per_token_per_gpu, rel=1e-3)
    assert found.outside_bytes / GIB == pytest.approx(seen["outside"], rel=0.04)  # 0.4 GiB go to the pool's indices


def test_graph_memory_is_fitted_to_one_recorded_capture_and_rough_elsewhere() -> None:
    """Exact where it was fitted (1.95 GiB); ten times too much for the small model's 0.23 GiB: an upper figure."""
    slice_run, mini_run = (recorded(log) for log in ("r1-slice_n1000_fa3_fresh2.log", "r1-mini_n500_triton_0.5.11.log"))
    fitted = estimate(r1(), cell("tp1", "h200x1", {"cuda_graph_max_bs": 128}), H200_BYTES)
    assert fitted.graph_bytes / GIB == pytest.approx(slice_run["graphs"], rel=0.01)
    mini = estimate(shape_of(R1_MINI, "mini"), cell("tp1", "h200x1"), H200_BYTES)
    assert 5 < mini.graph_bytes / GIB / mini_run["graphs"] < 12
    assert estimate(r1(), cell("tp8", flags={"disable_cuda_graph": True}), H200_BYTES).graph_bytes == 0


def test_the_fraction_that_sglang_chooses_is_met_within_its_own_moves() -> None:
    """0.5.11 chose 0.896: our rule is 0.5.9's, and 0.5.10 began to keep 1.5 GiB more for MLA (1.1 % of 140)."""
    found = estimate(shape_of(R1_MINI, "mini"), cell("tp1", "h200x1"), H200_BYTES)
    chosen = recorded("r1-mini_n500_triton_0.5.11.log")["fraction"]
    assert found.mem_fraction_static == pytest.approx(chosen, abs=0.0115)
    # 512 + 1.5 x 8192 + 2 x 256 + 128 = 13440 MiB of 143771
    assert found.mem_fraction_static == 0.907
    assert any("0.907" in text for text in found.assumed)


@pytest.mark.parametrize(
    ("topology", "flags", "kept_mib"),
    [
        (Topology("tp8", tp_size=8), {}, 512 + 12288 + 2 * 512 + 1024),
        (Topology("dp8", tp_size=8, dp_size=8, enable_dp_attention=True), {}, 14848 + 512 * 8 * 4.5),
        (
            Topology("dp8", tp_size=8, dp_size=8, enable_dp_attention=True),
            {"cuda_graph_max_bs": 256},
            512 + 12288 + 512 + 1024 + 256 * 8 * 3,
        ),
        (Topology("tp8", tp_size=8), {"chunked_prefill_size": -1}, 512 + 1.5 * 16384 + 1024 + 1024),
        (Topology("tp1", tp_size=1), {"chunked_prefill_size": 2048, "cuda_graph_max_bs": 8}, 10240),
    ],
)
def test_default_fraction_by_hand(topology: Topology, flags: Mapping[str, FlagValue], kept_mib: float) -> None:
    """SGLang 0.5.9, server_args.py:1020-1063; with more than 60 GiB at least 10 GiB are kept."""
    found = estimate(r1(), cell(topology, flags=flags), H200_BYTES)
    assert found.mem_fraction_static == pytest.approx((143771 - kept_mib) / 143771, abs=0.0005)


def test_every_gpu_platform_has_its_memory() -> None:
    accelerators = {platform.accelerator for platform in CATALOG.platforms.values() if not platform.is_cpu}
    assert accelerators == set(GPU_BYTES)
    assert (GPU_BYTES["NVIDIA H200"], GPU_BYTES["NVIDIA H100 80GB HBM3"]) == (H200_BYTES, H100_BYTES)


@pytest.mark.parametrize(("gib", "chunk"), [(24, 2048), (48, 4096), (80, 8192), (141, 8192), (180, 16384)])
def test_default_chunk_by_the_gpus_memory(gib: int, chunk: int) -> None:
    assert default_chunk(gib * GIB) == chunk


def test_the_stage_with_the_least_room_counts() -> None:
    """PP2 at 32,29: the first stage has more layers, 32 x 576 x 2 bytes a token, and fewer tokens fit."""
    made = cell("pp2", flags={"mem_fraction_static": 0.83}, env={"SGLANG_PP_LAYER_PARTITION": "32,29"})
    found = estimate(r1(), made, H200_BYTES)
    assert found.kv_bytes_per_token_per_gpu == 36864
    assert found.pools == 1
    wide = estimate(r1(), cell("tp8", flags={"mem_fraction_static": 0.83}), H200_BYTES)
    assert found.max_tokens > 2 * wide.max_tokens


def test_data_parallel_ranks_have_a_pool_each() -> None:
    flags = {"mem_fraction_static": 0.8}
    attention = estimate(
        r1(), cell(Topology("t", tp_size=8, dp_size=4, enable_dp_attention=True), flags=flags), H200_BYTES
    )
    copies = estimate(r1(), cell(Topology("t", tp_size=8, dp_size=2), flags=flags), H200_BYTES)
    alone = estimate(r1(), cell("tp8", flags=flags), H200_BYTES)
    assert (attention.pools, copies.pools, alone.pools) == (4, 2, 1)
    assert copies.max_tokens == alone.max_tokens


def test_weights_that_do_not_fit_leave_no_tokens() -> None:
    found = estimate(r1(), cell("tp8", "h100x16"), H100_BYTES)
    assert (found.free_for_kv, found.max_tokens) == (0, 0)


def test_the_given_token_limit_caps_the_pool() -> None:
    found = estimate(r1(), cell("tp8", flags={"max_total_tokens": 1000}), H200_BYTES)
    assert found.max_tokens == 1000
    assert any("max_total_tokens=1000" in text for text in found.assumed)
    assert estimate(r1(), cell("tp8", flags={"max_total_tokens": 10**9}), H200_BYTES).max_tokens < 10**9


def test_a_draft_model_is_said_to_be_missing() -> None:
    assumed = estimate(r1(), cell("tp8", flags={"speculative_algorithm": "EAGLE"}), H200_BYTES).assumed
    assert any("draft" in text for text in assumed)


def test_more_stages_than_layers_is_no_traceback() -> None:
    tiny = shape_of({**R1_MINI, "num_hidden_layers": 1}, "tiny")
    assert estimate(tiny, cell(Topology("pp4", tp_size=1, pp_size=4)), H200_BYTES).max_tokens >= 0


# --- workloads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_tokens", "pools", "load", "expected"),
    [
        (1000, 1, Load(10, 1000), Fit(10, 10, True)),
        (999, 1, Load(10, 1000), Fit(10, 9, True)),
        (500, 2, Load(20, 2000), Fit(20, 10, True)),
        (500, 2, Load(20, 2000, longest=501), Fit(20, 10, False)),
        (99, 1, Load(10, 1000), Fit(10, 0, False)),  # below the mean: below the longest, too
        (0, 1, Load(10, 1000, longest=300), Fit(10, 0, False)),
    ],
)
def test_fits(max_tokens: int, pools: int, load: Load, expected: Fit) -> None:
    assert fits(max_tokens, pools, load) == expected


@given(
    tokens=st.integers(0, 10**7),
    more=st.integers(0, 10**6),
    pools=st.integers(1, 8),
    requests=st.integers(1, 10**5),
    total=st.integers(1, 10**8),
)
def test_a_larger_pool_never_holds_less(tokens: int, more: int, pools: int, requests: int, total: int) -> None:
    load = Load(requests, total)
    small, large = fits(tokens, pools, load), fits(tokens + more, pools, load)
    assert 0 <= small.at_once <= large.at_once <= requests
    assert large.longest_fits or not small.longest_fits


# --- the reader -----------------------------------------------------------------------------------------------------


def test_read_shape_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(R1)), encoding="utf-8")
    shape = read_shape(tmp_path)
    assert shape == r1()
    assert (shape.architecture, shape.quantization, shape.weight_block) == ("DeepseekV3ForCausalLM", "fp8", (128, 128))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "no JSON object"),
        ("{}", "num_attention_heads is missing"),
        (json.dumps({**R1, "vocab_size": "many"}), "vocab_size must be a whole number, got 'many'"),
        (json.dumps({**R1, "vocab_size": True}), "vocab_size must be a whole number, got True"),
        (json.dumps({**R1, "hidden_size": 0}), "hidden_size must be above 0"),
        (json.dumps({**R1, "hidden_size": -1}), "hidden_size must be a whole number, got -1"),
        (json.dumps({**R1, "v_head_dim": None}), "v_head_dim is missing"),
    ],
)
def test_a_bad_config_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(R1PerfError, match=re.escape(message)) as caught:
        read_shape(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_missing_config_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(R1PerfError, match=r"config\.json cannot be read .*model_path"):
        read_shape(tmp_path)
