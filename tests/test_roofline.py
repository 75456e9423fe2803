"""Ceilings against arithmetic by hand, published figures, and recorded runs that must stay below them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.ceilings.bounds import (
    COMPUTE,
    KV,
    WEIGHTS,
    Ceilings,
    NoCeilings,
    above,
    bounds,
    ceilings_of,
    lowest,
)
from pytest_r1perf.ceilings.gpumodel import GpuModel
from pytest_r1perf.ceilings.reads import decode_reads
from pytest_r1perf.cell import Cell, cell_of
from pytest_r1perf.errors import DataError
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.measurement import Problem, Sample
from pytest_r1perf.memory import GPU_BYTES
from pytest_r1perf.modelshape import ModelShape, shape_of
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.topology import Topology
from pytest_r1perf.verdict import Verdict
from pytest_r1perf.workload import SampledWorkload
from tests.rounds import finished
from tests.test_memory import R1, R1_SLICE

CATALOG = load_catalog()
RECORDED = Path(__file__).parent / "recorded"
H200 = CATALOG.gpus["NVIDIA H200"]
NO_RADIX: Mapping[str, FlagValue] = MappingProxyType({"disable_radix_cache": True})
DUMMY: Mapping[str, FlagValue] = MappingProxyType({**NO_RADIX, "load_format": "dummy"})

# By hand, in elements, from DeepSeek-V3's config_671B.json: what a token is multiplied by, without the head.
MLA = 7168 * (1536 + 512 + 64) + 128 * (1536 * 192 + 512 * 256 + 128 * 7168)
EXPERT = 3 * 7168 * 2048
BODY = 61 * MLA + 3 * 3 * 7168 * 18432 + 58 * (9 * EXPERT + 256 * 7168)
ALL_EXPERTS = 61 * MLA + 3 * 3 * 7168 * 18432 + 58 * (257 * EXPERT + 256 * 7168)
HEAD = 129280 * 7168


def r1(**changes: object) -> ModelShape:
    return shape_of({**R1, **changes}, "config.json")


def cell(
    topology: str | Topology = "tp8", flags: Mapping[str, FlagValue] = NO_RADIX, platform: str = "h200x16"
) -> Cell:
    name = topology if isinstance(topology, str) else "tp8"
    made = cell_of(PerfSpec(name, 5000, recipe="default"), CATALOG.platform(platform), CATALOG)
    made = made if isinstance(topology, str) else replace(made, topology=topology)
    return replace(made, flags={**made.flags, "load_format": "auto", **flags})


def load(requests: int, inputs: int, outputs: int) -> SampledWorkload:
    return SampledWorkload(requests, requests * inputs, requests * outputs, "digest")


def ceilings(
    of: Cell | None = None,
    workload: SampledWorkload | None = None,
    shape: ModelShape | None = None,
    *,
    gpu: GpuModel = H200,
    facts: LogFacts | None = None,
    lengths: list[tuple[int, int]] | None = None,
    cached_tokens: int | None = None,
) -> Ceilings:
    workload = workload or load(7000, 220, 200)
    made = bounds(shape or r1(), gpu, of or cell(), workload, facts=facts, lengths=lengths, cached_tokens=cached_tokens)
    assert isinstance(made, Ceilings)
    return made


def seconds(found: Ceilings, name: str) -> float:
    value = found.part(name).seconds
    assert value is not None
    return value


# --- the published figures


def test_a_node_of_eight_h200_computes_at_most_214k_tokens_a_second() -> None:
    """15.83 PFLOPS / (2 x 37e9): published parameters are rounded, the head is for output tokens only."""
    found = ceilings()
    assert found.binding == COMPUTE
    assert found.values["total_throughput"] == pytest.approx(214e3, rel=0.04)
    flop = 2 * (BODY * (7000 * 220 + 7000 * 199) + HEAD * 7000 * 200)
    assert seconds(found, COMPUTE) == pytest.approx(flop / (8 * 1979e12), rel=1e-3)
    assert found.values["tokps_per_gpu"] == pytest.approx(found.values["total_throughput"] / 8)


def test_a_step_that_touches_all_experts_takes_17_5_ms() -> None:
    """671 GB / 38.4 TB/s, in a batch so large that no expert is left out."""
    found = ceilings(workload=load(20000, 10, 10))
    steps = 20000 * 10 / 20000
    assert seconds(found, WEIGHTS) / steps == pytest.approx(17.5e-3, rel=0.01)
    by_hand = (ALL_EXPERTS + 2 * HEAD) / 8 / 4.8e12
    assert seconds(found, WEIGHTS) / steps == pytest.approx(by_hand, rel=0.01)


def test_one_request_gets_at_most_1040_tokens_a_second() -> None:
    """37 GB / 38.4 TB/s for each token: the active share."""
    found = ceilings(workload=load(1, 10, 400))
    assert found.binding == WEIGHTS
    assert found.values["output_throughput"] == pytest.approx(1040, rel=0.02)
    assert seconds(found, WEIGHTS) / 400 == pytest.approx((BODY + 2 * HEAD) / 8 / 4.8e12, rel=0.02)


def test_kv_reads_of_the_workloads_own_lengths() -> None:
    """70,272 bytes a token in BF16, 35,136 in FP8, read by every GPU of a plain TP group (by hand: 61 x 576 x 2)."""
    lengths = [(1000, 3), (2000, 1), (50, 5)]
    # Second to last output token of each, prompt and what came before: 1000 + 1001; nothing; 50 + 51 + 52 + 53.
    read = 1000 + 1001 + 50 + 51 + 52 + 53
    assert sum(decode_reads(lengths)) == read
    workload = SampledWorkload(3, 3050, 9, "digest")
    for kind, size in (("auto", 70272), ("fp8_e4m3", 35136)):
        found = ceilings(cell(flags={**NO_RADIX, "kv_cache_dtype": kind}), workload, lengths=lengths)
        assert seconds(found, KV) == pytest.approx(read * size / 4.8e12)
    # With shared prompts only what the answers read of themselves is sure: 1 and 1 + 2 + 3.
    shared = ceilings(cell(flags={}), workload, lengths=lengths)
    assert seconds(shared, KV) == pytest.approx(7 * 70272 / 4.8e12)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 60)), min_size=1, max_size=20))
def test_unknown_lengths_read_no_more_than_any_known_ones(lengths: list[tuple[int, int]]) -> None:
    workload = SampledWorkload(len(lengths), sum(a for a, _ in lengths), sum(b for _, b in lengths), "digest")
    known, unknown = ceilings(workload=workload, lengths=lengths), ceilings(workload=workload)
    assert seconds(unknown, KV) <= seconds(known, KV) * (1 + 1e-9)
    assert unknown.seconds <= known.seconds * (1 + 1e-9)


# --- what a ceiling depends on


def test_the_gpus_that_the_topology_uses_count_not_the_platforms() -> None:
    assert cell("tp8").platform.nodes * 8 == 16
    eight, sixteen, half = ceilings(cell("tp8")), ceilings(cell("pp2")), ceilings(cell("tp4-dp4-pp2"))
    assert seconds(sixteen, COMPUTE) == pytest.approx(seconds(eight, COMPUTE) / 2)
    assert seconds(half, COMPUTE) == pytest.approx(seconds(eight, COMPUTE))


def test_bf16_weights_are_multiplied_at_half_the_rate_and_read_twice() -> None:
    config = {key: value for key, value in R1.items() if key != "quantization_config"}
    one = load(1, 10, 400)
    fp8, bf16 = ceilings(workload=one), ceilings(workload=one, shape=shape_of(config, "config.json"))
    assert seconds(bf16, COMPUTE) == pytest.approx(2 * seconds(fp8, COMPUTE))
    assert seconds(bf16, WEIGHTS) / 400 == pytest.approx(2 * (BODY + HEAD) / 8 / 4.8e12, rel=0.02)
    online = ceilings(cell(flags={**NO_RADIX, "quantization": "fp8"}), one, shape_of(config, "config.json"))
    assert seconds(online, COMPUTE) == pytest.approx(seconds(fp8, COMPUTE))


def test_cached_prompt_tokens_are_not_computed() -> None:
    """All of them may come from the prefix cache but one a prompt; where the hits are known the rest counts."""
    on = cell(flags={})
    off, unknown = ceilings(), ceilings(on)
    flop = 2 * (BODY * (7000 + 7000 * 199) + HEAD * 7000 * 200)
    assert seconds(unknown, COMPUTE) == pytest.approx(flop / (8 * 1979e12), rel=1e-3)
    assert any("prefix cache" in text for text in unknown.assumed)
    assert not any("prefix cache" in text for text in off.assumed)
    assert seconds(ceilings(on, cached_tokens=0), COMPUTE) == pytest.approx(seconds(off, COMPUTE))
    some = seconds(off, COMPUTE) - 2 * BODY * 500_000 / (8 * 1979e12)
    assert seconds(ceilings(on, cached_tokens=500_000), COMPUTE) == pytest.approx(some, rel=1e-3)


def test_speculative_decoding_has_no_bound_by_reads() -> None:
    found = ceilings(cell(flags={**NO_RADIX, "speculative_algorithm": "EAGLE"}), load(1, 10, 400))
    assert found.part(WEIGHTS).seconds is None
    assert found.part(KV).seconds is None
    assert "speculative" in found.part(WEIGHTS).why
    assert found.binding == COMPUTE
    plain = ceilings(workload=load(1, 10, 400))
    assert found.seconds == pytest.approx(seconds(plain, COMPUTE))


def test_what_the_run_resolved_counts_not_what_was_asked() -> None:
    asked = cell(flags={"disable_radix_cache": False, "speculative_algorithm": "EAGLE"})
    facts = LogFacts(
        server_args={"disable_radix_cache": True, "speculative_algorithm": None}, kv_cache_dtype="torch.float8_e4m3fn"
    )
    lengths = [(100, 50)] * 10
    found = ceilings(asked, load(10, 100, 50), facts=facts, lengths=lengths)
    wanted = ceilings(cell(flags={**NO_RADIX, "kv_cache_dtype": "fp8_e4m3"}), load(10, 100, 50), lengths=lengths)
    assert found == wanted


def test_fewer_requests_at_once_read_the_weights_more_often() -> None:
    """By a limit of requests, asked for or told, and by a KV cache that holds few tokens."""
    free = ceilings(cell(flags=DUMMY))
    asked = ceilings(cell(flags={**DUMMY, "max_running_requests": 70}))
    told = ceilings(cell(flags=DUMMY), facts=LogFacts(max_running_requests=70))
    assert seconds(asked, WEIGHTS) == pytest.approx(seconds(told, WEIGHTS))
    assert seconds(asked, WEIGHTS) == pytest.approx(7000 * 200 / 70 * (BODY + 2 * HEAD) / 8 / 4.8e12, rel=0.02)
    assert seconds(free, WEIGHTS) < seconds(asked, WEIGHTS) / 50
    small = ceilings(cell(flags=DUMMY), facts=LogFacts(max_total_num_tokens=4000), lengths=[(220, 200)] * 7000)
    steps = 7000 * (199 * 220 + 199 * 198 / 2) / 4000
    assert seconds(small, WEIGHTS) == pytest.approx(steps * (BODY + 2 * HEAD) / 8 / 4.8e12, rel=0.02)


def test_data_parallel_workers_have_a_limit_each() -> None:
    attention = Topology("dp8", 8, dp_size=8, enable_dp_attention=True)
    found = ceilings(cell(attention, flags=DUMMY), facts=LogFacts(max_running_requests=10))
    # 80 requests a step; attention is whole on each rank, experts and head are split over all.
    own = BODY - 58 * 9 * EXPERT - 3 * 3 * 7168 * 18432
    step = own + (58 * 9 * EXPERT + 3 * 3 * 7168 * 18432 + 2 * HEAD) / 8
    assert seconds(found, WEIGHTS) == pytest.approx(7000 * 200 / 80 * step / 4.8e12, rel=0.02)
    copies = Topology("dp2", 8, dp_size=2)
    two = ceilings(cell(copies, flags=DUMMY), facts=LogFacts(max_running_requests=10))
    step = (BODY + 2 * HEAD) / 8
    assert seconds(two, WEIGHTS) == pytest.approx(7000 * 200 / 2 / 10 * step / 4.8e12, rel=0.02)


def test_dp_attention_shares_the_kv_reads_and_plain_tp_repeats_them() -> None:
    lengths = [(1000, 100)] * 64
    workload = load(64, 1000, 100)
    plain = ceilings(workload=workload, lengths=lengths)
    spread = ceilings(cell(Topology("dp8", 8, dp_size=8, enable_dp_attention=True)), workload, lengths=lengths)
    assert seconds(spread, KV) == pytest.approx(seconds(plain, KV) / 8)


def test_one_requests_tokens_pass_the_pipelines_stages_in_turn() -> None:
    one = load(1, 10, 400)
    assert seconds(ceilings(cell("pp2"), one), WEIGHTS) == pytest.approx(
        seconds(ceilings(workload=one), WEIGHTS), rel=0.02
    )
    # Of two requests the longer one counts.
    short, long = [(10, 200), (10, 200)], [(10, 1), (10, 399)]
    two = load(2, 10, 200)
    assert ceilings(workload=two, lengths=long).seconds > 1.9 * ceilings(workload=two, lengths=short).seconds


def test_many_requests_need_not_touch_all_experts_with_random_weights() -> None:
    trained, random = ceilings(), ceilings(cell(flags=DUMMY))
    assert seconds(trained, WEIGHTS) > 10 * seconds(random, WEIGHTS)
    assert any("random weights" in text for text in random.assumed)


def test_a_recorded_step_with_random_weights_was_faster_than_reading_all_experts() -> None:
    """Batch 88 of R1's layers on one H200: why nothing is assumed of the experts there."""
    log = (RECORDED / "r1-slice_n1000_fa3_fresh2.log").read_text()
    speed = re.search(r"#running-req: 88,.*gen throughput \(token/s\): ([\d.]+)", log)
    assert speed is not None
    step_s = 88 / float(speed[1])
    every = (4 * MLA + 3 * 7168 * 18432 + 3 * 257 * EXPERT + 2 * HEAD) / 4.8e12
    assert step_s < every / 3
    shape = shape_of(R1_SLICE, "config.json")
    found = ceilings(cell("tp1", DUMMY, "h200x1"), load(88, 1, 2), shape)
    assert seconds(found, WEIGHTS) / 2 < step_s


