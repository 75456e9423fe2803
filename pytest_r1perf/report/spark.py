"""Sparks: a series as a line of blocks, with its gaps, and a bar where its level changed."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "·"
CHANGE = "│"
WIDTH = 40
"""Values that are shown: the latest."""
LEAST_SPAN = 0.05
"""Of the largest value: less than that does not fill the height, so that noise of 1 % looks like noise."""

_LONG = 3
"""A gap is this many times the usual time between two nights, and two days at least (as in a trend's notes)."""
_LEAST_GAP_S = 2 * 86400.0


def spark(values: Sequence[float | None], *, changes: Collection[int] = (), width: int = WIDTH) -> str:
    """The latest ``width`` values between the smallest and the largest of them, :data:`LEAST_SPAN` apart at least.

    ``None``, NaN and infinity are gaps. ``changes`` are places in ``values``: the first of a new level each, which a
    bar stands before. The text is longer than ``width`` by its bars.

    >>> spark([1.0, 2.0, None, 8.0], changes=[3])
    '▁▂·│█'
    """
    first = max(0, len(values) - width)
    shown = values[first:]
    # Parts of the largest: the span of two huge numbers would be no number, and that of two tiny ones zero.
    largest = max((abs(value) for value in shown if value is not None and math.isfinite(value)), default=0.0) or 1.0
    parts = [value / largest if value is not None and math.isfinite(value) else None for value in shown]
    known = [part for part in parts if part is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    short = max(0.0, LEAST_SPAN - (high - low)) / 2
    drawn = []
    for place, part in enumerate(parts, start=first):
        if place in changes and place > first:
            drawn.append(CHANGE)
        drawn.append(GAP if part is None else _block(part, low - short, high + short))
    return "".join(drawn)


def trend_spark(trend: Mapping[str, Any], width: int = WIDTH) -> str:
    """The spark of a cell's trend (:func:`pytest_r1perf.history.trend.as_dict`); empty without a night.

    A long time without a night is a gap. Changes are the first night of a step and the one after a drift's first;
    a bad night that came back is none.
    """
    times = [datetime.datetime.fromisoformat(time) for time in trend.get("times", ())]
    values: list[float | None] = []
    places: list[int] = []
    gaps = _gaps(times)
    for place, value in enumerate(trend.get("means", ())):
        if place in gaps:
            values.append(None)
        places.append(len(values))
        values.append(value)
    return spark(values, changes={places[place] for place in _changes(trend, times)}, width=width)


def _changes(trend: Mapping[str, Any], times: Sequence[datetime.datetime]) -> set[int]:
    """The first night of every new level."""
    found = set()
    for event in trend.get("events", ()):
        if event["kind"] == "bad night":
            continue
        # A drift begins with the night after its first, a step is seen from its ``after`` on.
        since = event["before"] if event["kind"] == "drift" else event["after"]
        begins = datetime.datetime.fromisoformat(since)
        after = [
            place for place, time in enumerate(times) if (time > begins if event["kind"] == "drift" else time >= begins)
        ]
        found |= set(after[:1])
    return found


def _gaps(times: Sequence[datetime.datetime]) -> set[int]:
    """Nights that a long time without one is before."""
    spans = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    if len(spans) < 2:
        return set()
    long = max(_LONG * statistics.median(spans), _LEAST_GAP_S)
    return {place for place, span in enumerate(spans, start=1) if span > long}


def _block(part: float, low: float, high: float) -> str:
    return BLOCKS[round((part - low) / (high - low) * (len(BLOCKS) - 1))]
