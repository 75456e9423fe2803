"""ReFrame's reference bounds: a value that a person stored, with a lower (or upper) bound as a fraction of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gate.decider import Decision, Measure, Outcome, Past, drawn, mean
from gate.deciders.packaged import decide_many, strengths_of


@dataclass(frozen=True, slots=True)
class Reframe:
    """The package's own assertion; the reference is the baseline's mean."""

    bound: float = 0.05
    rounds: int = 1
    attempts: int = 1
    package: str | None = "reframe-hpc"

    @property
    def family(self) -> str:
        return "ReFrame"

    @property
    def name(self) -> str:
        return f"ReFrame -{self.bound:.3g}"

    @property
    def rule(self) -> str:
        return "one run; below the stored reference by more than the bound"

    @property
    def worker(self) -> tuple[str, str]:
        return "tools", "reframe"

    def request(self, past: Past, values: Sequence[float]) -> dict[str, object] | Outcome:
        reference = None
        if past.baseline and past.comparable:  # a reference is of one partition; another has none
            bounds = (-self.bound, None) if past.better > 0 else (None, self.bound)
            reference = (mean(past.baseline), *bounds)
        return {"value": mean(values), "reference": reference, "better": past.better}

    def decide(self, past: Past, measure: Measure) -> Decision:
        return decide_many(self, [(past, drawn(measure, self.rounds))])[0]

    def strength(self, past: Past, values: Sequence[float]) -> float:
        return strengths_of(self, [(past, values)])[0]

    def tuned(self, threshold: float, rounds: int) -> Reframe:
        return replace(self, bound=threshold, rounds=rounds)
