"""Texts and numbers of a document, made harmless for a page: names come from tests, logs and other machines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_NOT_SHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")
"""Control characters, which XML does not have, and those that turn the direction of the text after them."""


def plain(text: object) -> str:
    """A text without colour codes, control characters and halves of surrogates; line feeds and tabs stay."""
    shown = _NOT_SHOWN.sub("\ufffd", _ANSI.sub("", str(text)))
    return shown.encode("utf-8", "replace").decode("utf-8")


def line(text: object, most: int = 0) -> str:
    """The same on one line, and cut at ``most`` characters where that is given."""
    one = " ".join(plain(text).split())
    return one if not most or len(one) <= most else f"{one[: most - 1].rstrip()}\u2026"


def finite(value: object) -> float | None:
    """The value where it is a number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def finite_ones(values: Iterable[object]) -> list[float]:
    """Those that can be drawn."""
    return [number for number in map(finite, values) if number is not None]


def limits(value: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Estimate, lower and upper of an interval in plain data; an endless limit is ``inf``; ``None``: no estimate."""
    estimate = finite(value.get("estimate"))
    if estimate is None:
        return None
    lower, upper = finite(value.get("lower")), finite(value.get("upper"))
    return estimate, 0.0 if lower is None else lower, math.inf if upper is None else upper
