"""pyperf's ``compare_to``: a t test at 5 %, two-sided; as many values on both sides, or all is "significant"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gate.decider import Decision, Measure, Outcome, Past, as_times, drawn
from gate.deciders.packaged import decide_many, strengths_of


@dataclass(frozen=True, slots=True)
class Pyperf:
    """The package's own comparison. It prints and never fails a build: "slower" is read as regressed."""

    min_speed: float = 0.0
    rounds: int = 20
    attempts: int = 1
    package: str | None = "pyperf"

    @property
    def family(self) -> str:
        return "pyperf"

    @property
    def name(self) -> str:
        return "pyperf" if not self.min_speed else f"pyperf min-speed {self.min_speed:.3g}%"

    @property
    def rule(self) -> str:
        return f"{self.rounds} rounds; t test at 5 %, two-sided"

    @property
    def worker(self) -> tuple[str, str]:
        return "tools", "pyperf"

    def request(self, past: Past, values: Sequence[float]) -> dict[str, object] | Outcome:
        if not past.baseline:  # no benchmark in common: nothing is printed of it
            return Outcome.NO_VERDICT
        old, new = as_times(past.baseline[-self.rounds :], past.better), as_times(values, past.better)
        return {"min_speed": self.min_speed, "old": old, "new": new}

    def decide(self, past: Past, measure: Measure) -> Decision:
        return decide_many(self, [(past, drawn(measure, self.rounds))])[0]

    def strength(self, past: Past, values: Sequence[float]) -> float:
        return strengths_of(self, [(past, values)])[0]

    def tuned(self, threshold: float, rounds: int) -> Pyperf:
        return replace(self, min_speed=threshold, rounds=rounds)
