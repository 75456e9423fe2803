"""A forest plot: ratios with their intervals, a row each, about the line of no difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_r1perf.report.html.canvas import Canvas, Chart, clipped, height_of_rows, rows
from pytest_r1perf.report.html.svg import ROLES

MOST_ROWS = 30
"""Rows of one figure; more go on in the next."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A row: above 1 is better. ``inf`` is a limit that says nothing; ``whole`` marks the row of all together."""

    name: str
    estimate: float
    lower: float
    upper: float
    whole: bool = False

    @property
    def drawable(self) -> bool:
        """Whether there is an estimate at all."""
        return math.isfinite(self.estimate) and self.estimate > 0

    @property
    def text(self) -> str:
        """``0.982 [0.941, 1.024]``."""
        upper = f"{self.upper:.3f}" if self.upper < 100 else "..."
        return f"{self.estimate:.3f} [{self.lower:.3f}, {upper}]"


def forest_charts(
    canvas: Canvas, title: str, axis: str, ratios: Sequence[Ratio], tolerance: float | None = None
) -> list[Chart]:
    """All of them, on as many figures as it takes; ``tolerance`` is shaded about 1."""
    own = [one for one in ratios if one.drawable]
    parts = [own[first : first + MOST_ROWS] for first in range(0, len(own), MOST_ROWS)]
    ends = _ends(own, tolerance)
    return [
        _chart(canvas, title if len(parts) == 1 else f"{title}, {place} of {len(parts)}", axis, part, tolerance, ends)
        for place, part in enumerate(parts, 1)
    ]


def _chart(
    canvas: Canvas,
    title: str,
    axis: str,
    own: Sequence[Ratio],
    tolerance: float | None,
    ends: tuple[float, float],
) -> Chart:
    told = "; ".join(f"{one.name}: {one.text}" for one in own)
    labels = [(one.name, one.text) for one in own]
    with canvas.draw(title, told, height_of_rows(labels)) as drawing:
        axes = rows(drawing, labels, axis)
        if tolerance:
            axes.axvspan(1 - tolerance, 1 + tolerance, color=ROLES["a"], alpha=0.14, lw=0)
        axes.axvline(1, color=ROLES["ink"], lw=1, ls="--")
        for place, one in enumerate(own):
            sure_worse, sure_better = one.upper < 1, one.lower > 1
            colour = ROLES["bad" if sure_worse else "good" if sure_better else "ink"]
            marker = "D" if one.whole else "v" if sure_worse else "^" if sure_better else "o"
            low, high = clipped(one.lower, ends), clipped(one.upper, ends)
            axes.plot([low, high], [place, place], "-", lw=2, color=colour)
            for at, limit in ((low, one.lower), (high, one.upper)):
                inside = at == limit
                axes.plot([at], [place], "|" if inside else (">" if limit > 1 else "<"), ms=7, color=colour)
            axes.plot([one.estimate], [place], marker, ms=8 if one.whole else 6.5, color=colour)
        axes.set_xlim(*ends)
    return drawing.chart


def _ends(own: Sequence[Ratio], tolerance: float | None) -> tuple[float, float]:
    """By the estimates, and as much of the intervals as leaves the estimates apart."""
    if not own:
        return 0.9, 1.1
    estimates = [one.estimate for one in own]
    far = 2.5 * max(abs(one - 1) for one in estimates) + 0.03 + 1.2 * (tolerance or 0.0)
    low = min([*estimates, *(max(one.lower, 1 - far) for one in own), 1 - (tolerance or 0.0)])
    high = max([*estimates, *(min(one.upper, 1 + far) for one in own), 1 + (tolerance or 0.0)])
    room = 0.05 * (high - low) or 0.05
    return low - room, high + room