# --- where there is none


def test_a_cpu_and_an_unknown_gpu_or_model_have_no_ceiling() -> None:
    workload = load(10, 10, 10)
    cpu = cell("tp1", platform="cpu")
    other = cell()
    other = replace(other, platform=replace(other.platform, accelerator="NVIDIA B200"))
    for made, reason in (
        (bounds(r1(), None, cpu, workload), "platform 'cpu' has no GPU"),
        (bounds(r1(), CATALOG.gpu_of(other.platform), other, workload), "'NVIDIA B200'"),
        (bounds(None, H200, cell(), workload), "config.json"),
        (bounds(r1(), H200, cell(), None), "not counted"),
        (ceilings_of({"hidden_size": 7168}, H200, cell(), workload), "num_attention_heads is missing"),
    ):
        assert isinstance(made, NoCeilings)
        assert reason in made.reason
        assert made.values == {}


def test_a_model_that_fits_the_gpus_cache_has_no_bound_by_reads() -> None:
    tiny = {
        **R1,
        "hidden_size": 64,
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "vocab_size": 500,
        "num_attention_heads": 8,
        "num_hidden_layers": 4,
    }
    found = ceilings(cell("tp1"), load(4, 10, 10), shape_of(tiny, "config.json"))
    assert found.part(WEIGHTS).seconds is None
    assert found.binding == COMPUTE


