"""The cells that ``scripts/h200.sh`` measures; copied into the folder of its pytest project as ``test_h200.py``."""

from __future__ import annotations

import pytest
from settings import chosen

from pytest_r1perf import perf

SIZES = chosen()


@pytest.mark.parametrize("n", sorted({*SIZES.loads, *SIZES.gate_loads, *SIZES.slow_loads, *SIZES.noise_loads}))
@perf(topology="tp1", mode="engine")
def test_load(n: int) -> None:
    """All loads share one engine."""


@perf(topology="tp1", n=SIZES.offline_n)
def test_offline() -> None:
    """SGLang's own benchmark, a process of its own."""


@perf(topology="tp1", n=SIZES.ablation_n, mode="engine", flags=SIZES.ablation)
def test_ablation() -> None:
    """One flag changed, in an engine of its own: to be seen beside the same load of ``test_load``."""


@perf(topology="tp1", n=SIZES.offline_n, timeout=SIZES.hang_s, env=SIZES.hang_env)
def test_hang() -> None:
    """A start-up that takes longer than its time limit: HANG, with the phase."""
