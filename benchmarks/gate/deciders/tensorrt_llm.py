"""TensorRT-LLM's perf sanity: tonight against the P95 of the days' trailing means of three.

Written from tests/integration/defs/perf/perf_regression_utils.py at commit 22a6053 (``calculate_baseline_metrics``,
``prepare_regressive_test_cases``): the days' means, a trailing mean of three, its 95th percentile (5th where less is
better), with tonight's value among them; 5 % after a merge, 10 % before one; no baseline: skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gate.decider import Decision, Measure, Outcome, Past, drawn, mean
from gate.deciders.fixed import decide_fixed

WINDOW = 3
PERCENTILE = 95


@dataclass(frozen=True, slots=True)
class TensorrtLlm:
    """The stored rounds are days; a night is a run (or the mean of some)."""

    threshold: float = 0.05
    rounds: int = 1
    attempts: int = 1
    package: str | None = None

    @property
    def family(self) -> str:
        return "TensorRT-LLM"

    @property
    def name(self) -> str:
        return f"TensorRT-LLM {self.threshold:.3g}"

    @property
    def rule(self) -> str:
        return "one run; below the P95 of trailing means of three by more than the threshold; the baseline rolls on"

    def decide(self, past: Past, measure: Measure) -> Decision:
        if not past.baseline:
            return Decision(Outcome.OK, len(drawn(measure, self.rounds)), "skipped")
        return decide_fixed(self, self.threshold, past, measure)

    def strength(self, past: Past, values: Sequence[float]) -> float:
        new = mean(values)
        days = [*past.baseline, *(mean(night) for night in past.since), new]
        smooth = [mean(days[max(0, end - WINDOW) : end]) for end in range(1, len(days) + 1)]
        baseline = _percentile(smooth, PERCENTILE if past.better > 0 else 100 - PERCENTILE)
        if not baseline > 0:
            return float("-inf")  # skipped
        return 1 - new / baseline if past.better > 0 else new / baseline - 1

    def tuned(self, threshold: float, rounds: int) -> TensorrtLlm:
        return replace(self, threshold=threshold, rounds=rounds)


def _percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
