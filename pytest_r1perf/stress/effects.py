"""What a sweep's values say of batch size, input length and output length: pure functions of a value a case."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pytest_r1perf.stress.bootstrap import Estimate, Resamples, Scale, Values

Axis = Literal["batch_size", "input_len", "output_len"]
AXES: tuple[Axis, ...] = ("batch_size", "input_len", "output_len")

PAYS = 0.25
"""The guide calls the gain from 16 to 32, 25 %, the end of what pays ("Diminishing Returns")."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box plot's numbers, in the values' own unit.

    Quartiles are interpolated linearly between order statistics; whiskers end at the farthest values within 1.5 box
    heights of the box (Tukey, Exploratory Data Analysis, 1977), as matplotlib draws them. ``outliers`` lie beyond.
    """

    count: int
    low: float
    q1: float
    median: float
    q3: float
    high: float
    outliers: tuple[float, ...]

    @property
    def height(self) -> float:
        """Third quartile less the first."""
        return self.q3 - self.q1

    @property
    def span(self) -> float:
        """From whisker to whisker."""
        return self.high - self.low


def box(values: Sequence[float]) -> Box:
    """Of one value at least."""
    ordered = sorted(values)
    q1, median, q3 = (_quantile(ordered, share) for share in (0.25, 0.5, 0.75))
    reach = 1.5 * (q3 - q1)
    inside = [value for value in ordered if q1 - reach <= value <= q3 + reach]
    outliers = tuple(value for value in ordered if value < inside[0] or value > inside[-1])
    return Box(len(ordered), inside[0], q1, median, q3, inside[-1], outliers)


def by_level(values: Values, axis: Axis = "batch_size") -> dict[int, list[float]]:
    """The values of all cases with one batch size (or length), sizes ascending."""
    found: dict[int, list[float]] = {}
    for case, value in sorted(values.items()):
        found.setdefault(getattr(case, axis), []).append(value)
    return dict(sorted(found.items()))


def of_sizes(values: Values, sizes: Collection[int] | None = None) -> Values:
    """The cases of some batch sizes, of the lengths that each of these has; of all sizes without ``sizes``.

    Where a size's longest answers did not fit, its shorter ones alone are not comparable with all of another.
    """
    wanted = set(sizes if sizes is not None else by_level(values))
    found: dict[tuple[int, int], set[int]] = {}
    for case in values:
        if case.batch_size in wanted:
            found.setdefault((case.input_len, case.output_len), set()).add(case.batch_size)
    whole = {lengths for lengths, own in found.items() if own == wanted}
    return {
        case: value
        for case, value in values.items()
        if case.batch_size in wanted and (case.input_len, case.output_len) in whole
    }


def ratio(values: Values, axis: Axis, low: int, high: int) -> float | None:
    """Values at ``high`` over those at ``low``: geometric mean over cases that differ in nothing else."""
    pairs = _matched(values, axis)
    logs = [math.log(one[high] / one[low]) for one in pairs if low in one and high in one]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def per_doubling(values: Values, axis: Axis) -> float | None:
    """The factor by which the value grows a doubling: a power law by least squares on logarithms.

    Each combination of the other two has a level of its own, so that missing cases don't pass for an effect.
    """
    above = below = 0.0
    for one in _matched(values, axis):
        xs, ys = [math.log2(level) for level in one], [math.log2(value) for value in one.values()]
        x_mean, y_mean = statistics.fmean(xs), statistics.fmean(ys)
        above += math.fsum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
        below += math.fsum((x - x_mean) ** 2 for x in xs)
    return 2 ** (above / below) if below > 0 else None


def correlation(values: Values, axis: Axis, *, logs: bool = False) -> float | None:
    """Pearson's r between the size (or length) and the value, of raw numbers as in the guide, or of logarithms."""
    scale: Callable[[float], float] = math.log if logs else float
    xs = [scale(getattr(case, axis)) for case in values]
    ys = [scale(value) for value in values.values()]
    x_mean, y_mean = statistics.fmean(xs), statistics.fmean(ys)
    across = math.fsum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    own = math.fsum((x - x_mean) ** 2 for x in xs) * math.fsum((y - y_mean) ** 2 for y in ys)
    return across / math.sqrt(own) if own > 0 else None


