"""github-action-benchmark: tonight against the previous entry, whatever that was.

Written from src/write.ts (``findAlerts``, ``getRatio``) at commit 019cbcb: previous / current where bigger is better
(by the tool's kind), current / previous otherwise, an alert above the threshold; no previous entry: skipped. The
default threshold is 200 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gate.decider import Decision, Measure, Outcome, Past, drawn, mean
from gate.deciders.fixed import decide_fixed


@dataclass(frozen=True, slots=True)
class GithubAction:
    """``ratio`` is the alert threshold as a number: 2.0 is 200 %."""

    ratio: float = 2.0
    rounds: int = 1
    attempts: int = 1
    package: str | None = None

    @property
    def family(self) -> str:
        return "github-action-benchmark"

    @property
    def name(self) -> str:
        return f"github-action-benchmark {self.ratio:.4g}"

    @property
    def rule(self) -> str:
        return "one run against the previous one; worse by more than the ratio"

    def decide(self, past: Past, measure: Measure) -> Decision:
        if not past.baseline:
            return Decision(Outcome.OK, len(drawn(measure, self.rounds)), "skipped")
        return decide_fixed(self, self.ratio, past, measure)

    def strength(self, past: Past, values: Sequence[float]) -> float:
        new = mean(values)
        previous = mean(past.since[-1]) if past.since else mean(past.baseline[-self.rounds :])
        if previous == 0 and new == 0:
            return 1.0
        above, below = (previous, new) if past.better > 0 else (new, previous)
        return above / below if below else float("inf")  # JavaScript's division

    def tuned(self, threshold: float, rounds: int) -> GithubAction:
        return replace(self, ratio=threshold, rounds=rounds)
