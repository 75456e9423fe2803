"""Playbook C of the best-practice guide: TP16 over two nodes, the reference that is 'not the throughput champion'.

Floors are the published figures less 4 %, as in test_tp8.py.
"""

from __future__ import annotations

from perf_tests.questions import allreduces_per_forward, config_of, stacked_path
from pytest_r1perf import perf
from pytest_r1perf.lab import PerfLab, PerfResult


@perf(topology="tp16", n=8000, min_tokps=20560, recipe="tp16-reference", platform="h200x16")
def test_tp16_reference() -> None:
    """Published: 21,416 tok/s (metric assumed: total) at N = 8000."""


@perf(topology="tp16", n=5000, recipe="tp16-reference", platform="h200x16")
def test_tp16_reference_at_comparison_load() -> None:
    """The guide's standard comparison load; it publishes no figure for it."""


@perf(topology="tp16", n=8000, min_tokps=1284, recipe="tp16-reference", platform="h200x16", metric="tokps_per_gpu")
def test_tp16_efficiency() -> None:
    """Published: 1,338 tok/s/GPU: 'communication-bound on cross-node AllReduce'."""


@perf(topology="tp16", n=8000, platform="h200x16")
def test_tp16_from_the_stock_command(perf_lab: PerfLab) -> None:
    """Published without figures: the flags of playbook C over its command without them."""
    stacked_path(perf_lab, [{"recipe": "tp16-baseline"}, {"recipe": "tp16-reference"}])


@perf(topology="tp16", n=8000, min_tokps=20560, recipe="tp16-reference", platform="h200x16")
def test_tp16_has_122_all_reduces_in_a_forward_pass(perf_result: PerfResult) -> None:
    """Derived, not measured: '122 cross-node AllReduce operations per forward path (2 per layer x 61)'."""
    assert allreduces_per_forward(config_of(perf_result)) == 122
