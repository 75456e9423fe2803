"""Makes matplotlib's SVG fit for a page: colours by role, ids that are used nowhere else, and a fifth of the size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from types import MappingProxyType

ROLES: Mapping[str, str] = MappingProxyType(
    {
        "ink": "#010101",
        "muted": "#020202",
        "grid": "#030303",
        "a": "#040404",
        "b": "#050505",
        "good": "#060606",
        "bad": "#070707",
        "paper": "#090909",
    }
)
"""Colours that are drawn with: stand-ins, each replaced by the style sheet's variable of its role."""

_VARIABLES = {colour: f"var(--{role})" for role, colour in ROLES.items()}
_COLOUR = re.compile("|".join(_VARIABLES))
_FONT = re.compile(r"(?<=style=\")font(?:-size)?: ([\d.]+)px(?:; font-family:[^;\"]*| [^;\"]*)")
_UNUSED_ID = re.compile(r"<g id=\"[^\"]*\"")
_NOTHING = re.compile(r"<path d=\"[^\"]*\" style=\"fill: none\"/>")
"""A background without a colour."""
_DECIMALS = re.compile(r"(-?\d+\.\d)\d+")
_NO_TURN = re.compile(r" transform=\"rotate\(-?0 [^\"]*\)\"")
_BETWEEN = re.compile(r">\s+<")
_PATH = re.compile(r" d=\"([^\"]*)\"")
_INNER = re.compile(r"<svg[^>]*viewBox=\"([^\"]*)\"[^>]*>(.*)</svg>", re.DOTALL)
_STYLE = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)


def inline(text: str, alt: str) -> str:
    """An ``<svg>`` element with ``alt`` as its alternative text."""
    found = _INNER.search(text)
    if found is None:
        raise ValueError("matplotlib wrote no <svg>")
    box, inner = found.groups()
    inner = _STYLE.sub("", inner)
    inner = _FONT.sub(r"font-size: \1px", inner)
    inner = _NOTHING.sub("", inner)
    inner = _UNUSED_ID.sub("<g", inner)
    inner = _NO_TURN.sub("", inner)
    inner = _PATH.sub(lambda path: f' d="{" ".join(path.group(1).split())}"', inner)
    inner = _BETWEEN.sub("><", _outside_texts(inner))
    return (
        f'<svg role="img" aria-label="{escape(alt, quote=True)}" viewBox="{box}" '
        f'xmlns="http://www.w3.org/2000/svg">{inner.strip()}</svg>'
    )


def _outside_texts(svg: str) -> str:
    """Shorter numbers and the colours' variables everywhere but in what is written, which says what it says."""
    parts = re.split(r"(<text[^>]*>[^<]*</text>)", svg)
    return "".join(_text(part) if part.startswith("<text") else _shorter(part) for part in parts)


def _text(element: str) -> str:
    """With neither size nor colour where they are the style sheet's."""
    tag, bracket, rest = element.partition(">")
    tag = _shorter(tag).replace("font-size: 9px; ", "").replace("; fill: var(--ink)", "")
    return f"{tag}{bracket}{rest}"


def _shorter(part: str) -> str:
    shown = _COLOUR.sub(lambda colour: _VARIABLES[colour.group()], part)
    return _DECIMALS.sub(r"\1", shown).replace("xlink:href", "href")
