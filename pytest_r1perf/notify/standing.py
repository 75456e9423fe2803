"""How a cell stands after a session, for an issue on it: bad, good, or not known."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_r1perf.document.model import Cell, Document
from pytest_r1perf.verdict import Judgement, Verdict

BAD = frozenset(verdict for verdict in Verdict if verdict.fails) - {Verdict.XPASS}
"""Opens an issue. An XPASS is news on a rule and no regression; it fails its test and is in all reports."""
GOOD = frozenset({Verdict.PASS, Verdict.IMPROVED})
"""Closes one: decided, against a baseline or a floor. A baseline that was stored is a new yardstick, and no verdict."""

_CHANGING = re.compile(r"/\S+|\b0x[0-9a-f]+\b|[\d.,:]*\d")
"""Of a cause or a note: what differs from night to night without being news: paths, addresses, numbers."""


class State(Enum):
    """What a session says of a cell."""

    BAD = "bad"
    GOOD = "good"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Standing:
    """``cell`` is the one that decided. ``identity`` is the same every night, whatever hardware a broken run had."""

    identity: str
    state: State
    cell: Cell

    @property
    def marker(self) -> str:
        """The first line of the cell's issue."""
        return f"<!-- pytest-r1perf: cell {self.identity} -->"


def standings(document: Document) -> list[Standing]:
    """Of each cell that a nightly judges, in the document's order.

    Left out: comparisons of two environments (their PASS says nothing on the baseline), quarantined cells, and
    anti-patterns that lose as expected.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in document.cells:
        result = cell.result
        if result.side_by_side or result.quarantined or result.verdict in (Verdict.XFAIL, Verdict.XPASS):
            continue
        groups.setdefault(identity(cell), []).append(cell)
    return [_standing(name, cells) for name, cells in groups.items()]


def identity(cell: Cell) -> str:
    """Of platform, topology and key: 16 hex digits."""
    result = cell.result
    text = "\0".join((result.platform, result.topology, result.key))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _standing(name: str, cells: Sequence[Cell]) -> Standing:
    """Of several tests of one cell: one that is bad decides, and all must be good to be good."""
    bad = [cell for cell in cells if cell.result.verdict in BAD]
    if bad:
        return Standing(name, State.BAD, bad[0])
    judged = [cell for cell in cells if cell.result.verdict is not Verdict.MEASURED]
    if judged and all(cell.result.verdict in GOOD and not cell.result.failed for cell in judged):
        return Standing(name, State.GOOD, judged[0])
    return Standing(name, State.OPEN, next((one for one in judged if one.result.verdict not in GOOD), cells[0]))


def fingerprint(cell: Cell) -> str:
    """The same for nights that say the same: verdict, failing metrics, cause, and what changed since the baseline."""
    result = cell.result
    failing = sorted(item.metric for item in result.judgements if item.verdict.fails)
    changed = sorted(note if note.startswith("versions: ") else _CHANGING.sub("#", note) for note in result.changed)
    # A regression's cause is its figures, which the interval compares.
    cause = "" if result.verdict is Verdict.REGRESSED else _CHANGING.sub("#", result.cause)
    text = "\0".join((result.verdict.value, *failing, cause, *changed))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def limits(cell: Cell) -> Mapping[str, float]:
    """``lower`` and ``upper`` of the first failing metric's ratio; empty where there is none."""
    failing: list[Judgement] = [
        item for item in cell.result.judgements if item.verdict.fails and item.ratio is not None
    ]
    if not failing or failing[0].ratio is None:
        return {}
    return {"lower": failing[0].ratio.lower, "upper": failing[0].ratio.upper}
