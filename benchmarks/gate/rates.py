"""Rates with their intervals, and the numbers that theory gives to compare with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

MOST_ROUNDS = 1000


@dataclass(frozen=True, slots=True)
class Rate:
    """``count`` of ``of``, with Clopper and Pearson's 95 % interval (Biometrika 26 (1934) 404)."""

    count: int
    of: int

    @property
    def value(self) -> float:
        """The share itself."""
        return self.count / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """Exact, each tail 2.5 %."""
        from scipy import special

        count, of = self.count, self.of
        lower = float(special.betaincinv(count, of - count + 1, 0.025)) if count else 0.0
        upper = float(special.betaincinv(count + 1, of - count, 0.975)) if count < of else 1.0
        return lower, upper


def of_a_night(rate: float, cells: int) -> float:
    """The chance of one false alarm or more in a night of so many independent cells."""
    return -math.expm1(cells * math.log1p(-rate)) if rate < 1 else 1.0


def fixed_rounds(*, alpha: float, power: float, drop: float, bound: float, cv: float, reference: int) -> int:
    """The smallest fixed number of rounds: one-sided pooled t test against ``bound``, power by the noncentral t.

    ``drop`` and ``bound`` are fractions; ``reference`` rounds are stored.
    """
    stats: Any = _stats()
    distance = math.log(1 - bound) - math.log(1 - drop)
    for rounds in range(2, MOST_ROUNDS):
        df = rounds + reference - 2
        critical = stats.t.ppf(1 - alpha, df)
        if stats.nct.sf(critical, df, distance / (cv * math.sqrt(1 / rounds + 1 / reference))) >= power:
            return rounds
    raise ValueError(f"no number of rounds gives power {power:g} with {reference} stored rounds at CV {cv:g}")


def most_strict_pass(*, bound: float, missed: float, cv: float, reference: int) -> float:
    """P(PASS) of an unchanged cell after endlessly many rounds where PASS must exclude ``bound``.

    The baseline's mean keeps its own error, cv / sqrt(reference), however many new rounds there are; the variance
    is taken as known.
    """
    stats: Any = _stats()
    error = cv / math.sqrt(reference)
    return float(stats.norm.cdf(-math.log(1 - bound) / error - stats.norm.ppf(1 - missed)))


def _stats() -> Any:
    from scipy import stats

    return stats
