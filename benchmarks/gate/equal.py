"""Each rule at the same false-alarm rate: its threshold moved until it holds, then as many rounds as it needs.

The threshold is the quantile of the strengths on unchanged cells of the target series: it is tuned to the very noise
it is then tried on, from 40,000 nights, which no team has. Then the smallest number of rounds with the wanted power.
"""

from __future__ import annotations

from dataclasses import dataclass

from gate.decider import Tunable
from gate.series import DROP_5, TARGET_SERIES
from gate.simulate import Pool

POWER = 0.95
MOST_ROUNDS = 20
SEARCH = 5
"""The search takes this part of the cells."""

LAX = 1e-9
"""A threshold that hides nothing: strengths are what is wanted."""

FRESH = 10_000_000
"""Cells from this index on were not seen while a threshold was tuned."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """A rule at its threshold; ``tried`` are the (rounds, power at a 5 % drop) on the way there."""

    rule: Tunable
    threshold: float
    reached: bool
    tried: tuple[tuple[int, float], ...]


def tune(pool: Pool, rule: Tunable, scenario: str, *, alpha: float, cells: int, power_cells: int) -> Tuned:
    """The rule with the fewest rounds that has the power; with the most rounds where none has.

    ``scenario`` is what must not be called a regression more often than ``alpha`` a cell. The number of rounds is
    searched by bisection with a part of the cells, and confirmed with all.
    """
    tried: dict[int, float] = {}

    def at(rounds: int, count: int) -> tuple[Tunable, float, float]:
        bare = rule.tuned(LAX, rounds)
        unchanged = sorted(pool.strengths(bare, TARGET_SERIES, scenario, count), reverse=True)
        threshold = unchanged[int(alpha * count)]
        changed = pool.strengths(bare, TARGET_SERIES, DROP_5.name, power_cells)
        tried[rounds] = sum(strength > threshold for strength in changed) / power_cells
        return rule.tuned(threshold, rounds), threshold, tried[rounds]

    low, high = 0, MOST_ROUNDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle, cells // SEARCH)[2] >= POWER else (middle, high)
    best, threshold, power = at(high, cells)
    while power < POWER and high < MOST_ROUNDS:
        high += 1
        best, threshold, power = at(high, cells)
    return Tuned(best, threshold, power >= POWER, tuple(sorted(tried.items())))
