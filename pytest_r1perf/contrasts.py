"""Contrasts of several cells' mean logarithms, with limits that hold together.

A cell's rounds are independent processes of one session; on logarithms a ratio is a difference, a gain of a step
is a contrast of two means, an interaction one of four. What sessions and hosts add is the same for all cells and falls
out of every contrast.

The variance of a round is pooled over the cells of a call: with two or three rounds a cell, its own estimate has one
or two degrees of freedom and says next to nothing. Two things keep that careful. A cell that spreads more than the
others by more than chance stands by itself (the largest against the rest, F test at :data:`APART` shared over the
cells, which is Cochran's C test; then the next). And a contrast whose own cells look noisier than the pool has their
own variances, with Satterthwaite's degrees of freedom: pooling never makes a standard error smaller.

Simulated, 3 rounds a cell, how often a limit is wrong: with the same noise in all cells 0.9 to 1.0 times what it
promises; with one cell twice as noisy 1.2 (2 cells) to 3 times (8 cells) at 1 in 800, and 1.2 times at most at 1 in 40;
with one four times as noisy 3 to 6 times, and 1.6 times. Pooling by the test alone would be wrong 8 and 24 times as
often with 8 cells at 1 in 800; never pooling would double the intervals of 8 like cells.

Several limits of one call are shared out by Bonferroni: each has ``alpha`` over their number.

Sources: Cochran, Annals of Eugenics 11 (1941) 47; Satterthwaite, Biometrics Bulletin 2 (1946) 110; Dunn, J. Am. Stat.
Assoc. 56 (1961) 52 (Bonferroni); Gupta, Technometrics 7 (1965) 225 (which cells may be the best).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_r1perf.statistics import Component, Interval, geometric_mean, interval_about, log_variance

APART = 0.05
"""The level at which a cell's spread is taken for larger than the others'."""

_AS_LARGE = 1 - 1e-9
"""Of as many rounds a cell both standard errors are the same number, but for the last digits."""

Weights = Mapping[int, float]
"""What each cell's mean logarithm counts, by its place; the others count nothing."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The rounds of several cells of one session, ready for contrasts.

    ``means`` and ``counts`` are of the logarithms; ``own`` is the variance of one round of each cell that has
    several, ``pooled`` that of all that are not ``apart``. A cell with a single round has the platform's noise where
    that is known (``noise``), and else the pooled one.
    """

    means: tuple[float, ...]
    counts: tuple[int, ...]
    own: Mapping[int, Component]
    pooled: Component | None
    apart: frozenset[int]
    noise: Component | None

    def contrast(self, weights: Weights, alpha: float, centre: float | None = None) -> Interval:
        """``exp`` of the weighted sum (or of ``centre``), each limit wrong with probability ``alpha``."""
        if centre is None:
            centre = math.fsum(weight * self.means[place] for place, weight in weights.items())
        pooled = interval_about(centre, self._components(weights, self.apart), alpha, None)
        own = interval_about(centre, self._components(weights, frozenset(self.own)), alpha, None)
        return pooled if pooled.log_se >= own.log_se * _AS_LARGE else own

    def _components(self, weights: Weights, alone: frozenset[int]) -> list[Component]:
        """The variance of the sum, each estimate of a spread once; cells in ``alone`` have their own."""
        shares: dict[int | str, float] = {}
        for place, weight in weights.items():
            single = self.counts[place] == 1 and (self.noise is not None or self.pooled is None)
            of: int | str = "noise" if single else place if place in alone else "pooled"
            shares[of] = shares.get(of, 0.0) + weight**2 / self.counts[place]
        parts = []
        for of, share in shares.items():
            one = self.own[of] if isinstance(of, int) else self.pooled if of == "pooled" else self.noise
            assert one is not None
            parts.append(Component(share * one.variance, one.df))
        return parts


def cells_of(values: Sequence[Sequence[float]], noise: tuple[float, float] | None) -> Cells | None:
    """The cells from their rounds; ``noise`` is the platform's (coefficient of variation, degrees of freedom).

    ``None``: nothing to estimate a spread from.
    """
    own = {place: Component(log_variance(one), len(one) - 1) for place, one in enumerate(values) if len(one) > 1}
    fallback = Component(noise[0] ** 2, noise[1]) if noise is not None else None
    if not own and fallback is None:
        return None
    alike = dict(own)
    while len(alike) > 1:
        place = max(alike, key=lambda place: alike[place].variance)
        others = _pool([one for other, one in alike.items() if other != place])
        if not _larger(alike[place], others, APART / len(alike)):
            break
        del alike[place]
    return Cells(
        means=tuple(math.log(geometric_mean(one)) for one in values),
        counts=tuple(len(one) for one in values),
        own=own,
        pooled=_pool(list(alike.values())) if alike else None,
        apart=frozenset(own) - frozenset(alike),
        noise=fallback,
    )


def _pool(parts: Sequence[Component]) -> Component:
    df = math.fsum(part.df for part in parts)
    return Component(math.fsum(part.variance * part.df for part in parts) / df, df)


def _larger(one: Component, others: Component, level: float) -> bool:
    """Whether a spread is larger than that of the others by more than chance (F test)."""
    from scipy import special

    if one.variance == 0:
        return False
    return others.variance == 0 or float(special.fdtrc(one.df, others.df, one.variance / others.variance)) < level