@pytest.mark.parametrize(
    ("architecture", "flags"), [("DeepseekV32ForCausalLM", {}), ("DeepseekV3ForCausalLM", {"dcp_size": 8})]
)
def test_attention_that_reads_less_has_no_bound_by_kv_reads(architecture: str, flags: Mapping[str, FlagValue]) -> None:
    found = ceilings(
        cell(flags={**NO_RADIX, **flags}), load(1, 100, 400), r1(architectures=[architecture]), lengths=[(100, 400)]
    )
    assert found.part(KV).seconds is None
    assert found.part(KV).why
    assert found.binding == WEIGHTS


# --- measurements against them


def test_published_and_recorded_numbers_are_below_their_ceilings() -> None:
    """The guide's champion, TensorRT-LLM's best (11,489 output tok/s of 8 H200), and the recorded single H200."""
    assert ceilings(cell(flags=DUMMY)).reached({"total_throughput": 22854}).fraction == pytest.approx(0.104, abs=0.005)
    best = ceilings(workload=load(5120, 1000, 2000), facts=LogFacts(max_running_requests=1024))
    assert 0.05 < 11489 / best.values["output_throughput"] < 0.5
    slice_ = shape_of(R1_SLICE, "config.json")
    for line in (RECORDED / "r1-slice_n1000_fresh_fa3x3_triton.jsonl").read_text().splitlines():
        run = json.loads(line)
        workload = SampledWorkload(1000, run["total_input_tokens"], run["total_output_tokens"], "digest")
        found = ceilings(cell("tp1", DUMMY, "h200x1"), workload, slice_)
        assert 0.02 < run["total_throughput"] / found.values["total_throughput"] < 0.5


