"""pytest-r1perf itself: ``verdict.judge`` after every round, from the first look that is planned to the last."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from gate.decider import Decision, Measure, Outcome, Past
from gate.deciders.admitted import accepted, not_a_measurement, other_machine
from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.measure import RoundPlan
from pytest_r1perf.platform import ErrorRate, Noise
from pytest_r1perf.verdict import Reference, Terms, Verdict, judge, terms_for

PER_NIGHT = 0.01
SUITE = 40
MISSED = 0.025
"""How often a PASS may hide the drop that it excludes: the platforms' default."""

TOLERANCE = 0.01
DETECT = 0.05
_METRICS = {1: "total_throughput", -1: "total_latency"}
_OUTCOMES = {Verdict.REGRESSED: Outcome.REGRESSED, Verdict.PASS: Outcome.OK, Verdict.IMPROVED: Outcome.OK}


@dataclass(frozen=True, slots=True)
class Ours:
    """``detect`` is the drop that a PASS excludes; ``None`` is the strict rule: PASS excludes the tolerance.

    ``discard``: rounds of each session that are thrown away first, and counted as spent (design section 4.5; the
    baseline's as well). ``session_cv`` is what the platform's file states, from 10 sessions; 0: states nothing.
    """

    minimum: int = 2
    maximum: int = 20
    detect: float | None = DETECT
    discard: int = 0
    session_cv: float = 0.0
    package: str | None = "pytest-r1perf"

    @property
    def name(self) -> str:
        parts = ["ours"]
        if self.detect is None:
            parts.append("strict")
        if self.discard:
            parts.append("first round discarded")
        if self.session_cv:
            parts.append("sessions' spread stated")
        return ", ".join(parts)

    @property
    def rule(self) -> str:
        excluded = TOLERANCE if self.detect is None else self.detect
        looks = f"{self.minimum} to {self.maximum} rounds, a look after each"
        return f"{looks}; tolerance {100 * TOLERANCE:g} %, PASS excludes {100 * excluded:g} %"

    def decide(self, past: Past, measure: Measure) -> Decision:
        metric = _METRICS[past.better]
        values: list[float] = []
        for _ in range(self.discard):
            measure()
        try:
            barrier = "" if past.comparable else other_machine(metric, past.baseline)
            stored = accepted(metric, past.baseline)[self.discard :]
        except R1PerfError as error:
            return Decision(Outcome.NO_VERDICT, self.discard, f"refused when loaded: {error}")
        terms = _terms(self.minimum, self.maximum, self.detect, self.session_cv)
        reference = Reference(stored) if stored else None
        while True:
            value = measure()
            spent = len(values) + 1 + self.discard
            invalid = not_a_measurement(metric, value)
            if invalid:
                return Decision(Outcome.NO_VERDICT, spent, f"INVALID: {invalid}")
            values.append(value)
            if barrier and len(values) == self.minimum:
                return Decision(Outcome.NO_VERDICT, spent, f"INCOMPARABLE: {barrier}")
            if len(values) not in terms.looks:
                continue
            judgement = judge(metric, values, reference, terms)
            if judgement.verdict is not Verdict.UNDECIDED or len(values) == self.maximum:
                outcome = _OUTCOMES.get(judgement.verdict, Outcome.NO_VERDICT)
                return Decision(outcome, spent, f"{judgement.verdict.value}: {judgement.reason}")


@lru_cache(maxsize=32)
def _terms(minimum: int, maximum: int, detect: float | None, session_cv: float) -> Terms:
    noise = Noise(run_cv=0.042, runs=50, session_cv=session_cv, sessions=10, source="docs/measurements.md: cpu")
    rate = ErrorRate(per_night=PER_NIGHT, suite_size=SUITE, missed=MISSED, source="benchmarks/gate: the targets")
    platform = replace(
        load_catalog().platforms["cpu"],
        error_rate=rate,
        noise=noise if session_cv else None,
        detect=detect,
    )
    return terms_for(platform, tolerance=TOLERANCE, floor=None, looks=RoundPlan(minimum, maximum).looks)
