"""How much numbers move when nothing changes: variance components of windows, processes, sessions and hosts.

One nested random-effects model on logarithms: the logarithm of a timed window is its cell's mean (fixed: cells may
differ as they like) plus what the host, the session on it, the process in the session and the window in the process
add, each independent with a variance of its own. The numbers of windows, processes and sessions may differ.

Estimates are those of the unweighted-means analysis of variance: at each level the plain variance of means of means.
That is how the plugin averages, and its expected mean squares are exact for unequal numbers, too (Searle, Casella and
McCulloch, Variance Components (1992), chapters 3 and 5; Thomas and Hultquist, Annals of Statistics 6 (1978) 582). A
component is a difference of mean squares: its degrees of freedom are Satterthwaite's (Biometrics Bulletin 2 (1946)
110), its limits are generalized confidence limits (Weerahandi, JASA 88 (1993) 899), found by simulating the mean
squares' chi-squared variables with a fixed seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.history.nights import Night

CONFIDENCE = 0.95
"""Of the two-sided limits of a component."""

_DRAWS = 40_000
_SEED = 2026


@dataclass(frozen=True, slots=True)
class Series:
    """One cell in one session, in the order of its processes: for each the values of its timed windows.

    Values are in the metric's unit and above 0. A process of ``offline`` mode has one window.
    """

    cell: str
    host: str
    session: str
    runs: tuple[tuple[float, ...], ...]

    @property
    def logs(self) -> tuple[float, ...]:
        """The logarithm of each process's value, which is the geometric mean over its windows."""
        return tuple(_mean([math.log(value) for value in run]) for run in self.runs)


@dataclass(frozen=True, slots=True)
class Component:
    """What one level adds, as a standard deviation of logarithms ("CV").

    ``cv`` is 0 where the ``variance`` comes out below 0: the level is then lost in the noise of the levels beneath
    it. ``lower`` and ``upper`` are its limits (:data:`CONFIDENCE`), ``df`` its degrees of freedom, ``count`` how many
    windows, processes, sessions or hosts it rests on.
    """

    cv: float
    variance: float
    lower: float
    upper: float
    df: float
    count: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """The model of some series.

    ``round`` is the spread of a process's value within a session *as it was measured*: with ``windows`` windows a
    process (a mean where the numbers differ), so what windows add is in it, divided by their number. It is what a
    verdict calls ``run_cv``. ``window``, ``process``, ``session`` and ``host`` are the pure components; ``None`` where
    nothing was repeated at that level (``process`` where no process has two windows: ``round`` is then all that can
    be told).
    """

    round: Component
    window: Component | None
    process: Component | None
    session: Component | None
    host: Component | None
    windows: float
    cells: int


def series_of(nights: Sequence[Night], metric: str) -> tuple[Series, ...]:
    """What :func:`estimate` takes, of recorded nights; nights without this metric are left out.

    Another workload, hardware, version or protocol is another cell: what it changes is no noise.
    """
    found = []
    for night in nights:
        runs = tuple(run for run in (_windows(one.metrics, one.windows, metric) for one in night.rounds) if run)
        if runs:
            found.append(Series(_identity(night), night.host, night.session, runs))
    return tuple(found)


def estimate(series: Sequence[Series]) -> Estimate:
    """The variance components of one platform's series, pooled over their cells.

    Cells that were measured in the same sessions share what these add: the degrees of freedom of ``session`` and
    ``host`` are at most those of the sessions and hosts themselves. Raises :class:`R1PerfError` when no session has
    two processes of a cell, or for a value that has no logarithm.
    """
    for one in series:
        for value in (value for run in one.runs for value in run):
            if not (math.isfinite(value) and value > 0):
                raise R1PerfError(
                    f"session {one.session}: {value!r} is no measurement: noise is taken of numbers above 0"
                )
    window, round_, session, host = _mean_squares(series)
    if not round_.df:
        raise R1PerfError("no session has two processes of one cell: noise takes at least two, better ten")
    several = window.df > 0
    of_windows, of_rounds = _Combined.of(window), _Combined.of(round_)
    process = _less(round_, {"window": of_windows}) if several else None
    # Without a second window anywhere the two levels are one: what a process adds holds what its window adds.
    beneath = {"round": of_rounds} if process is None else {"window": of_windows, "round": process}
    between = _less(session, beneath) if session.df else None
    above = {**beneath, "session": between} if between is not None else beneath
    counts = _counts(series)
    return Estimate(
        round=_component(of_rounds, counts["process"]),
        window=_component(of_windows, counts["window"]) if several else None,
        process=_component(process, counts["process"]) if process is not None else None,
        session=_component(between, counts["session"]) if between is not None else None,
        host=_component(_less(host, above), counts["host"]) if host.df else None,
        windows=counts["window"] / counts["process"],
        cells=len({one.cell for one in series}),
    )


@dataclass(frozen=True, slots=True)
class _MeanSquare:
    """A mean square with its degrees of freedom, and what it expects of each level beneath its own (a share)."""

    level: str
    value: float
    df: float
    holds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Combined:
    """A sum of mean squares, each with a factor."""

    parts: tuple[tuple[float, _MeanSquare], ...]

    @classmethod
    def of(cls, square: _MeanSquare) -> _Combined:
        return cls(((1.0, square),))


