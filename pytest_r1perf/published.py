"""A figure that somebody published, set beside what was measured: whether it holds is said in words, never asserted."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pytest_r1perf.errors import R1PerfError, did_you_mean
from pytest_r1perf.statistics import Interval

_NUMBER = r"[+\-−]?\d+(?:\.\d+)?"
_FIGURE = re.compile(
    rf"(?P<bound><|<=|>|>=|up to|at most|at least)?\s*~?\s*(?P<low>{_NUMBER})\s*%?"
    rf"(?:\s*(?:to|\.\.)\s*(?P<high>{_NUMBER}))?\s*(?P<unit>%|x|×)",
    re.IGNORECASE,
)
_AT_MOST = ("<", "<=", "up to", "at most")


@dataclass(frozen=True, slots=True)
class Published:
    """A published ratio in the better direction, from ``low`` to ``high`` (1.075 is "+7.5 %"); ``text`` as printed.

    A bound has one endless side. ``source`` names the document. ``aside``, where it is given, is said instead of
    whether it holds: e.g. that the figure is of another model.
    """

    text: str
    low: float
    high: float
    source: str = ""
    aside: str = ""

    @property
    def is_bound(self) -> bool:
        """Whether only one side is limited."""
        return self.low == 0 or math.isinf(self.high)

    def against(self, measured: Interval) -> str:
        """In a few words, whether the measured interval agrees."""
        if self.aside:
            return self.aside
        if measured.lower > self.high:
            return "does not hold here: surely more" if self.is_bound else "surely more here"
        if measured.upper < self.low:
            return "does not hold here: surely less" if self.is_bound else "surely less here"
        if measured.lower >= self.low and measured.upper <= self.high:
            return "holds here"
        if self.is_bound:
            return "open here: the interval reaches across it"
        if self.low < self.high:
            return "open here: they overlap"
        if measured.lower <= 1 <= measured.upper and self.low != 1:
            return "open here: neither it nor no effect at all is excluded"
        return "not contradicted here: within the interval"


PublishedAs: TypeAlias = Published | str | Mapping[str, "Published | str"] | None
"""One figure, or several by what they are of."""


@dataclass(frozen=True, slots=True)
class Said:
    """A published figure of one part of an effect (``of``), and whether it holds here, in words."""

    of: str
    text: str
    holds: str
    source: str = ""


def published_from(given: Published | str) -> Published:
    """The figure that a text means: ``"+7.5 %"``, ``"-78%"``, ``"36 to 43 %"``, ``"< 2.4 %"``, ``"10x"``.

    "up to" is a bound, as a document's "up to +20.6 %" is; of a loss it bounds the loss: "up to -78 %" is a ratio of
    0.22 or more. Raises :class:`R1PerfError` for any other text.
    """
    if isinstance(given, Published):
        return given
    found = _FIGURE.fullmatch(given.strip())
    if found is None:
        raise R1PerfError(f"published={given!r} is no figure: write it as '+7.5 %', '36 to 43 %', '< 2.4 %' or '1.9x'")
    ends = [_ratio(found[name], found["unit"]) for name in ("low", "high") if found[name] is not None]
    low, high = min(ends), max(ends)
    if low <= 0:
        raise R1PerfError(f"published={given!r} is a ratio of {low:g}, and a ratio is above 0")
    if found["bound"] is not None:
        bound = found["bound"].lower()
        loss = bound == "up to" and high < 1
        low, high = (0.0, high) if bound in _AT_MOST and not loss else (low, math.inf)
    return Published(given, low, high)


def set_beside(given: PublishedAs, measured: Mapping[str, Interval], main: str) -> tuple[Said, ...]:
    """Each published figure beside what was measured of the same part; ``main`` is the part that a lone one is of.

    Raises :class:`R1PerfError` for a part that there is not.
    """
    if given is None:
        return ()
    figures = given if isinstance(given, Mapping) else {main: given}
    return tuple(_said(str(of), figure, measured) for of, figure in figures.items())


def _said(of: str, figure: Published | str, measured: Mapping[str, Interval]) -> Said:
    if of not in measured:
        raise R1PerfError(f"published={{{of!r}: ...}}: there is no such part here; {_parts(of, measured)}")
    published = published_from(figure)
    return Said(of, published.text, published.against(measured[of]), published.source)


def _parts(of: str, known: Iterable[str]) -> str:
    return did_you_mean(of, known)


def _ratio(text: str, unit: str) -> float:
    value = float(text.replace("−", "-"))
    return 1 + value / 100 if unit == "%" else value
