"""Intervals for a mean and for a ratio of two means, on the log scale.

Throughputs are positive and their noise is relative, so everything is done on logarithms: a ratio is a
difference there, and an interval cannot cross zero. The unit of replication is the round (one process).
One variance model: a round's logarithm is the cell's mean plus what its process, its session and its host add. What
sessions and hosts add comes from elsewhere, with degrees of freedom of its own, and no number of rounds shrinks it.
What processes add is estimated from the rounds of both sides: Student's pooled t, or Welch's with Satterthwaite's
degrees of freedom. The upper limit, which raises alarms at rates of 1 in thousands, is pooled only where that is the
careful way: where the side with fewer rounds is the quieter one. With 3 new rounds against 20, and new ones twice as
noisy, choosing by an F test at 5 % would raise 35 to 80 times the alarms that it promises (simulated at 1 in 10,000);
this rule raises 7 times as many at 1 in 800 and, where the noise is the same, fewer than it promises; Welch's
everywhere would raise none, but then no three rounds could ever raise one. The lower limit, at rates of 1 in 40, is
pooled unless the smaller side is noisier by more than chance (F test at 5 %).

Sources: Student, Biometrika 6 (1908) 1; Welch, Biometrika 34 (1947) 28; Satterthwaite, Biometrics Bulletin 2
(1946) 110; the power of a t test is the noncentral t distribution's (Johnson and Welch, Biometrika 31 (1940) 362).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a variance: its value (squared standard error on the log scale) and degrees of freedom."""

    variance: float
    df: float


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with one-sided limits: the upper is wrong with probability ``alpha``, the lower with ``beta``.

    ``log_se`` is the upper limit's standard error on the log scale; ``df`` its degrees of freedom.
    """

    estimate: float
    lower: float
    upper: float
    log_se: float
    df: float
    alpha: float
    beta: float

    def scaled(self, factor: float) -> Interval:
        """The same interval in another unit."""
        return replace(self, estimate=self.estimate * factor, lower=self.lower * factor, upper=self.upper * factor)


def geometric_mean(values: Sequence[float]) -> float:
    """The exponential of the mean logarithm; values must be above 0."""
    return math.exp(_mean_log(values))


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Standard deviation of the logarithms: the relative spread; ``None`` below two values."""
    return math.sqrt(log_variance(values)) if len(values) > 1 else None


def log_variance(values: Sequence[float]) -> float:
    """Variance of the logarithms (n - 1) of two values or more."""
    mean = _mean_log(values)
    return math.fsum((math.log(value) - mean) ** 2 for value in values) / (len(values) - 1)


def interval_of_ratio(
    new: Sequence[float],
    reference: Sequence[float],
    *,
    alpha: float,
    beta: float | None = None,
    fallback_cv: tuple[float, float] | None = None,
    between: Sequence[Component] = (),
) -> Interval | None:
    """The ratio of the means of two independent sets of rounds.

    ``beta`` is ``alpha`` where it isn't given. ``fallback_cv`` is (coefficient of variation, degrees of freedom) for
    a side with a single round; without one the other side's spread is taken. ``between`` are components that
    averaging over rounds doesn't shrink. ``None``: nothing to estimate the spread from.
    """
    parts = _rounds_components((new, reference), fallback_cv)
    if parts is None:
        return None
    centre = _mean_log(new) - _mean_log(reference)
    interval = interval_about(centre, (*parts, *between), alpha, beta)
    small, large = sorted((new, reference), key=len)
    if len(small) < 2:
        return interval
    both = pooled_variance((new, reference))
    pooled = (Component(both.variance * (1 / len(new) + 1 / len(reference)), both.df), *between)
    quieter = len(small) < len(large) and log_variance(small) <= log_variance(large)
    upper = interval_about(centre, pooled, alpha, beta) if quieter else interval
    lower = interval if _noisier(small, large) else interval_about(centre, pooled, alpha, beta)
    return replace(upper, lower=lower.lower)


def interval_of_mean(
    values: Sequence[float],
    *,
    alpha: float,
    beta: float | None = None,
    unit: float = 1.0,
    fallback_cv: tuple[float, float] | None = None,
    between: Sequence[Component] = (),
) -> Interval | None:
    """The geometric mean of one set of rounds as a multiple of ``unit``; see :func:`interval_of_ratio`."""
    parts = _rounds_components((values,), fallback_cv)
    if parts is None:
        return None
    return interval_about(_mean_log(values) - math.log(unit), (*parts, *between), alpha, beta)


def average(groups: Sequence[Sequence[Interval]], *, alpha: float, beta: float) -> Interval:
    """The geometric mean of several ratios; within a group they may hang together, between groups they don't.

    In a group the standard error of a sum is at most the sum of the standard errors, reached where all move as one
    (cells of one engine nearly do); a group's degrees of freedom are the fewest in it.
    """
    every = [item for group in groups for item in group]
    parts = [
        Component((math.fsum(item.log_se for item in group) / len(every)) ** 2, min(item.df for item in group))
        for group in groups
    ]
    centre = math.fsum(math.log(item.estimate) for item in every) / len(every)
    return interval_about(centre, parts, alpha, beta)


