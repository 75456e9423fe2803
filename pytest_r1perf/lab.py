"""The ``perf_result`` and ``perf_lab`` fixtures: what a test's body works with."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_r1perf.assess import Assessment
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.marker import ARGUMENTS, DEFAULT_METRIC, PerfSpec, arguments_of, check
from pytest_r1perf.measurement import Sample
from pytest_r1perf.metrics import metric_named
from pytest_r1perf.session import RUN
from pytest_r1perf.statistics import Interval, interval_of_ratio
from pytest_r1perf.testrun import TestRun
from pytest_r1perf.verdict import Judgement, Verdict


@dataclass(frozen=True)
class Measured:
    """One measured cell, as a body sees it."""

    _assessment: Assessment

    @property
    def num_prompts(self) -> int:
        """N."""
        return self._assessment.measurement.cell.num_prompts

    @property
    def topology(self) -> str:
        """The topology's name."""
        return self._assessment.measurement.cell.topology.name

    @property
    def label(self) -> str:
        """The cell's short name, as in the table."""
        return self._assessment.measurement.cell.label

    @property
    def samples(self) -> tuple[Sample, ...]:
        """One a round (a fresh process), each with every metric."""
        return self._assessment.measurement.samples

    @property
    def versions(self) -> Mapping[str, str]:
        """Package versions of the SGLang environment."""
        return self._assessment.measurement.versions

    @property
    def protocol(self) -> Mapping[str, object]:
        """What must match before two numbers may be compared."""
        return self._assessment.measurement.protocol

    @property
    def resolved(self) -> Mapping[str, object]:
        """SGLang's resolved server arguments, from its log."""
        return self._assessment.measurement.resolved

    @property
    def log(self) -> str:
        """Path of the last round's log."""
        return self._assessment.result.log

    def values(self, metric: str = DEFAULT_METRIC) -> tuple[float, ...]:
        """One value a round, in the metric's unit."""
        return self._assessment.measurement.values(metric_named(metric).name)

    def median(self, metric: str = DEFAULT_METRIC) -> float:
        """The median over the rounds."""
        return statistics.median(self.values(metric))


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
class Comparison:
    """``a`` over ``b`` in the better direction of ``metric``: above 1, ``a`` is better."""

    a: Measured
    b: Measured
    metric: str
    ratio: Interval

    @property
    def a_wins(self) -> bool:
        """``a`` is surely better."""
        return self.ratio.lower > 1

    @property
    def b_wins(self) -> bool:
        """``b`` is surely better."""
        return self.ratio.upper < 1

    def __str__(self) -> str:
        ratio = self.ratio
        return (
            f"{self.a.label} / {self.b.label}: {self.metric} {ratio.estimate:.3f} "
            f"[{ratio.lower:.3f}, {ratio.upper:.3f}]"
        )


class PerfLab:
    """Measures cells within one test; the marker gives every argument that a call leaves out."""

    def __init__(self, run: TestRun, arguments: Mapping[str, Any]) -> None:
        self._run = run
        self._arguments = arguments

    def measure(self, **arguments: Any) -> Measured:
        """One more cell: marker arguments over those of the test's own marker.

        A broken measurement fails the test, named as any other; what can't run here skips it.
        """
        merged = arguments_of((), {**self._arguments, **arguments})
        return Measured(self._run.measure(check(merged, self._run.assessor.runner.catalog)))

    def compare(self, a: Measured, b: Measured, metric: str = DEFAULT_METRIC) -> Comparison:
        """``a`` over ``b`` with its interval, at the cell's share of the platform's error rate.

        Raises :class:`R1PerfError` for two platforms, or with one round on each side (no spread to see).
        """
        left, right = a._assessment.measurement, b._assessment.measurement
        if a.topology != b.topology:
            self._run.note(f"mixed topologies in one comparison: {a.topology} and {b.topology}")
        if left.cell.platform.name != right.cell.platform.name:
            raise R1PerfError(f"{a.label} and {b.label} are of different platforms: they cannot be compared")
        schema = metric_named(metric)
        new, old = (a.values(metric), b.values(metric))
        if schema.better < 0:
            new, old = old, new
        noise = left.cell.platform.noise
        ratio = interval_of_ratio(
            new,
            old,
            alpha=left.cell.platform.error_rate.per_cell,
            fallback_cv=(noise.run_cv, noise.runs - 1) if noise else None,
        )
        if ratio is None:
            raise R1PerfError(f"{a.label} and {b.label} have one round each: measure at least two, e.g. rounds='2:2'")
        return Comparison(a, b, metric, ratio)


def perf_result_of(request: pytest.FixtureRequest) -> PerfResult:
    """The fixture's value."""
    return PerfResult(run_of(request, "perf_result"))


def perf_lab_of(request: pytest.FixtureRequest) -> PerfLab:
    """The fixture's value."""
    run = run_of(request, "perf_lab")
    return PerfLab(run, arguments_from(run.spec))


def run_of(request: pytest.FixtureRequest, fixture: str) -> TestRun:
    """The perf test's run; :class:`R1PerfError` in a test without the marker."""
    run: TestRun | None = request.node.stash.get(RUN, None)
    if run is None:
        raise R1PerfError(f"{fixture} needs a test with a perf marker: add @perf(topology=..., n=...)")
    return run


def arguments_from(spec: PerfSpec) -> dict[str, Any]:
    """A checked marker back as marker arguments, for calls that change some of them."""
    given: dict[str, Any] = {
        "topology": spec.topology,
        "n": spec.n,
        "recipe": spec.recipe,
        "workload": spec.workload,
        "metric": spec.metrics,
        "platform": spec.platform,
        "mode": spec.mode,
        "flags": dict(spec.flags),
        "env": dict(spec.env),
        "timeout": spec.timeout_s,
        "rounds": f"{spec.rounds[0]}:{spec.rounds[1]}" if spec.rounds else None,
    }
    assert set(given) <= set(ARGUMENTS)
    return {name: value for name, value in given.items() if value is not None}
