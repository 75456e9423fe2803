"""Intervals for a mean and for a ratio of two means, on the log scale.

Throughputs are positive and their noise is relative, so everything is done on logarithms: a ratio is a
difference there, and an interval cannot cross zero. The unit of replication is the round (one process).
Intervals are Welch's (unequal variances) with Satterthwaite's degrees of freedom; a known component between
sessions is added to the variance with degrees of freedom of its own.

Sources: Welch, Biometrika 34 (1947) 28; Satterthwaite, Biometrics Bulletin 2 (1946) 110; the power of a t test
is the noncentral t distribution's (Johnson and Welch, Biometrika 31 (1940) 362).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a variance: its value (squared standard error on the log scale) and degrees of freedom."""

    variance: float
    df: float


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with one-sided limits, each wrong with probability ``alpha``.

    ``log_se`` is the standard error on the log scale; ``df`` its degrees of freedom.
    """

    estimate: float
    lower: float
    upper: float
    log_se: float
    df: float
    alpha: float

    def scaled(self, factor: float) -> Interval:
        """The same interval in another unit."""
        return Interval(
            self.estimate * factor, self.lower * factor, self.upper * factor, self.log_se, self.df, self.alpha
        )


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
    fallback_cv: tuple[float, float] | None = None,
    between: Sequence[Component] = (),
) -> Interval | None:
    """The ratio of the means of two independent sets of rounds.

    ``fallback_cv`` is (coefficient of variation, degrees of freedom) for a side with a single round; without
    one the other side's spread is taken. ``between`` are components that averaging over rounds doesn't
    shrink. ``None``: nothing to estimate the spread from.
    """
    parts = _rounds_components((new, reference), fallback_cv)
    if parts is None:
        return None
    return _interval(_mean_log(new) - _mean_log(reference), (*parts, *between), alpha)


def interval_of_mean(
    values: Sequence[float],
    *,
    alpha: float,
    unit: float = 1.0,
    fallback_cv: tuple[float, float] | None = None,
    between: Sequence[Component] = (),
) -> Interval | None:
    """The geometric mean of one set of rounds as a multiple of ``unit``; see :func:`interval_of_ratio`."""
    parts = _rounds_components((values,), fallback_cv)
    if parts is None:
        return None
    return _interval(_mean_log(values) - math.log(unit), (*parts, *between), alpha)


def detectable_drop(interval: Interval, tolerance: float, *, power: float = 0.95) -> float:
    """The smallest true relative drop that would be called a regression with this power.

    REGRESSED needs the upper limit below ``1 - tolerance``. Both the estimate and its standard error vary from
    session to session: hence the noncentral t, not a sum of two quantiles, which promises too much where
    ``alpha`` is small and rounds are few.
    """
    need = _noncentrality(_quantile(1 - interval.alpha, interval.df), interval.df, power)
    return 1 - (1 - tolerance) * math.exp(-need * interval.log_se)


MOST_ROUNDS = 1000
"""Where :func:`rounds_to_decide` stops looking: 1,000 processes of a minute are a day's work already."""


def rounds_to_decide(
    interval: Interval, bound: float, *, rounds: int, run_variance: float, fixed: Sequence[Component]
) -> int | None:
    """How many rounds in all would have decided, had the estimate and the spread stayed where they are.

    ``run_variance`` is the log variance of one round; ``fixed`` what more rounds don't shrink (the baseline's
    own uncertainty, sessions). ``None``: :data:`MOST_ROUNDS` would not.
    """
    distance = abs(math.log(interval.estimate / bound))
    if _quantile(1 - interval.alpha, math.inf) * math.sqrt(math.fsum(part.variance for part in fixed)) >= distance:
        return None  # not even an endless run
    for count in range(rounds + 1, MOST_ROUNDS + 1):
        log_se, df = _combined((Component(run_variance / count, count - 1), *fixed))
        if _quantile(1 - interval.alpha, df) * log_se < distance:
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


def _interval(centre: float, parts: Sequence[Component], alpha: float) -> Interval:
    log_se, df = _combined(parts)
    half = _quantile(1 - alpha, df) * log_se
    return Interval(_exp(centre), _exp(centre - half), _exp(centre + half), log_se, df, alpha)


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
