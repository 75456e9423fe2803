"""Charts of what ``perf_lab`` made of several cells, from the effects' plain data; a kind is one function.

A kind that has none here, or data that an older or newer version wrote otherwise, is shown by its own text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_r1perf.metrics import METRICS
from pytest_r1perf.report.effects import gain
from pytest_r1perf.report.html.canvas import Canvas, Chart
from pytest_r1perf.report.html.charts.bars import Bar, bars_chart
from pytest_r1perf.report.html.charts.dots import Dots, dots_chart
from pytest_r1perf.report.html.charts.forest import Ratio, forest_charts
from pytest_r1perf.report.html.charts.heat import Tile, heat_chart
from pytest_r1perf.report.html.charts.loads import AtLoad, loads_chart
from pytest_r1perf.report.html.charts.waterfall import Step, waterfall_chart
from pytest_r1perf.report.html.plain import finite_ones, limits
from pytest_r1perf.report.numbers import number
from pytest_r1perf.statistics import Interval, geometric_mean


def effect_charts(canvas: Canvas, effect: Mapping[str, Any]) -> list[Chart]:
    """The charts of one effect; none where it can't be drawn."""
    draw = _KINDS.get(str(effect.get("kind")))
    if draw is None:
        return []
    try:
        return draw(canvas, effect)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, AttributeError):
        return []


def _comparison(canvas: Canvas, effect: Mapping[str, Any]) -> list[Chart]:
    cells = [effect["a"], effect["b"]]
    name = f"{effect['a']['label']} / {effect['b']['label']}"
    metric = effect["metric"]
    row = _ratios([name], [effect["ratio"]])
    return [
        *forest_charts(canvas, f"comparison: {metric}", "ratio, above 1 the first is better", row),
        dots_chart(canvas, f"{metric} of both", _axis(metric), [_dots(cell) for cell in cells]),
    ]  # fmt: skip


def _interaction(canvas: Canvas, effect: Mapping[str, Any]) -> list[Chart]:
    names = [effect["a"]["label"], effect["b"]["label"], "both"]
    values = [effect["over_a"], effect["over_b"], effect["over_ab"]]
    if effect.get("expected") is not None:
        names.append("linear expectation of both")
        values.append(effect["expected"])
    names.append("interaction: both / (one by one)")
    values.append(effect["term"])
    title = f"interaction: {effect['metric']} over neither"
    return forest_charts(canvas, title, "ratio, above 1 is better", _ratios(names, values))


def _ablation(canvas: Canvas, effect: Mapping[str, Any]) -> list[Chart]:
    points = effect["points"]
    steps = [Step(points[0]["label"], _mean(points[0]))]
    for point, plain in zip(points[1:], effect["steps"], strict=True):
        step = _interval(plain)
        sure = step.lower > 1 or step.upper < 1
        steps.append(Step(point["label"], _mean(point), gain(step), step.estimate >= 1, sure))
    metric = effect["metric"]
    return [waterfall_chart(canvas, metric, METRICS[metric].unit, steps, gain(_interval(effect["total"])))]


def _scaling(canvas: Canvas, effect: Mapping[str, Any]) -> list[Chart]:
    points, metric = effect["points"], effect["metric"]
    first = points[0]
    whole, per_gpu = [], []
    for point, plain in zip(points, effect["per_gpu"], strict=True):
        name, mean, one = f"{point['label']} ({point['gpus']} GPUs)", _mean(point), _interval(plain)
        ideal = _mean(first) * point["gpus"] / first["gpus"]
        whole.append(Bar(name, mean, number(mean), expected=ideal))
        per_gpu.append(Bar(name, one.estimate, number(one.estimate), one.lower, one.upper))
    names = [point["label"] for point in points[1:]]
    unit = METRICS[metric].unit
    return [
        bars_chart(canvas, f"scaling: {metric} of all GPUs", _axis(metric), whole, f"{first['label']} x GPUs"),
        bars_chart(canvas, f"scaling: {metric} per GPU", f"{metric} ({unit} per GPU)", per_gpu),
        *forest_charts(
            canvas, f"scaling: efficiency over {first['label']}", "per GPU over the first's",
            _ratios(names, effect["efficiency"]),
        ),
    ]  # fmt: skip


