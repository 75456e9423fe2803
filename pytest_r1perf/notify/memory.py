"""What an issue remembers of the nights before, in a line of its body that nobody sees."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pytest_r1perf.document.model import Cell
from pytest_r1perf.notify.standing import fingerprint, limits

_LINE = re.compile(r"^<!-- pytest-r1perf-memory: (\{.*\}) -->\s*$", re.MULTILINE)
_TIMED = re.compile(r"\d{8}\.\d{6}\..*")
"""A session's name begins with its time (:mod:`pytest_r1perf.records`)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Sessions by name. ``nights`` are those since ``first``; ``told`` is the one that had news, as ``news`` tells it.

    ``lower`` and ``upper`` are the ratio's limits then.
    """

    first: str
    last: str
    nights: int
    told: str
    news: str
    lower: float | None = None
    upper: float | None = None

    def line(self) -> str:
        """As it stands in the body."""
        return f"<!-- pytest-r1perf-memory: {json.dumps(asdict(self), separators=(',', ':'))} -->"

    def has(self, session: str) -> bool:
        """Whether this session, or a later one, was told already: a night may be told again, or too late."""
        name = safe(session)
        return name == self.last or bool(_TIMED.fullmatch(name) and _TIMED.fullmatch(self.last) and name < self.last)


def begun(cell: Cell, session: str) -> Memory:
    """Of the first night."""
    name = safe(session)
    return Memory(name, name, 1, name, fingerprint(cell), *_finite(limits(cell)))


def gone_on(memory: Memory, cell: Cell, session: str) -> tuple[Memory, bool]:
    """One more night, and whether it has news: it says something else, or the size is surely another."""
    now = replace(begun(cell, session), first=memory.first, nights=memory.nights + 1)
    if now.news != memory.news or _apart(now, memory):
        return now, True
    same = replace(memory, last=now.last, nights=now.nights)
    return same, False


def closing(body: str, session: str) -> str:
    """The body of an issue that is closed: it remembers the session that closed it, so that no older one opens it."""
    memory = remembered(body)
    return body if memory is None else _LINE.sub(lambda _: replace(memory, last=safe(session)).line(), body, count=1)


def remembered(body: object) -> Memory | None:
    """Out of an issue's body; ``None`` where a person took it away or wrote something else there."""
    found = _LINE.search(body) if isinstance(body, str) else None
    try:
        data: Any = json.loads(found[1]) if found else None
        memory = Memory(**data)
    except (ValueError, TypeError, RecursionError):
        return None
    texts = (memory.first, memory.last, memory.told, memory.news)
    limits_ = (memory.lower, memory.upper)
    if not all(isinstance(text, str) and text == safe(text) for text in texts) or not isinstance(memory.nights, int):
        return None
    return memory if all(one is None or isinstance(one, float) for one in limits_) else None


def safe(session: str) -> str:
    """A session's name in a comment of HTML, and never its end; other letters are ``_``."""
    return re.sub(r"--+", "-", re.sub(r"[^A-Za-z0-9._-]", "_", session))[:80]


def _apart(now: Memory, then: Memory) -> bool:
    if now.lower is None or now.upper is None or then.lower is None or then.upper is None:
        return False
    return now.upper < then.lower or now.lower > then.upper


def _finite(found: Mapping[str, float]) -> tuple[float | None, float | None]:
    if not found or not all(math.isfinite(value) for value in found.values()):
        return None, None
    return float(found["lower"]), float(found["upper"])
