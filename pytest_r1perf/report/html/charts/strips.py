"""Telemetry of one round as strips under each other: clock, power, temperature, memory over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_r1perf.document.model import Readings
from pytest_r1perf.report.html.canvas import Canvas, Chart, box
from pytest_r1perf.report.html.plain import finite, finite_ones
from pytest_r1perf.report.html.svg import ROLES
from pytest_r1perf.report.numbers import number

_STRIPS = (
    ("sm_mhz", "clock", "MHz", "lowest GPU"),
    ("power_w", "power", "W", "all GPUs"),
    ("temperature_c", "temp.", "\u00b0C", "hottest GPU"),
    ("memory_mib", "memory", "GiB", "all GPUs"),
)
_SCALES = {"memory_mib": 1 / 1024}
_HEIGHT, _FOOT, _HEAD, _LEFT = 0.5, 0.42, 0.08, 1.12
_PART = 0.72
"""Of a strip's height that its line takes."""


def strips_chart(canvas: Canvas, name: str, readings: Readings | None) -> Chart | None:
    """``None`` where nothing was read."""
    if readings is None or not readings.at:
        return None
    strips = [
        (label, unit, of, _scaled(values, _SCALES.get(column, 1.0)))
        for column, label, unit, of in _STRIPS
        if finite_ones(values := getattr(readings, column)) and len(values) == len(readings.at)
    ]
    if not strips:
        return None
    many = readings.gpus > 1
    told = []
    for label, unit, of, values in strips:
        own = finite_ones(values)
        told.append(f"{label} from {number(min(own))} to {number(max(own))} {unit}{f' ({of})' if many else ''}")
    gpus = f"{readings.gpus} GPUs" if many else "1 GPU"
    with canvas.draw(f"{name}: telemetry of {gpus}", "; ".join(told), _FOOT + _HEAD + _HEIGHT * len(strips)) as drawing:
        # One pair of axes with a band a strip: four pairs would take three times as long to draw.
        axes = box(drawing, left=_LEFT, bottom=_FOOT, top=_HEAD)
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        ticks: list[float] = []
        names: list[str] = []
        for foot, (label, unit, _, values) in enumerate(reversed(strips)):
            own = finite_ones(values)
            low, high = min(own), max(own)
            at, heights = _corners(readings.at, [_height(one, low, high, foot) for one in values])
            axes.plot(at, heights, "-", lw=1.3, color=ROLES["a"], clip_on=False)
            for end in sorted({low, high}):
                ticks.append(foot + (_PART if end > low else 0.0))
                names.append(number(end))
            place = (0, foot + _PART / 2)
            near = ("figure fraction", "data")
            axes.annotate(f"{label}\n({unit})", place, xycoords=near, va="center", ha="left", annotation_clip=False)
        axes.set_yticks(ticks, names)
        axes.tick_params(axis="y", labelsize=8)
        axes.set_ylim(-0.12, len(strips) - 1 + _PART)
        axes.set_xlim(readings.at[0], max(readings.at[-1], readings.at[0] + 1))
        axes.set_xlabel("time since the first reading (s)")
    return drawing.chart


def _height(value: float | None, low: float, high: float, foot: int) -> float | None:
    if value is None:
        return None
    return foot + (_PART * (value - low) / (high - low) if high > low else 0.0)


def _scaled(values: Sequence[float | None], scale: float) -> list[float | None]:
    return [None if (value := finite(one)) is None else value * scale for one in values]


def _corners(at: Sequence[float], values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """Without the points amid a level stretch, which a line does not need; a gap where nothing was read."""
    last = len(values) - 1
    kept = [
        place
        for place, value in enumerate(values)
        if place in (0, last) or not (values[place - 1] == value == values[place + 1])
    ]
    return [at[place] for place in kept], [math.nan if (one := values[place]) is None else one for place in kept]
