"""The run mark: one environment variable that every descendant of a launch inherits.

A process that leaves its session and its parent keeps its environment, so the mark finds what a walk over
children or a process group misses (SGLang's schedulers re-parent to PID 1: sgl-project/sglang PR #31645).
The mark names its owner, so a later session can tell a live run from a dead one's leftovers.

Standard library only: the guard loads this file without site-packages (see ``guard.py``).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
from dataclasses import dataclass, field

from pytest_r1perf.launch import proc

VARIABLE = "R1PERF_RUN_ID"

_FORM = re.compile(r"([A-Za-z0-9_.]{1,64})-([0-9a-f]{12})-([0-9]+)-([0-9]+)-([0-9]+)")
_serials = itertools.count(1)


@functools.cache
def this_place() -> str:
    """12 hexadecimal digits for (this boot, this PID namespace): where ``owner_pid`` means something."""
    return hashlib.sha256(f"{proc.boot_id()} {proc.pid_namespace()}".encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class RunMark:
    """Which session, owned by which process, launched this; ``serial`` counts the owner's launches.

    ``owner_start`` is in clock ticks since boot (``/proc/PID/stat``), so a pid that is used again is not
    taken for the owner. ``place`` tells hosts and containers apart, whose pids say nothing here.
    """

    session: str
    owner_pid: int
    owner_start: int
    serial: int
    place: str = field(default_factory=this_place)

    def __post_init__(self) -> None:
        if not _FORM.fullmatch(str(self)):
            raise ValueError(f"run mark {str(self)!r} is malformed: the session takes 1 to 64 of A-Z a-z 0-9 _ and .")

    def __str__(self) -> str:
        return f"{self.session}-{self.place}-{self.owner_pid}-{self.owner_start}-{self.serial}"


def new_mark(session: str) -> RunMark:
    """A mark owned by this process, with a serial that no other launch of this process has."""
    pid = os.getpid()
    stat = proc.read_stat(pid)
    return RunMark(session, pid, stat.start if stat is not None else 0, next(_serials))


def parse(text: str) -> RunMark | None:
    """The mark that ``str()`` wrote, or ``None``: a foreign value of the variable marks nothing."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    session, place, pid, start, serial = match.groups()
    return RunMark(session, int(pid), int(start), int(serial), place)


def owner_alive(mark: RunMark) -> bool:
    """Whether the owner may still run.

    A mark from another host or PID namespace counts as owned: from here nobody can see its owner die.
    """
    return mark.place != this_place() or proc.is_running(mark.owner_pid, mark.owner_start)


def mark_of(pid: int) -> RunMark | None:
    """The mark in the environment that ``pid`` was executed with."""
    text = proc.environ_value(pid, VARIABLE)
    return parse(text) if text is not None else None


def marked_environment(mark: RunMark) -> dict[str, str]:
    """The variables to add to a launched process's environment.

    ``SPT_NOENV``: SGLang renames its processes with setproctitle, which overwrites ``/proc/PID/environ``
    (and the mark in it) unless this is set.
    """
    return {VARIABLE: str(mark), "SPT_NOENV": "1"}