def test_the_fraction_names_the_metric_and_the_bound() -> None:
    found = ceilings()
    half = {name: value / 2 for name, value in found.values.items()}
    for metric in found.values:
        reached = found.reached(half, metric)
        assert (reached.metric, reached.bound) == (metric, COMPUTE)
        assert reached.fraction == pytest.approx(0.5)
    assert str(found.reached(half)) == "50.0% of the ceiling of total_throughput (compute)"


def test_the_lower_of_an_override_and_a_computed_ceiling_holds() -> None:
    found = ceilings()
    total = found.values["total_throughput"]
    merged = lowest({"total_throughput": 1000.0, "output_throughput": 1e9, "total_latency": 3.0}, found)
    assert merged["total_throughput"] == 1000.0
    assert merged["output_throughput"] == found.values["output_throughput"]
    assert merged["total_latency"] == 3.0
    assert lowest({}, None) == {}
    assert lowest({"total_throughput": 5.0}, NoCeilings("no")) == {"total_throughput": 5.0}
    assert above({"total_throughput": total}, found.values) == []
    assert len(above({"total_throughput": total * 1.01, "other": 1e99}, found.values)) == 1
    assert len(above({"total_throughput": float("nan")}, found.values)) == 1


def test_a_round_above_its_ceiling_is_invalid_and_one_below_carries_it(tmp_path: Path) -> None:
    given = ceilings()
    top = given.values["total_throughput"]
    tokens = 4516 + 3311  # the recorded run's
    fast = finished(tmp_path / "fast", seconds=tokens / (top * 1.01), ceilings=given)
    assert isinstance(fast, Problem)
    assert fast.verdict is Verdict.INVALID
    assert f"the hardware's ceiling is {top} (compute)" in fast.cause
    slow = finished(tmp_path / "slow", seconds=tokens / (top * 0.1), ceilings=given)
    assert isinstance(slow, Sample)
    assert slow.ceiling == given.values
    assert slow.metrics["total_throughput"] / slow.ceiling["total_throughput"] == pytest.approx(0.1)
    reason = NoCeilings("platform 'cpu' has no GPU")
    without = finished(tmp_path / "without", seconds=tokens / (top * 1.01), ceilings=reason)
    assert isinstance(without, Sample)
    assert without.ceiling == {}


