"""pytest-benchmark's ``--benchmark-compare-fail=FIELD:PERCENT%`` against a pinned stored run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gate.decider import Decision, Measure, Outcome, Past, as_times, drawn
from gate.deciders.packaged import decide_many, strengths_of


@dataclass(frozen=True, slots=True)
class PytestBenchmark:
    """The package's own check on its own statistics; whole percents on its command line."""

    field: str = "mean"
    percent: float = 5.0
    rounds: int = 5
    attempts: int = 1
    package: str | None = "pytest-benchmark"

    @property
    def family(self) -> str:
        return f"pytest-benchmark {self.field}"

    @property
    def name(self) -> str:
        return f"pytest-benchmark {self.field}:{self.percent:.3g}%"

    @property
    def rule(self) -> str:
        return f"{self.field} of {self.rounds} rounds against the stored one; lower is better"

    @property
    def worker(self) -> tuple[str, str]:
        return "tools", "pytest_benchmark"

    def request(self, past: Past, values: Sequence[float]) -> dict[str, object] | Outcome:
        if not past.baseline:  # prepare_benchmarks: what isn't in the stored file is not compared
            return Outcome.OK
        old, new = as_times(past.baseline, past.better), as_times(values, past.better)
        return {"field": self.field, "percent": self.percent, "old": old, "new": new}

    def decide(self, past: Past, measure: Measure) -> Decision:
        return decide_many(self, [(past, drawn(measure, self.rounds))])[0]

    def strength(self, past: Past, values: Sequence[float]) -> float:
        return strengths_of(self, [(past, values)])[0]

    def tuned(self, threshold: float, rounds: int) -> PytestBenchmark:
        return replace(self, percent=threshold, rounds=rounds)
