"""From measured points to effects: which contrasts, how many of them share the error rate, what was published.

Pure: points in, an effect out. ``alpha`` is the error rate of a whole effect on each side, shared over its intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_r1perf.contrasts import Cells, Weights, cells_of
from pytest_r1perf.effects import (
    Ablation,
    BrokenPoint,
    Comparison,
    Grid,
    Interaction,
    LoadCurve,
    Point,
    Scaling,
    Spread,
)
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.metrics import Metric
from pytest_r1perf.published import PublishedAs, Said, set_beside
from pytest_r1perf.statistics import Interval


@dataclass(frozen=True, slots=True)
class Basis:
    """What an effect rests on beside its points.

    ``alpha`` is the error rate over all its intervals, on each side; ``noise`` the platform's (coefficient of variation
    of a process, degrees of freedom), for cells with one round; ``mixed`` what differs between the cells. ``aside``
    says why a published figure is not about these cells: a deployment's own weights and traffic.
    """

    metric: Metric
    alpha: float
    noise: tuple[float, float] | None = None
    mixed: tuple[str, ...] = ()
    aside: str = ""

    def common(self, family: int) -> dict[str, Any]:
        """The fields that every effect has."""
        return {"metric": self.metric.name, "alpha": self.alpha, "family": family, "mixed": self.mixed}

    def beside(self, published: PublishedAs, measured: Mapping[str, Interval], main: str) -> tuple[Said, ...]:
        """:func:`set_beside`; of cells that a figure is not about nothing is said of whether it holds."""
        said = set_beside(published, measured, main)
        return tuple(replace(one, holds=self.aside) for one in said) if self.aside else said


def comparison(
    a: Point, b: Point, basis: Basis, published: PublishedAs = None, checklist: tuple[str, ...] = ()
) -> Comparison:
    """``a`` over ``b``."""
    (ratio,) = _ratios([a, b], [{0: 1, 1: -1}], basis)
    said = basis.beside(published, {"ratio": ratio}, "ratio")
    return Comparison(**basis.common(1), a=a, b=b, ratio=ratio, published=said, checklist=checklist)


def interaction(base: Point, a: Point, b: Point, ab: Point, basis: Basis, published: PublishedAs = None) -> Interaction:
    """A 2 x 2 factorial."""
    cells = _cells([base, a, b, ab], basis)
    level = basis.alpha / 5
    over_a, over_b, over_ab = (cells.contrast({place: 1, 0: -1}, level) for place in (1, 2, 3))
    term = cells.contrast({3: 1, 0: 1, 1: -1, 2: -1}, level)
    expected = _sum_of_gains(cells, over_a.estimate, over_b.estimate, level)
    parts = {"a": over_a, "b": over_b, "ab": over_ab, "term": term}
    if expected is not None:
        parts["expected"] = expected
    elif isinstance(published, Mapping):  # both together would lose all: no figure of it can be set beside
        published = {of: figure for of, figure in published.items() if of != "expected"}
    return Interaction(
        **basis.common(5),
        base=base,
        a=a,
        b=b,
        ab=ab,
        over_a=over_a,
        over_b=over_b,
        over_ab=over_ab,
        term=term,
        expected=expected,
        published=basis.beside(published, parts, "ab"),
    )


def ablation(points: Sequence[Point], basis: Basis, published: PublishedAs = None) -> Ablation:
    """Steps one at a time, and all of them together."""
    _at_least(points, 2, "ablation")
    last = len(points) - 1
    rows: list[Weights] = [{place: 1, place - 1: -1} for place in range(1, last + 1)]
    if last > 1:
        rows.append({last: 1, 0: -1})
    ratios = _ratios(points, rows, basis)
    steps, total = ratios[:last], ratios[-1]
    parts = {**{point.label: step for point, step in zip(points[1:], steps, strict=True)}, "total": total}
    return Ablation(
        **basis.common(len(rows)),
        points=tuple(points),
        steps=tuple(steps),
        total=total,
        published=basis.beside(published, parts, "total"),
    )


def scaling(points: Sequence[Point], basis: Basis, published: PublishedAs = None) -> Scaling:
    """Figures per GPU, and efficiencies against the first."""
    _at_least(points, 2, "scaling")
    metric = basis.metric
    if metric.better < 0 or metric.unit.endswith("/GPU"):
        raise R1PerfError(
            f"scaling divides a throughput by the GPUs itself, and {metric.name} is in {metric.unit}: "
            f"give total_throughput or another throughput of the whole cell"
        )
    means: list[Weights] = [{place: 1} for place in range(len(points))]
    over: list[Weights] = [{place: 1, 0: -1} for place in range(1, len(points))]
    ratios = _ratios(points, [*means, *over], basis)
    per_gpu = tuple(one.scaled(1 / point.gpus) for one, point in zip(ratios, points, strict=False))
    first = points[0].gpus
    efficiency = tuple(
        one.scaled(first / point.gpus) for one, point in zip(ratios[len(points) :], points[1:], strict=True)
    )
    parts = {point.label: one for point, one in zip(points[1:], efficiency, strict=True)}
    return Scaling(
        **basis.common(len(ratios)),
        points=tuple(points),
        per_gpu=per_gpu,
        efficiency=efficiency,
        published=basis.beside(published, parts, points[-1].label),
    )


def by_load(
    pairs: Sequence[tuple[Point, Point]], basis: Basis, published: PublishedAs = None, *, a: str = "a", b: str = "b"
) -> LoadCurve:
    """The ratio at every load, by N and then as given; ``a`` and ``b`` name the two at whatever load."""
    if not pairs:
        raise R1PerfError("by_load needs at least one pair of measured cells")
    for one, other in pairs:
        if one.load != other.load:
            what = "loads" if one.num_prompts == other.num_prompts else "N"
            raise R1PerfError(f"{one.label} and {other.label} have different {what}: compare them at the same one")
    ordered = sorted(pairs, key=lambda pair: pair[0].num_prompts)
    loads = [one.load for one, _ in ordered]
    if len(set(loads)) < len(loads):
        twice = next(load for load in loads if loads.count(load) > 1)
        raise R1PerfError(f"by_load got two pairs at {twice}: give one pair a load")
    rows: list[Weights] = [{2 * place: 1, 2 * place + 1: -1} for place in range(len(ordered))]
    ratios = _ratios([point for pair in ordered for point in pair], rows, basis)
    ns = [str(one.num_prompts) for one, _ in ordered]
    keys = ns if len(set(ns)) == len(ns) else loads
    parts = dict(zip(keys, ratios, strict=True))
    return LoadCurve(
        **basis.common(len(rows)),
        a=a,
        b=b,
        pairs=tuple(
            Comparison(**replace(basis, mixed=()).common(len(rows)), a=one, b=other, ratio=ratio)
            for (one, other), ratio in zip(ordered, ratios, strict=True)
        ),
        published=basis.beside(published, parts, keys[-1]),
    )


def spread(points: Sequence[Point], basis: Basis, published: PublishedAs = None) -> Spread:
    """The best over the worst.

    The upper limit is the largest of all pairs' limits, each at ``alpha``: the pair that is truly farthest apart is one
    of them, so nothing is shared out. The lower one is the largest of all pairs' lower limits, and those must hold
    together.
    """
    _at_least(points, 2, "spread")
    cells = _cells(points, basis)
    places = range(len(points))
    rows: list[Weights] = [{i: 1, j: -1} for i in places for j in places if i != j]
    alone = [cells.contrast(row, basis.alpha) for row in rows]
    together = [cells.contrast(row, basis.alpha / len(rows)) for row in rows]
    best = max(alone, key=lambda one: one.estimate)
    upper, lower = max(one.upper for one in alone), max(one.lower for one in together)
    ratio = replace(best, lower=max(1.0, lower), upper=max(1.0, upper))
    return Spread(
        **basis.common(1),
        points=tuple(points),
        ratio=ratio,
        published=basis.beside(published, {"spread": ratio}, "spread"),
    )


def grid(axes: Mapping[str, Sequence[Any]], measured: Sequence[Point | BrokenPoint], basis: Basis) -> Grid:
    """A sweep, its cells row by row.

    A cell is left out of those that may be the best where another is surely better at ``alpha`` over their number:
    the truly best one is then left out with probability ``alpha`` at most, whatever looked best.
    """
    names = tuple(axes)
    down, across = [*axes.values(), [""]][:2]
    whole = [place for place, cell in enumerate(measured) if isinstance(cell, Point)]
    points = [cell for cell in measured if isinstance(cell, Point)]
    family = max(1, len(points) - 1)
    contenders: list[int] = []
    best: int | None = None
    if len(points) > 1:
        cells = _cells(points, basis)
        level = basis.alpha / family
        places = range(len(points))
        contenders = [
            i for i in places if not any(cells.contrast({j: 1, i: -1}, level).lower > 1 for j in places if j != i)
        ]
        best = max(places, key=lambda place: cells.means[place])
    elif points:
        contenders, best = [0], 0
    width = len(across)
    return Grid(
        **basis.common(family),
        names=names,
        down=tuple(str(value) for value in down),
        across=tuple(str(value) for value in across),
        cells=tuple(tuple(measured[start : start + width]) for start in range(0, len(measured), width)),
        best=None if best is None else divmod(whole[best], width),
        contenders=tuple(divmod(whole[place], width) for place in contenders),
    )


def _ratios(points: Sequence[Point], rows: Sequence[Weights], basis: Basis) -> list[Interval]:
    """The contrasts, whose limits hold together."""
    cells = _cells(points, basis)
    return [cells.contrast(row, basis.alpha / len(rows)) for row in rows]


def _cells(points: Sequence[Point], basis: Basis) -> Cells:
    """The points' logarithms, larger being better."""
    better = basis.metric.better
    cells = cells_of([[value**better for value in point.values] for point in points], basis.noise)
    if cells is None:
        raise R1PerfError(
            f"{points[0].label} and {points[-1].label} have one round each: measure at least two, e.g. rounds='2:2'"
        )
    return cells


def _at_least(points: Sequence[Point], count: int, what: str) -> None:
    if len(points) < count:
        raise R1PerfError(f"{what} needs at least {count} measured cells, got {len(points)}")


def _sum_of_gains(cells: Cells, ratio_a: float, ratio_b: float, alpha: float) -> Interval | None:
    """The linear expectation ``a + b - 1`` with an interval by the delta method; ``None`` where it is not above 0.

    Its logarithm moves with those of the cells as the weights say.
    """
    total = ratio_a + ratio_b - 1
    if total <= 0:
        return None
    weights = {1: ratio_a / total, 2: ratio_b / total, 0: -(ratio_a + ratio_b) / total}
    return cells.contrast(weights, alpha, centre=math.log(total))
