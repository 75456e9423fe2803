"""Bars from zero, a row each, with intervals and a mark of what would have been expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_r1perf.report.html.canvas import Canvas, Chart, clipped, height_of_rows, plain_ticks, rows
from pytest_r1perf.report.html.svg import ROLES


@dataclass(frozen=True, slots=True)
class Bar:
    """``lower`` and ``upper`` are its interval; ``expected`` is marked on it; ``text`` is written at its end."""

    name: str
    value: float
    text: str
    lower: float | None = None
    upper: float | None = None
    expected: float | None = None


def bars_chart(canvas: Canvas, title: str, axis: str, bars: Sequence[Bar], expected: str = "") -> Chart:
    """``expected`` says what the mark means."""
    most = 1.12 * max([one.value for one in bars] + [one.expected for one in bars if one.expected is not None])
    told = "; ".join(f"{one.name}: {one.text}" for one in bars)
    labels = [(one.name, one.text) for one in bars]
    whole = f"{title}; dashed: {expected}" if expected else title
    with canvas.draw(whole, told, height_of_rows(labels)) as drawing:
        axes = rows(drawing, labels, axis)
        for place, one in enumerate(bars):
            axes.barh(place, one.value, 0.34, color=ROLES["a"], alpha=0.75, lw=0)
            if one.lower is not None and one.upper is not None:
                ends = [clipped(limit, (0.0, most)) for limit in (one.lower, one.upper)]
                axes.plot(ends, [place, place], "|-", ms=7, lw=1.4, color=ROLES["ink"])
            if one.expected is not None:
                axes.plot([one.expected] * 2, [place - 0.24, place + 0.24], "--", lw=1.8, color=ROLES["ink"])
        axes.set_xlim(0, most)
        plain_ticks(axes.xaxis, 4)
    return drawing.chart