def test_a_ceiling_a_gpu_is_checked_too(tmp_path: Path) -> None:
    """SGLang's line has no tok/s/GPU; it is computed from the total and the two ranks."""
    low = replace(ceilings(), values={"tokps_per_gpu": 100.0})
    judged = finished(tmp_path / "a", seconds=2.0, ceilings=low)
    assert isinstance(judged, Problem)
    assert "tokps_per_gpu is 1956.75; the hardware's ceiling is 100.0" in judged.cause


# --- the data


def test_the_gpus_have_dense_rates_and_the_memory_that_plans_use() -> None:
    for name, gpu in CATALOG.gpus.items():
        assert gpu.flops["fp8"] == pytest.approx(2 * gpu.flops["bf16"], rel=1e-3)
        assert gpu.flops["fp8"] < 2000e12  # 3,958 is with sparsity
        assert gpu.memory_bytes == GPU_BYTES[name]
    assert {name: gpu.hbm_bytes_per_s for name, gpu in CATALOG.gpus.items()} == {
        "NVIDIA H200": 4.8e12,
        "NVIDIA H100 80GB HBM3": 3.35e12,
    }


def test_a_user_adds_a_gpu_and_a_bad_one_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "r1perf.yaml"
    path.write_text(
        "gpus:\n  NVIDIA H20:\n    extends: NVIDIA H200\n    hbm_tb_per_s: {value: 4.0, source: data sheet}\n"
        "    source: a cut-down H200\n"
    )
    assert load_catalog([path]).gpus["NVIDIA H20"].hbm_bytes_per_s == 4e12
    for line, wrong in (
        ("    hbm_tb_per_s: {value: 0, source: x}\n", "above 0"),
        ("    hbm_tb_per_s: {value: 4.0}\n    l2_mb: {value: 1}\n", "'source' is missing"),
        ("    tflops: {fp64: {value: 67, source: x}}\n", "precision 'fp64' is not known"),
    ):
        path.write_text(f"gpus:\n  New:\n    extends: NVIDIA H200\n{line}")
        if "source: x" not in line:
            path.write_text(f"gpus:\n  New:\n{line}    source: x\n    tflops: {{}}\n    memory_mib: {{value: 1}}\n")
        with pytest.raises(DataError, match=re.escape(wrong)) as caught:
            load_catalog([path])
        assert "r1perf.yaml:" in str(caught.value)
