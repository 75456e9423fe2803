"""The main job on a CPU: the real SGLang, a tiny model of R1's architecture, real verdicts.

    make perf                      # set up everything, store a baseline if there is none, then run this
    pytest -m perf --topology tp1  # again, by hand

Every test here is one or two cells; tests that mean the same cell share one measurement.
"""

from __future__ import annotations

import pytest

from pytest_r1perf import perf
from pytest_r1perf.evidence import LoadEvidence
from pytest_r1perf.lab import PerfLab, PerfResult

perf_platform = "cpu"
"""The floors of this file hold on the cpu platform; on another they are not applied, and the report says so."""

N = 50
"""Prompts: fills the rig's batch, and is above the platform's ``min_conclusive_n``."""


@perf(topology="tp1", n=N, min_tokps=200, platform="cpu", rounds="3:5")
def test_tp1(perf_result: PerfResult) -> None:
    """Compare with this machine's baseline (`--perf-update-new` stores one), and hold a floor.

    The floor is a fifteenth of what two shared cores do: it catches a rig that fell back to something absurd. A look
    after three rounds, a second after five.
    """
    assert perf_result.protocol["attention_backend"] == "torch_native"


@perf(topology="tp1", n=N, platform="cpu", flags={"max_running_requests": 4}, rounds="2:5")
def test_few_running_requests_lose() -> None:
    """An anti-pattern that a CPU can really run: expected to lose against the reference, so it is xfail."""


@perf(topology="tp2", platform="cpu", rounds="1")
def test_low_load_proves_nothing(perf_lab: PerfLab, load_evidence: LoadEvidence) -> None:
    """With four prompts, eight running requests are as good as any: a conclusion from that alone is xfailed.

    On tp2, so that `make perf` (tp1) stays short.
    """
    few = perf_lab.measure(n=4, flags={"max_running_requests": 8})
    many = perf_lab.measure(n=4)
    load_evidence("eight running requests cost nothing", (few, many))


@perf(topology="tp2", n=N, platform="cpu")
def test_tp2() -> None:
    """Two ranks on two cores; skipped with the counts on a machine with one."""


@pytest.mark.parametrize("topology", ["tp8", "pp2"])
@perf(topology="tp1", n=5000, platform="cpu")
def test_too_large_for_a_cpu() -> None:
    """Skipped with the count that the topology needs and has; failed under ``--perf-gate``."""
