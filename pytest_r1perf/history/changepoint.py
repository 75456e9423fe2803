"""Change points of a series of nights: a step, a drift and a single bad night, told apart.

Steps are found by binary segmentation (Scott and Knott, Biometrics 30 (1974) 507): the split with the largest
two-sample statistic (Worsley, JASA 74 (1979) 365), then each side again. Where no split shows, the stretch in the
middle that differs most from the rest is tried (circular binary segmentation: Olshen, Venkatraman, Lucito and Wyner,
Biostatistics 5 (2004) 557), since a fault that came and was mended leaves both ends alike. Whether there is any change
is decided by permuting the nights (as Matteson and James, JASA 109 (2014) 334, do for E-divisive), so no distribution
is assumed, only that nights of an unchanged series could have come in any order; the number of permutations is
sequential (Besag and Clifford, Biometrika 78 (1991) 301). Each night weighs by its own variance. A straight line
competes with the steps by BIC (Schwarz, Annals of Statistics 6 (1978) 461). A night that is far from both its
neighbours, from what went before and from what came after is a bad night, and takes no part in the rest.

Why no library: ruptures (1.1.10) needs a penalty instead of an error rate and gives no p-values; apache-otava (0.8.0)
pins NumPy and brings 43 packages.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_r1perf.history.nightly import Point, Weighted, bad_nights, last_is_off, weigh

if TYPE_CHECKING:
    import numpy

SHORTEST = 2
"""Nights of a level: one night alone is a bad night, or not yet to be told."""
INTERVAL = 0.95
"""Of every size: each end is wrong with half of the rest. Where the step lies was chosen by the same nights, so a step
that is hardly seen is on average a little smaller than said."""
_EXCEEDANCES = 20
"""Besag and Clifford's h: a p-value of an unchanged series is known after some 40 permutations."""
_PERMUTATIONS = 20
"""Over ``alpha``: how many there are at most; that many orders are then as rare as ``alpha`` asks."""
_OF_STRETCHES = 0.25
"""The part of ``alpha`` that stretches in the middle have. At the end two new nights are rare enough to be seen, since
two given nights of 30 seldom come last together; somewhere side by side they come every 15th time."""
_AT_ONCE = 2_000_000
"""Statistics of stretches held in memory at once, 8 bytes each."""
_LIKELY = 7.35
"""Twice the log likelihood that a position may fall short of the best and still be in the 95 % confidence set:
(1 - exp(-x / 2)) squared is 0.95 (Siegmund, International Statistical Review 56 (1988) 31)."""


