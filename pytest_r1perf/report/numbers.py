"""How numbers are written for people."""

from __future__ import annotations

from pytest_r1perf.statistics import Interval


def number(value: float) -> str:
    """Four significant digits or whole: ``4,512``, ``29.13``, ``0.01234``.

    >>> number(4512.3), number(29.1347), number(0.012342)
    ('4,512', '29.13', '0.01234')
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(fraction: float) -> str:
    """``0.053`` is ``5.3 %``; whole from 10 % on."""
    return f"{fraction:.0%}".replace("%", " %") if fraction >= 0.0995 else f"{fraction:.1%}".replace("%", " %")


def drop(detectable: float) -> str:
    """``a drop of 5.0 %``: the smallest that would have been seen; ``no drop`` where only a total loss would.

    >>> drop(0.05), drop(0.998)
    ('a drop of 5.0 %', 'no drop')
    """
    return f"a drop of {percent(detectable)}" if detectable < 0.99 else "no drop"


def interval(value: Interval) -> str:
    """``0.982 [0.941, 1.024]``; larger figures with a thousands separator; ``...`` for a limit that says nothing."""
    if value.estimate >= 100:
        upper = number(value.upper) if value.upper < 100 * value.estimate else "..."
        return f"{number(value.estimate)} [{number(value.lower)}, {upper}]"
    upper = f"{value.upper:.3f}" if value.upper < 100 else "..."
    return f"{value.estimate:.3f} [{value.lower:.3f}, {upper}]"
