"""What a trend's report adds to the numbers: what changed at a step, the pinned baseline, gaps, and broken nights."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pytest_r1perf import baseline as baselines
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.history.changepoint import Analysis, Drift, Size, Step, size_of
from pytest_r1perf.history.nightly import Point
from pytest_r1perf.history.nights import Broken, Night
from pytest_r1perf.metrics import Metric
from pytest_r1perf.sglang import protocol
from pytest_r1perf.sglang.resolved import differences

LATEST = 5
"""Nights at the end of the latest level that are compared with the baseline."""
_GAP = 3
"""A gap is this many times the usual time between two nights, and two days at least."""


def night_before(place: int, bad: Collection[int]) -> int:
    """The last night before a place that is not a bad one."""
    return max(other for other in range(place) if other not in bad)


def causes_of(step: Step, nights: Sequence[Night], bad: Collection[int]) -> tuple[str, ...]:
    """What changed at the step, then at the other nights where it may lie, each with its date."""
    lines = list(changes_between(nights[night_before(step.at, bad)], nights[step.at]))
    near = (place for place in range(step.earliest, step.latest + 1) if place != step.at and place not in bad)
    for place in sorted(near, key=lambda place: abs(place - step.at)):
        there = changes_between(nights[night_before(place, bad)], nights[place])
        lines += [f"{line} (on {nights[place].time:%Y-%m-%d}, where the step may lie as well)" for line in there]
    return tuple(lines)


def changes_between(before: Night, after: Night) -> tuple[str, ...]:
    """What the records of two nights say differently, beside the measurements: versions first."""
    lines = _changed(before.versions, after.versions, first="sglang")
    if before.host != after.host:
        lines.append(f"host {before.host or 'unknown'} -> {after.host or 'unknown'}")
    if before.settings and after.settings:  # an older record has none
        lines += _changed(before.settings, after.settings)
    if before.resolved and after.resolved:
        lines += [f"resolved: {line}" for line in differences(before.resolved, after.resolved)]
    return tuple(lines)


def _changed(before: Mapping[str, str], after: Mapping[str, str], first: str = "") -> list[str]:
    names = [*before, *(name for name in after if name not in before)]
    return [
        f"{name} {before.get(name, 'absent')} -> {after.get(name, 'absent')}"
        for name in sorted(names, key=lambda name: name != first)
        if before.get(name) != after.get(name)
    ]


def against_baseline(
    nights: Sequence[Night], points: Sequence[Point], analysis: Analysis, metric: Metric, root: Path
) -> tuple[Size | None, list[str]]:
    """The latest nights of the latest level over the pinned baseline, or why they can't be compared."""
    last = nights[-1]
    path = baselines.path_of(root, last.hardware, last.topology)
    if not path.is_file():
        return None, []
    try:
        stored = baselines.load(path).cells.get(last.cell)
    except R1PerfError as error:
        return None, [f"baseline: {error}"]
    if stored is None or metric.name not in stored.samples:
        return None, []
    barriers = protocol.differences(stored.protocol, last.protocol)
    if barriers:
        return None, [f"baseline: another protocol, not compared: {'; '.join(barriers)}"]
    alone = {*analysis.bad, *([len(points) - 1] if analysis.last_off else [])}
    drifting = bool(analysis.changes) and isinstance(analysis.changes[-1], Drift)
    level = [place for place in range(analysis.level_first, len(points)) if place not in alone] or [len(points) - 1]
    latest = [points[place] for place in level[-1 if drifting else -LATEST :]]
    pinned = Point.of(stored.samples[metric.name])
    # One session of the baseline's has its own luck of the night, which its rounds don't show.
    night = analysis.night_cv or 0.0
    spread = night**2 / len(latest) + night**2 + (pinned.cv or 0.0) ** 2 / pinned.rounds
    change = (statistics.fmean(point.mean for point in latest) - pinned.mean) * metric.better
    return (size_of(change, spread, max(1, len(points) - 1)) if night else Size(change, -math.inf, math.inf)), []


def protocol_notes(nights: Sequence[Night], newer: Sequence[Night]) -> list[str]:
    """Which newer nights were not joined, and why."""
    if not newer:
        return []
    lines = protocol.differences(nights[-1].protocol, newer[-1].protocol)
    return [f"superseded on {newer[0].time:%Y-%m-%d} by another protocol, not joined to it: {'; '.join(lines)}"]


def gaps(nights: Sequence[Night]) -> list[str]:
    """Stretches without a night, much longer than usual."""
    spans = [(b.time - a.time).total_seconds() for a, b in itertools.pairwise(nights)]
    if len(spans) < 2:
        return []
    long = max(_GAP * statistics.median(spans), 2 * 86400.0)
    return [
        f"no night between {nights[place].time:%Y-%m-%d} and {nights[place + 1].time:%Y-%m-%d}"
        for place, span in enumerate(spans)
        if span > long
    ]


def broken_since(nights: Sequence[Night], broken: Sequence[Broken]) -> list[str]:
    """Sessions after the latest night in which the cell gave no number."""
    last = nights[-1]
    same = (last.topology, last.cell, last.hardware)
    after = [
        what
        for what in broken
        if (what.topology, what.cell, what.hardware) == same and what.time > last.time and what.session != last.session
    ]
    if not after:
        return []
    times = "once" if len(after) == 1 else f"{len(after)} times"
    return [f"broke {times} since the latest night, last on {after[-1].time:%Y-%m-%d}: {after[-1].verdict}"]