@dataclass(frozen=True, slots=True)
class Size:
    """A change of logarithms with its interval (:data:`INTERVAL`); positive is a larger value, not a better one."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Step:
    """A change of level between two nights.

    ``at`` is the first night of the new level; it lies in ``earliest`` to ``latest`` with 95 % confidence.
    """

    at: int
    earliest: int
    latest: int
    size: Size
    p: float


@dataclass(frozen=True, slots=True)
class Drift:
    """A steady slope over the nights ``first`` to ``last``; ``slope`` is a night's, ``size`` the whole."""

    first: int
    last: int
    slope: Size
    size: Size
    p: float


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a series shows; numbers are the nights' places in it, from 0.

    ``changes`` are in order, so the last one led to the latest state; ``level_first`` is the first night of that.
    ``bad`` are single nights that came back, ``last_off`` a latest night that may be one or the start of a step.
    ``needed`` is the number of nights below which nothing can be told at this ``alpha``. ``night_cv`` is the
    standard deviation of a night's logarithm about the levels, ``None`` without enough nights.
    """

    nights: int
    changes: tuple[Step | Drift, ...]
    bad: tuple[int, ...]
    last_off: bool
    needed: int
    level_first: int
    night_cv: float | None

    @property
    def enough(self) -> bool:
        """Whether a change could have been told at all."""
        return self.nights - len(self.bad) - self.last_off >= self.needed


def analyse(points: Sequence[Point], *, alpha: float, seed: int = 2025) -> Analysis:
    """Steps, drifts and bad nights of a series.

    ``alpha`` is the probability that an unchanged series shows any step or drift, and again that it shows a bad
    night. Where there was one change the search goes on in the parts that it leaves, which share ``alpha``. The same
    series gives the same answer: ``seed`` is the permutations'.
    """
    needed = fewest_nights(alpha)
    bad = bad_nights(points, alpha=alpha)
    off = last_is_off(points, alpha=alpha)
    kept = [place for place in range(len(points)) if place not in bad and not (off and place == len(points) - 1)]
    if len(kept) < needed:
        return Analysis(len(points), (), bad, off, needed, 0, None)
    search = _Search(weigh([points[place] for place in kept]), seed)
    found = search.changes(0, len(kept), alpha)
    cuts = [0, *(change.at for change in found if isinstance(change, Step)), len(kept)]
    drifts = [change for change in found if isinstance(change, Drift)]
    residual, df = search.residual(cuts, drifts)
    changes = tuple(_placed(search.sized(change, cuts, residual, df), kept) for change in found)
    last = changes[-1] if changes else None
    first = 0 if last is None else last.at if isinstance(last, Step) else last.first
    night_cv = math.sqrt(residual) if df > 0 else None
    return Analysis(len(points), changes, bad, off, needed, first, night_cv)


def fewest_nights(alpha: float) -> int:
    """Nights below which no order of them is as rare as ``alpha``: two equal halves, either way round."""
    nights = 2 * SHORTEST
    while 2 / math.comb(nights, nights // 2) > alpha * (1 - _OF_STRETCHES):
        nights += 1
    return nights


def _placed(change: Step | Drift, kept: Sequence[int]) -> Step | Drift:
    """A change with its places in the whole series."""
    if isinstance(change, Step):
        return Step(kept[change.at], kept[change.earliest], kept[change.latest], change.size, change.p)
    return Drift(kept[change.first], kept[change.last], change.slope, change.size, change.p)


_UNSIZED = Size(0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Search:
    """The search in one series without its bad nights."""

    data: Weighted
    seed: int

    def changes(self, start: int, stop: int, alpha: float) -> list[Step | Drift]:
        """Changes between two places, in order; sizes come later, when all are known."""
        p, places = self._first(start, stop, alpha, line=True)
        if not places:
            return []
        cuts = self._cuts(start, stop, alpha)
        if not cuts or self._bic_of_line(start, stop) < self._bic_of_steps(start, stop, cuts):
            return [Drift(start, stop - 1, _UNSIZED, _UNSIZED, p)]
        alpha /= len(places) + 1
        found = self.changes(start, places[0], alpha)
        for at, following in itertools.pairwise([*places, stop]):
            found += [Step(at, at, at, _UNSIZED, p), *self.changes(at, following, alpha)]
        return found

    def _first(self, start: int, stop: int, alpha: float, *, line: bool) -> tuple[float, tuple[int, ...]]:
        """The first cuts of a part with their p-value: one, or a stretch's two; none where nothing shows."""
        if stop - start < fewest_nights(alpha):
            return 1.0, ()
        ends, share = _ends(stop - start), alpha * (1 - _OF_STRETCHES)
        if (p := self._p(start, stop, ends, share, line=line)) <= share:
            return p, self._best(start, stop, ends)[1:]
        stretches, share = _stretches(stop - start), alpha * _OF_STRETCHES
        if (p := self._p(start, stop, stretches, share, line=False)) <= share:
            return p, self._best(start, stop, stretches)
        return p, ()

    def sized(self, change: Step | Drift, cuts: Sequence[int], residual: float, df: int) -> Step | Drift:
        """A change with its sizes: a step between the levels beside it, a drift by its line."""
        data = self.data
        if isinstance(change, Step):
            place = list(cuts).index(change.at)
            before, after = (cuts[place - 1], change.at), (change.at, cuts[place + 1])
            variance = residual * (1 / data.weight(*before) + 1 / data.weight(*after))
            size = size_of(data.mean(*after) - data.mean(*before), variance, df)
            gains = data.gains(before[0], after[1], SHORTEST)
            likely = before[0] + SHORTEST + (gains >= gains.max() - _LIKELY * residual).nonzero()[0]
            earliest, latest = min(change.at, int(likely[0])), max(change.at, int(likely[-1]))
            return Step(change.at, earliest, latest, size, change.p)
        slope, inverse = data.line(change.first, change.last + 1)
        one, nights = size_of(slope, residual * inverse, df), change.last - change.first
        whole = Size(one.estimate * nights, one.lower * nights, one.upper * nights)
        return Drift(change.first, change.last, one, whole, change.p)

    def residual(self, cuts: Sequence[int], drifts: Sequence[Drift]) -> tuple[float, int]:
        """Weighted variance about levels and lines, and its degrees of freedom."""
        slanted = {drift.first for drift in drifts}
        left = 0.0
        for start, stop in itertools.pairwise(cuts):
            left += self.data.about_line(start, stop) if start in slanted else self.data.about_mean(start, stop)
        df = self.data.count - (len(cuts) - 1) - len(drifts)
        return left / df if df > 0 else 0.0, df

    def _cuts(self, start: int, stop: int, alpha: float) -> list[int]:
        """Where segmentation would cut, steps alone."""
        _, places = self._first(start, stop, alpha, line=False)
        if not places:
            return []
        alpha /= len(places) + 1
        found = self._cuts(start, places[0], alpha)
        for at, following in itertools.pairwise([*places, stop]):
            found += [at, *self._cuts(at, following, alpha)]
        return found

    def _best(self, start: int, stop: int, stretches: _Stretches) -> tuple[int, int]:
        """Both ends of the stretch that explains most."""
        gains = _gains(self.data.values[None, start:stop], self.data.weights[None, start:stop], stretches)[0]
        first, last = stretches
        return start + int(first[gains.argmax()]), start + int(last[gains.argmax()])

    def _bic_of_steps(self, start: int, stop: int, cuts: Sequence[int]) -> float:
        ends = [start, *cuts, stop]
        left = math.fsum(self.data.about_mean(a, b) for a, b in itertools.pairwise(ends))
        return self._bic(left, stop - start, 1 + 2 * len(cuts))

    def _bic_of_line(self, start: int, stop: int) -> float:
        return self._bic(self.data.about_line(start, stop), stop - start, 2)

    def _bic(self, left: float, count: int, parameters: int) -> float:
        return count * math.log(max(left, count * _NEGLIGIBLE**2)) + parameters * math.log(count)

    def _p(self, start: int, stop: int, stretches: _Stretches, alpha: float, *, line: bool) -> float:
        """How rare the largest stretch (or line) is among orders of the same nights; 1 where there are too few."""
        import numpy

        count = stop - start
        if not len(stretches[0]):
            return 1.0
        values, weights = self.data.values[start:stop], self.data.weights[start:stop]
        seen = float(_statistic(values[None], weights[None], stretches, line=line)[0])
        if seen <= 0:
            return 1.0
        most, at_once = math.ceil(_PERMUTATIONS / alpha), max(1, _AT_ONCE // len(stretches[0]))
        random = numpy.random.default_rng([self.seed, count])
        done, above, block = 0, 0, 50
        while done < most:
            block = min(block * 2, at_once, most - done)
            order = random.permuted(numpy.tile(numpy.arange(count), (block, 1)), axis=1)
            hits = _statistic(values[order], weights[order], stretches, line=line) >= seen * (1 - 1e-12)
            reached = above + hits.cumsum()
            if reached[-1] >= _EXCEEDANCES:
                return _EXCEEDANCES / (done + int((reached >= _EXCEEDANCES).argmax()) + 1)
            above, done = int(reached[-1]), done + block
        return (above + 1) / (done + 1)


_NEGLIGIBLE = 1e-6
"""A relative spread that no measurement resolves: keeps logarithms of made-up, noiseless series finite."""


_Stretches: TypeAlias = "tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]"
"""First places of stretches, and the places after their last ones, within a part of the series."""


@lru_cache(maxsize=64)
def _ends(count: int) -> _Stretches:
    """What one cut leaves before it; what is after it is its other side."""
    import numpy

    last = numpy.arange(SHORTEST, count - SHORTEST + 1)
    return numpy.zeros_like(last), last


@lru_cache(maxsize=64)
def _stretches(count: int) -> _Stretches:
    """Stretches with a level before and a level after them."""
    import numpy

    first, last = numpy.triu_indices(max(0, count - SHORTEST + 1), k=SHORTEST)
    inside = first >= SHORTEST
    return first[inside], last[inside]


def _gains(values: numpy.ndarray[Any, Any], weights: numpy.ndarray[Any, Any], stretches: _Stretches) -> Any:
    """For each row and each stretch the sum of squares that a level of its own explains."""
    import numpy

    total = weights.sum(axis=1, keepdims=True)
    products = weights * (values - (weights * values).sum(axis=1, keepdims=True) / total)
    sums = numpy.pad(products.cumsum(axis=1), ((0, 0), (1, 0)))
    shares = numpy.pad(weights.cumsum(axis=1), ((0, 0), (1, 0)))
    first, last = stretches
    share = shares[:, last] - shares[:, first]
    return (sums[:, last] - sums[:, first]) ** 2 * total / (share * (total - share))


def _statistic(
    values: numpy.ndarray[Any, Any], weights: numpy.ndarray[Any, Any], stretches: _Stretches, *, line: bool
) -> Any:
    """For each row the largest sum of squares that a stretch, or a line, explains."""
    import numpy

    best = _gains(values, weights, stretches).max(axis=1)
    if line:
        total = weights.sum(axis=1, keepdims=True)
        centred = values - (weights * values).sum(axis=1, keepdims=True) / total
        places = numpy.arange(values.shape[1], dtype=float)
        away = places - (weights * places).sum(axis=1, keepdims=True) / total
        best = numpy.maximum(best, (weights * centred * away).sum(axis=1) ** 2 / (weights * away**2).sum(axis=1))
    return best


def size_of(estimate: float, variance: float, df: int) -> Size:
    """An estimate of logarithms with its interval (:data:`INTERVAL`)."""
    from scipy import special  # heavy: imported when a report is due

    half = float(special.stdtrit(df, (1 + INTERVAL) / 2)) * math.sqrt(variance) if df > 0 else math.inf
    return Size(estimate, estimate - half, estimate + half)
