"""The verdict: what the plugin says of a cell, from its rounds, a baseline and a floor.

The rules are the design's (section 5). With r = new / baseline in the better direction and d the tolerance:
PASS when the lower limit of r is at least 1 - d, REGRESSED when the upper limit is below it, IMPROVED when the
lower limit is above 1 + d, UNDECIDED otherwise. Noise enters only the interval, never d.
"""

from __future__ import annotations

import statistics as plain
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pytest_r1perf.metrics import METRICS, Metric
from pytest_r1perf.platform import Platform
from pytest_r1perf.statistics import (
    Component,
    Interval,
    coefficient_of_variation,
    detectable_drop,
    interval_of_mean,
    interval_of_ratio,
    log_variance,
    rounds_to_decide,
)


class Verdict(str, Enum):
    """Design section 5, and two more.

    BASELINE STORED is for a cell whose baseline this session was asked to write, MEASURED for one that a
    ``perf_lab`` test measures and judges by itself.
    """

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    STORED = "BASELINE STORED"
    REGRESSED = "REGRESSED"
    UNDECIDED = "UNDECIDED"
    INVALID = "INVALID"
    INCOMPARABLE = "INCOMPARABLE"
    NO_BASELINE = "NO BASELINE"
    OOM = "OOM"
    HANG = "HANG"
    INFRA = "INFRA"
    CONFIG = "CONFIG"
    CRASH = "CRASH"
    XFAIL = "XFAIL"
    XPASS = "XPASS"
    MEASURED = "MEASURED"

    @property
    def decided(self) -> bool:
        """Whether the question was answered; a session that answered none exits non-zero."""
        return self not in _OPEN

    @property
    def fails(self) -> bool:
        """Whether the test fails whatever the mode."""
        return self in _FAILING


_OPEN = frozenset({Verdict.UNDECIDED, Verdict.INCOMPARABLE, Verdict.NO_BASELINE})
_FAILING = frozenset(
    {
        Verdict.REGRESSED,
        Verdict.INVALID,
        Verdict.OOM,
        Verdict.HANG,
        Verdict.INFRA,
        Verdict.CONFIG,
        Verdict.CRASH,
        Verdict.XPASS,
    }
)
_WORST_FIRST = (
    Verdict.REGRESSED,
    Verdict.XPASS,
    Verdict.UNDECIDED,
    Verdict.INCOMPARABLE,
    Verdict.NO_BASELINE,
    Verdict.XFAIL,
    Verdict.PASS,
    Verdict.IMPROVED,
)


@dataclass(frozen=True, slots=True)
class Reference:
    """What rounds are compared with: values of one metric, and whether another session measured them."""

    values: Sequence[float]
    same_session: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one metric with everything it rests on; ``detectable`` is a fraction (0.08 is 8 %)."""

    metric: str
    verdict: Verdict
    rounds: int
    median: float
    spread: float | None
    baseline: float | None = None
    ratio: Interval | None = None
    floor: float | None = None
    mean: Interval | None = None
    tolerance: float = 0.0
    detectable: float | None = None
    rounds_needed: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a metric is judged: tolerance, floor, error rate of one look, and the platform's noise.

    ``alpha`` is shared once more where a baseline and a floor can both make it REGRESSED.
    """

    tolerance: float
    floor: float | None
    alpha: float
    noise_between: float | None = None
    noise_sessions: int = 2
    noise_run: tuple[float, float] | None = None


def terms_for(platform: Platform, *, tolerance: float, floor: float | None, looks: int, metrics: int = 1) -> Terms:
    """The platform's error rate shared over the looks planned beforehand and the cell's metrics (Bonferroni)."""
    noise = platform.noise
    return Terms(
        tolerance=tolerance,
        floor=floor,
        alpha=platform.error_rate.per_cell / (looks * metrics),
        noise_between=noise.session_cv if noise else None,
        noise_sessions=noise.sessions if noise else 2,
        noise_run=(noise.run_cv, noise.runs - 1) if noise else None,
    )


def judge(metric_name: str, values: Sequence[float], reference: Reference | None, terms: Terms) -> Judgement:
    """The verdict on one metric. ``reference`` is ``None`` where nothing is stored."""
    metric = METRICS[metric_name]
    if reference is not None and terms.floor is not None:
        terms = replace(terms, alpha=terms.alpha / 2)
    ratio = _ratio(metric, values, reference, terms) if reference is not None else None
    floor = _floor(values, terms.floor, terms) if terms.floor is not None else None
    verdicts: list[tuple[Verdict, str]] = []
    if reference is not None:
        verdicts.append(_against_baseline(ratio, terms.tolerance))
    if terms.floor is not None:
        verdicts.append(_against_floor(floor))
    if not verdicts:
        verdicts.append((Verdict.NO_BASELINE, "nothing is stored for this cell and no floor is given"))
    verdict, reason = min(verdicts, key=lambda item: _WORST_FIRST.index(item[0]))
    if verdict is Verdict.PASS:  # the floor holds, too: the better of the two is the news
        verdict, reason = next((item for item in verdicts if item[0] is Verdict.IMPROVED), (verdict, reason))
    return Judgement(
        metric=metric_name,
        verdict=verdict,
        rounds=len(values),
        median=plain.median(values),
        spread=coefficient_of_variation(values),
        baseline=plain.median(reference.values) if reference is not None else None,
        ratio=ratio,
        floor=terms.floor,
        mean=floor.scaled(terms.floor) if floor is not None and terms.floor is not None else None,
        tolerance=terms.tolerance,
        detectable=detectable_drop(ratio, terms.tolerance) if ratio is not None else _floor_power(floor),
        rounds_needed=_rounds_needed(values, reference, ratio, floor, terms) if verdict is Verdict.UNDECIDED else None,
        reason=reason,
    )


