"""Repeat in rounds: pooled, never retried until something passes.

How many rounds there may be is planned before the first one; from the minimum on the data are looked at after each.
The error rates are spent over those looks (:mod:`pytest_r1perf.sequential`), so looking early costs what it must
and no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from pytest_r1perf.cell import Cell
from pytest_r1perf.measurement import Discarded, Measurement, Problem, Sample
from pytest_r1perf.recorder import Kept, unlike
from pytest_r1perf.sglang.protocol import differences


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """At least ``minimum`` and at most ``maximum`` processes."""

    minimum: int
    maximum: int

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of rounds after which a verdict may be taken."""
        return tuple(range(self.minimum, self.maximum + 1))


class Budget:
    """The session's time for measuring, in seconds of the monotonic clock; ``None`` is unlimited."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def spent(self) -> bool:
        """Whether no further round may start."""
        return self._end is not None and time.monotonic() >= self._end


class Mode(Protocol):
    """A way of measuring: the offline benchmark, one engine for many cells, a server."""

    def prepare(self, cell: Cell) -> Measurement:
        """Preflight: the cell's command, environment and workload, or the problem; starts no benchmark."""
        ...

    def round(self, prepared: Measurement, number: int) -> tuple[Measurement, Sample | Discarded | Problem]:
        """One more round; also gives the measurement with what this round told of it (protocol, arguments)."""
        ...


@dataclass(frozen=True, slots=True)
class Side:
    """One environment's way of measuring, and its pen.

    ``kept`` gives the rounds that the session already has of what was prepared. ``record`` is called with each fresh
    round as soon as it is known; an :class:`OSError` from it (a full disk) passes through.
    """

    mode: Mode
    kept: Callable[[Measurement], Kept]
    record: Callable[[Measurement, Sample | Discarded], None]

    def begin(self, cell: Cell, plan: RoundPlan) -> Measurement:
        """What is prepared, with the rounds that there are already."""
        measurement = replace(self.mode.prepare(cell), planned_rounds=plan.maximum)
        if measurement.problem is not None:
            return measurement
        kept = self.kept(measurement)
        return replace(
            measurement,
            samples=kept.samples,
            discarded=kept.discarded,
            protocol=kept.protocol,
            resolved=kept.resolved,
            problem=kept.problem,
            remarks=(*measurement.remarks, *kept.remarks),
        )

    def another(self, measurement: Measurement) -> Measurement:
        """One fresh round more, or the problem that ends it; processes that only warmed caches do not count."""
        number = len(measurement.samples) + 1
        while True:
            # Each round says anew how it was measured: rounds that differ in it must not be pooled.
            told, outcome = self.mode.round(replace(measurement, protocol={}, resolved={}), number)
            if isinstance(outcome, Problem):
                return replace(_first_told(measurement, told), problem=outcome)
            if measurement.protocol and told.protocol:
                changed = differences(measurement.protocol, told.protocol)
                if changed:
                    return replace(measurement, problem=unlike(number, changed, outcome.log))
            measurement = _first_told(measurement, told)
            if isinstance(outcome, Sample):
                measurement = replace(measurement, samples=(*measurement.samples, outcome))
                self.record(measurement, outcome)
                return measurement
            measurement = replace(measurement, discarded=(*measurement.discarded, outcome))
            self.record(measurement, outcome)


def measure(
    cell: Cell, side: Side, plan: RoundPlan, *, decided: Callable[[Measurement], bool], budget: Budget
) -> Measurement:
    """Measure a cell: the rounds that the session already has of it, then fresh ones.

    The first problem ends it: a broken or invalid round is the cell's verdict, whatever the others say.
    """
    measurement = side.begin(cell, plan)
    while measurement.problem is None and len(measurement.samples) < plan.maximum:
        done = len(measurement.samples)
        if done in plan.looks and decided(measurement):
            break
        if budget.spent:
            return _cut_short(measurement)
        measurement = side.another(measurement)
    return measurement


def measure_pair(
    cell: Cell,
    old: Side,
    new: Side,
    plan: RoundPlan,
    *,
    decided: Callable[[Measurement, Measurement], bool],
    budget: Budget,
) -> tuple[Measurement, Measurement]:
    """Measure a cell in two environments in turn: old new, new old, old new, ...

    So a host that drifts, warms up or slows down does so for both. Looks are taken when both have as many rounds; the
    first problem of either side ends it.
    """
    sides = [old, new]
    both = [side.begin(cell, plan) for side in sides]
    while all(side.problem is None for side in both):
        counts = [len(side.samples) for side in both]
        done = min(counts)
        if done >= plan.maximum or (counts[0] == counts[1] and done in plan.looks and decided(both[0], both[1])):
            break
        if budget.spent:
            both = [_cut_short(side) for side in both]
            break
        for which in (0, 1) if done % 2 == 0 else (1, 0):
            if counts[which] == done:
                both[which] = sides[which].another(both[which])
                if both[which].problem is not None:
                    break
    return both[0], both[1]


def _first_told(measurement: Measurement, told: Measurement) -> Measurement:
    """What the first round told of how it is measured is kept."""
    if measurement.protocol:
        return replace(told, protocol=measurement.protocol, resolved=measurement.resolved)
    return told


def _cut_short(measurement: Measurement) -> Measurement:
    remark = f"--perf-budget was spent after {len(measurement.samples)} rounds"
    return replace(measurement, remarks=(*measurement.remarks, remark))
