"""GitHub's Markdown of texts that may hold anything: a name or a log's line is shown as it is and does nothing.

What did not come from us stands in code: there GitHub (GFM spec 0.29, sections 6.3 and 4.10) makes no markup, no link,
no emoji, and looks for no ``@name``, ``#123``, ``GH-123`` or commit, so that a report pings nobody and is linked from
nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pytest_r1perf.report.plain import clipped, plain

NAME_WIDTH = 160
"""Columns of a name or a value within a line; the middle of a longer one is left out."""

_WORDS = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ,;.()%'/-]*")
_REFERENCE = re.compile(r"\bGH-\d|\bwww\.|\b[0-9a-f]{7,40}\b", re.IGNORECASE)
"""What GitHub makes a link of in words that are nothing but words: an issue, an address, a commit."""
_TICKS = re.compile("`+")
_SPACE = re.compile(r"\s+")
_NOTHING = "-"


def code(text: str, width: int = NAME_WIDTH) -> str:
    """A text within a line, or within a table's cell. Line ends are spaces.

    >>> code("tp1 default"), code("a`b"), code("a|b")
    ('`tp1 default`', '``a`b``', '<code>a&#124;b</code>')
    """
    one_line = clipped(_SPACE.sub(" ", plain(text)).strip(), width)
    if not one_line:
        return _NOTHING
    if "|" in one_line:  # a table's row is cut at its bars before anything else is read
        return f"<code>{_entities(one_line)}</code>"
    longest = max((len(run) for run in _TICKS.findall(one_line)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if one_line.startswith("`") or one_line.endswith("`") else ""
    return f"{fence}{pad}{one_line}{pad}{fence}"


def bare(text: str) -> str:
    """A name in one line that another tool will put between backticks in a table: those and bars are replaced."""
    return _SPACE.sub(" ", plain(text)).strip().replace("`", "'").replace("|", "/")


def words(text: str, width: int = 600) -> str:
    """A sentence: as it is where it has nothing but words and numbers, else as :func:`code`. Not for a line's start.

    >>> words("only 5 of 10 rounds"), words("see #12")
    ('only 5 of 10 rounds', '`see #12`')
    """
    if len(text) <= width and _WORDS.fullmatch(text) and not _REFERENCE.search(text):
        return text
    return code(text, width)


def block(text: str, language: str = "") -> str:
    """Lines in a code block, e.g. a command that is to be copied."""
    lines = plain(text).splitlines()
    fence = "`" * max([3, *(len(run) + 1 for run in _TICKS.findall(text))])
    return "\n".join([f"{fence}{language}", *lines, fence])


def table_head(headers: Sequence[str], right: Iterable[int] = ()) -> str:
    """The two lines above a table's rows; ``right`` are the columns that are aligned to the right."""
    rights = set(right)
    rule = ("---:" if place in rights else "---" for place in range(len(headers)))
    return f"{row(headers)}\n|{'|'.join(rule)}|"


def row(cells: Iterable[str]) -> str:
    """One line of a table. The cells are Markdown without a bar: our own words, or :func:`code`."""
    return f"| {' | '.join(cells)} |"


def units(text: str) -> int:
    """How long GitHub may count a text to be: in UTF-16 units, the most of all countings of characters."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _entities(text: str) -> str:
    """Every ASCII sign as its number, which no rule of Markdown reads; ``@`` apart, lest a mail address be seen."""
    numbered = (
        letter if letter == " " or letter.isalnum() or not letter.isascii() else f"&#{ord(letter)};" for letter in text
    )
    return "".join(numbered).replace("&#64;", "<span>&#64;</span>")
