"""What only a process of its own has: its whole time, its start-up, and kernel caches that may be empty.

This module is imported with the marker, at every pytest start: it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_r1perf.errors import R1PerfError, did_you_mean

if TYPE_CHECKING:
    from pytest_r1perf.metrics import Metric

WALL_TIME = "wall_time"
"""The metric that ``max_wall_time`` is a limit of."""

STARTUP_TIME = "startup_time"

WARM, COLD = "warm", "cold"
KERNEL_CACHES = (WARM, COLD)
"""What the marker's ``kernel_caches`` may be."""


def refuse_shared(
    mode: str,
    metrics: Sequence[Metric],
    *,
    max_wall_time: float | None,
    kernel_caches: str,
    timeout_s: float | None,
) -> None:
    """Raise :class:`R1PerfError` for what a mode cannot say of one cell, and for limits that can't both hold.

    An engine and a server are started once for several cells, and their first windows are thrown away: neither the
    whole process nor its start-up belongs to one of them, and a cold start is not in any window that counts.
    """
    if kernel_caches not in KERNEL_CACHES:
        raise R1PerfError(f"kernel_caches={kernel_caches!r} is not known; {did_you_mean(kernel_caches, KERNEL_CACHES)}")
    asked = [f"metric {metric.name!r}" for metric in metrics if metric.needs == "process"]
    asked += ["max_wall_time"] if max_wall_time is not None else []
    asked += ["kernel_caches='cold'"] if kernel_caches == COLD else []
    if asked and mode != "offline":
        raise R1PerfError(f"{asked[0]} needs a process of the cell's own, and mode {mode!r} has none: mode='offline'")
    if max_wall_time is not None and timeout_s is not None and timeout_s <= max_wall_time:
        raise R1PerfError(
            f"timeout={timeout_s:g} ends a process before it can be above max_wall_time={max_wall_time:g}: give a "
            f"longer timeout"
        )
