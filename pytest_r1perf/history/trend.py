"""Trends of cells over nights: series from a history, what changed at a step, and how far it is from the baseline."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.history.changepoint import Analysis, Drift, Size, Step, analyse
from pytest_r1perf.history.nightly import Point
from pytest_r1perf.history.nights import Broken, History, Night
from pytest_r1perf.history.notes import (
    against_baseline,
    broken_since,
    causes_of,
    changes_between,
    gaps,
    night_before,
    protocol_notes,
)
from pytest_r1perf.metrics import Metric
from pytest_r1perf.sglang import protocol


class State(str, Enum):
    """What a series shows at its end."""

    TOO_FEW = "too few nights"
    STEADY = "steady"
    STEP = "STEP"
    DRIFT = "DRIFT"


@dataclass(frozen=True, slots=True)
class Event:
    """A change or a bad night: from ``before`` (the last night of the old state) to ``after``, and what changed.

    ``size`` is relative to 1 in the metric's own direction (-0.05: 5 % less); ``nightly`` a drift's a night.
    ``causes`` are lines of what the records know to have changed, each with the night's date where it is another one.
    """

    kind: str
    before: datetime.datetime
    after: datetime.datetime
    size: Size
    worse: bool
    sure: bool
    causes: tuple[str, ...]
    nightly: Size | None = None


@dataclass(frozen=True, slots=True)
class Trend:
    """One series: a cell on a hardware under one protocol, its nights, and what they show.

    ``notes`` are sentences: gaps, another protocol, a baseline that can't be compared, nights that broke. ``telling``
    is the change that the state rests on: the one since which the cell is worst, where it is surely worse than before
    it, else the latest. ``against_baseline`` is the latest nights over the baseline in the better direction: above 1
    is better. ``versions`` are SGLang's, one a night.
    """

    cell: str
    topology: str
    hardware: str
    times: tuple[datetime.datetime, ...]
    means: tuple[float, ...]
    state: State
    needed: int
    last_off: bool
    telling: Event | None
    surely_worse: bool
    events: tuple[Event, ...]
    night_cv: float | None
    against_baseline: Size | None
    notes: tuple[str, ...]
    superseded: bool
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """What is asked of a history: metric, cells, error rate of the whole report, nights looked back at, baselines."""

    metric: Metric
    cells: str = "*"
    alpha: float = 0.05
    nights: int = 90
    baselines: Path | None = None


def trends(history: History, terms: Terms) -> list[Trend]:
    """The trend of every series of the cells asked for, the surely worse first.

    ``terms.alpha`` is shared over the series: the probability that a report on unchanged series names a change.

    Raises :class:`R1PerfError` when no night is left to look at.
    """
    chosen = [
        night
        for night in history.nights
        if night.side in (None, "new") and night.values(terms.metric.name) and _asked(night, terms.cells)
    ]
    if not chosen:
        raise R1PerfError(_nothing(history, terms))
    series = _series(chosen, terms.nights)
    alpha = terms.alpha / len(series)
    found = [_trend(nights, newer, alpha, terms, history.broken) for nights, newer in series]
    return sorted(found, key=_worst_first)


def _asked(night: Night, cells: str) -> bool:
    """By the key, or by the key with the topology before it, as reports name a cell."""
    return fnmatchcase(night.cell, cells) or fnmatchcase(f"{night.topology} {night.cell}", cells)


def _nothing(history: History, terms: Terms) -> str:
    if not history.nights:
        return "no night was found: measure with `pytest -m perf`, or name the output directory that has the records"
    known = sorted({night.cell for night in history.nights if night.side in (None, "new")})
    if not any(_asked(night, terms.cells) for night in history.nights):
        return f"--cell {terms.cells!r} matches no cell (known: {', '.join(known) or 'none'})"
    measured = sorted({name for night in history.nights for one in night.rounds for name in one.metrics})
    return f"--metric {terms.metric.name}: no night has it (measured: {', '.join(measured)})"


def _series(nights: Sequence[Night], last: int) -> list[tuple[list[Night], list[Night]]]:
    """Nights that may be compared, by cell, topology, hardware and protocol, each with the newer protocol's nights."""
    found: dict[tuple[str, str, str], list[list[Night]]] = {}
    for night in nights:
        groups = found.setdefault((night.topology, night.cell, night.hardware), [])
        for group in groups:
            # Nights that an older r1perf wrote lack the same keys: they are alike, though what they lack is not known.
            known = group[-1].protocol
            if known == night.protocol or not protocol.differences(known, night.protocol):
                group.append(night)
                break
        else:
            groups.append([night])
    series = []
    for groups in found.values():
        current = max(groups, key=lambda group: group[-1].time)
        series += [(group[-last:], [] if group is current else current) for group in groups]
    return series