def _by_load(canvas: Canvas, effect: Mapping[str, Any]) -> list[Chart]:
    metric, names = effect["metric"], (effect["a"], effect["b"])
    curve, ratios = [], []
    for pair in effect["pairs"]:
        ratio = _interval(pair["ratio"])
        wins = True if ratio.lower > 1 else False if ratio.upper < 1 else None
        values = [tuple(finite_ones(pair[side]["values"])) for side in ("a", "b")]
        curve.append(AtLoad(pair["a"]["load"], values[0], values[1], wins))
        ratios.append(pair["ratio"])
    rows = _ratios([one.load for one in curve], ratios)
    title = f"{metric}: a / b by load"
    return [
        loads_chart(canvas, metric, METRICS[metric].unit, names, curve),
        *forest_charts(canvas, title, "ratio, above 1: a is better", rows),
    ]


def _spread(canvas: Canvas, effect: Mapping[str, Any]) -> list[Chart]:
    metric = effect["metric"]
    cells = [_dots(point) for point in effect["points"]]
    return [dots_chart(canvas, f"spread: {metric}", _axis(metric), cells)]


def _grid(canvas: Canvas, effect: Mapping[str, Any]) -> list[Chart]:
    means = [_mean(cell) for row in effect["cells"] for cell in row if "values" in cell]
    low, high = (min(means), max(means)) if means else (0.0, 1.0)
    best, contenders = effect.get("best"), [list(one) for one in effect["contenders"]]

    def tile(i: int, j: int, cell: Mapping[str, Any]) -> Tile:
        if "values" not in cell:
            return Tile(str(cell["verdict"]), hatched=True)
        own = best is not None and [i, j] == list(best)
        mark = "*" if own else "~" if [i, j] in contenders else ""
        strength = (_mean(cell) - low) / (high - low) if high > low else 0.5
        return Tile(f"{number(_mean(cell))}{mark}", strength, framed=own)

    names = effect["names"]
    metric = effect["metric"]
    across = names[1] if len(names) > 1 else ""
    columns = effect["across"] if len(names) > 1 else [metric]
    tiles = [[tile(i, j, cell) for j, cell in enumerate(row)] for i, row in enumerate(effect["cells"])]
    title = f"sweep: {_axis(metric)}; * the best, ~ may be as good"
    return [heat_chart(canvas, title, (names[0], across), effect["down"], columns, tiles)]


_KINDS: Mapping[str, Callable[[Canvas, Mapping[str, Any]], list[Chart]]] = {
    "comparison": _comparison,
    "interaction": _interaction,
    "ablation": _ablation,
    "scaling": _scaling,
    "by load": _by_load,
    "spread": _spread,
    "grid": _grid,
}


def _axis(metric: str) -> str:
    return f"{metric} ({METRICS[metric].unit})"


def _mean(point: Mapping[str, Any]) -> float:
    return geometric_mean(finite_ones(point["values"]))


def _dots(point: Mapping[str, Any]) -> Dots:
    return Dots(point["label"], tuple(finite_ones(point["values"])), _mean(point))


def _interval(plain: Mapping[str, Any]) -> Interval:
    found = limits(plain)
    if found is None:
        raise ValueError("an interval without an estimate")
    return Interval(*found, 0.0, 0.0, 0.0, 0.0)


def _ratios(names: Sequence[str], values: Sequence[Mapping[str, Any]]) -> list[Ratio]:
    rows = [(name, limits(plain)) for name, plain in zip(names, values, strict=True)]
    return [Ratio(name, *found) for name, found in rows if found is not None]


def published_lines(effect: Mapping[str, Any]) -> list[str]:
    """Figures of documents beside the measured ones, and what is mixed, a sentence each."""
    lines = []
    for said in effect.get("published") or ():
        source = f" ({said['source']})" if said.get("source") else ""
        lines.append(f"published: {said.get('of')}: {said.get('text')}{source}: {said.get('holds')}")
    return [*lines, *map(str, effect.get("mixed") or ())]


def promise(effect: Mapping[str, Any]) -> str:
    """What the limits promise, in a few words."""
    try:
        rate = f"{float(effect['alpha']):.3g}"
    except (KeyError, TypeError, ValueError):
        return ""
    if effect.get("kind") == "grid":
        return f"the best of all is left unmarked with probability {rate} at most"
    if effect.get("family") == 1 or effect.get("kind") == "spread":
        return f"each end of the interval is wrong with probability {rate} at most"
    return (
        f"the intervals hold together: any lower end is wrong with probability {rate} at most, and so is any upper end"
    )
