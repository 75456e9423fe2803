"""asv's comparison: Mann-Whitney at p < 0.002 (overlapping intervals where that can't be reached), then the factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gate.decider import Decision, Measure, Outcome, Past, as_times, drawn
from gate.deciders.packaged import decide_many, strengths_of


@dataclass(frozen=True, slots=True)
class Asv:
    """The package's own test; a factor of 1.1 is the default of ``asv continuous`` and ``asv compare``."""

    factor: float = 1.1
    rounds: int = 10
    attempts: int = 1
    package: str | None = "asv"

    @property
    def family(self) -> str:
        return "asv"

    @property
    def name(self) -> str:
        return f"asv factor {self.factor:.3g}"

    @property
    def rule(self) -> str:
        return f"{self.rounds} rounds; Mann-Whitney p < 0.002 and the median slower by the factor"

    @property
    def worker(self) -> tuple[str, str]:
        return "tools", "asv"

    def request(self, past: Past, values: Sequence[float]) -> dict[str, object] | Outcome:
        if not past.baseline or not past.comparable:  # results are listed by machine; the ratio says n/a
            return Outcome.NO_VERDICT
        old, new = as_times(past.baseline, past.better), as_times(values, past.better)
        return {"factor": self.factor, "old": old, "new": new}

    def decide(self, past: Past, measure: Measure) -> Decision:
        return decide_many(self, [(past, drawn(measure, self.rounds))])[0]

    def strength(self, past: Past, values: Sequence[float]) -> float:
        return strengths_of(self, [(past, values)])[0]

    def tuned(self, threshold: float, rounds: int) -> Asv:
        return replace(self, factor=threshold, rounds=rounds)
