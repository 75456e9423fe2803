"""Layouts of two GPUs, for the stage ``two``; copied into the folder of its pytest project as ``test_two.py``.

The layouts ``pp2-here``, ``pp2-ranks`` and ``tp2-ep2`` are in ``two.yaml`` beside it (``project.py``).
"""

from __future__ import annotations

from settings import chosen

from pytest_r1perf import perf

SIZES = chosen()
N = SIZES.ablation_n


@perf(topology="tp2", n=N, mode="engine")
def test_tp2() -> None:
    """Tensor parallel over both GPUs; the all-reduce fusion is stated to be off by the plugin's pins."""


@perf(topology="pp2-here", n=N, mode="engine")
def test_pp2() -> None:
    """A pipeline of two stages, one process tree."""


@perf(topology="pp2-ranks", n=N, timeout=150)
def test_pp2_ranks() -> None:
    """The same as two node ranks on this host, a GPU each; engine mode has no such thing."""


@perf(topology="tp2-ep2", n=N, mode="engine")
def test_ep2() -> None:
    """Expert parallelism on one node: expected to lose against tp2."""
