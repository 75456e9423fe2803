"""Playbook A of the best-practice guide: TP8 on one node, its champion, and the stacked path that leads to it.

Floors are the published figures less 4 % (the guide states no spread; the closest published one is a range of
2.9 % over nine 8xH200 systems in MLPerf Inference v5.1). They hold on the platform that the marker names.
"""

from __future__ import annotations

from perf_tests.questions import ahead, by_load, neighbours, stacked_path, sweep
from pytest_r1perf import perf
from pytest_r1perf.lab import PerfLab

STACK = (
    "tp8-baseline",
    "tp8-stack-mf",
    "tp8-stack-lof",
    "tp8-stack-cutlass",
    "tp8-stack-piecewise",
    "tp8-stack-flashinfer",
    "tp8-stack-fusion",
    "tp8-stack-chunk",
    "tp8-stack-cgbs",
    "tp8-champion",
)
"""From the baseline to the champion, one flag a step, in the order of the guide's command."""


@perf(topology="tp8", n=7000, min_tokps=22000, recipe="tp8-champion", platform="h200x8")
def test_tp8_champion() -> None:
    """Published: 22,854 tok/s (metric assumed: total) at N = 7000."""


@perf(topology="tp8", n=5000, recipe="tp8-champion", platform="h200x8")
def test_tp8_champion_at_comparison_load() -> None:
    """The guide's standard comparison load; it publishes no figure for it."""


@perf(topology="tp8", n=7000, min_tokps=2742, recipe="tp8-champion", platform="h200x8", metric="tokps_per_gpu")
def test_tp8_efficiency() -> None:
    """Published: 2,857 tok/s/GPU, the best of the three topologies."""


@perf(topology="tp8", n=7000, min_tokps=11540, recipe="tp8-baseline", platform="h200x8")
def test_tp8_baseline() -> None:
    """Published: 12,021 tok/s (metric, N and flags assumed), where the stacked path starts."""


@perf(topology="tp8", n=7000, platform="h200x8")
def test_tp8_stacked_path_one_step_at_a_time(perf_lab: PerfLab) -> None:
    """Published: from 12,021 to 22,854 tok/s; 'a stacked path, not a single flag'."""
    stacked_path(perf_lab, [{"recipe": name} for name in STACK], published="1.9x")


@perf(topology="tp8", n=7000, platform="h200x8")
def test_tp8_late_stage_cgbs_and_nrc(perf_lab: PerfLab) -> None:
    """Published: CGBS and NRC, the last two steps, contribute +15.8 %."""
    stacked_path(perf_lab, [{"recipe": name} for name in STACK[-3:]], published="+15.8 %")


@perf(topology="tp8", n=7000, recipe="tp8-champion", platform="h200x8")
def test_tp8_mem_fraction_sweep_around_087(perf_lab: PerfLab) -> None:
    """Published: 'On TP8, 0.87 is the stable sweet spot'; what runs out of memory is a point of the sweep."""
    sweep(perf_lab, {"mem_fraction_static": (0.83, 0.85, 0.87, 0.89, 0.91)})


@perf(topology="tp8", n=7000, recipe="tp8-champion", platform="h200x8")
def test_tp8_cuda_graph_max_bs_up_to_2048(perf_lab: PerfLab) -> None:
    """Published: 'raising cuda-graph-max-bs to 2048 is a top gain source'."""
    sweep(perf_lab, {"cuda_graph_max_bs": (256, 512, 1024, 2048)})


@perf(topology="tp8", n=7000, recipe="tp8-stack-cgbs", platform="h200x8")
def test_tp8_radix_cache_off_by_load(perf_lab: PerfLab) -> None:
    """Published: weak or negative at low N, 'valuable at high load (especially from N >= 7000)', up to +20.6 %."""
    by_load(perf_lab, {"disable_radix_cache": True}, (1000, 5000, 7000, 10000), published="up to +20.6 %")


@perf(topology="tp8", n=1000, recipe="tp8-champion", platform="h200x8")
def test_tp8_parameters_look_flat_at_low_load(perf_lab: PerfLab) -> None:
    """Published: 'If load is low (N=1000), many parameters look flat or misleading'. Published without a figure."""
    neighbours(perf_lab, [{"recipe": name} for name in ("tp8-stack-fusion", "tp8-stack-chunk", "tp8-champion")])


@perf(topology="tp8", n=7000, recipe="tp8-champion", platform="h200x8")
def test_tp8_overlap_schedule_on_and_off(perf_lab: PerfLab) -> None:
    """The private-deployment guide: 'zero-cost scheduling (overlapping CPU and GPU computations)'."""
    ahead(perf_lab, {}, {"flags": {"disable_overlap_schedule": True}})
