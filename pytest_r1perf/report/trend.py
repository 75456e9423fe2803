"""Trends as a page: one table a hardware, then what happened to each cell, then what is wrong with the history."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_r1perf.report.numbers import number

if TYPE_CHECKING:
    from pytest_r1perf.history.changepoint import Size
    from pytest_r1perf.history.trend import Event, Trend
    from pytest_r1perf.metrics import Metric

_HEADERS = ("cell", "nights", "latest", "trend", "size [95 %]", "since", "of baseline")
_ALIGN = ("left", "right", "right", "left", "right", "left", "right")
_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_MOST_CAUSES = 12
_MOST_PROBLEMS = 20


def trend_text(trends: Sequence[Trend], problems: Sequence[str], metric: Metric, *, alpha: float) -> str:
    """The page. ``alpha`` is the whole report's."""
    better = "more is better" if metric.better > 0 else "less is better"
    lines = [f"{metric.name} in {metric.unit}: {metric.meaning}; {better}"]
    for hardware in dict.fromkeys(trend.hardware for trend in trends):
        here = [trend for trend in trends if trend.hardware == hardware]
        lines += ["", hardware, *_table(here)]
    lines += ["", *_legend(alpha, any(trend.against_baseline for trend in trends))]
    for trend in trends:
        lines += ["", *_story(trend, several=len({other.hardware for other in trends}) > 1)]
    if problems:
        lines += ["", "of the history:", *(f"  {problem}" for problem in problems[:_MOST_PROBLEMS])]
        if len(problems) > _MOST_PROBLEMS:
            lines.append(f"  ... and {len(problems) - _MOST_PROBLEMS} more")
    return "\n".join(lines)


def sparkline(values: Sequence[float]) -> str:
    """The latest values as blocks between the smallest and the largest of them.

    >>> sparkline([1.0, 2.0, 8.0])
    '▁▂█'
    """
    shown = list(values)[-_WIDTH:]
    low, span = min(shown), max(shown) - min(shown)
    return "".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1)) if span else 3] for value in shown)


def _table(trends: Sequence[Trend]) -> list[str]:
    from tabulate import tabulate

    rows = [_row(trend) for trend in trends]
    return tabulate(rows, headers=_HEADERS, disable_numparse=True, colalign=_ALIGN).splitlines()


def _row(trend: Trend) -> tuple[str, ...]:
    event, state = trend.telling, trend.state.value
    if len(trend.times) < trend.needed:
        state += f" ({len(trend.times)} of {trend.needed})"
    if event is not None:
        state += " worse" if event.worse else " better"
    if trend.last_off:
        state += ", last night off"
    if trend.superseded:
        state += " (superseded)"
    size = since = ""
    if event is not None:
        size = f"{_relative(event.nightly, digits=2)} a night" if event.nightly else _relative(event.size)
        since = f"{event.before if event.nightly else event.after:%Y-%m-%d}"
    latest = number(trend.means[-1])
    return (
        *(f"{trend.topology} {trend.cell}", str(len(trend.times)), latest, state, size, since),
        _ratio(trend.against_baseline),
    )


def _legend(alpha: float, baseline: bool) -> Iterator[str]:
    yield f"STEP and DRIFT: a report on unchanged cells names one with probability {alpha:g}. A single night that came"
    yield "back is neither. trend: the change since which the cell is worst; the latest one where it is no worse."
    if baseline:
        yield "of baseline: the latest nights over the stored baseline, in the better direction; it shows slow drift."


def _story(trend: Trend, *, several: bool) -> Iterator[str]:
    where = f" on {trend.hardware}" if several else ""
    yield f"{trend.topology} {trend.cell}{where}"
    shown = trend.means[-_WIDTH:]
    first = trend.times[-len(shown)]
    span = f"{first:%Y-%m-%d} to {trend.times[-1]:%Y-%m-%d}, {number(min(shown))} to {number(max(shown))}"
    noise = f", nights vary by {trend.night_cv:.1%}".replace("%", " %") if trend.night_cv is not None else ""
    yield f"  {sparkline(trend.means)}  {span}{noise}"
    for event in trend.events:
        yield f"  {_told(event)}"
        yield from (f"      {line}" for line in event.causes[:_MOST_CAUSES])
        if len(event.causes) > _MOST_CAUSES:
            yield f"      ... and {len(event.causes) - _MOST_CAUSES} more"
    if len(trend.times) < trend.needed:
        nights = "1 night" if len(trend.times) == 1 else f"{len(trend.times)} nights"
        yield f"  {nights}: a step or a drift can be told from {trend.needed} nights on"
    if trend.last_off:
        yield "  the latest night is off: one more tells a bad night from a step"
    yield from (f"  {note}" for note in trend.notes)


def _told(event: Event) -> str:
    """What happened, when, how much; the causes follow below it."""
    direction = "worse" if event.worse else "better"
    if event.kind == "bad night":
        ending = "what was different:" if event.causes else "nothing recorded was different"
        return f"{event.after:%Y-%m-%d} bad night, {_point(event.size)}, came back; {ending}"
    ending = "what changed:" if event.causes else "nothing recorded changed"
    if event.nightly is not None:
        return (
            f"{event.before:%Y-%m-%d} to {event.after:%Y-%m-%d} drift, {direction}: "
            f"{_relative(event.nightly, digits=2)} a night, {_relative(event.size)} in all; "
            + ("in its course:" if event.causes else ending)
        )
    return f"{event.before:%Y-%m-%d} to {event.after:%Y-%m-%d} step, {direction}: {_relative(event.size)}; {ending}"


def _point(size: Size, digits: int = 1) -> str:
    return f"{_exp(size.estimate) - 1:+.{digits}%}".replace("%", " %")


def _relative(size: Size, digits: int = 1) -> str:
    low, high = (f"{100 * (_exp(value) - 1):+.{digits}f}" for value in (size.lower, size.upper))
    return f"{_point(size, digits)} [{low}, {high}]"


def _ratio(size: Size | None) -> str:
    if size is None:
        return ""
    if not math.isfinite(size.lower):
        return f"{_exp(size.estimate):.3f}"
    return f"{_exp(size.estimate):.3f} [{_exp(size.lower):.3f}, {_exp(size.upper):.3f}]"


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
