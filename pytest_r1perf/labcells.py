"""The cells that a ``perf_lab`` test measures: marker arguments over the marker's, one by one or in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_r1perf.assess import Assessment
from pytest_r1perf.errors import R1PerfError, did_you_mean
from pytest_r1perf.grouping import plain_nodeid
from pytest_r1perf.load import ARGUMENTS as LOAD_ARGUMENTS
from pytest_r1perf.load import arguments_of as load_arguments
from pytest_r1perf.marker import ARGUMENTS, PerfSpec, arguments_of, check
from pytest_r1perf.measure import RoundPlan
from pytest_r1perf.measured import Broken, Measured
from pytest_r1perf.outcomes import PerfFailure
from pytest_r1perf.runner import CannotRun
from pytest_r1perf.testrun import TestRun
from pytest_r1perf.verdict import Verdict

_MAY_BREAK = ("OOM", "HANG", "CRASH", "CONFIG")
"""What can be said of a cell. INVALID is no number at all, and INFRA is the host's fault."""

_BATCH = ("batch_size", "input_len", "output_len")
_TRAFFIC = tuple(name for name in LOAD_ARGUMENTS if name not in _BATCH)


class LabCells:
    """Measures cells for one test; ``arguments`` are the marker's own, for what a cell leaves out."""

    def __init__(self, run: TestRun, arguments: Mapping[str, Any]) -> None:
        self._run = run
        self._arguments = arguments
        self._known: dict[PerfSpec, Measured | Broken] = {}

    def measured(self, cells: Sequence[Mapping[str, Any]]) -> tuple[Measured, ...]:
        """Cells that must not break, a round of each in turn."""
        found = self._in_turn([self._spec(cell) for cell in cells], frozenset())
        return tuple(one for one in found if isinstance(one, Measured))

    def attempted(self, cells: Sequence[Mapping[str, Any]], may_break: Sequence[str]) -> tuple[Measured | Broken, ...]:
        """Cells that may break by these verdicts, a round of each in turn."""
        for name in may_break:
            if name not in _MAY_BREAK:
                raise R1PerfError(f"may_break has {name!r}, which is no data point; {did_you_mean(name, _MAY_BREAK)}")
        breakages = frozenset(Verdict(name) for name in may_break)
        return tuple(self._in_turn([self._spec(cell) for cell in cells], breakages))

    def swept(self, place: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
        """A combination of a sweep as marker arguments: what is none of them is a flag, beside all other flags."""
        own = {key: value for key, value in place.items() if key in ARGUMENTS}
        flags = {key: value for key, value in place.items() if key not in ARGUMENTS}
        return {**fixed, **own, "flags": {**fixed.get("flags", self._arguments.get("flags", {})), **flags}}

    def refuse_one_round(self, cell: Mapping[str, Any]) -> PerfSpec:
        """The checked marker of a sweep's cell; :class:`R1PerfError` where hours would go into nothing."""
        spec = self._spec(cell)
        platform = self._run.assessor.runner.platform_of(spec)
        if self._run.assessor.runner.plan(spec, platform).minimum < 2 and platform.noise is None:
            raise R1PerfError(
                "a grid of one round a cell has no spread to see: measure two at least, e.g. rounds='2:2'"
            )
        return spec

    def _spec(self, cell: Mapping[str, Any]) -> PerfSpec:
        return check(arguments_of((), over(self._arguments, cell)), self._run.assessor.runner.catalog)

    def _in_turn(self, specs: Sequence[PerfSpec], may_break: frozenset[Verdict]) -> list[Measured | Broken]:
        """A round of each, then the next, every second time from the last to the first; then each as if alone.

        Which rounds there will be is fixed: nobody looks at the numbers in between. Cells that can share an engine or a
        server do so: a round of all of them is one process, in the same order.
        """
        runner, nodeid = self._run.assessor.runner, plain_nodeid(self._run.item)
        going = {place: spec for place, spec in enumerate(specs) if spec not in self._known}
        number = 0
        while len(going) > 1:
            number += 1
            order = sorted(going, reverse=number % 2 == 0)
            for place in order:
                try:
                    cell = runner.cell_of(going[place])
                except CannotRun:
                    self._alone(going[place], may_break)  # skips the test, with the reason
                    raise
                with self._sharing([going[other] for other in order if other in going]):
                    measured = runner.measure(cell, nodeid, RoundPlan(number, number), lambda now: False)
                enough = number >= runner.plan(going[place], cell.platform).minimum
                if measured.problem is not None or len(measured.samples) < number or enough:
                    del going[place]
        return [self._alone(spec, may_break) for spec in specs]

    @contextlib.contextmanager
    def _sharing(self, specs: Sequence[PerfSpec]) -> Iterator[None]:
        """Meanwhile these are to come as well: the runner takes those along that the same process can measure."""
        runner, nodeid = self._run.assessor.runner, plain_nodeid(self._run.item)
        others = runner.upcoming
        runner.upcoming = lambda: [*((spec, nodeid) for spec in specs), *others()]
        try:
            yield
        finally:
            runner.upcoming = others

    def _alone(self, spec: PerfSpec, may_break: frozenset[Verdict]) -> Measured | Broken:
        """A cell with all its rounds; one that this test has already is not measured, or reported, again."""
        known = self._known.get(spec)
        if known is None or (isinstance(known, Broken) and known.verdict not in may_break):
            known = self._known[spec] = self._reported(spec, may_break)
        return known

    def _reported(self, spec: PerfSpec, may_break: frozenset[Verdict]) -> Measured | Broken:
        before = len(self._run.results)
        try:
            return self._fixed(self._run.measure(spec), spec)
        except PerfFailure:
            if len(self._run.results) == before or self._run.results[-1].verdict not in may_break:
                raise
            result = self._run.results[-1]
            note = f"{result.verdict.value} is a data point of this test"
            self._run.results[-1] = replace(result, failed=False, notes=(*result.notes, note))
            return Broken(result.label, result.verdict, result.cause, result.log, result.rounds)

    def _fixed(self, assessment: Assessment, spec: PerfSpec) -> Measured:
        """With the number of rounds that was fixed: a test that looked at its numbers may have gone on for more."""
        measurement = assessment.measurement
        minimum = self._run.assessor.runner.plan(spec, measurement.cell.platform).minimum
        return Measured(replace(assessment, measurement=replace(measurement, samples=measurement.samples[:minimum])))


def over(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A call's marker arguments over the marker's own: what they contradict in it is dropped.

    One batch takes the place of traffic and the other way round, and a mode without a server has no load.
    """
    dropped: set[str] = set()
    if any(given.get(name) is not None for name in _BATCH):
        dropped = {"n", *_TRAFFIC}
    elif any(given.get(name) is not None for name in ("n", *_TRAFFIC)):
        dropped = {*_BATCH}
    if given.get("mode", "serve") != "serve":
        dropped |= {*LOAD_ARGUMENTS}
    return {**{name: value for name, value in defaults.items() if name not in dropped}, **given}


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
        "kernel_caches": spec.kernel_caches,
        **load_arguments(spec.load),
    }
    assert set(given) <= set(ARGUMENTS)
    return {name: value for name, value in given.items() if value is not None}
