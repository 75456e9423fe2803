"""Two cells over the load, with the stretches in which their order surely changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_r1perf.report.html.canvas import Canvas, Chart, box, plain_ticks, span
from pytest_r1perf.report.html.plain import line
from pytest_r1perf.report.html.svg import ROLES
from pytest_r1perf.report.numbers import number


@dataclass(frozen=True, slots=True)
class AtLoad:
    """Rounds of both at one load, in the metric's unit; ``a_wins`` is ``None`` where that is open."""

    load: str
    a: tuple[float, ...]
    b: tuple[float, ...]
    a_wins: bool | None


def loads_chart(canvas: Canvas, metric: str, unit: str, names: tuple[str, str], curve: Sequence[AtLoad]) -> Chart:
    """Loads stand side by side in their order: N grows by tens, and a server's load is more than one number."""
    crossings = crossings_of(curve)
    told = [f"a: {names[0]}; b: {names[1]}"]
    told += [f"{one.load}: a {number(_mean(one.a))}, b {number(_mean(one.b))}" for one in curve]
    told += [f"the order changes between {curve[low].load} and {curve[high].load}" for low, high in crossings]
    with canvas.draw(f"{metric} by load", "; ".join(told), 3.1) as drawing:
        axes = box(drawing, left=0.76, bottom=1.12, top=0.14)
        axes.grid(axis="y")
        label: str | None = "the order surely changes"
        for low, high in crossings:
            axes.axvspan(low, high, color=ROLES["muted"], alpha=0.22, lw=0, label=label)
            label = None
        for side, name, style, colour in (("a", names[0], "o-", "a"), ("b", names[1], "s--", "b")):
            means = [_mean(getattr(one, side)) for one in curve]
            axes.plot(range(len(curve)), means, style, ms=6, color=ROLES[colour], label=f"{side}: {line(name, 52)}")
            for place, one in enumerate(curve):
                values = getattr(one, side)
                axes.plot([place, place], [min(values), max(values)], "-", lw=1.2, color=ROLES[colour])
        axes.set_xticks(range(len(curve)), [line(one.load, 60 // max(1, len(curve))) for one in curve])
        axes.set_xlim(-0.3, len(curve) - 0.7)
        axes.set_ylim(*span([value for one in curve for value in (*one.a, *one.b)]))
        plain_ticks(axes.yaxis)
        axes.set_xlabel("load")
        axes.set_ylabel(f"{metric} ({unit})")
        drawing.figure.legend(loc="lower left", ncols=1, bbox_to_anchor=(0.0, 0.0), borderaxespad=0.2)
    return drawing.chart


def crossings_of(curve: Sequence[AtLoad]) -> list[tuple[int, int]]:
    """Places between which the order surely changes, as :attr:`pytest_r1perf.effects.LoadCurve.crossings` has it."""
    sure = [(place, one.a_wins) for place, one in enumerate(curve) if one.a_wins is not None]
    return [(low, high) for (low, before), (high, after) in itertools.pairwise(sure) if before != after]


def _mean(values: Sequence[float]) -> float:
    from pytest_r1perf.statistics import geometric_mean

    return geometric_mean(values)
