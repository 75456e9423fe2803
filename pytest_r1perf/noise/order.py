"""Whether noise is what the model takes it for: independent, of one spread, the same from the first process on.

Four looks at processes in their order. One process that makes the whole spread: externally studentised residuals with
Bonferroni's correction (Cook and Weisberg, Residuals and Influence in Regression (1982), 2.2). A first process unlike
the others: Student's t. Neighbours that are alike (lag 1) and a drift: permutation tests within sessions (Good,
Permutation Tests (1994)), with a fixed seed; neither takes the noise to be normal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SURE = 0.01
"""A finding with a larger p value is not told: one measurement in a hundred says it by chance."""

_SHUFFLES = 4_999
_SEED = 2026


@dataclass(frozen=True, slots=True)
class Outlier:
    """The unit that lies farthest out: in which group, which of it (from 0), the CV with and without it."""

    group: int
    place: int
    cv: float
    without: float
    p: float


@dataclass(frozen=True, slots=True)
class Cold:
    """How the first process of a session differs from the others: a ratio (0.9: 10 % less)."""

    ratio: float
    p: float


@dataclass(frozen=True, slots=True)
class Order:
    """``lag1``: the correlation of neighbours; ``drift``: the relative change from one process to the next."""

    lag1: float
    lag1_p: float
    drift: float
    drift_p: float


def outlier(groups: Sequence[Sequence[float]]) -> Outlier | None:
    """The largest outlier of logarithms about their group's mean; ``None`` where too few are there to tell.

    In a group of two nobody can say which one it is.
    """
    from scipy import special

    residuals = _residuals(groups)
    df = sum(len(group) - 1 for group in groups)
    total = math.fsum(value**2 for group in residuals for value in group)
    found = [
        (value**2 / (1 - 1 / len(group)), number, place)
        for number, group in enumerate(residuals)
        for place, value in enumerate(group)
        if len(group) > 2
    ]
    if not found or df < 2 or total == 0:
        return None
    square, number, place = max(found)
    rest = max(0.0, (total - square) / (df - 1))
    t = math.sqrt(square / rest) if rest > 0 else math.inf
    p = min(1.0, 2 * len(found) * float(special.stdtr(df - 1, -t)))
    return Outlier(number, place, math.sqrt(total / df), math.sqrt(rest), p)


def cold_first(groups: Sequence[Sequence[float]]) -> Cold | None:
    """The first of each group against the others, over all groups; ``None`` below three of one group."""
    from scipy import special

    several = [group for group in groups if len(group) > 2]
    if not several:
        return None
    others = [group[1:] for group in several]
    df = sum(len(group) - 1 for group in others)
    spread = math.fsum(value**2 for group in _residuals(others) for value in group) / df
    weights = [(len(group) - 1) / len(group) for group in several]
    differences = [group[0] - _mean(group[1:]) for group in several]
    difference = math.fsum(w * d for w, d in zip(weights, differences, strict=True)) / math.fsum(weights)
    if difference == 0:
        return Cold(1.0, 1.0)
    t = abs(difference) * math.sqrt(math.fsum(weights) / spread) if spread > 0 else math.inf
    return Cold(math.exp(difference), min(1.0, 2 * float(special.stdtr(df, -t))))


def order(groups: Sequence[Sequence[float]]) -> Order | None:
    """Lag-1 correlation (one-sided: alike) and drift (two-sided) within groups; ``None`` below four of one group."""
    import numpy as np

    residuals = [np.array(values) for values in _residuals([group for group in groups if len(group) > 3])]
    total = sum(float(values @ values) for values in residuals)
    if not residuals or total == 0:
        return None
    stream = np.random.default_rng(_SEED)
    lag1: Any = 0.0
    slope: Any = 0.0
    places = 0.0
    for values in residuals:
        # Row 0 is the real order.
        rows = np.vstack([values, stream.permuted(np.tile(values, (_SHUFFLES, 1)), axis=1)])
        place = np.arange(len(values)) - (len(values) - 1) / 2
        lag1 = lag1 + (rows[:, 1:] * rows[:, :-1]).sum(axis=1) / total
        slope = slope + rows @ place
        places += float(place @ place)
    slope = slope / places
    return Order(float(lag1[0]), _share(lag1), math.expm1(float(slope[0])), _share(np.abs(slope)))


def _share(values: Any) -> float:
    """How many of all orders have a value at least that of the real one (the first); ties to rounding count."""
    return float((values >= values[0] - 1e-12 * abs(values[0])).sum() / len(values))


def _residuals(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    centred = []
    for group in groups:
        mean = _mean(group) if group else 0.0
        centred.append([value - mean for value in group])
    return centred


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
