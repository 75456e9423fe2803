"""Otava: change points of the whole history; it has no gate, so a new one for the worse is read as regressed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gate.decider import Decision, Measure, Outcome, Past, drawn
from gate.deciders.packaged import decide_many, strengths_of

GRID = (1e-3, 5e-4, 2e-4, 1e-4, 7e-5, 5e-5, 3e-5, 2e-5, 1e-5, 5e-6, 2e-6, 1e-6, 1e-7)
SLACK = 2
"""Points before the change at which its change point may be found: a step's place is known to a point or two."""


@dataclass(frozen=True, slots=True)
class Otava:
    """The package's analysis with its defaults (window 50, p 0.001); each round is a point.

    As a tunable rule it takes the largest p of :data:`GRID` whose -log10 is above the threshold.
    """

    max_pvalue: float = 0.001
    rounds: int = 1
    attempts: int = 1
    package: str | None = "apache-otava"

    @property
    def family(self) -> str:
        return "Otava"

    @property
    def name(self) -> str:
        return f"Otava, {self.rounds} a night" + ("" if self.max_pvalue == 0.001 else f", p {self.max_pvalue:.0e}")

    @property
    def rule(self) -> str:
        what = f"a change point for the worse since the baseline's end, p < {self.max_pvalue:g}"
        return f"{what}; points a night: {self.rounds}"

    @property
    def worker(self) -> tuple[str, str]:
        return "otava", "otava"

    def request(self, past: Past, values: Sequence[float]) -> dict[str, object] | Outcome:
        stored = [*past.baseline, *(value for night in past.since for value in night)]
        return {
            "values": [*stored, *values],
            "better": past.better,
            "first": len(past.baseline) - SLACK,
            "max_pvalue": self.max_pvalue,
            "grid": GRID,
        }

    def decide(self, past: Past, measure: Measure) -> Decision:
        return decide_many(self, [(past, drawn(measure, self.rounds))])[0]

    def strength(self, past: Past, values: Sequence[float]) -> float:
        return strengths_of(self, [(past, values)])[0]

    def tuned(self, threshold: float, rounds: int) -> Otava:
        smaller = (max_pvalue for max_pvalue in GRID if -math.log10(max_pvalue) > threshold + 1e-9)
        return replace(self, max_pvalue=next(smaller, GRID[-1]), rounds=rounds)
