"""Rounds and windows of a cell, with what they are held against: the reference, the tolerance about it, a floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_r1perf.metrics import METRICS
from pytest_r1perf.report.html.canvas import Canvas, Chart, box, clipped, plain_ticks, span
from pytest_r1perf.report.html.plain import finite, finite_ones
from pytest_r1perf.report.html.svg import ROLES
from pytest_r1perf.report.message import bound
from pytest_r1perf.report.numbers import number, percent
from pytest_r1perf.verdict import Judgement


@dataclass(frozen=True, slots=True)
class Round:
    """One round's value and its windows', in the metric's unit; ``old``: of the environment it is compared with."""

    value: float
    windows: tuple[float, ...] = ()
    old: bool = False


def rounds_chart(
    canvas: Canvas, metric: str, measured: Sequence[Round], judged: Judgement | None, against: str
) -> Chart | None:
    """``None`` where no round has a value that can be drawn. ``against`` is what the reference is."""
    own = [one for one in measured if finite(one.value) is not None]
    if not own:
        return None
    unit = METRICS[metric].unit if metric in METRICS else ""
    reference = finite(judged.baseline) if judged is not None else None
    floor = finite(judged.floor) if judged is not None else None
    band = _band(judged, reference)
    ends = span([*_values(own), *(band or ()), *finite_ones([reference, floor])], 0.08)
    with canvas.draw(f"{metric} by round", _told(own, judged, unit, against), 2.9) as drawing:
        axes = box(drawing, left=0.76, bottom=0.98)
        axes.grid(axis="y")
        if band is not None and judged is not None:
            axes.axhspan(
                *band, color=ROLES["a"], alpha=0.16, lw=0, label=f"{against} \u00b1 {percent(judged.tolerance)}"
            )
        if reference is not None:
            axes.axhline(reference, color=ROLES["a"], lw=1.2, ls="--", label=f"{against} {number(reference)}")
        if judged is not None and floor is not None:
            axes.axhline(floor, color=ROLES["bad"], lw=1.4, ls=":", label=bound(judged))
        for old, marker, name in ((False, "o", "round"), (True, "s", "old round")):
            _series(axes, [one for one in own if one.old is old], old, marker, name)
        last = max(sum(not one.old for one in own), sum(one.old for one in own))
        ticks = list(range(1, last + 1, max(1, -(-last // 10))))
        names = [str(place) for place in ticks]
        if judged is not None and judged.ratio is not None and reference is not None:
            _mean(axes, last + 1, judged, reference, ends)
            ticks, names = [*ticks, last + 1], [*names, "mean"]
        axes.set_xlim(0.4, ticks[-1] + 0.6)
        axes.set_xticks(ticks, names)
        axes.set_ylim(*ends)
        plain_ticks(axes.yaxis)
        axes.set_xlabel("round")
        axes.set_ylabel(f"{metric} ({unit})" if unit else metric)
        drawing.figure.legend(loc="lower center", ncols=2, bbox_to_anchor=(0.5, 0.0), borderaxespad=0.2)
    return drawing.chart


def _series(axes: object, own: Sequence[Round], old: bool, marker: str, name: str) -> None:
    if not own:
        return
    colour = ROLES["b"] if old else ROLES["ink"]
    shift = 0.12 if old else 0.0
    places = [place + shift for place in range(1, len(own) + 1)]
    windows = [
        (place + 0.06, value) for place, one in zip(places, own, strict=True) for value in finite_ones(one.windows)
    ]
    axes.plot(  # type: ignore[attr-defined]
        places, [one.value for one in own], marker, ms=6, color=colour, mfc="none" if old else colour, label=name
    )
    if windows:
        label = "window" if not old else None
        axes.plot(  # type: ignore[attr-defined]
            *zip(*windows, strict=True), marker="_", ms=9, ls="", color=colour, alpha=0.8, label=label
        )


def _mean(axes: object, place: int, judged: Judgement, reference: float, ends: tuple[float, float]) -> None:
    """This run with its interval: the ratio's, in the metric's own unit."""
    ratio = judged.ratio
    if ratio is None or not ratio.estimate > 0:
        return
    shown = sorted(_absolute(judged, reference, one) for one in (ratio.lower, ratio.upper))
    mean = _absolute(judged, reference, ratio.estimate)
    low, high = (clipped(one, ends) for one in shown)
    axes.plot([place, place], [low, high], "-", lw=2, color=ROLES["ink"])  # type: ignore[attr-defined]
    axes.plot([place], [mean], "D", ms=6, color=ROLES["ink"], label="mean [interval]")  # type: ignore[attr-defined]


def _absolute(judged: Judgement, reference: float, ratio: float) -> float:
    if judged.less_is_better:
        return reference / ratio if ratio > 0 else float("inf")
    return reference * ratio


def _band(judged: Judgement | None, reference: float | None) -> tuple[float, float] | None:
    if judged is None or reference is None or not 0 < judged.tolerance < 1:
        return None
    low, high = sorted(_absolute(judged, reference, 1 + sign * judged.tolerance) for sign in (-1, 1))
    return low, high


def _values(own: Sequence[Round]) -> list[float]:
    return [value for one in own for value in (one.value, *finite_ones(one.windows))]


def _told(own: Sequence[Round], judged: Judgement | None, unit: str, against: str) -> str:
    parts = []
    for old in (False, True):
        values = [one.value for one in own if one.old is old]
        if values:
            which = "old rounds" if old else "rounds"
            parts.append(f"{len(values)} {which} from {number(min(values))} to {number(max(values))} {unit}")
    if judged is not None and judged.baseline is not None:
        parts.append(f"{against} {number(judged.baseline)}, tolerance {percent(judged.tolerance)}")
    if judged is not None and judged.floor is not None:
        parts.append(bound(judged))
    return "; ".join(parts)
