"""A document of sections that must not be longer than a limit: whole parts are left out, the least important first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A text that is shown whole or not at all. Of equal ``rank`` the earlier one is the more important."""

    text: str
    rank: int


@dataclass(frozen=True, slots=True)
class Section:
    """Parts with what stands before the first and behind the last one shown; without a part it is not there.

    Of the parts of one rank the first are shown: there is none behind one that was left out. ``opening`` ends with the
    line ends that the first part needs. ``name`` is what the line on what was left out calls its parts.
    """

    name: str
    parts: tuple[Part, ...]
    opening: str = ""
    closing: str = ""
    joined: str = "\n\n"


def fit(
    first: str, sections: Sequence[Section], limit: int, length: Callable[[str], int], left_out: Callable[[str], str]
) -> str:
    """``first``, always, and of the sections in their order what fits; ``left_out`` makes the last line.

    It is given a list such as ``3 of 40 details, the environment``; the line is there only if something was left out.
    """
    whole = [[True] * len(section.parts) for section in sections]
    text = _text(first, sections, whole)
    if length(text) <= limit:
        return text
    kept = [[False] * len(section.parts) for section in sections]
    nothing = [[False] * len(section.parts) for section in sections]
    room = limit - length(_text(first, sections, nothing)) - length(left_out(_missing(sections, nothing))) - 2
    stopped: set[tuple[int, int]] = set()
    order = sorted(
        (part.rank, at, place) for at, section in enumerate(sections) for place, part in enumerate(section.parts)
    )
    for rank, at, place in order:
        section = sections[at]
        cost = length(section.parts[place].text) + length(section.joined)
        if not any(kept[at]):
            cost += length(section.opening) + length(section.closing) + length("\n\n")
        if (at, rank) in stopped or cost > room:
            stopped.add((at, rank))
            continue
        kept[at][place] = True
        room -= cost
    return f"{_text(first, sections, kept)}\n{left_out(_missing(sections, kept))}\n"


def _text(first: str, sections: Sequence[Section], kept: Sequence[Sequence[bool]]) -> str:
    texts = [first]
    for section, shown in zip(sections, kept, strict=True):
        parts = [part.text for part, is_shown in zip(section.parts, shown, strict=True) if is_shown]
        if parts:
            texts.append(section.opening + section.joined.join(parts) + section.closing)
    return "\n\n".join(text for text in texts if text) + "\n"


def _missing(sections: Sequence[Section], kept: Sequence[Sequence[bool]]) -> str:
    """A section that is left out whole by its name, of another one how many of its parts."""
    told = []
    for section, shown in zip(sections, kept, strict=True):
        out = shown.count(False)
        if out == len(shown) > 1 or 0 < out < len(shown):
            told.append(f"{section.name} ({out} of {len(shown)})")
        elif out:
            told.append(section.name)
    return ", ".join(told)
