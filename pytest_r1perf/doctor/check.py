"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """FAIL: a run would not work or its numbers would be wrong. WARN: it works, and is worth a look."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. ``text`` says what was seen, ``mend`` (of WARN and FAIL) what to do."""

    name: str
    status: Status
    text: str
    mend: str = ""


def ok(name: str, text: str) -> Check:
    """All is well, and what was seen."""
    return Check(name, Status.OK, text)


def warn(name: str, text: str, mend: str) -> Check:
    """Worth a look."""
    return Check(name, Status.WARN, text, mend)


def fail(name: str, text: str, mend: str) -> Check:
    """A run would not work, or its numbers would be wrong."""
    return Check(name, Status.FAIL, text, mend)


def skip(name: str, text: str) -> Check:
    """Not looked at, and why."""
    return Check(name, Status.SKIP, text)


def told(name: str, error: Exception, otherwise: str) -> tuple[str, str, str]:
    """(name, text, mend) of an error of ours, which ends in what to do after a colon; else ``otherwise`` is."""
    text, colon, mend = str(error).rpartition(": ")
    return (name, text, mend) if colon and len(mend) > 20 else (name, str(error), otherwise)


def gib(size: float) -> str:
    """Bytes for people."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
