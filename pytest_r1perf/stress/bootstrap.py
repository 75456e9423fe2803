"""Intervals by resampling repeats: of any number that is computed from a sweep.

What is resampled is a whole repeat, all of its cases together: they share the server's state and the hour, so cases
of one repeat are no independent draws. A resample takes as many repeats as there are, some twice and some not at all;
a case's value in it is the geometric mean over them. From the spread of the number over all resamples (every one
of them up to 6 repeats, 1,000 drawn with a fixed seed above) comes its standard error, times sqrt(n / (n - 1)), by
which n resampled values spread too little; the interval is Student's with n - 1 degrees of freedom around the number
itself. Percentiles of the resamples, the more usual interval, can't reach 95 % with fewer than 6 repeats: all of the
repeats lie on one side of the truth with probability 2^(1-n). Ratios are resampled as logarithms, correlations by
Fisher's z, shares of a whole as log odds.

Sources: Efron, Annals of Statistics 7 (1979) 1; the t interval with a bootstrap standard error, its correction and the
percentiles' weakness in small samples: Hesterberg, The American Statistician 69 (2015) 371; Fisher, Metron 1 (1921) 3.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_r1perf.stress.cases import Case

Values = Mapping[Case, float]
"""A case's value, above 0."""

Statistic = Callable[[Values], float | None]

LEVEL = 0.95
_EXACT = 6
_DRAWN = 1000
_CLOSEST = 1 - 1e-12


class Scale(Enum):
    """On which scale a number's errors are symmetric."""

    RATIO = "ratio"
    CORRELATION = "correlation"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its limits, which are wrong with probability 1 - ``level`` together; None with one repeat."""

    value: float
    low: float | None
    high: float | None
    repeats: int
    level: float = LEVEL

    def within(self, low: float, high: float) -> bool | None:
        """Whether the number is surely within, or surely not; ``None`` where that can't be said."""
        if self.low is None or self.high is None:
            return None
        if low <= self.low and self.high <= high:
            return True
        return False if self.high < low or self.low > high else None


@dataclass(frozen=True, slots=True)
class Resamples:
    """The sweep's own values, and those of every resample with its probability."""

    repeats: int
    own: Values
    drawn: tuple[tuple[float, Values], ...]

    def estimate(self, statistic: Statistic, scale: Scale, *, level: float = LEVEL) -> Estimate | None:
        """A number with its interval; ``None`` where these cases don't give it."""
        value = statistic(self.own)
        if value is None or not _fits(value, scale):
            return None
        spread = self._spread(statistic, scale)
        if spread is None:
            return Estimate(value, None, None, self.repeats, level)
        from scipy import special  # heavy: imported when it is due

        far = spread and float(special.stdtrit(self.repeats - 1, (1 + level) / 2)) * spread
        there, back = _SCALES[scale]
        return Estimate(value, back(there(value) - far), back(there(value) + far), self.repeats, level)

    def _spread(self, statistic: Statistic, scale: Scale) -> float | None:
        if self.repeats < 2:
            return None
        there, _ = _SCALES[scale]
        found = []
        for probability, values in self.drawn:
            value = statistic(values)
            if value is None or not _fits(value, scale):
                return None
            found.append((probability, there(value)))
        mean = math.fsum(probability * value for probability, value in found)
        variance = math.fsum(probability * (value - mean) ** 2 for probability, value in found)
        return math.sqrt(variance * self.repeats / (self.repeats - 1))


def resamples(repeats: Sequence[Values]) -> Resamples:
    """Of repeats that all have the same cases. Raises ValueError where they don't, or there are none."""
    cases = list(repeats[0]) if repeats else []
    if not cases or any(one.keys() != repeats[0].keys() for one in repeats):
        raise ValueError("every repeat must have the same cases, one at least")
    logs = [[math.log(one[case]) for case in cases] for one in repeats]
    size = len(repeats)

    def values(counts: Sequence[int]) -> Values:
        return {
            case: math.exp(math.fsum(count * row[at] for count, row in zip(counts, logs, strict=True) if count) / size)
            for at, case in enumerate(cases)
        }

    drawn = tuple((share, values(counts)) for share, counts in _counts(size)) if size > 1 else ()
    return Resamples(size, values([1] * size), drawn)


def _counts(size: int) -> Iterator[tuple[float, list[int]]]:
    """How often each repeat is in a resample, with the probability of that."""
    if size > _EXACT:
        chance = random.Random(0)
        for _ in range(_DRAWN):
            taken = Counter(chance.choices(range(size), k=size))
            yield 1 / _DRAWN, [taken[number] for number in range(size)]
        return
    for chosen in itertools.combinations_with_replacement(range(size), size):
        taken = Counter(chosen)
        ways = math.factorial(size)
        for count in taken.values():
            ways //= math.factorial(count)
        yield ways / size**size, [taken[number] for number in range(size)]


def _fits(value: float, scale: Scale) -> bool:
    return math.isfinite(value) and (scale is not Scale.RATIO or value > 0)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _z(value: float) -> float:
    return math.atanh(max(-_CLOSEST, min(_CLOSEST, value)))


def _log_odds(value: float) -> float:
    inside = max(1 - _CLOSEST, min(_CLOSEST, value))
    return math.log(inside / (1 - inside))


def _odds(value: float) -> float:
    return 1 / (1 + _exp(-value))


_SCALES: Mapping[Scale, tuple[Callable[[float], float], Callable[[float], float]]] = {
    Scale.RATIO: (math.log, _exp),
    Scale.CORRELATION: (_z, math.tanh),
    Scale.SHARE: (_log_odds, _odds),
}
