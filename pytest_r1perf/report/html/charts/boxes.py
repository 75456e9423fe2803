"""The guide's box plot: throughput by batch size, whiskers, box, median and what lies beyond."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_r1perf.report.html.canvas import Canvas, Chart, box
from pytest_r1perf.report.html.svg import ROLES
from pytest_r1perf.report.numbers import number
from pytest_r1perf.stress.effects import Box


def boxes_chart(canvas: Canvas, metric: str, unit: str, boxes: Mapping[int, Box]) -> Chart:
    """Of one batch size at least, on a logarithmic axis, as the text's drawing has it."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    told = "; ".join(
        f"batch size {size}: median {number(one.median)}, half of the {one.count} cases from {number(one.q1)} to "
        f"{number(one.q3)}, whiskers {number(one.low)} to {number(one.high)}"
        for size, one in boxes.items()
    )
    stats = [
        {
            "med": one.median, "q1": one.q1, "q3": one.q3, "whislo": one.low, "whishi": one.high,
            "fliers": list(one.outliers), "label": str(size),
        }
        for size, one in boxes.items()
    ]  # fmt: skip
    ink = {"color": ROLES["ink"]}
    with canvas.draw(f"{metric} by batch size", told, 3.0) as drawing:
        axes = box(drawing, left=0.76)
        axes.set_yscale("log")
        axes.grid(axis="y")
        axes.bxp(
            stats, patch_artist=True, widths=0.5, boxprops={"facecolor": ROLES["a"], "alpha": 0.45},
            medianprops={"color": ROLES["ink"], "lw": 2}, whiskerprops=ink, capprops=ink,
            flierprops={"marker": "o", "markersize": 4, "markerfacecolor": "none", "markeredgecolor": ROLES["ink"]},
        )  # fmt: skip
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        values = [value for one in boxes.values() for value in (one.low, one.high, *one.outliers)]
        if min(values) > 0 and max(values) < 20 * min(values):
            axes.yaxis.set_minor_formatter(
                FuncFormatter(lambda value, _: number(value) if f"{value:.0e}"[0] in "25" else "")
            )
        else:
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("batch size")
        axes.set_ylabel(f"{metric} ({unit}), log scale")
    return drawing.chart
