"""The verdict: what the plugin says of a cell, from its rounds, a baseline and a floor.

The rules are the design's (section 5). With r = new / baseline in the better direction and d the tolerance:
REGRESSED when the upper limit of r is below 1 - d, PASS when the lower limit is at least 1 - d, IMPROVED when the
lower limit is above 1 + d, UNDECIDED otherwise. Noise enters only the interval, never d. Where the platform states
a larger drop ``detect`` that a PASS is to exclude, PASS asks for 1 - ``detect``: a tolerance of 1 % can be exceeded
for sure, and cannot be held for sure, by any affordable number of rounds.

The upper limit is wrong with the cell's share of the night's false-alarm rate, the lower one with the platform's
``missed`` rate, each over all the looks together (:mod:`pytest_r1perf.sequential`).

A bound that a marker gives is judged in the better direction, too: a floor where more is better (``min_tokps``), a
limit where less is (``max_wall_time``). The mean is compared with it, REGRESSED when it is surely broken, PASS when it
surely holds.
"""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pytest_r1perf.metrics import METRICS, Metric
from pytest_r1perf.platform import Platform
from pytest_r1perf.sequential import Looks, planned
from pytest_r1perf.statistics import (
    Component,
    Interval,
    coefficient_of_variation,
    detectable_drop,
    interval_of_mean,
    interval_of_ratio,
    pooled_variance,
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
    OUTPUTS_CHANGED = "OUTPUTS CHANGED"
    OOM = "OOM"
    HANG = "HANG"
    INFRA = "INFRA"
    CONFIG = "CONFIG"
    CRASH = "CRASH"
    XFAIL = "XFAIL"
    XPASS = "XPASS"
    MEASURED = "MEASURED"

    def __str__(self) -> str:
        """As reports and docs write it."""
        return self.value

    @property
    def decided(self) -> bool:
        """Whether the question was answered; a session that answered none exits non-zero."""
        return self not in _OPEN

    @property
    def fails(self) -> bool:
        """Whether the test fails whatever the mode."""
        return self in _FAILING

    @property
    def broken(self) -> bool:
        """Whether there is no measurement: the run broke, or gave what is none."""
        return self in _BROKEN


_OPEN = frozenset({Verdict.UNDECIDED, Verdict.INCOMPARABLE, Verdict.NO_BASELINE})
_BROKEN = frozenset({Verdict.INVALID, Verdict.OOM, Verdict.HANG, Verdict.INFRA, Verdict.CONFIG, Verdict.CRASH})
_FAILING = _BROKEN | {Verdict.REGRESSED, Verdict.OUTPUTS_CHANGED, Verdict.XPASS}
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
    """What rounds are compared with: values of one metric, and who measured them.

    ``grows``: it gets a round whenever the new side does, at the looks that are planned. ``other_host``: another
    machine of the same model measured it.
    """

    values: Sequence[float]
    same_session: bool = False
    grows: bool = False
    other_host: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one metric with everything it rests on; ``detectable`` is a fraction (0.08 is 8 %).

    ``excludes`` is the drop that a PASS excludes: the tolerance, or the platform's ``detect``. ``floor`` is the least
    that is allowed, or of a metric where less is better the most (a limit), and ``mean`` what is compared with it.
    ``gate``: the metric is only held against such a bound, and compared with no baseline.
    """

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
    excludes: float = 0.0
    gate: bool = False

    @property
    def less_is_better(self) -> bool:
        """Whether the bound is a limit, not a floor."""
        return METRICS[self.metric].better < 0

    @property
    def out_of_bounds(self) -> bool:
        """Whether the bound is surely broken."""
        if self.floor is None or self.mean is None:
            return False
        return self.mean.lower > self.floor if self.less_is_better else self.mean.upper < self.floor


@dataclass(frozen=True, slots=True)
class Terms:
    """How a metric is judged: tolerance, floor, error rates over all looks, and the platform's noise.

    ``floor`` is the first metric's, ``limits`` are further bounds by metric. ``alpha`` is for the alarm and shared
    once more where a baseline and a floor can both make it REGRESSED; ``beta`` is for the all-clear. ``looks`` are
    the numbers of rounds after which a verdict may be taken; without any the number of rounds is fixed. ``noise_run``,
    ``noise_between`` and ``noise_host`` are (CV, degrees of freedom).
    """

    tolerance: float
    floor: float | None
    alpha: float
    beta: float
    detect: float | None = None
    looks: tuple[int, ...] = ()
    noise_run: tuple[float, float] | None = None
    noise_between: tuple[float, float] | None = None
    noise_host: tuple[float, float] | None = None
    limits: tuple[tuple[str, float], ...] = ()

    @property
    def excludes(self) -> float:
        """The drop that a PASS excludes."""
        return max(self.tolerance, self.detect or 0.0)

    def of(self, metric: str, *, first: bool) -> Terms:
        """The same for one metric of a cell: its own bound only."""
        own = self.floor if first else None
        return replace(self, floor=dict(self.limits).get(metric) if own is None else own, limits=())


def terms_for(
    platform: Platform,
    *,
    tolerance: float,
    floor: float | None,
    looks: Sequence[int] = (),
    metrics: int = 1,
    detect: float | None = None,
    limits: Sequence[tuple[str, float]] = (),
) -> Terms:
    """The platform's error rates and noise; the alarm's rate is shared over the cell's metrics (Bonferroni).

    ``metrics``: how many are judged, those that only have a limit among them.
    """
    noise = platform.noise
    known_hosts = noise is not None and noise.host_cv is not None and noise.hosts is not None
    return Terms(
        tolerance=tolerance,
        floor=floor,
        alpha=platform.error_rate.per_cell / metrics,
        beta=platform.error_rate.missed,
        detect=platform.detect if detect is None else detect,
        looks=tuple(looks),
        noise_run=(noise.run_cv, noise.runs - 1) if noise else None,
        noise_between=(noise.session_cv, noise.sessions - 1) if noise else None,
        noise_host=(noise.host_cv, noise.hosts - 1) if noise and known_hosts else None,  # type: ignore[operator,arg-type]
        limits=tuple(limits),
    )


def judge(metric_name: str, values: Sequence[float], reference: Reference | None, terms: Terms) -> Judgement:
    """The verdict on one metric. ``reference`` is ``None`` where nothing is stored."""
    metric = METRICS[metric_name]
    if reference is not None and terms.floor is not None:
        terms = replace(terms, alpha=terms.alpha / 2)
    ratio = _ratio(metric, values, reference, terms) if reference is not None else None
    floor = _floor(metric, values, terms.floor, terms) if terms.floor is not None else None
    verdicts: list[tuple[Verdict, str]] = []
    if reference is not None:
        verdicts.append(_against_baseline(ratio, terms))
    if terms.floor is not None:
        verdicts.append(_against_floor(floor, "floor" if metric.better > 0 else "limit"))
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
        mean=_mean(metric, floor, terms.floor) if floor is not None and terms.floor is not None else None,
        tolerance=terms.tolerance,
        detectable=detectable_drop(ratio, terms.tolerance) if ratio is not None else _floor_power(floor),
        rounds_needed=_rounds_needed(values, reference, ratio, floor, terms) if verdict is Verdict.UNDECIDED else None,
        reason=reason,
        excludes=terms.excludes,
    )


def judge_gates(values: Callable[[str], Sequence[float]], judged: Sequence[str], terms: Terms) -> tuple[Judgement, ...]:
    """The limits on metrics that are not ``judged`` themselves: no baseline, only the bound.

    ``values`` gives a metric's value in every round.
    """
    return tuple(
        replace(judge(metric, values(metric), None, terms.of(metric, first=False)), gate=True)
        for metric, _ in terms.limits
        if metric not in judged
    )


def judge_antipattern(metric_name: str, values: Sequence[float], reference: Reference, terms: Terms) -> Judgement:
    """Design section 6: surely slower is XFAIL, surely no worse than tolerance is XPASS, else UNDECIDED."""
    terms = replace(terms, floor=None, beta=terms.alpha, detect=None)  # XPASS fails: its rate is the alarm's
    judgement = judge(metric_name, values, reference, terms)
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
    """The judgement that names the cell: the worst verdict, the first metric among equals.

    Where a gate was given, a metric that nothing is stored for leaves no question open: that is said in its own row.
    """
    gated = any(item.gate for item in judgements)
    asked = [item for item in judgements if not (gated and item.verdict is Verdict.NO_BASELINE)]
    return min(asked, key=lambda item: _WORST_FIRST.index(item.verdict))


_NO_SPREAD = "one round a side says nothing about the spread: measure at least two"


def _ratio(metric: Metric, values: Sequence[float], reference: Reference, terms: Terms) -> Interval | None:
    between = _between(reference, terms)
    alpha, beta = _levels(values, reference, terms)
    new, old = values, reference.values
    if metric.better < 0:
        new, old = old, new
    return interval_of_ratio(new, old, alpha=alpha, beta=beta, fallback_cv=terms.noise_run, between=between)


def _floor(metric: Metric, values: Sequence[float], floor: float, terms: Terms) -> Interval | None:
    """The mean over the floor, or the limit over the mean: below 1 the bound is broken.

    Logarithms of reciprocals are the same with the other sign, so that a limit has a floor's error rates.
    """
    alpha, beta = _levels(values, None, terms)
    if metric.better < 0:
        values, floor = [1 / value for value in values], 1 / floor
    return interval_of_mean(
        values, alpha=alpha, beta=beta, unit=floor, fallback_cv=terms.noise_run, between=_between(None, terms)
    )


def _mean(metric: Metric, over: Interval, bound: float) -> Interval:
    """The mean itself, in the metric's unit, from what :func:`_floor` gives."""
    if metric.better > 0:
        return over.scaled(bound)
    return replace(
        over,
        estimate=bound / over.estimate,
        lower=bound / over.upper,
        upper=bound / over.lower if over.lower else math.inf,
    )


def _between(reference: Reference | None, terms: Terms) -> list[Component]:
    """What sessions and hosts add: once for a floor, on both sides of a ratio, not at all within a session."""
    if reference is not None and reference.same_session:
        return []
    sides = 1 if reference is None else 2
    parts = [(sides, terms.noise_between)]
    if reference is not None and reference.other_host:
        parts.append((sides, terms.noise_host))
    return [Component(count * noise[0] ** 2, noise[1]) for count, noise in parts if noise is not None]


def _levels(values: Sequence[float], reference: Reference | None, terms: Terms) -> tuple[float, float]:
    """The error rates that this look may use, for the upper and for the lower limit."""
    if len(terms.looks) < 2:
        return terms.alpha, terms.beta
    looks = _looks(reference, terms)
    count = len(values) if reference is None or not reference.grows else min(len(values), len(reference.values))
    return looks.level(count, terms.alpha), looks.level(count, terms.beta)


def _looks(reference: Reference | None, terms: Terms) -> Looks:
    """The looks planned; how much each knows rests on the platform's noise, never on the rounds at hand."""
    run = terms.noise_run[0] ** 2 if terms.noise_run is not None else 1.0
    between = sum(part.variance for part in _between(reference, terms)) if terms.noise_run is not None else 0.0
    others = 0 if reference is None else None if reference.grows else len(reference.values)
    return planned(terms.looks, run_variance=run, reference_rounds=others, between=between)


def _against_baseline(ratio: Interval | None, terms: Terms) -> tuple[Verdict, str]:
    tolerance = terms.tolerance
    if ratio is None:
        return Verdict.UNDECIDED, _NO_SPREAD
    if ratio.upper < 1 - tolerance:
        return Verdict.REGRESSED, "surely below the reference less the tolerance"
    if ratio.lower > 1 + tolerance:
        return Verdict.IMPROVED, "surely above the reference plus the tolerance"
    if ratio.lower >= 1 - tolerance:
        return Verdict.PASS, "shown to be no worse than the reference less the tolerance"
    if ratio.lower >= 1 - terms.excludes:
        return Verdict.PASS, f"shown to have dropped by less than {100 * terms.excludes:.3g} %, the drop to be detected"
    return Verdict.UNDECIDED, "the interval reaches across the reference less the tolerance"


def _against_floor(over: Interval | None, bound: str) -> tuple[Verdict, str]:
    if over is None:
        return Verdict.UNDECIDED, _NO_SPREAD
    if over.upper < 1:
        return Verdict.REGRESSED, f"surely {'below' if bound == 'floor' else 'above'} the {bound}"
    if over.lower >= 1:
        return Verdict.PASS, f"shown to hold the {bound}"
    return Verdict.UNDECIDED, f"the interval of the mean reaches across the {bound}"


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
    for interval, broken_at, held_at, against in (
        (ratio, 1 - terms.tolerance, 1 - terms.excludes, reference),
        (floor, 1.0, 1.0, None),
    ):
        if interval is None or interval.upper < broken_at or interval.lower >= held_at:
            continue
        if interval.estimate < broken_at:
            below.append(_rounds(interval, broken_at, values, against, terms))
        if interval.estimate > held_at:
            above.append(_rounds(interval, held_at, values, against, terms))
        else:
            above.append(None)
    broken = [count for count in below if count is not None]
    held = [count for count in above if count is not None]
    ways = [min(broken)] if broken else []
    ways += [max(held)] if held and len(held) == len(above) else []
    return min(ways, default=None)


def _rounds(
    interval: Interval, bound: float, values: Sequence[float], reference: Reference | None, terms: Terms
) -> int | None:
    """Rounds on the new side that would take the interval off the bound."""
    old = reference.values if reference is not None else ()
    one = _of_one_round(values, old, terms)
    if one is None:
        return None
    grows = reference is not None and reference.grows
    return rounds_to_decide(
        interval,
        bound,
        rounds=len(values),
        run=Component(2 * one.variance, one.df) if grows else one,
        reference_rounds=0 if grows else len(old),
        fixed=_between(reference, terms),
    )


def _of_one_round(values: Sequence[float], other: Sequence[float], terms: Terms) -> Component | None:
    """Log variance of one round: both sides' own, else the platform's; degrees of freedom beside the new rounds."""
    if len(values) < 2 and len(other) < 2:
        return Component(terms.noise_run[0] ** 2, terms.noise_run[1]) if terms.noise_run is not None else None
    pooled = pooled_variance((values, other))
    return Component(pooled.variance, max(0, len(other) - 1))