def _trend(nights: list[Night], newer: list[Night], alpha: float, terms: Terms, broken: Sequence[Broken]) -> Trend:
    points = [Point.of(night.values(terms.metric.name)) for night in nights]
    analysis = analyse(points, alpha=alpha)
    changes = [_event(change, nights, terms.metric, analysis.bad) for change in analysis.changes]
    singles = [_bad_night(place, analysis, points, nights, terms.metric) for place in analysis.bad]
    telling, worse = _telling(changes, terms.metric)
    against: Size | None = None
    notes: list[str] = []
    if terms.baselines is not None:
        against, notes = against_baseline(nights, points, analysis, terms.metric, terms.baselines)
    return Trend(
        cell=nights[0].cell,
        topology=nights[0].topology,
        hardware=nights[0].hardware,
        times=tuple(night.time for night in nights),
        means=tuple(math.exp(point.mean) for point in points),
        state=_state(analysis, telling),
        needed=analysis.needed,
        last_off=analysis.last_off,
        telling=telling,
        surely_worse=worse and not newer,
        events=tuple(sorted([*changes, *singles], key=lambda event: event.after)),
        night_cv=analysis.night_cv,
        against_baseline=against,
        notes=(*notes, *protocol_notes(nights, newer), *gaps(nights), *broken_since(nights, broken)),
        superseded=bool(newer),
        versions=tuple(night.versions.get("sglang", "") for night in nights),
    )


def _telling(changes: Sequence[Event], metric: Metric) -> tuple[Event | None, bool]:
    """The change that the latest state is told by, and whether the cell is surely worse now than before it.

    A step down that a smaller one up followed is still a loss: sizes are summed up from each change to the end, at
    the better end of their intervals.
    """
    telling, most, at_best = (changes[-1] if changes else None), 0.0, 0.0
    for event in reversed(changes):
        at_best += event.size.upper if metric.better > 0 else -event.size.lower
        if at_best < most:
            telling, most = event, at_best
    return telling, most < 0


def _state(analysis: Analysis, telling: Event | None) -> State:
    if not analysis.enough:
        return State.TOO_FEW
    if telling is None:
        return State.STEADY
    return State.STEP if telling.nightly is None else State.DRIFT


def _event(change: Step | Drift, nights: Sequence[Night], metric: Metric, bad: Sequence[int]) -> Event:
    size = change.size
    worse = size.estimate * metric.better < 0
    sure = size.upper < 0 or size.lower > 0
    if isinstance(change, Drift):
        before, after = nights[change.first], nights[change.last]
        causes = changes_between(before, after)
        return Event("drift", before.time, after.time, size, worse, sure, causes, nightly=change.slope)
    before, after = nights[night_before(change.at, bad)], nights[change.at]
    return Event("step", before.time, after.time, size, worse, sure, causes_of(change, nights, bad))


def _bad_night(
    place: int, analysis: Analysis, points: Sequence[Point], nights: Sequence[Night], metric: Metric
) -> Event:
    """A night against the two beside it."""
    beside = [points[near].mean for near in (place - 1, place + 1)]
    off = points[place].mean - statistics.fmean(beside)
    half = (analysis.night_cv or 0.0) * math.sqrt(1.5) * 2
    size = Size(off, off - half, off + half)
    causes = changes_between(nights[place - 1], nights[place])
    return Event("bad night", nights[place].time, nights[place].time, size, off * metric.better < 0, True, causes)


def _worst_first(trend: Trend) -> tuple[bool, bool, bool, float, str, str, str]:
    size = abs(trend.telling.size.estimate) if trend.telling is not None else 0.0
    worse = trend.telling is not None and trend.telling.worse
    return trend.superseded, not trend.surely_worse, not worse, -size, trend.topology, trend.cell, trend.hardware


def as_dict(trend: Trend) -> Mapping[str, object]:
    """Plain data for JSON; times as ISO 8601, sizes as fractions (``-0.05``: 5 % less)."""
    return {
        "cell": trend.cell,
        "topology": trend.topology,
        "hardware": trend.hardware,
        "state": trend.state.value,
        "nights": len(trend.times),
        "nights_needed": trend.needed,
        "first": trend.times[0].isoformat(),
        "last": trend.times[-1].isoformat(),
        "latest": trend.means[-1],
        "night_cv": trend.night_cv,
        "last_off": trend.last_off,
        "surely_worse": trend.surely_worse,
        "superseded": trend.superseded,
        "against_baseline": _fractions(trend.against_baseline, ratio=True),
        "events": [
            {
                "kind": event.kind,
                "before": event.before.isoformat(),
                "after": event.after.isoformat(),
                "size": _fractions(event.size),
                "a_night": _fractions(event.nightly),
                "worse": event.worse,
                "sure": event.sure,
                "causes": list(event.causes),
            }
            for event in trend.events
        ],
        "notes": list(trend.notes),
        "means": list(trend.means),
        "times": [time.isoformat() for time in trend.times],
        "versions": list(trend.versions),
    }


def _fractions(size: Size | None, *, ratio: bool = False) -> dict[str, float | None] | None:
    if size is None:
        return None
    values = {"estimate": size.estimate, "lower": size.lower, "upper": size.upper}
    base = 0.0 if ratio else 1.0
    return {name: math.exp(value) - base if math.isfinite(value) else None for name, value in values.items()}
