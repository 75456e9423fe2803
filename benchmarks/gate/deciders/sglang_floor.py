"""SGLang's CI: an absolute floor in the test, one run, and one retry of a failing file.

Written from test/registered/perf/test_bench_serving_1gpu_part1.py (``assertGreater(res["output_throughput"], 3800)``)
and the retry in python/sglang/test/test_utils.py (sglang 0.5.23). The floor is set by hand there; here it is a
fraction below the baseline's mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gate.decider import Decision, Measure, Outcome, Past, drawn, mean
from gate.deciders.fixed import decide_fixed


@dataclass(frozen=True, slots=True)
class SglangFloor:
    """A floor ``below`` the baseline's mean (a ceiling above it where less is better)."""

    below: float = 0.05
    rounds: int = 1
    attempts: int = 2
    package: str | None = None

    @property
    def family(self) -> str:
        return "SGLang floor"

    @property
    def name(self) -> str:
        return f"SGLang floor -{self.below:.3g}"

    @property
    def rule(self) -> str:
        return "one run and one retry; both below the floor"

    def decide(self, past: Past, measure: Measure) -> Decision:
        if not past.baseline:  # no number in the test: nothing is asserted
            return Decision(Outcome.OK, len(drawn(measure, self.rounds)), "nothing asserted")
        return decide_fixed(self, self.below, past, measure)

    def strength(self, past: Past, values: Sequence[float]) -> float:
        attempts = [mean(values[start : start + self.rounds]) for start in range(0, len(values), self.rounds)]
        floor = mean(past.baseline)
        strengths = []
        for value in attempts:
            # assertGreater(nan, floor) fails
            lost = 1 - value / floor if past.better > 0 else value / floor - 1
            strengths.append(lost if lost == lost else float("inf"))
        return min(strengths)

    def tuned(self, threshold: float, rounds: int) -> SglangFloor:
        return replace(self, below=threshold, rounds=rounds)
