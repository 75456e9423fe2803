"""What the guide's conclusions are about, of a value a case; ``None`` where the cases don't give it.

Batch sizes are compared by the lengths that all of them have: see :func:`pytest_r1perf.stress.effects.of_sizes`.
"""

from __future__ import annotations

import statistics

from pytest_r1perf.stress import effects
from pytest_r1perf.stress.bootstrap import Values


def median(values: Values, size: int) -> float | None:
    """Of all cases of one batch size."""
    found = effects.by_level(values).get(size)
    return statistics.median(found) if found else None


def flattening(values: Values) -> float | None:
    """The gain from 16 to 32 over that from 8 to 16."""
    values = effects.of_sizes(values, (8, 16, 32))
    before, after = (effects.ratio(values, "batch_size", low, high) for low, high in ((8, 16), (16, 32)))
    return None if before is None or after is None else after / before


def amdahl(values: Values) -> float | None:
    """Amdahl's speed-up 1 / (s + (1 - s) / N) with s from N = 1 and 32, over what is measured between."""
    between = [size for size in effects.by_level(values) if 1 < size < 32]
    values = effects.of_sizes(values, (1, *between, 32))
    top = effects.ratio(values, "batch_size", 1, 32)
    if top is None or top <= 0 or not between:
        return None
    serial = (32 / top - 1) / 31
    found = []
    for size in between:
        measured = effects.ratio(values, "batch_size", 1, size)
        law = serial + (1 - serial) / size
        if measured is None or law <= 0:
            return None
        found.append(1 / law / measured)
    return statistics.geometric_mean(found)


def heights(values: Values, *, relative: bool) -> float | None:
    """The box of the largest batch size over that of the smallest; ``relative``: each over its median."""
    sizes = list(effects.by_level(values))
    ends = effects.of_sizes(values, {sizes[0], sizes[-1]})
    boxes = [effects.box(group) for group in effects.by_level(ends).values()]
    if len(boxes) < 2 or boxes[0].height <= 0 or boxes[-1].height <= 0:
        return None
    first, last = ((one.height / one.median if relative else one.height) for one in (boxes[0], boxes[-1]))
    return last / first


def whiskers(values: Values) -> float | None:
    """From whisker to whisker: the smallest batch size over the longest of the others."""
    spans = [effects.box(group).span for group in effects.by_level(effects.of_sizes(values)).values()]
    if len(spans) < 2 or spans[0] <= 0 or max(spans[1:]) <= 0:
        return None
    return spans[0] / max(spans[1:])


def correlation(values: Values, axis: effects.Axis) -> float | None:
    """Pearson's r of a size or length and the value."""
    whole = effects.of_sizes(values)
    return effects.correlation(whole, axis) if whole else None


def share(values: Values) -> float | None:
    """The part of the variance that batch size accounts for."""
    whole = effects.of_sizes(values)
    return effects.share(whole, "batch_size") if whole else None


def largest(values: Values) -> float | None:
    """Batch size 32 over the best of the others, each of which must have been measured with lengths of its."""
    sizes = effects.by_level(values)
    ratios = [effects.ratio(values, "batch_size", size, 32) for size in sizes if size != 32]
    known = [one for one in ratios if one is not None]
    return min(known) if known and len(known) == len(ratios) else None
