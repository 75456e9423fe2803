"""Nights as points of a series: the mean of the logarithms, how sure it is, and which nights stand alone."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

_NEIGHBOURS = 3
"""Nights at each side that a night is compared with."""
_NORMAL_MAD = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""
_MEDIAN = math.pi / 2
"""Variance of a median over that of a mean, for a normal distribution."""
_LEAST_CV = 1e-6
"""A spread that no measurement resolves: keeps made-up series without noise finite."""


@dataclass(frozen=True, slots=True)
class Point:
    """One night: the mean of its rounds' logarithms, their standard deviation (``None``: one round), and how many."""

    mean: float
    cv: float | None
    rounds: int

    @staticmethod
    def of(values: Sequence[float]) -> Point:
        """A night's point from its rounds' values, each above 0."""
        logs = [math.log(value) for value in values]
        return Point(math.fsum(logs) / len(logs), statistics.stdev(logs) if len(logs) > 1 else None, len(logs))


@dataclass(slots=True)
class Weighted:
    """A series as arrays with the sums that levels and lines need; the weights are 1 on average."""

    values: numpy.ndarray[Any, Any]
    weights: numpy.ndarray[Any, Any]

    @property
    def count(self) -> int:
        """Nights."""
        return len(self.values)

    def weight(self, start: int, stop: int) -> float:
        """Weight of the nights between two places."""
        return float(self.weights[start:stop].sum())

    def mean(self, start: int, stop: int) -> float:
        """Weighted mean."""
        return float((self.weights[start:stop] * self.values[start:stop]).sum() / self.weights[start:stop].sum())

    def about_mean(self, start: int, stop: int) -> float:
        """Weighted sum of squares about the mean."""
        return float((self.weights[start:stop] * (self.values[start:stop] - self.mean(start, stop)) ** 2).sum())

    def line(self, start: int, stop: int) -> tuple[float, float]:
        """The weighted least squares line's slope a night, and its variance over a night's."""
        import numpy

        weights = self.weights[start:stop]
        places: numpy.ndarray[Any, Any] = numpy.arange(start, stop, dtype=float)
        away = places - (weights * places).sum() / weights.sum()
        spread = float((weights * away**2).sum())
        return float((weights * away * self.values[start:stop]).sum()) / spread, 1 / spread

    def about_line(self, start: int, stop: int) -> float:
        """Weighted sum of squares about the line."""
        slope, inverse = self.line(start, stop)
        return max(0.0, self.about_mean(start, stop) - slope**2 / inverse)

    def gains(self, start: int, stop: int, shortest: int = 2) -> Any:
        """The sum of squares that each split explains, from ``start + shortest`` on."""
        weights = self.weights[start:stop]
        products = (weights * (self.values[start:stop] - self.mean(start, stop))).cumsum()[shortest - 1 : -shortest]
        share, total = weights.cumsum()[shortest - 1 : -shortest], weights.sum()
        return products**2 * total / (share * (total - share))


def weigh(points: Sequence[Point]) -> Weighted:
    """Each night by one over its variance: what differs between nights, and what its rounds leave open.

    The rounds' part is the pooled spread over the night's rounds, or the night's own where that is larger.
    """
    import numpy

    within = _within(points)
    jumps = [(b.mean - a.mean) ** 2 / 2 for a, b in itertools.pairwise(points)]
    # The median of a chi-squared of one degree of freedom is 0.455: a step among the jumps doesn't move it.
    between = max(0.0, statistics.median(jumps) / 0.455 - statistics.fmean(within)) if jumps else 0.0
    weights = numpy.array([1 / max(between + part, _LEAST_CV**2) for part in within])
    return Weighted(numpy.array([point.mean for point in points]), weights * len(points) / weights.sum())


def bad_nights(points: Sequence[Point], *, alpha: float) -> tuple[int, ...]:
    """Single nights that are off to one side of the night before, the night after, and the levels around them.

    ``alpha`` is shared over the nights: the probability that a series of normal noise has any (2.5 % were seen at
    5 %, with 60 nights).
    """
    if len(points) < 2 * _NEIGHBOURS:
        return ()
    far = _limit(points, alpha / len(points))
    found = []
    for place in range(1, len(points) - 1):
        before = [point.mean for point in points[max(0, place - _NEIGHBOURS) : place]]
        after = [point.mean for point in points[place + 1 : place + 1 + _NEIGHBOURS]]
        here = points[place].mean
        sides = [here - level for level in (before[-1], statistics.median(before), after[0], statistics.median(after))]
        if all(side > far for side in sides) or all(side < -far for side in sides):
            found.append(place)
    return tuple(found)


def last_is_off(points: Sequence[Point], *, alpha: float) -> bool:
    """Whether the latest night is off the one before and the level before it: nothing tells yet what it is."""
    if len(points) < 2 * _NEIGHBOURS:
        return False
    before = [point.mean for point in points[-1 - _NEIGHBOURS : -1]]
    sides = [points[-1].mean - level for level in (before[-1], statistics.median(before))]
    far = _limit(points, alpha) * math.sqrt(1 + _MEDIAN / _NEIGHBOURS)
    return all(side > far for side in sides) or all(side < -far for side in sides)


def _limit(points: Sequence[Point], alpha: float) -> float:
    """How far one night may be off: the jumps from night to night say, which a step hardly moves."""
    from scipy import special  # heavy: imported when a report is due

    jumps = [abs(b.mean - a.mean) for a, b in itertools.pairwise(points)]
    spread = _NORMAL_MAD * statistics.median(jumps) / math.sqrt(2)
    rounds = math.sqrt(statistics.fmean(_within(points)))
    # A median absolute deviation is as sure as a standard deviation of 0.37 times as many values.
    quantile = float(special.stdtrit(max(1.0, 0.37 * len(jumps)), 1 - alpha / 2))
    return quantile * max(spread, rounds, _LEAST_CV)


def _within(points: Sequence[Point]) -> list[float]:
    """The variance of each night's mean that its rounds leave."""
    several = [point for point in points if point.cv is not None]
    df = sum(point.rounds - 1 for point in several)
    pooled = sum((point.rounds - 1) * (point.cv or 0.0) ** 2 for point in several) / df if df else 0.0
    return [max(pooled, (point.cv or 0.0) ** 2) / point.rounds for point in points]
