"""What the rules of a fixed number of rounds share: draw, compare the strength with the threshold, maybe once more."""

from __future__ import annotations

import math

from gate.decider import Decision, Measure, Outcome, Past, Tunable, drawn


def decide_fixed(rule: Tunable, threshold: float, past: Past, measure: Measure) -> Decision:
    """Regressed where every attempt's strength is above the threshold; what breaks the rule is an ERROR."""
    values: list[float] = []
    for _ in range(rule.attempts):
        values += drawn(measure, rule.rounds)
        try:
            strength = rule.strength(past, values)
        except (ArithmeticError, ValueError, RuntimeError) as error:
            return Decision(Outcome.ERROR, len(values), str(error))
        if math.isnan(strength) or strength <= threshold:
            return Decision(Outcome.OK, len(values))
    return Decision(Outcome.REGRESSED, len(values))