def share(values: Values, axis: Axis) -> float | None:
    """The part of the logarithms' variance that the levels of one axis account for, from 0 to 1."""
    logs = {case: math.log(value) for case, value in values.items()}
    mean = statistics.fmean(logs.values())
    total = math.fsum((value - mean) ** 2 for value in logs.values())
    groups = by_level(logs, axis).values()
    between = math.fsum(len(group) * (statistics.fmean(group) - mean) ** 2 for group in groups)
    return between / total if total > 0 else None


@dataclass(frozen=True, slots=True)
class Effect:
    """What one axis does: from its lowest to its highest level, a doubling, and the correlations."""

    axis: Axis
    low: int
    high: int
    ratio: Estimate | None
    doubling: Estimate | None
    correlation: Estimate | None
    log_correlation: Estimate | None


def effect(sample: Resamples, axis: Axis) -> Effect:
    """Of one axis, with intervals."""
    levels = sorted({getattr(case, axis) for case in sample.own})
    low, high = levels[0], levels[-1]
    return Effect(
        axis=axis,
        low=low,
        high=high,
        ratio=sample.estimate(partial(ratio, axis=axis, low=low, high=high), Scale.RATIO),
        doubling=sample.estimate(partial(per_doubling, axis=axis), Scale.RATIO),
        correlation=sample.estimate(partial(correlation, axis=axis), Scale.CORRELATION),
        log_correlation=sample.estimate(partial(correlation, axis=axis, logs=True), Scale.CORRELATION),
    )


@dataclass(frozen=True, slots=True)
class Step:
    """From one batch size to the next: ``gain`` is the factor a doubling of the batch, ``whole`` that of the step."""

    low: int
    high: int
    whole: Estimate | None
    gain: Estimate | None


def doubled(values: Values, low: int, high: int) -> float | None:
    """The factor a doubling of the batch size between two of them: a step of 4 is two doublings."""
    whole = ratio(values, "batch_size", low, high)
    return None if whole is None else whole ** (1 / math.log2(high / low))


def steps(sample: Resamples) -> list[Step]:
    """Of all neighbouring batch sizes; the limits hold for all steps together (Bonferroni)."""
    sizes = sorted({case.batch_size for case in sample.own})
    pairs = list(itertools.pairwise(sizes))
    level = 1 - 0.05 / max(1, len(pairs))
    found = []
    for low, high in pairs:
        whole = sample.estimate(partial(ratio, axis="batch_size", low=low, high=high), Scale.RATIO, level=level)
        gain = sample.estimate(partial(doubled, low=low, high=high), Scale.RATIO, level=level)
        found.append(Step(low, high, whole, gain))
    return found


@dataclass(frozen=True, slots=True)
class Knee:
    """The batch size from which on a doubling gains less than ``pays``, a fraction.

    ``size``: by the values themselves. ``earliest`` and ``latest``: where it may lie (95 %). None: beyond the
    sizes that were measured. ``sure``: whether there are limits at all. ``gaps``: steps of which nothing is known, as
    their two sizes have no lengths in common; it may be at any of them.
    """

    pays: float
    size: int | None
    earliest: int | None
    latest: int | None
    sure: bool
    gaps: tuple[tuple[int, int], ...] = ()


def knee(found: Sequence[Step], pays: float = PAYS) -> Knee | None:
    """Where doubling the batch stops paying; ``None`` where no two batch sizes can be compared.

    The first step whose gain is below; earliest, the first that may be below; latest, the first that surely is.
    """
    known = [step for step in found if step.gain is not None]
    if not known:
        return None
    enough = 1 + pays

    def first(below: Sequence[bool]) -> int | None:
        return next((step.low for step, is_below in zip(known, below, strict=True) if is_below), None)

    gains = [step.gain for step in known if step.gain is not None]
    sure = all(gain.low is not None for gain in gains)
    return Knee(
        pays=pays,
        size=first([gain.value < enough for gain in gains]),
        earliest=first([gain.low is not None and gain.low < enough for gain in gains]),
        latest=first([gain.high is not None and gain.high < enough for gain in gains]),
        sure=sure,
        gaps=tuple((step.low, step.high) for step in found if step.gain is None),
    )


def _matched(values: Values, axis: Axis) -> list[dict[int, float]]:
    """For each combination of the other two axes: level -> value."""
    others = [name for name in AXES if name != axis]
    found: dict[tuple[int, ...], dict[int, float]] = {}
    for case, value in sorted(values.items()):
        key = tuple(getattr(case, name) for name in others)
        found.setdefault(key, {})[getattr(case, axis)] = value
    return list(found.values())


def _quantile(ordered: Sequence[float], part: float) -> float:
    at = part * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])
