"""Looking at the data after every round, with error rates that hold all the same.

Group-sequential tests with error spending (Lan and DeMets, Biometrika 70 (1983) 659). How many rounds there may
be, and so how much of the information each look has, is planned beforehand; each look may spend a part of the
error rate, by the power family of Kim and DeMets (Biometrika 74 (1987) 149); what is spent by one look is not
spent again by the next, since the crossing probabilities are worked out jointly by the recursion of Armitage,
McPherson and Rowe (J. R. Stat. Soc. A 132 (1969) 235). The limits at a look are a repeated confidence interval
(Jennison and Turnbull, J. R. Stat. Soc. B 51 (1989) 305): valid whenever one stops, for whatever reason. The variance
is estimated: the levels are used with Student's t (Jennison and Turnbull, Group Sequential Methods (2000),
section 11.4).

The alarm and the all-clear each have their own total; neither counts on the other having stopped the test
("non-binding"), so that going on after a look is never a fault.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

SPENDING_POWER = 3.0
"""Of the power family: like O'Brien and Fleming's, little at the early looks, whose spread is known least."""

LEAST_NEW = 0.004
"""Where two looks differ by a smaller share of information than this, the earlier is none: it could spend nothing."""

_NODES = 200
_FAR = 8.5  # standard errors: beyond are 1e-17


@dataclass(frozen=True, slots=True)
class Looks:
    """The numbers of rounds after which a verdict may be taken, with what each look knows.

    ``information`` is the inverse variance of the estimate at each look, in any unit: only ratios matter.
    """

    rounds: tuple[int, ...]
    information: tuple[float, ...]

    def level(self, rounds: int, total: float) -> float:
        """The one-sided error probability that the look after ``rounds`` may use, of ``total`` over all looks.

        Fewer rounds than the first look's count as the first look (it is then the only one), more than planned
        (kept from another session) as the last, rounds between two looks as the earlier one, and a look that is none
        (see :data:`LEAST_NEW`) as the one before it: they know nearly the same.
        """
        levels = nominal_levels(self.information, total)
        reached = [level for count, level in zip(self.rounds, levels, strict=True) if count <= rounds and level > 0]
        return reached[-1] if reached else next(level for level in levels if level > 0)


def planned(rounds: Sequence[int], *, run_variance: float, reference_rounds: int | None, between: float = 0.0) -> Looks:
    """The looks after ``rounds`` at a difference from a reference (``None``: it has as many rounds, and grows along).

    ``run_variance`` is that of one round and ``between`` what no number of rounds shrinks, on one scale; a floor
    is a reference with endless rounds: give it 0.
    """
    known = []
    for count in rounds:
        other = count if reference_rounds is None else reference_rounds
        own = run_variance / count
        theirs = run_variance / other if other else 0.0
        total = own + theirs + between
        known.append(1 / total if total > 0 else float(count))
    return Looks(tuple(rounds), tuple(known))


def nominal_levels(information: Sequence[float], total: float) -> tuple[float, ...]:
    """The one-sided level of each look, such that ``total`` is the chance of ever crossing when nothing is there.

    ``information`` grows from look to look; a look to which the next one adds less than :data:`LEAST_NEW` gets 0.
    """
    if not information or any(not math.isfinite(value) or value <= 0 for value in information):
        raise ValueError("information must be finite numbers above 0")
    whole = information[-1]
    return _levels(tuple(float(f"{value / whole:.6g}") for value in information), float(f"{total:.10g}"))


@lru_cache(maxsize=256)
def _levels(fractions: tuple[float, ...], total: float) -> tuple[float, ...]:
    used = _worth_a_look(fractions)
    spent = [total * fractions[index] ** SPENDING_POWER for index in used]
    increments = [now - before for now, before in zip(spent, [0.0, *spent[:-1]], strict=True)]
    found = _solve([fractions[index] for index in used], increments)
    levels = [0.0] * len(fractions)
    for index, level in zip(used, found, strict=True):
        levels[index] = level
    return tuple(levels)


def _worth_a_look(fractions: Sequence[float]) -> list[int]:
    """The looks that add something, the last one always among them."""
    used = [len(fractions) - 1]
    for index in range(len(fractions) - 2, -1, -1):
        if fractions[used[-1]] - fractions[index] >= LEAST_NEW * fractions[used[-1]]:
            used.append(index)
    return used[::-1]


def _solve(fractions: Sequence[float], increments: Sequence[float]) -> list[float]:
    """The level of each look from what it may spend, look by look.

    The score S at information t is a Brownian motion; its density over the paths that have not crossed is carried
    on nodes of a Gauss-Legendre rule between -8.5 standard errors and the bound.
    """
    import numpy as np
    from scipy import optimize, special

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    levels = [increments[0]]
    bound = float(-special.ndtri(increments[0]))
    place, mass = _first(nodes, weights, bound, fractions[0])
    for earlier, now, increment in zip(fractions, fractions[1:], increments[1:], strict=False):
        step = math.sqrt(now - earlier)
        root = math.sqrt(now)

        def crossing(z: float, place: Any = place, mass: Any = mass, step: float = step, root: float = root) -> float:
            return float(mass @ special.ndtr((place - z * root) / step))

        def excess(z: float, crossing: Any = crossing, increment: float = increment) -> float:
            return math.log(max(crossing(z), 1e-300)) - math.log(increment)

        bound = float(optimize.brentq(excess, -_FAR, 4 * _FAR))
        levels.append(float(special.ndtr(-bound)))
        top, low = bound * root, -_FAR * root
        fresh = (top - low) / 2 * nodes + (top + low) / 2
        density = (
            np.exp(-(((fresh[:, None] - place[None, :]) / step) ** 2) / 2) @ mass / (step * math.sqrt(2 * math.pi))
        )
        place, mass = fresh, density * weights * (top - low) / 2
    return levels


def _first(nodes: Any, weights: Any, bound: float, fraction: float) -> tuple[Any, Any]:
    import numpy as np

    root = math.sqrt(fraction)
    top, low = bound * root, -_FAR * root
    place = (top - low) / 2 * nodes + (top + low) / 2
    density = np.exp(-((place / root) ** 2) / 2) / (root * math.sqrt(2 * math.pi))
    return place, density * weights * (top - low) / 2
