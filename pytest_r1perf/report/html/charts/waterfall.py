"""An ablation as a waterfall: the first and the last cell whole, a step from where the one before it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_r1perf.report.html.canvas import Canvas, Chart, height_of_rows, plain_ticks, rows
from pytest_r1perf.report.html.svg import ROLES
from pytest_r1perf.report.numbers import number


@dataclass(frozen=True, slots=True)
class Step:
    """A cell of the ablation: its mean, and the gain of its step with the interval as text (empty: the first)."""

    name: str
    mean: float
    gain: str = ""
    better: bool = True
    sure: bool = True


def waterfall_chart(canvas: Canvas, metric: str, unit: str, steps: Sequence[Step], total: str) -> Chart:
    """Of two cells at least; ``total`` is the gain of the last over the first as text."""
    means = [one.mean for one in steps]
    low, high = min(means), max(means)
    start = max(0.0, low - 0.35 * (high - low)) if high > low else 0.0
    labels = [(one.name, one.gain + ("" if one.sure else " ?") if one.gain else number(one.mean)) for one in steps]
    labels.append(("in all", total))
    told = "; ".join(f"{one.name}: {number(one.mean)} {unit} {one.gain}".strip() for one in steps)
    title = f"ablation: {metric}, step by step"
    with canvas.draw(title, f"{told}; in all {total}", height_of_rows(labels)) as drawing:
        axes = rows(drawing, labels, f"{metric} ({unit}); bars start at {number(start)}")
        for place, one in enumerate(steps):
            if place == 0:
                axes.barh(place, one.mean - start, 0.34, left=start, color=ROLES["muted"])
                continue
            before = means[place - 1]
            colour, hatch = (ROLES["good"], None) if one.better else (ROLES["bad"], "////")
            axes.barh(place, one.mean - before, 0.34, left=before, color=colour, hatch=hatch, lw=0)
            axes.plot([before, before], [place - 1, place], "-", lw=0.8, color=ROLES["muted"])
        axes.barh(len(steps), means[-1] - start, 0.34, left=start, color=ROLES["muted"])
        axes.plot([means[-1]] * 2, [len(steps) - 1, len(steps)], "-", lw=0.8, color=ROLES["muted"])
        axes.set_xlim(start, high + 0.06 * (high - start or 1.0))
        plain_ticks(axes.xaxis, 4)
    return drawing.chart
