"""Twins of the best-practice guide: its playbooks, interactions and anti-patterns."""

from __future__ import annotations

import pytest

from perf_tests.conftest import Say
from perf_tests.questions import (
    ahead,
    allreduces_per_forward,
    attempted,
    by_load,
    config_of,
    factorial,
    movers,
    neighbours,
    per_gpu,
    sides_by_load,
    stacked_path,
    sweep,
)
from perf_tests.twins.conftest import Scale, of_r1
from pytest_r1perf import perf
from pytest_r1perf.evidence import LoadEvidence
from pytest_r1perf.lab import PerfLab, PerfResult

perf_platform = "cpu"
"""The floors of this file hold on the cpu platform: a thirtieth of what two shared cores do."""

RADIX_OFF = {"disable_radix_cache": True}


@pytest.mark.parametrize("n", [40, 50])
@perf(topology="twin", min_tokps=100)
def test_twin_champion_at_its_peak_and_at_the_comparison_load() -> None: ...


@perf(topology="twin", n=40, min_tokps=100, metric="tokps_per_gpu")
def test_twin_efficiency() -> None: ...


@perf(topology="twin", n=40)
def test_twin_stacked_path_one_step_at_a_time(lab: PerfLab, scale: Scale) -> None:
    ablation = stacked_path(lab, [{"flags": scale.few}, {}, {"flags": RADIX_OFF}], published=of_r1("1.9x"))
    assert len(ablation.steps) == 2


@perf(topology="twin", n=40)
def test_twin_lof_x_flashinfer_as_chunk_x_radix_cache(lab: PerfLab, scale: Scale) -> None:
    chunk = {"chunked_prefill_size": scale.chunks[0]}
    result = factorial(lab, RADIX_OFF, chunk, published={"ab": of_r1("+7.5 %"), "expected": of_r1("+2.9 %")})
    assert result.term.lower < result.term.upper


@perf(topology="twin", n=40)
def test_twin_mem_fraction_sweep(lab: PerfLab, scale: Scale) -> None:
    name, values = list(scale.pair.items())[1]
    assert not sweep(lab, {name: values}).broken


@perf(topology="twin", n=40)
def test_twin_overlap_schedule_on_and_off(lab: PerfLab) -> None:
    ahead(lab, {}, {"flags": {"disable_overlap_schedule": True}})


@perf(topology="twin", n=40)
def test_twin_radix_cache_off_by_load(lab: PerfLab, scale: Scale) -> None:
    curve = by_load(lab, RADIX_OFF, (scale.low, scale.n), published={str(scale.n): of_r1("up to +20.6 %")})
    assert curve.decisive.a.num_prompts == scale.n


@perf(topology="twin", n=40)
def test_twin_first_order_control_variable(lab: PerfLab, scale: Scale) -> None:
    (few,) = scale.few
    spreads = movers(lab, {few: (scale.few[few], 16), "chunked_prefill_size": scale.chunks})
    assert set(spreads) == {few, "chunked_prefill_size"}


@perf(topology="twin-pp2", n=40)
def test_twin_pp2_partition_against_its_neighbour(lab: PerfLab, scale: Scale) -> None:
    best, other = ({"env": {"SGLANG_PP_LAYER_PARTITION": split}} for split in scale.partitions)
    ahead(lab, best, other, published=of_r1("+0.9 %"))


@perf(topology="twin-pp2", n=40)
def test_twin_pp2_chunk_spread_and_small_perturbations(lab: PerfLab, scale: Scale) -> None:
    neighbours(lab, [{}, {"flags": {"chunked_prefill_size": scale.chunks[0]}}], published=of_r1("< 2.4 %"))


@perf(topology="twin-pp2", n=40)
def test_twin_pp2_micro_batch(lab: PerfLab, scale: Scale) -> None:
    """At the low load: of 40 requests two at a time, a CPU has a minute's work."""
    ahead(lab, {"n": scale.low, "flags": {"pp_max_micro_batch_size": 2}}, {"n": scale.low}, published=of_r1("-90 %"))


@perf(topology="twin-pp2", n=40)
def test_twin_pp2_against_tp2_by_load(lab: PerfLab, scale: Scale) -> None:
    loads = (scale.low, scale.n)
    sides_by_load(lab, {}, {"topology": "twin-tp2"}, loads, published={str(n): of_r1("36 to 43 %") for n in loads})


@perf(topology="twin-pp2", n=40)
def test_twin_throughput_and_efficiency_by_topology(lab: PerfLab) -> None:
    per_gpu(lab, [{"topology": name} for name in ("twin", "twin-tp2", "twin-pp2")])


@perf(topology="twin", n=40, min_tokps=100)
def test_twin_all_reduces_in_a_forward_pass(perf_result: PerfResult) -> None:
    config = config_of(perf_result)
    assert allreduces_per_forward(config) == 2 * config["num_hidden_layers"]


@perf(topology="twin", n=40)
def test_twin_deciding_from_low_load_only(lab: PerfLab, scale: Scale, load_evidence: LoadEvidence) -> None:
    """On a GPU the twin's N is below the platform's least, too: xfailed on both."""
    off, on = lab.in_turn({"n": scale.low, "flags": RADIX_OFF}, {"n": scale.low})
    load_evidence("radix cache off wins", (off, on))


@perf(topology="twin", n=40)
def test_twin_fp4_kv_cache(lab: PerfLab, say: Say) -> None:
    """A CPU has none: refused, or it breaks, and both are points."""
    say(attempted(lab, ("CONFIG", "CRASH", "OOM"), flags={"kv_cache_dtype": "fp4_mx_block16"}))


@perf(topology="twin-dpa1", n=40)
def test_twin_dp_attention_with_dp_1(lab: PerfLab, say: Say) -> None:
    say(attempted(lab, ("CONFIG", "CRASH")))


@perf(topology="twin-ep2", n=1000, platform="h200x2")
def test_twin_expert_parallelism_on_one_node() -> None:
    """Published: -34 % to -40 %. Two GPUs only: SGLang 0.5.20 cannot run it on the CPU rig (docs/seeds.md)."""
