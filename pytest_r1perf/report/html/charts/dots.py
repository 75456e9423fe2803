"""A value a round as dots, a row a cell: what several cells are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_r1perf.report.html.canvas import Canvas, Chart, height_of_rows, plain_ticks, rows, span
from pytest_r1perf.report.html.svg import ROLES
from pytest_r1perf.report.numbers import number


@dataclass(frozen=True, slots=True)
class Dots:
    """A cell's rounds and their mean, in the metric's unit."""

    name: str
    values: tuple[float, ...]
    mean: float


def dots_chart(canvas: Canvas, title: str, axis: str, cells: Sequence[Dots]) -> Chart:
    """Of one cell at least."""
    told = "; ".join(f"{one.name}: mean {number(one.mean)} of {len(one.values)} rounds" for one in cells)
    labels = [(one.name, number(one.mean)) for one in cells]
    with canvas.draw(title, told, height_of_rows(labels)) as drawing:
        axes = rows(drawing, labels, f"{axis}; \u25c7 mean, \u2022 round")
        for place, one in enumerate(cells):
            axes.plot(list(one.values), [place] * len(one.values), "o", ms=4, color=ROLES["a"])
            axes.plot([one.mean], [place], "D", ms=9, mfc="none", mew=1.5, color=ROLES["ink"])
        axes.set_xlim(*span([value for one in cells for value in (*one.values, one.mean)]))
        plain_ticks(axes.xaxis, 4)
    return drawing.chart
