"""The lab's effects for people: one sentence, and a table or a drawing in plain text that fits 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from pytest_r1perf.effects import (
    Ablation,
    BrokenPoint,
    Comparison,
    Effect,
    Grid,
    Interaction,
    LoadCurve,
    Point,
    Scaling,
    Spread,
)
from pytest_r1perf.published import Said
from pytest_r1perf.report.numbers import interval, number
from pytest_r1perf.statistics import Interval

LEAST_WIDTH = 80
_ENDLESS = 10.0
"""A gain from here on (+900 %) is written as no limit at all: too few rounds, not a finding."""


def signed(fraction: float) -> str:
    """``0.075`` is ``+7.5 %``; whole from 100 % on; ``...`` where a limit says nothing."""
    if not math.isfinite(fraction) or fraction >= _ENDLESS - 1:
        return "..."
    return f"{fraction:+.0%}".replace("%", " %") if abs(fraction) >= 0.9995 else f"{fraction:+.1%}".replace("%", " %")


def gain(ratio: Interval) -> str:
    """``+7.5 % [+5.1 %, +10.0 %]``; an estimate from ten times on, which is one, as ``12x``."""
    estimate = f"{ratio.estimate:.3g}x" if ratio.estimate >= _ENDLESS else signed(ratio.estimate - 1)
    return f"{estimate} [{signed(ratio.lower - 1)}, {signed(ratio.upper - 1)}]"


def sentence(effect: Effect) -> str:
    """What was found, in one sentence."""
    return _SENTENCES[type(effect)](effect)


def lines(effect: Effect, width: int = LEAST_WIDTH) -> list[str]:
    """A heading, the table or drawing, what the limits promise, what was published, what is mixed."""
    width = max(width, LEAST_WIDTH)
    below = [_promise(effect)] if effect.family else []
    below += [f"published: {_published(said)}" for said in effect.published]
    below += effect.mixed
    if isinstance(effect, Comparison) and effect.checklist:
        below.append(f"the guide's checklist is broken in: {'; '.join(effect.checklist)}")
    return [
        *_wrapped(sentence(effect), width, ""),
        *(f"  {line}".rstrip() for line in _DRAWINGS[type(effect)](effect, width - 2)),
        *(part for line in below for part in _wrapped(line, width, "  ")),
    ]


# -- sentences ---------------------------------------------------------------------------------------------


def _comparison(effect: Comparison) -> str:
    return f"{effect.a.label} / {effect.b.label}: {effect.metric} {interval(effect.ratio)}"


def _interaction(effect: Interaction) -> str:
    if effect.synergy:
        finding = "together surely more than one by one"
    elif effect.conflict:
        finding = "together surely less than one by one"
    else:
        finding = "no interaction is shown"
    expected = "" if effect.expected is None else f" (linear expectation {signed(effect.expected.estimate - 1)})"
    return (
        f"interaction in {effect.metric} of [{effect.a.label}] and [{effect.b.label}]: {gain(effect.over_ab)}"
        f"{expected}, term {interval(effect.term)}: {finding}"
    )


def _ablation(effect: Ablation) -> str:
    most, step = max(zip(effect.points[1:], effect.steps, strict=True), key=lambda item: item[1].estimate)
    steps = f"{len(effect.steps)} steps, the largest" if len(effect.steps) > 1 else "one step,"
    return (
        f"ablation in {effect.metric}: {gain(effect.total)} in {steps} [{most.label}] with {signed(step.estimate - 1)}"
    )


def _scaling(effect: Scaling) -> str:
    first, *rest = effect.points
    told = ", ".join(f"{point.label} {interval(one)}" for point, one in zip(rest, effect.efficiency, strict=True))
    return f"scaling in {effect.metric} per GPU over {first.label}: {told}"


def _by_load(effect: LoadCurve) -> str:
    top = effect.decisive
    which = f"[{effect.a}]" if top.a_wins else f"[{effect.b}]"
    winner = f"{which} is surely ahead" if top.a_wins or top.b_wins else "neither is surely ahead"
    crossed = "; ".join(f"the sign changes between {low.load} and {high.load}" for low, high in effect.crossings)
    return (
        f"[{effect.a}] over [{effect.b}] in {effect.metric} at the highest load, {top.a.load}: "
        f"{gain(top.ratio)}, {winner}" + (f"; {crossed}" if crossed else "")
    )


def _spread(effect: Spread) -> str:
    best = max(effect.points, key=lambda point: point.mean)
    worst = min(effect.points, key=lambda point: point.mean)
    return (
        f"spread in {effect.metric} over {len(effect.points)} cells: {gain(effect.ratio)}, from "
        f"[{worst.label}] {number(worst.mean)} to [{best.label}] {number(best.mean)}"
    )


def _grid(effect: Grid) -> str:
    swept = " x ".join(effect.names)
    broken = effect.broken
    causes = ", ".join(sorted({cell.verdict for cell in broken}))
    tail = f"; {len(broken)} of {len(effect.down) * len(effect.across)} cells broke ({causes})" if broken else ""
    if effect.best is None:
        return f"sweep of {swept} in {effect.metric}: every cell broke ({causes})"
    best = effect.cells[effect.best[0]][effect.best[1]]
    assert isinstance(best, Point)
    others = len(effect.contenders) - 1
    beside = f", and {others} more may be as good" if others else ", surely the best"
    return f"sweep of {swept} in {effect.metric}: best [{best.label}] with {number(best.mean)}{beside}{tail}"


# -- drawings ----------------------------------------------------------------------------------------------


def _draw_comparison(effect: Comparison, width: int) -> list[str]:
    rows = [[point.label, _rounds(point), number(point.mean)] for point in (effect.a, effect.b)]
    return _table(["cell", "rounds", "mean"], rows, width)


def _draw_interaction(effect: Interaction, width: int) -> list[str]:
    a, b = effect.a.label, effect.b.label
    rows = [
        ["neither", number(effect.base.mean), ""],
        [a, number(effect.a.mean), gain(effect.over_a)],
        [b, number(effect.b.mean), gain(effect.over_b)],
        ["both", number(effect.ab.mean), gain(effect.over_ab)],
    ]
    if effect.expected is not None:
        rows.append(["linear expectation of both", "", gain(effect.expected)])
    rows.append(["interaction: both / (one by one)", "", gain(effect.term)])
    return _table(["cell", "mean", "over neither"], rows, width)


def _draw_ablation(effect: Ablation, width: int) -> list[str]:
    """A waterfall: the first cell and the last as whole bars, a step from where the one before ended."""
    means = [point.mean for point in effect.points]
    texts = ["", *(gain(step) for step in effect.steps)]
    marks = ["", *(_mark(step) for step in effect.steps)]
    names = [_short(point.label, 26) for point in effect.points]
    rows = [
        *zip(names, means, texts, marks, strict=True),
        ("total", means[-1], gain(effect.total), _mark(effect.total)),
    ]
    name_width = max(len(row[0]) for row in rows)
    mean_width = max(len(number(row[1])) for row in rows)
    text_width = max(len(row[2]) + len(row[3]) for row in rows)
    room = max(8, width - name_width - mean_width - text_width - 6)
    low, high = min(means), max(means)
    start = max(0.0, low - 0.25 * (high - low)) if high > low else 0.0

    def column(value: float) -> int:
        return round((value - start) / (high - start) * room) if high > start else room

    drawn = []
    for place, (name, mean, text, mark) in enumerate(rows):
        if place in (0, len(rows) - 1):
            bar = "=" * max(1, column(mean))
        else:
            left, right = sorted((column(means[place - 1]), column(mean)))
            left = min(left, room - 1)
            sign = "+" if effect.steps[place - 1].estimate >= 1 else "-"  # as the gain: of a latency, a fall
            bar = " " * left + sign * max(1, right - left)
        line = f"{name:<{name_width}}  {number(mean):>{mean_width}}  {bar:<{room}}  {text}{mark}"
        drawn.append(line.rstrip())
    axis = f"{'':<{name_width}}  {'':>{mean_width}}  |{'':-<{room - 2}}|"
    ends = f"from {number(start)} to {number(high)}"
    return [*drawn, axis.rstrip(), f"the bars go {ends}; ? a step whose sign is not sure"]


def _draw_scaling(effect: Scaling, width: int) -> list[str]:
    rows = [
        [point.label, str(point.gpus), number(point.mean), interval(per), over]
        for point, per, over in zip(
            effect.points, effect.per_gpu, ["1", *(interval(one) for one in effect.efficiency)], strict=True
        )
    ]
    return _table(["cell", "GPUs", "mean", "per GPU", "efficiency"], rows, width)


def _draw_by_load(effect: LoadCurve, width: int) -> list[str]:
    """A line a load: the interval as dashes, the estimate as ``*``, equality as ``|``."""
    texts = [gain(pair.ratio) for pair in effect.pairs]
    loads = [pair.a.load for pair in effect.pairs]
    load_width, text_width = max(map(len, loads)), max(map(len, texts))
    room = max(11, width - load_width - text_width - 7)
    limits = [abs(math.log(pair.ratio.estimate)) for pair in effect.pairs]
    most = max(0.01, 1.5 * max(limits))

    def column(value: float) -> int:
        scaled = math.log(value) / most if 0 < value < math.inf else math.copysign(2.0, value - 1)
        return round((room - 1) * (1 + min(1.0, max(-1.0, scaled))) / 2)

    drawn = []
    for load, text, pair in zip(loads, texts, effect.pairs, strict=True):
        bar = [" "] * room
        for place in range(column(pair.ratio.lower), column(pair.ratio.upper) + 1):
            bar[place] = "-"
        bar[column(1.0)] = "|"
        bar[column(pair.ratio.estimate)] = "*"
        drawn.append(f"{load:<{load_width}}  {''.join(bar)}  {text:<{text_width}}  {_winner(pair)}".rstrip())
    legend = f"right of |, a = {effect.a} is ahead of b = {effect.b}; dashes are the interval"
    return [*drawn, *_wrapped(legend, width, "")]


def _draw_spread(effect: Spread, width: int) -> list[str]:
    least = min(point.mean for point in effect.points)
    rows = [
        [point.label, _rounds(point), number(point.mean), signed(point.mean / least - 1)] for point in effect.points
    ]
    return _table(["cell", "rounds", "mean", "over the least"], rows, width)


def _draw_grid(effect: Grid, width: int) -> list[str]:
    """Throughputs by row and column: ``*`` the best, ``~`` may be as good, a breakage by its name."""

    def text(i: int, j: int, cell: Point | BrokenPoint) -> str:
        if isinstance(cell, BrokenPoint):
            return cell.verdict
        mark = "*" if (i, j) == effect.best else "~" if (i, j) in effect.contenders else " "
        return f"{number(cell.mean)}{mark}"

    texts = [[text(i, j, cell) for j, cell in enumerate(row)] for i, row in enumerate(effect.cells)]
    headers = list(effect.across) if len(effect.names) > 1 else ["mean"]
    fits = max(1, (width - 14) // (max(len(one) for row in [headers, *texts] for one in row) + 4))
    drawn: list[str] = []
    for first in range(0, len(headers), fits):  # as many columns at a time as the terminal has room for
        some = slice(first, first + fits)
        rows = [[name, *row[some]] for name, row in zip(effect.down, texts, strict=True)]
        drawn += [*([""] if first else []), *_table(["", *headers[some]], rows, width)]
    swept = f"{effect.names[0]} down" + (f", {effect.names[1]} across" if len(effect.names) > 1 else "")
    causes = [f"{cell.label}: {cell.verdict}: {cell.cause}" for cell in effect.broken]
    legend = f"{swept}; * the best, ~ may be as good"
    return [*drawn, *_wrapped(legend, width, ""), *(_short(cause, width) for cause in causes)]


# -- parts -------------------------------------------------------------------------------------------------


def _promise(effect: Effect) -> str:
    if isinstance(effect, Grid):
        return f"the best of all is left unmarked with probability {effect.alpha:.3g} at most"
    if isinstance(effect, Spread):
        return f"each end of the interval is wrong with probability {effect.alpha:.3g} at most"
    if effect.family == 1:
        return f"each end of the interval is wrong with probability {effect.alpha:.3g} at most"
    return (
        f"the {effect.family} intervals hold together: any lower end is wrong with probability {effect.alpha:.3g} at "
        f"most, and so is any upper end (Bonferroni)"
    )


def _published(said: Said) -> str:
    source = f" ({said.source})" if said.source else ""
    return f"{said.of}: {said.text}{source}: {said.holds}"


def _rounds(point: Point) -> str:
    return str(len(point.values))


def _mark(step: Interval) -> str:
    return "" if step.lower > 1 or step.upper < 1 else " ?"


def _winner(pair: Comparison) -> str:
    return "a" if pair.a_wins else "b" if pair.b_wins else "?"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Broken between words; a number stays with its percent sign."""
    whole = text.replace(" %", "\u00a0%")
    parts = textwrap.wrap(
        whole, width=width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    )
    return [part.replace("\u00a0", " ") for part in parts]


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A table whose first column, names, is broken so that the whole keeps to the width."""
    from tabulate import tabulate

    # tabulate gives a header two columns more than it has letters.
    others = [max(len(headers[at]) + 2, *(len(row[at]) for row in rows)) for at in range(1, len(headers))]
    room = max(12, width - sum(others) - 2 * len(others))
    shown = [["\n".join(textwrap.wrap(row[0], room, subsequent_indent="  ")) or "", *row[1:]] for row in rows]
    align = ("left", *("right",) * len(others))
    return tabulate(shown, headers=list(headers), disable_numparse=True, colalign=align).splitlines()


_SENTENCES: dict[type[Effect], Callable[[Any], str]] = {
    Comparison: _comparison,
    Interaction: _interaction,
    Ablation: _ablation,
    Scaling: _scaling,
    LoadCurve: _by_load,
    Spread: _spread,
    Grid: _grid,
}
_DRAWINGS: dict[type[Effect], Callable[[Any, int], list[str]]] = {
    Comparison: _draw_comparison,
    Interaction: _draw_interaction,
    Ablation: _draw_ablation,
    Scaling: _draw_scaling,
    LoadCurve: _draw_by_load,
    Spread: _draw_spread,
    Grid: _draw_grid,
}