def _less(square: _MeanSquare, beneath: Mapping[str, _Combined]) -> _Combined:
    """A level's own variance: its mean square less what the levels beneath put into it."""
    parts: dict[str, tuple[float, _MeanSquare]] = {square.level: (1.0, square)}
    for level, component in beneath.items():
        share = square.holds.get(level, 0.0)
        for factor, part in component.parts:
            before = parts.get(part.level, (0.0, part))[0]
            parts[part.level] = (before - share * factor, part)
    return _Combined(tuple(parts.values()))


def _component(combined: _Combined, count: int) -> Component:
    variance = math.fsum(factor * part.value for factor, part in combined.parts)
    weight = math.fsum((factor * part.value) ** 2 / part.df for factor, part in combined.parts)
    leading = combined.parts[0][1]
    df = variance**2 / weight if variance > 0 and weight > 0 else leading.df
    lower, upper = _limits(combined)
    return Component(math.sqrt(max(0.0, variance)), variance, lower, upper, df, count)


def _limits(combined: _Combined) -> tuple[float, float]:
    """Generalized confidence limits: each mean square over its chi-squared variable, simulated."""
    import numpy as np

    total: Any = np.zeros(_DRAWS)
    for factor, part in combined.parts:
        # A stream for each level: one level's limits do not depend on which others are there.
        stream = np.random.default_rng([_SEED, ("window", "round", "session", "host").index(part.level)])
        total += factor * part.value * part.df / stream.chisquare(part.df, _DRAWS)
    low, high = np.quantile(total, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return math.sqrt(max(0.0, float(low))), math.sqrt(max(0.0, float(high)))


@dataclass(frozen=True, slots=True)
class _Unit:
    """A mean of one level's unit, and the variance it has of each level beneath, as a share of that level's own."""

    mean: float
    shares: Mapping[str, float]


def _mean_squares(series: Sequence[Series]) -> tuple[_MeanSquare, _MeanSquare, _MeanSquare, _MeanSquare]:
    """The unweighted-means mean squares of windows, processes, sessions and hosts."""
    cells: dict[str, dict[str, dict[str, list[_Unit]]]] = {}
    windows: list[list[_Unit]] = []
    for one in series:
        units = cells.setdefault(one.cell, {}).setdefault(one.host, {}).setdefault(one.session, [])
        for run in one.runs:
            logs = [_Unit(math.log(value), {}) for value in run]
            windows.append(logs)
            units.append(_mean_unit(logs, "window"))
    runs = [units for hosts in cells.values() for sessions in hosts.values() for units in sessions.values()]
    sessions = [
        [_mean_unit(units, "round") for units in found.values()] for hosts in cells.values() for found in hosts.values()
    ]
    hosts = [
        [_mean_unit([_mean_unit(units, "round") for units in found.values()], "session") for found in hosts.values()]
        for hosts in cells.values()
    ]
    of_sessions, of_hosts = _pooled(sessions, "session"), _pooled(hosts, "host")
    known_hosts = len({one.host for one in series})
    known_sessions = len({(one.host, one.session) for one in series})
    return (
        _pooled(windows, "window"),
        _pooled(runs, "round"),
        _capped(of_sessions, known_sessions - known_hosts),
        _capped(of_hosts, known_hosts - 1),
    )


def _mean_unit(units: Sequence[_Unit], level: str) -> _Unit:
    """The plain mean of units of ``level``, and what its variance holds of each level."""
    count = len(units)
    names = {name for unit in units for name in unit.shares}
    shares = {name: math.fsum(unit.shares.get(name, 0.0) for unit in units) / count**2 for name in names}
    return _Unit(_mean([unit.mean for unit in units]), {**shares, level: 1 / count})


def _pooled(groups: Sequence[Sequence[_Unit]], level: str) -> _MeanSquare:
    """The variance of the units about their group's mean, over all groups with two units or more."""
    several = [group for group in groups if len(group) > 1]
    df = sum(len(group) - 1 for group in several)
    if not df:
        return _MeanSquare(level, 0.0, 0, {})
    squares: list[float] = []
    for group in several:
        mean = _mean([unit.mean for unit in group])
        squares += [(unit.mean - mean) ** 2 for unit in group]
    names = {name for group in several for unit in group for name in unit.shares}
    holds = {
        name: math.fsum((len(group) - 1) * _mean([unit.shares.get(name, 0.0) for unit in group]) for group in several)
        / df
        for name in names
    }
    return _MeanSquare(level, math.fsum(squares) / df, df, holds)


def _capped(square: _MeanSquare, df: int) -> _MeanSquare:
    return _MeanSquare(square.level, square.value, min(square.df, df), square.holds)


def _counts(series: Sequence[Series]) -> dict[str, int]:
    return {
        "window": sum(len(run) for one in series for run in one.runs),
        "process": sum(len(one.runs) for one in series),
        "session": len({(one.host, one.session) for one in series}),
        "host": len({one.host for one in series}),
    }


def _windows(
    metrics: Mapping[str, float], windows: Sequence[Mapping[str, float]], metric: str
) -> tuple[float, ...] | None:
    if metric not in metrics:
        return None
    single = tuple(window[metric] for window in windows if metric in window)
    return single or (metrics[metric],)


def _identity(night: Night) -> str:
    parts = (night.topology, night.cell, night.hardware, night.workload, night.side)
    return json.dumps([*parts, dict(night.versions), dict(night.protocol)], sort_keys=True, default=str)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
