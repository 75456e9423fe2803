"""The page of a stress sweep: ``r1perf stress report DIR --html FILE``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_r1perf.report.html.canvas import Canvas, Chart, refuse_missing
from pytest_r1perf.report.html.charts.boxes import boxes_chart
from pytest_r1perf.report.html.charts.forest import Ratio, forest_charts
from pytest_r1perf.report.html.charts.heat import Tile, heat_chart
from pytest_r1perf.report.html.page import render
from pytest_r1perf.report.numbers import number
from pytest_r1perf.report.stress import report_lines

if TYPE_CHECKING:
    from pytest_r1perf.stress.analysis import Analysis
    from pytest_r1perf.stress.bootstrap import Estimate
    from pytest_r1perf.stress.folder import Contents

UNIT = "tok/s"
_NAMES: Mapping[str, str] = {
    "batch_size": "batch size",
    "input_len": "input length",
    "output_len": "output length",
}


def stress_page(found: Contents, done: Analysis, folder: str = "") -> str:
    """The whole file: the guide's box plot and correlation heat map, what doubling the batch gives, its conclusions.

    Raises :class:`R1PerfError` where jinja2 or matplotlib is missing.
    """
    refuse_missing()
    canvas = Canvas()
    metric = done.table.metric
    charts = [boxes_chart(canvas, metric, UNIT, done.boxes), _correlations(canvas, done)]
    charts += _values(canvas, done)
    charts += _steps(canvas, done)
    return render(
        "stress.html.j2",
        title=f"stress sweep: {metric}",
        folder=folder,
        metric=metric,
        definition=done.table.definition,
        server=None if found.manifest is None else found.manifest.server,
        cases=len(done.values),
        repeats=len(done.table.repeats),
        charts=charts,
        conclusions=done.conclusions,
        notes=(*done.table.notes, *done.left_out),
        text="\n".join(report_lines(found, done)),
    )


def _correlations(canvas: Canvas, done: Analysis) -> Chart:
    """Pearson's r of each size and length with the throughput, of the numbers as the guide has it, and of logs."""
    tiles = [[_r(one.correlation), _r(one.log_correlation)] for one in done.effects]
    names = [_NAMES[one.axis] for one in done.effects]
    title = f"correlation with {done.table.metric}"
    return heat_chart(canvas, title, ("", "Pearson's r"), names, ["of numbers", "of logarithms"], tiles)


def _r(estimate: Estimate | None) -> Tile:
    if estimate is None:
        return Tile("not known", hatched=True)
    limits = "" if estimate.low is None or estimate.high is None else f"\n[{estimate.low:+.2f}, {estimate.high:+.2f}]"
    return Tile(f"{estimate.value:+.2f}{limits}", abs(estimate.value))


def _values(canvas: Canvas, done: Analysis) -> list[Chart]:
    """The throughput by batch size and output length, a heat map an input length."""
    sizes = sorted({key[0] for key in done.values})
    outputs = sorted({key[2] for key in done.values})
    low, high = min(done.values.values()), max(done.values.values())

    def tile(value: float | None) -> Tile:
        if value is None:
            return Tile("-", hatched=True)
        return Tile(number(round(value)), (value - low) / (high - low) if high > low else 0.5)

    return [
        heat_chart(
            canvas,
            f"{done.table.metric} ({UNIT}), input length {length}",
            ("output length", "batch size"),
            [str(one) for one in outputs],
            [str(one) for one in sizes],
            [[tile(done.values.get((size, length, output))) for size in sizes] for output in outputs],
        )
        for length in sorted({key[1] for key in done.values})[:6]
    ]


def _steps(canvas: Canvas, done: Analysis) -> list[Chart]:
    rows = [_row(f"batch size {one.low} to {one.high}", one.gain) for one in done.steps if one.gain is not None]
    return forest_charts(canvas, f"what a doubling of the batch gives: {done.table.metric}", "factor a doubling", rows)


def _row(name: str, gain: Estimate) -> Ratio:
    if gain.low is None or gain.high is None:  # measured once: no interval
        return Ratio(name, gain.value, gain.value, gain.value)
    return Ratio(name, gain.value, gain.low, gain.high)