def judge_antipattern(metric_name: str, values: Sequence[float], reference: Reference, terms: Terms) -> Judgement:
    """Design section 6: surely slower is XFAIL, surely no worse than tolerance is XPASS, else UNDECIDED."""
    judgement = judge(metric_name, values, reference, replace(terms, floor=None))
    ratio = judgement.ratio
    needed: int | None = None
    if ratio is None:
        verdict, reason = Verdict.UNDECIDED, _NO_SPREAD
    elif ratio.upper < 1:
        verdict, reason = Verdict.XFAIL, "slower than the reference, as expected"
    elif ratio.lower > 1 - terms.tolerance:
        verdict, reason = Verdict.XPASS, "no longer slower than the reference: re-validate this rule"
    else:
        verdict, reason = Verdict.UNDECIDED, "neither surely slower nor surely as fast as the reference"
        low = 1 - terms.tolerance
        bounds = [1.0] * (ratio.estimate < 1) + [low] * (ratio.estimate > low)
        counts = [_rounds(ratio, bound, values, reference, terms) for bound in bounds]
        needed = min((count for count in counts if count is not None), default=None)
    return replace(
        judgement,
        verdict=verdict,
        reason=reason,
        detectable=detectable_drop(ratio, 0.0) if ratio is not None else None,
        rounds_needed=needed,
    )


def worst(judgements: Sequence[Judgement]) -> Judgement:
    """The judgement that names the cell: the worst verdict, the first metric among equals."""
    return min(judgements, key=lambda item: _WORST_FIRST.index(item.verdict))


_NO_SPREAD = "one round a side says nothing about the spread: measure at least two"


def _ratio(metric: Metric, values: Sequence[float], reference: Reference, terms: Terms) -> Interval | None:
    new, old = (values, reference.values) if metric.better > 0 else (reference.values, values)
    between = [] if reference.same_session else _sessions(terms, count=2)
    return interval_of_ratio(new, old, alpha=terms.alpha, fallback_cv=terms.noise_run, between=between)


def _floor(values: Sequence[float], floor: float, terms: Terms) -> Interval | None:
    """The mean over the floor; floors are for metrics where more is better (checked at collection)."""
    between = _sessions(terms, count=1)
    return interval_of_mean(values, alpha=terms.alpha, unit=floor, fallback_cv=terms.noise_run, between=between)


def _sessions(terms: Terms, *, count: int) -> list[Component]:
    if terms.noise_between is None:
        return []
    return [Component(count * terms.noise_between**2, terms.noise_sessions - 1)]


def _against_baseline(ratio: Interval | None, tolerance: float) -> tuple[Verdict, str]:
    if ratio is None:
        return Verdict.UNDECIDED, _NO_SPREAD
    if ratio.upper < 1 - tolerance:
        return Verdict.REGRESSED, "surely below the baseline less the tolerance"
    if ratio.lower > 1 + tolerance:
        return Verdict.IMPROVED, "surely above the baseline plus the tolerance"
    if ratio.lower >= 1 - tolerance:
        return Verdict.PASS, "shown to be no worse than the baseline less the tolerance"
    return Verdict.UNDECIDED, "the interval reaches across the baseline less the tolerance"


def _against_floor(over: Interval | None) -> tuple[Verdict, str]:
    if over is None:
        return Verdict.UNDECIDED, _NO_SPREAD
    if over.upper < 1:
        return Verdict.REGRESSED, "surely below the floor"
    if over.lower >= 1:
        return Verdict.PASS, "shown to hold the floor"
    return Verdict.UNDECIDED, "the interval of the mean reaches across the floor"


def _floor_power(over: Interval | None) -> float | None:
    """From where the mean stands now, the drop that would be seen below the floor."""
    if over is None:
        return None
    return max(0.0, 1 - (1 - detectable_drop(over, 0.0)) / over.estimate)


def _rounds_needed(
    values: Sequence[float], reference: Reference | None, ratio: Interval | None, floor: Interval | None, terms: Terms
) -> int | None:
    """One bound that is surely broken decides; else all must be shown to hold."""
    below: list[int | None] = []
    above: list[int | None] = []
    for interval, bound, against in ((ratio, 1 - terms.tolerance, reference), (floor, 1.0, None)):
        if interval is not None and interval.lower < bound <= interval.upper:
            side = below if interval.estimate < bound else above
            side.append(_rounds(interval, bound, values, against, terms))
    broken = [count for count in below if count is not None]
    held = [count for count in above if count is not None]
    if broken:
        return min(broken)
    return max(held) if held and not below and len(held) == len(above) else None


def _rounds(
    interval: Interval, bound: float, values: Sequence[float], reference: Reference | None, terms: Terms
) -> int | None:
    """Rounds on the new side that would take the interval off the bound."""
    old = reference.values if reference is not None else ()
    one = _of_one_round(values, old, terms)
    if one is None:
        return None
    fixed: list[Component] = []
    if reference is None or not reference.same_session:
        fixed += _sessions(terms, count=1 if reference is None else 2)
    stored = _of_one_round(old, values, terms) if old else None
    if stored is not None:
        fixed.append(Component(stored.variance / len(old), stored.df))
    return rounds_to_decide(interval, bound, rounds=len(values), run_variance=one.variance, fixed=fixed)


def _of_one_round(values: Sequence[float], other: Sequence[float], terms: Terms) -> Component | None:
    """Log variance of one round: the side's own, else the platform's, else the other side's."""
    if len(values) < 2 and terms.noise_run is not None:
        return Component(terms.noise_run[0] ** 2, terms.noise_run[1])
    side = values if len(values) > 1 else other
    return Component(log_variance(side), len(side) - 1) if len(side) > 1 else None
