"""One perf test from its measurement to its outcome.

Order: measure; a broken or INVALID measurement raises; the body; the verdict. A failing body beats a skip; a
failing body and a failing verdict are both reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from pytest_r1perf.antipatterns import RuleKind
from pytest_r1perf.assess import Assessment, Assessor
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.grouping import plain_nodeid
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.options import PerfOptions
from pytest_r1perf.outcomes import AntiPatternOutOfMemory, AntiPatternSlower, PerfFailure, PerfSkip
from pytest_r1perf.report.junit import properties
from pytest_r1perf.report.message import failure_message, skip_message
from pytest_r1perf.results import CellResult
from pytest_r1perf.runner import CannotRun
from pytest_r1perf.verdict import Verdict

LAB_FIXTURE = "perf_lab"
_ENDINGS = (KeyboardInterrupt, SystemExit, GeneratorExit, pytest.exit.Exception)


class TestRun:
    """The state of one perf test between the hooks."""

    __test__ = False

    def __init__(
        self, item: pytest.Item, spec: PerfSpec, assessor: Assessor, options: PerfOptions, floor_platform: str | None
    ) -> None:
        self.item = item
        self.spec = spec
        self.assessor = assessor
        self.results: list[CellResult] = []
        self.assessment: Assessment | None = None
        self._rounds: list[dict[str, tuple[float, ...]]] = []
        self._options = options
        self._floor_platform = floor_platform
        self._skip_reason = ""

    @property
    def is_lab(self) -> bool:
        """Whether the body measures by itself, with ``perf_lab``."""
        return LAB_FIXTURE in getattr(self.item, "fixturenames", ())

    def before_body(self) -> None:
        """Measure; raise for what the body cannot work with."""
        if self.is_lab:
            return
        try:
            self.assessment = self.assessor.assess(self.spec, plain_nodeid(self.item), self._floor_platform)
        except CannotRun as reason:
            self._skip_or_fail(str(reason))
        except R1PerfError as error:
            raise PerfFailure(f"CONFIG: {error}") from None
        self._take(self.assessment)
        if self.assessment.result.verdict.broken:
            self._raise_verdict()

    def after_body(self, error: BaseException | None) -> None:
        """Raise the verdict; with a failed body, add the failing verdict to the body's report."""
        if self.is_lab and error is None and not self.results:
            raise PerfFailure("INVALID: the test takes perf_lab and measured nothing: call perf_lab.measure()")
        if self.assessment is None or isinstance(error, _ENDINGS):
            return
        result = self.assessment.result
        own = isinstance(error, (pytest.skip.Exception, pytest.xfail.Exception))
        if error is not None and not own:
            if self._fails(result):
                self.results[0] = replace(result, failed=True)
                self.item.add_report_section("call", "r1perf verdict", failure_message(result))
            elif result.verdict is Verdict.STORED:
                cause = "not stored as a baseline, since the test's body failed"
                self.results[0] = replace(result, verdict=Verdict.MEASURED, cause=cause, entry=None)
            return
        if error is None or self._fails(result):
            self._raise_verdict()

    def measure(self, spec: PerfSpec) -> Assessment:
        """A further cell, for ``perf_lab``; raises for a broken measurement and for what can't run here."""
        try:
            assessment = self.assessor.measured(spec, plain_nodeid(self.item))
        except CannotRun as reason:
            self._skip_or_fail(str(reason))
        self._take(assessment)
        if assessment.result.verdict.broken:
            self.results[-1] = replace(assessment.result, failed=True)
            raise PerfFailure(failure_message(assessment.result))
        if not assessment.measurement.samples:
            self._skip_or_fail(f"{assessment.result.label}: no round was measured")
        if assessment.result.verdict is not Verdict.MEASURED:
            self._skip_or_fail(f"{assessment.result.label}: {assessment.result.cause}")
        return assessment

    def note(self, text: str) -> None:
        """A sentence for the report, on the latest result."""
        if self.results:
            self.results[-1] = replace(self.results[-1], notes=(*self.results[-1].notes, text))

    def effect(self, effect: Mapping[str, Any]) -> None:
        """What ``perf_lab`` made of several cells, for the report, on the latest result."""
        if self.results:
            self.results[-1] = replace(self.results[-1], effects=(*self.results[-1].effects, effect))

    def finish(self, report: pytest.TestReport) -> None:
        """Give our skips the test's own place, and the report its JUnit properties."""
        if report.skipped and self._skip_reason and isinstance(report.longrepr, tuple):
            path, line, _ = self.item.location
            report.longrepr = (path, (line or 0) + 1, f"Skipped: {self._skip_reason}")
        found = properties(self.results, self._rounds)
        report.user_properties += found
        self.item.user_properties += found  # JUnit takes them from the teardown's report, still to come

    def _take(self, assessment: Assessment) -> None:
        """Keep a result, and each round's values for its properties."""
        samples = assessment.measurement.samples
        names = samples[0].metrics if samples else ()
        common = [name for name in names if all(name in sample.metrics for sample in samples)]
        self.results.append(assessment.result)
        self._rounds.append({name: tuple(sample.metrics[name] for sample in samples) for name in common})

    def _raise_verdict(self) -> None:
        assert self.assessment is not None
        result, rule = self.assessment.result, self.assessment.expected_to_lose
        if result.verdict is Verdict.XFAIL and rule is not None:
            expected = AntiPatternOutOfMemory if rule.kind is RuleKind.OOM else AntiPatternSlower
            reason = f"{rule.id}: {rule.title}"
            self.item.add_marker(pytest.mark.xfail(raises=expected, strict=True, reason=reason))
            raise expected(failure_message(result))
        if self._fails(result):
            self.results[0] = replace(result, failed=True)
            raise PerfFailure(failure_message(result))
        if not result.verdict.decided or (result.quarantined and result.verdict.fails):
            self._skip(skip_message(result))

    def _fails(self, result: CellResult) -> bool:
        if result.quarantined:
            return False
        return result.verdict.fails or (self._options.gate and not result.verdict.decided)

    def _skip_or_fail(self, reason: str) -> NoReturn:
        if self._options.gate:
            raise PerfFailure(f"NOT RUN (--perf-gate): {reason}")
        self._skip(reason)

    def _skip(self, reason: str) -> NoReturn:
        self._skip_reason = reason
        raise PerfSkip(reason)
