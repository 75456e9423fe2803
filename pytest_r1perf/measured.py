"""A measured cell, or a broken one, as a test's body sees it; and the ``perf_result`` fixture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_r1perf.assess import Assessment
from pytest_r1perf.cell import Cell
from pytest_r1perf.effects import BrokenPoint, Point
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.marker import DEFAULT_METRIC
from pytest_r1perf.measurement import Measurement, Sample
from pytest_r1perf.metrics import metric_named
from pytest_r1perf.mixing import load_of
from pytest_r1perf.session import RUN
from pytest_r1perf.testrun import TestRun
from pytest_r1perf.verdict import Judgement, Verdict


@dataclass(frozen=True)
class Measured:
    """One measured cell, as a body sees it."""

    _assessment: Assessment

    @property
    def measurement(self) -> Measurement:
        """The rounds with everything that is known of them."""
        return self._assessment.measurement

    @property
    def cell(self) -> Cell:
        """What was asked for, all defaults filled in."""
        return self.measurement.cell

    @property
    def num_prompts(self) -> int:
        """N."""
        return self.cell.num_prompts

    @property
    def topology(self) -> str:
        """The topology's name."""
        return self.cell.topology.name

    @property
    def label(self) -> str:
        """The cell's short name, as in the table."""
        return self.cell.label

    @property
    def samples(self) -> tuple[Sample, ...]:
        """One a round (a fresh process), each with every metric."""
        return self.measurement.samples

    @property
    def versions(self) -> Mapping[str, str]:
        """Package versions of the SGLang environment."""
        return self.measurement.versions

    @property
    def protocol(self) -> Mapping[str, object]:
        """What must match before two numbers may be compared."""
        return self.measurement.protocol

    @property
    def resolved(self) -> Mapping[str, object]:
        """SGLang's resolved server arguments, from its log."""
        return self.measurement.resolved

    @property
    def log(self) -> str:
        """Path of the last round's log."""
        return self._assessment.result.log

    def values(self, metric: str = DEFAULT_METRIC) -> tuple[float, ...]:
        """One value a round, in the metric's unit; :class:`R1PerfError` where the cell has no such number."""
        return self.measurement.values(metric_named(metric).name)

    def median(self, metric: str = DEFAULT_METRIC) -> float:
        """The median over the rounds."""
        return statistics.median(self.values(metric))

    def point(self, metric: str, name: str | None = None) -> Point:
        """The cell as plain data of one metric; ``name`` stands for its label."""
        return Point(
            label=name or self.label,
            topology=self.topology,
            gpus=self.cell.topology.gpus_used,
            num_prompts=self.num_prompts,
            load=load_of(self.cell),
            values=self.values(metric),
        )


@dataclass(frozen=True)
class PerfResult:
    """The test's own cell: everything of :class:`Measured`, and the verdict to come.

    Lazy: the measurement runs in the call phase, just before the body, so a fixture cannot look inside.
    """

    _run: TestRun

    @property
    def verdict(self) -> Verdict:
        """The verdict that the test ends with, should the body pass."""
        return self._assessment.result.verdict

    @property
    def judgements(self) -> tuple[Judgement, ...]:
        """One a metric: ratio, interval, floor, what it could have detected."""
        return self._assessment.result.judgements

    @property
    def notes(self) -> tuple[str, ...]:
        """Advisories and what differs from the baseline."""
        return self._assessment.result.notes

    @property
    def _assessment(self) -> Assessment:
        if self._run.assessment is None:
            raise R1PerfError("perf_result is filled just before the test's body runs: use it there, not in a fixture")
        return self._run.assessment

    def __getattr__(self, name: str) -> Any:
        """The rest is :class:`Measured`'s."""
        return getattr(Measured(self._assessment), name)


@dataclass(frozen=True)
class Broken:
    """A cell that broke and is a data point all the same: it ran out of memory, say.

    ``rounds`` of it were whole before one broke. It is false, and a :class:`Measured` is true.
    """

    label: str
    verdict: Verdict
    cause: str
    log: str
    rounds: int = 0

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self.label}: {self.verdict.value}: {self.cause}"

    def point(self) -> BrokenPoint:
        """The same as plain data."""
        return BrokenPoint(self.label, self.verdict.value, self.cause)


def run_of(request: pytest.FixtureRequest, fixture: str) -> TestRun:
    """The perf test's run; :class:`R1PerfError` in a test without the marker."""
    run: TestRun | None = request.node.stash.get(RUN, None)
    if run is None:
        raise R1PerfError(f"{fixture} needs a test with a perf marker: add @perf(topology=..., n=...)")
    return run