def detectable_drop(interval: Interval, tolerance: float, *, power: float = 0.95) -> float:
    """The smallest true relative drop that would be called a regression with this power.

    REGRESSED needs the upper limit below ``1 - tolerance``. Both the estimate and its standard error vary from
    session to session: hence the noncentral t, not a sum of two quantiles, which promises too much where
    ``alpha`` is small and rounds are few.
    """
    if interval.alpha <= 0:
        return 1.0
    need = _noncentrality(_quantile(1 - interval.alpha, interval.df), interval.df, power)
    return 1 - (1 - tolerance) * math.exp(-need * interval.log_se)


MOST_ROUNDS = 1000
"""Where :func:`rounds_to_decide` stops looking: 1,000 processes of a minute are a day's work already."""


def rounds_to_decide(
    interval: Interval,
    bound: float,
    *,
    rounds: int,
    run: Component,
    reference_rounds: int = 0,
    fixed: Sequence[Component] = (),
) -> int | None:
    """How many rounds in all would have decided, had the estimate and the spread stayed where they are.

    ``run`` is the variance of one round, with the degrees of freedom that others than the new rounds give it;
    ``fixed`` is what more rounds don't shrink (sessions, hosts), beside the reference's own part. ``None``:
    :data:`MOST_ROUNDS` would not.
    """
    distance = abs(math.log(interval.estimate / bound))
    level = interval.alpha if interval.estimate < bound else interval.beta
    theirs = 1 / reference_rounds if reference_rounds else 0.0
    endless = run.variance * theirs + math.fsum(part.variance for part in fixed)
    if _quantile(1 - level, math.inf) * math.sqrt(endless) >= distance:
        return None  # not even an endless run
    for count in range(rounds + 1, MOST_ROUNDS + 1):
        own = Component(run.variance * (1 / count + theirs), run.df + count - 1)
        log_se, df = _combined((own, *fixed))
        if _quantile(1 - level, df) * log_se < distance:
            return count
    return None


def _mean_log(values: Sequence[float]) -> float:
    return math.fsum(math.log(value) for value in values) / len(values)


def _rounds_components(
    sides: Sequence[Sequence[float]], fallback: tuple[float, float] | None
) -> tuple[Component, ...] | None:
    """The variance of the means of one or two sides, each estimate of a spread counted once.

    A side with a single round borrows a spread. What rests on the same estimate is one component: two would
    claim degrees of freedom that aren't there.
    """
    several = [side for side in sides if len(side) > 1]
    single = len(sides) - len(several)
    own = tuple(Component(log_variance(side) / len(side), len(side) - 1) for side in several)
    if not single:
        return own
    if fallback is not None:
        return (*own, Component(single * fallback[0] ** 2, fallback[1]))
    if not several:
        return None
    (lender,) = several
    return (Component(log_variance(lender) * (1 + 1 / len(lender)), len(lender) - 1),)


def pooled_variance(sides: Sequence[Sequence[float]]) -> Component:
    """The variance of one round's logarithm, from all sides with more than one; 0 degrees of freedom without any."""
    several = [side for side in sides if len(side) > 1]
    df = sum(len(side) - 1 for side in several)
    if not df:
        return Component(0.0, 0)
    return Component(math.fsum(log_variance(side) * (len(side) - 1) for side in several) / df, df)


def _noisier(small: Sequence[float], large: Sequence[float]) -> bool:
    """Whether the first spread is larger by more than chance: one-sided F test at 5 %, two rounds a side or more."""
    from scipy import special

    first, second = log_variance(small), log_variance(large)
    if len(small) == len(large):  # which of them is called new must not matter
        first, second = max(first, second), min(first, second)
    if first <= second:
        return False
    return second == 0 or float(special.fdtrc(len(small) - 1, len(large) - 1, first / second)) < 0.05


def interval_about(centre: float, parts: Sequence[Component], alpha: float, beta: float | None) -> Interval:
    """The interval about ``centre``, a logarithm, whose variance is the sum of independent parts."""
    log_se, df = _combined(parts)
    beta = alpha if beta is None else beta
    below, above = (_quantile(1 - level, df) * log_se if log_se else 0.0 for level in (beta, alpha))
    return Interval(_exp(centre), _exp(centre - below), _exp(centre + above), log_se, df, alpha, beta)


def _combined(parts: Sequence[Component]) -> tuple[float, float]:
    """Standard error of a sum of independent parts, and Satterthwaite's degrees of freedom."""
    variance = math.fsum(part.variance for part in parts)
    weights = math.fsum(part.variance**2 / part.df for part in parts if part.variance > 0)
    return math.sqrt(variance), variance**2 / weights if weights > 0 else math.inf


def _exp(value: float) -> float:
    """Infinite where a float can't hold it: two rounds and a small ``alpha`` come that far."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _quantile(probability: float, df: float) -> float:
    from scipy import special  # heavy: imported when a verdict is due, never at pytest's start

    if math.isinf(df):
        return float(special.ndtri(probability))
    return float(special.stdtrit(df, probability))


def _noncentrality(critical: float, df: float, power: float) -> float:
    """How many standard errors off the truth must be for t to pass ``critical`` with this power.

    The normal approximation of the noncentral t: within 2 % of the exact value from 4 degrees of freedom on
    (5 % at 2). SciPy's inverse (``nctdtrinc``, 1.17.1) can run without end at small ``alpha``.
    """
    # The mean of the square root of chi-squared / df, the factor c4 of control charts; at 1e6 its logarithms'
    # difference has lost its digits, and the factor is 1.
    mean = 1.0 if df > 1e6 else math.sqrt(2 / df) * math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2))
    return critical * mean + _quantile(power, math.inf) * math.sqrt(1 + critical**2 * max(0.0, 1 - mean**2))
