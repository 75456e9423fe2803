"""What ``/proc`` says of a process: enough to name it for good, and to tell whether it still runs.

Standard library only: the guard loads this file without site-packages (see ``guard.py``).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Stat:
    """One line of ``/proc/PID/stat`` (proc_pid_stat(5)).

    ``start`` is in clock ticks since boot: with ``pid`` it names one process, also after the pid is used
    again. ``gone`` is true of a zombie: it holds no memory, no GPU and no port, and no signal changes it.
    """

    pid: int
    ppid: int
    session: int
    start: int
    gone: bool


def read_stat(pid: int) -> Stat | None:
    """The process ``pid``, or ``None`` when there is none (or it is hidden from us)."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name stands in parentheses and may itself hold spaces and parentheses: split after the last one.
    fields = text.rpartition(b")")[2].split()
    # A process whose first thread has ended shows Z while its other threads (field 20) still run.
    dead = fields[0] in (b"Z", b"X", b"x") and int(fields[17]) <= 1
    return Stat(pid, int(fields[1]), int(fields[3]), int(fields[19]), dead)


def is_running(pid: int, start: int) -> bool:
    """Whether this very process (not a later one with its pid) runs; a zombie does not."""
    stat = read_stat(pid)
    return stat is not None and stat.start == start and not stat.gone


def own_processes() -> Iterator[Stat]:
    """Every process of this user (effective uid), zombies included; one that ends meanwhile is left out."""
    uid = os.geteuid()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != uid:
                continue
        except OSError:
            continue
        stat = read_stat(int(entry.name))
        if stat is not None:
            yield stat


def open_handle(pid: int) -> int | None:
    """A pidfd, bound to one process for good and readable once it ended; raises ``ProcessLookupError``.

    ``None`` where there are none: Linux before 5.3, a container's seccomp filter, a Python built on old
    headers.
    """
    if not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def environ_value(pid: int, name: str) -> str | None:
    """The variable as it stood when ``pid`` was executed; ``None`` when unset or not readable by us."""
    try:
        block = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    key = name.encode() + b"="
    for item in block.split(b"\0"):
        if item.startswith(key):
            return item[len(key) :].decode("utf-8", "replace")
    return None


def command_line(pid: int) -> tuple[str, ...]:
    """The arguments of ``pid``, empty when it has none or is gone."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode("utf-8", "replace") for part in raw.rstrip(b"\0").split(b"\0") if part)


def ancestors(pid: int) -> list[int]:
    """``pid``, its parent, and so on up to pid 1 or the edge of the PID namespace."""
    line: list[int] = []
    while pid > 0 and pid not in line:
        line.append(pid)
        stat = read_stat(pid)
        pid = stat.ppid if stat is not None else 0
    return line


def boot_id() -> str:
    """The kernel's identity since it booted; the same in every container of the host. Empty when unknown."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Where our pids mean something, as ``pid:[4026531836]``; empty when unknown."""
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""
