"""Whether the GPUs were fit while a number was measured: pure, from a window's summary.

How often must throttling be seen? Once. The design calls a throttled sample INVALID and gives no share, and at
one look a second a single sighting stands for much that was not seen: of a window of 5 s it is a fifth, and a
hardware slow-down divides the clocks by two or more (NVML's reference), which is more than any tolerance allows.
In a long window one sighting costs little, but the same fault slows the next round, too, and a share that is
let pass would be learned by the baseline.

One exception: the general hardware slow-down bit may also be reported while the P-state or a clock changes
(nvml.h's notes, as DCGM's reference of field constants has them). Where it was seen once, with no bit that says
why, and the SM clock was then no lower than usual, nothing was slowed down: a remark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_r1perf.gpu.reasons import HW_SLOWDOWN, Effect, reason_of
from pytest_r1perf.gpu.summary import GpuSummary, Seen, TelemetrySummary

USUAL_CLOCK = 0.9
"""Share of the window's median SM clock from which a clock counts as not lowered; a slow-down halves it."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What the GPUs did in the timed window: ``throttled`` makes it no measurement, ``remarks`` don't."""

    record: dict[str, object] = field(default_factory=dict)
    throttled: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def judge(summary: TelemetrySummary) -> tuple[list[str], list[str]]:
    """(why the sample is INVALID, what else to say of it), one sentence each; both empty without GPUs."""
    invalid = [sentence for item in summary.gpus for sentence in _spoilt(item)]
    return invalid, [*_missing(summary), *_recorded(summary)]


def _spoilt(item: GpuSummary) -> Iterator[str]:
    figures = item.figures
    for key, seen in sorted(figures.reasons.items()):
        reason = reason_of(key)
        if reason.effect is not Effect.INVALID or _is_clock_change(item, key):
            continue
        clock = ""
        if seen.sm_mhz_min is not None:
            limit = f" of {item.gpu.max_sm_mhz}" if item.gpu.max_sm_mhz is not None else ""
            clock = f", its SM clock down to {seen.sm_mhz_min}{limit} MHz"
        yield (
            f"{item.gpu.name} {item.gpu.uuid} was slowed down by {reason.words} ({key}) in {_share(item, seen)} of "
            f"the timed window{clock}: {reason.mend}, then measure again"
        )


def _is_clock_change(item: GpuSummary, key: str) -> bool:
    """Whether this is the general bit, seen once at a usual clock: the exception above."""
    if key != HW_SLOWDOWN.key:
        return False
    seen, clocks = item.figures.reasons[key], item.figures.sm_mhz
    # Of one or two readings the median says nothing.
    if seen.samples != 1 or seen.sm_mhz_min is None or clocks is None or item.figures.samples < 3:
        return False
    return seen.sm_mhz_min >= USUAL_CLOCK * clocks.median


def _share(item: GpuSummary, seen: Seen) -> str:
    return f"{seen.samples} of {item.figures.asked} readings ({seen.samples / item.figures.asked:.0%})"


def _missing(summary: TelemetrySummary) -> Iterator[str]:
    if summary.note:
        yield f"telemetry: {summary.note}"
        return
    for item in summary.gpus:
        figures = item.figures
        why = f" ({item.error})" if item.error else ""
        if not figures.samples:
            yield f"telemetry: no reading of {item.gpu.uuid} in the timed window{why}: throttling would not be seen"
        elif not figures.asked:
            yield f"telemetry: the driver does not tell the throttle reasons of {item.gpu.uuid}"
        elif item.gaps:
            yield (
                f"telemetry: nothing was read of {item.gpu.uuid} for {item.longest_gap_s:.1f} s of the timed window "
                f"({summary.end - summary.start:.1f} s){why}: throttling would not be seen there"
            )


def _recorded(summary: TelemetrySummary) -> Iterator[str]:
    """One line a reason, not one a GPU: under load all eight are power-capped alike."""
    told: dict[str, list[float]] = {}
    for item in summary.gpus:
        for key in item.figures.reasons:
            if reason_of(key).effect is Effect.RECORDED or _is_clock_change(item, key):
                told.setdefault(key, []).append(item.figures.share(key))
    for key, shares in sorted(told.items()):
        gpus = f"{len(shares)} of {len(summary.gpus)} GPUs"
        if key == HW_SLOWDOWN.key:
            yield f"hw_slowdown was seen once on {gpus}, at a usual clock: a change of clocks"
        else:
            words = reason_of(key).words
            yield f"clocks limited by {words} ({key}) on {gpus}, in up to {max(shares):.0%} of the readings"
