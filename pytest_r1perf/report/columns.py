"""A table that fits a terminal: what tells least is left out first, and a long name goes over several lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_r1perf.report.plain import clipped, columns, padded

EMPTY = "-"
_GAP = "  "
_NAME_WIDTHS = (40, 32, 24, 20, 16, 12)
_NAME_WIDTH = 24
"""A name may go over several lines before a column leaves, but in lines of this width at least."""


@dataclass(frozen=True, slots=True)
class Column:
    """``leaves`` is its place in the order of leaving, from 1; 0 is never. A column without a value leaves first."""

    header: str
    right: bool = True
    leaves: int = 0


def fitted(heads: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The table's lines in at most ``width`` columns, where its numbers leave room for that. The first column is names.

    A name has two columns more for the indent of its further lines.
    """
    kept = list(range(len(heads)))
    leaving = sorted((place for place in kept if heads[place].leaves), key=lambda place: _order(heads, rows, place))
    names = _NAME_WIDTHS[0]
    while True:
        named = [_name(row[0], names) for row in rows]
        widest = max([columns(heads[0].header), *(columns(line) for lines in named for line in lines)])
        widths = {0: widest, **{place: _width(heads, rows, place) for place in kept if place}}
        if sum(widths.values()) + len(_GAP) * (len(kept) - 1) <= width:
            break
        if leaving and names <= _NAME_WIDTH:
            kept.remove(leaving.pop(0))
        elif names > _NAME_WIDTHS[-1]:
            names = next(narrower for narrower in _NAME_WIDTHS if narrower < names)
        else:
            break
    rule = _GAP.join("-" * widths[place] for place in kept)
    lines = [_line(heads, widths, kept, [head.header for head in heads]), rule]
    for row, (first, *further) in zip(rows, named, strict=True):
        lines.append(_line(heads, widths, kept, [first, *row[1:]]))
        lines += further
    return lines


def _order(heads: Sequence[Column], rows: Sequence[Sequence[str]], place: int) -> tuple[bool, int]:
    return any(row[place] != EMPTY for row in rows), heads[place].leaves


def _width(heads: Sequence[Column], rows: Sequence[Sequence[str]], place: int) -> int:
    return max([columns(heads[place].header), *(columns(row[place]) for row in rows)])


def _line(heads: Sequence[Column], widths: dict[int, int], kept: Sequence[int], cells: Sequence[str]) -> str:
    return _GAP.join(padded(cells[place], widths[place], right=heads[place].right) for place in kept).rstrip()


def _name(name: str, width: int) -> list[str]:
    """A cell's name over several lines, the further ones indented."""
    lines = [""]
    for word in name.split():
        word = clipped(word, width)
        if lines[-1] and columns(lines[-1]) + 1 + columns(word) > width:
            lines.append("  " + word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines
