"""What a number of rounds can see: the verdicts' own rule, simulated with a fixed seed.

A simulated night has a stored baseline and new rounds: one effect for each of the two sessions and one for each
process, normal on the log scale (heavier tails and drifts are left out). :func:`pytest_r1perf.verdict.judge` gives the
limits at every planned look. A drop moves both limits by its own factor and nothing else, so one simulated night
answers for every drop; what the limits then mean is the design's table (section 5).

Beside it stands the formula for a number of rounds that is fixed beforehand: the noncentral t distribution's power
(Johnson and Welch, Biometrika 31 (1940) 362) with the expected standard error.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.measure import RoundPlan
from pytest_r1perf.platform import Noise, Platform
from pytest_r1perf.statistics import Interval, detectable_drop
from pytest_r1perf.verdict import Reference, Terms, judge, terms_for

POWER = 0.95
NIGHTS = 1_000
"""Simulated: the standard error of a share of 95 % is 0.7 points."""

MOST_ROUNDS = 50
"""Where a plan ends: no night has the time for more, nor has anybody the time to simulate it."""

_JUDGED = 20_000
"""Looks of all nights together; with more looks a night fewer nights are simulated, at least 200."""

_METRIC = "total_throughput"
_SEED = 2025


@dataclass(frozen=True, slots=True)
class Setting:
    """What power depends on beside the rounds: the terms of the verdict, and the true noise.

    ``run_cv`` and ``session_cv`` are standard deviations of logarithms. ``baseline_rounds`` is ``None`` where two
    environments are measured in turn in one session: the reference then grows along, and no session is between them.
    """

    terms: Terms
    run_cv: float
    session_cv: float
    baseline_rounds: int | None


@dataclass(frozen=True, slots=True)
class Power:
    """What ``plan`` can see. Fractions; ``None`` where not even 99 % less is seen with :data:`POWER`.

    ``detectable``: the drop that is REGRESSED with :data:`POWER`; ``fixed``: the same of the formula for exactly
    ``plan.maximum`` rounds. Of an unchanged cell: how often it PASSes (or IMPROVED), is REGRESSED or UNDECIDED, and
    how many rounds it takes. ``hidden``: how often a drop of ``terms.excludes`` PASSes.
    """

    plan: RoundPlan
    detectable: float | None
    fixed: float
    passes: float
    alarms: float
    undecided: float
    rounds: float
    hidden: float


class Nights:
    """Nights of one plan, each the rounds of (baseline, new): limits of new / baseline, worked out where needed."""

    def __init__(self, setting: Setting, plan: RoundPlan, nights: Sequence[tuple[Sequence[float], Sequence[float]]]):
        import numpy as np

        self.plan = plan
        self.terms = replace(setting.terms, looks=plan.looks)
        self._nights = nights
        self._grows = setting.baseline_rounds is None
        self._limits: Any = np.full((len(plan.looks), len(nights), 2), np.nan)

    def outcomes(self, drop: float) -> tuple[float, float, float, float]:
        """Shares of PASS (with IMPROVED), REGRESSED and UNDECIDED, and the mean number of rounds, after a drop."""
        import numpy as np

        left, total = 1 - drop, len(self._nights)
        going = np.arange(total)
        passed = regressed = 0
        rounds = 0.0
        for number, look in enumerate(self.plan.looks):
            limits = self._at(number, going)
            bad = limits[:, 1] * left < 1 - self.terms.tolerance
            good = ~bad & (limits[:, 0] * left >= 1 - self.terms.excludes)
            regressed += int(bad.sum())
            passed += int(good.sum())
            rounds += look * int((bad | good).sum())
            going = going[~(bad | good)]
        rounds += self.plan.maximum * len(going)
        return passed / total, regressed / total, len(going) / total, rounds / total

    def _at(self, number: int, nights: Any) -> Any:
        """The limits (lower, upper) at a look of these nights."""
        import numpy as np

        look, known = self.plan.looks[number], self._limits[number]
        for night in nights[np.isnan(known[nights, 0])]:
            old, new = self._nights[night]
            reference = Reference(old[:look], same_session=True, grows=True) if self._grows else Reference(old)
            known[night] = _limits(new[:look], reference, self.terms)
        return known[nights]


def setting_for(
    platform: Platform,
    *,
    baseline_rounds: int | None,
    tolerance: float | None = None,
    detect: float | None = None,
    run_cv: float | None = None,
    session_cv: float | None = None,
) -> Setting:
    """A platform's own terms and noise, or with other noise in their place.

    ``run_cv`` and ``session_cv`` replace what the platform says, in the truth and in what the verdict is told. Raises
    :class:`R1PerfError` where there is no noise to reckon with.
    """
    noise = platform.noise
    if noise is None and run_cv is None:
        raise R1PerfError(
            f"platform {platform.name!r} has no noise yet: measure it with `r1perf noise --platform {platform.name}`, "
            f"or give one with --cv 0.02"
        )
    if noise is not None:
        noise = replace(
            noise,
            run_cv=noise.run_cv if run_cv is None else run_cv,
            session_cv=noise.session_cv if session_cv is None else session_cv,
        )
    elif session_cv is not None and run_cv is not None:
        noise = Noise(run_cv=run_cv, runs=10, session_cv=session_cv, sessions=10, source="given")
    limit = platform.tolerance if tolerance is None else tolerance
    return Setting(
        terms=terms_for(replace(platform, noise=noise), tolerance=limit, floor=None, detect=detect),
        run_cv=noise.run_cv if noise is not None else run_cv or 0.0,
        session_cv=noise.session_cv if noise is not None else 0.0,
        baseline_rounds=baseline_rounds,
    )


def power_of(setting: Setting, plan: RoundPlan, *, nights: int | None = None) -> Power:
    """What a plan can see, simulated."""
    found = simulated(setting, plan, nights)
    passes, alarms, undecided, rounds = found.outcomes(0.0)
    return Power(
        plan=plan,
        detectable=_detectable(found),
        fixed=fixed_number(setting, plan.maximum),
        passes=passes,
        alarms=alarms,
        undecided=undecided,
        rounds=rounds,
        hidden=found.outcomes(found.terms.excludes)[0],
    )


def rounds_for(setting: Setting, drop: float, *, minimum: int, nights: int = 400) -> tuple[int | None, int | None]:
    """The least maximum of rounds that sees ``drop`` with :data:`POWER`: (simulated, by the formula).

    ``None``: :data:`MOST_ROUNDS` do not; what sessions and the baseline add is then larger than the drop can be.
    """

    def seen(count: int) -> bool:
        plan = RoundPlan(min(minimum, count), count)
        return simulated(setting, plan, nights).outcomes(drop)[1] >= POWER

    def by_formula(count: int) -> bool:
        return fixed_number(setting, count) <= drop

    formula = next((count for count in range(2, MOST_ROUNDS + 1) if by_formula(count)), None)
    # Looks cost something, so the rule needs about as many or a few more: start there, then close in.
    low, high = 1, min(MOST_ROUNDS, formula or MOST_ROUNDS)
    while not seen(high):
        if high == MOST_ROUNDS:
            return None, formula
        low, high = high, min(MOST_ROUNDS, high + max(1, high // 4))
    while high - low > 1:
        middle = max(low + 1, high - max(1, (high - low) // 3))
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high, formula


def fixed_number(setting: Setting, rounds: int) -> float:
    """The drop that exactly so many rounds, looked at once, detect with :data:`POWER`."""
    if rounds < 2:
        return 1.0
    theirs = setting.baseline_rounds or rounds
    parts: list[tuple[float, float]] = [(setting.run_cv**2 * (1 / rounds + 1 / theirs), rounds + theirs - 2)]
    told = setting.terms.noise_between
    if told is not None and setting.baseline_rounds is not None:
        parts.append((2 * told[0] ** 2, told[1]))
    variance = math.fsum(part for part, _ in parts)
    weight = math.fsum(part**2 / df for part, df in parts)
    df = variance**2 / weight if weight > 0 else math.inf
    alpha, beta = setting.terms.alpha, setting.terms.beta
    return detectable_drop(Interval(1.0, 1.0, 1.0, math.sqrt(variance), df, alpha, beta), setting.terms.tolerance)


def simulated(setting: Setting, plan: RoundPlan, nights: int | None = None) -> Nights:
    """Nights of an unchanged cell; fewer than :data:`NIGHTS` where the plan has many looks, unless told how many."""
    count = nights or max(200, min(NIGHTS, _JUDGED // len(plan.looks)))
    stream = random.Random(_SEED)
    # The same night of a longer plan begins with the same rounds.
    most = max(MOST_ROUNDS, plan.maximum)
    rounds = [
        (_session(stream, setting, setting.baseline_rounds or most), _session(stream, setting, most))
        for _ in range(count)
    ]
    return Nights(setting, plan, rounds)


_FAR = 1e6


def _limits(new: Sequence[float], reference: Reference, terms: Terms) -> tuple[float, float]:
    """The verdict's limits of new / reference.

    Judged far above the reference, where nothing is undecided and the verdict has no rounds to plan: limits scale.
    """
    judgement = judge(_METRIC, [value * _FAR for value in new], reference, terms)
    if judgement.ratio is None:
        return 0.0, math.inf
    return judgement.ratio.lower / _FAR, judgement.ratio.upper / _FAR


def _session(stream: random.Random, setting: Setting, rounds: int) -> list[float]:
    centre = stream.gauss(0, setting.session_cv) if setting.baseline_rounds is not None else 0.0
    return [math.exp(centre + stream.gauss(0, setting.run_cv)) for _ in range(rounds)]


def _detectable(nights: Nights) -> float | None:
    low, high = 0.0, 0.99
    if nights.outcomes(high)[1] < POWER:
        return None
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if nights.outcomes(middle)[1] >= POWER else (middle, high)
    return high
