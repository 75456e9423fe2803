"""Text that a terminal shows as it is: names and logs may hold anything, escape sequences and wide letters included."""

from __future__ import annotations

import re
import unicodedata

_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # an operating system command, to its terminator: a title, a link
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # a control sequence: colour, cursor, screen
    r"|\x1b[ -/]*[0-Z\\^-~]"  # a single function
)
"""ECMA-48, sections 5.3 to 5.6, without strings that are never closed: their first character is escaped instead."""

_KEPT = "\n\t\u200c\u200d"
"""Beside what is printable: line ends, and the joiners of emoji and of Indic and Persian script."""


def plain(text: str) -> str:
    r"""Without escape sequences; other control characters, direction marks and lone surrogates as their escapes.

    >>> plain("\x1b[31mred\x1b[0m"), plain("a\x07b"), plain("a\u202eb")
    ('red', 'a\\x07b', 'a\\u202eb')
    """
    if text.isprintable():
        return text
    text = _SEQUENCE.sub("", text)
    return "".join(letter if letter in _KEPT or _harmless(letter) else _escaped(letter) for letter in text)


def columns(text: str) -> int:
    """How many columns of a terminal a line takes: two for wide letters (UAX 11), none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(_columns(letter) for letter in text)


def clipped(text: str, width: int) -> str:
    """At most ``width`` columns: of what is longer the middle is left out, since names differ at their ends."""
    if columns(text) <= width:
        return text
    tail = max(0, (width - 2) // 3)
    return _head(text, width - 2 - tail) + ".." + _head(text[::-1], tail)[::-1]


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Filled with spaces to ``width`` columns; ``right`` puts the text at the end."""
    fill = " " * max(0, width - columns(text))
    return fill + text if right else text + fill


def _head(text: str, width: int) -> str:
    taken = 0
    for at, letter in enumerate(text):
        taken += _columns(letter)
        if taken > width:
            return text[:at]
    return text


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1


def _harmless(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"


def _escaped(letter: str) -> str:
    return letter.encode("unicode-escape", "surrogatepass").decode("ascii")
