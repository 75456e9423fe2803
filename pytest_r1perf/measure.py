"""Repeat in rounds: pooled, never retried until something passes.

How many rounds, and after which of them the data are looked at, is planned before the first one: at the
minimum and at the maximum. The error rate is shared over those looks (``verdict.terms_for``), so looking early
costs what it must and no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from pytest_r1perf.cell import Cell
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.recorder import Kept


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """At least ``minimum`` and at most ``maximum`` processes."""

    minimum: int
    maximum: int

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of rounds after which a verdict may be taken."""
        return (self.minimum,) if self.minimum == self.maximum else (self.minimum, self.maximum)


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

    def round(self, prepared: Measurement, number: int) -> tuple[Measurement, Sample | Problem]:
        """One more round; also gives the measurement with what this round told of it (protocol, arguments)."""
        ...


def measure(
    cell: Cell,
    mode: Mode,
    plan: RoundPlan,
    *,
    decided: Callable[[Measurement], bool],
    budget: Budget,
    kept: Callable[[Measurement], Kept],
    record: Callable[[Measurement, Sample], None],
) -> Measurement:
    """Measure a cell: the rounds that the session already has of what was prepared, then fresh ones.

    The first problem ends it: a broken or invalid round is the cell's verdict, whatever the others say.
    ``record`` is called with each fresh sample as soon as it is known; an :class:`OSError` from it (a full
    disk) passes through.
    """
    measurement = replace(mode.prepare(cell), planned_rounds=plan.maximum)
    if measurement.problem is not None:
        return measurement
    earlier = kept(measurement)
    measurement = replace(
        measurement,
        samples=earlier.samples,
        protocol=earlier.protocol,
        resolved=earlier.resolved,
        problem=earlier.problem,
    )
    if measurement.problem is not None:
        return measurement
    while len(measurement.samples) < plan.maximum:
        done = len(measurement.samples)
        if done in plan.looks and decided(measurement):
            break
        if budget.spent:
            return replace(measurement, remarks=(*measurement.remarks, f"--perf-budget was spent after {done} rounds"))
        measurement, outcome = mode.round(measurement, done + 1)
        if isinstance(outcome, Problem):
            return replace(measurement, problem=outcome)
        measurement = replace(measurement, samples=(*measurement.samples, outcome))
        record(measurement, outcome)
    return measurement
