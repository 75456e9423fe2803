"""Find the processes of a run, wherever they went, and end them; touch nothing else.

A process belongs to a run when

1. its environment carries the run's mark,
2. it is a recorded first process (pid and start time), or shares the session which that one founded,
3. it descends from one of these, or is marked by a run that one of these owns (a run inside a run).

2 and 3 cover an environment that was wiped or replaced. Only processes of our own user are looked at. Never
signalled: ourselves, our ancestors, and anything whose mark has a living owner other than the run being
ended.

Standard library only: the guard loads this file without site-packages (see ``guard.py``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.launch import closing, proc, record
from pytest_r1perf.launch.mark import RunMark, mark_of, owner_alive, this_place
from pytest_r1perf.launch.record import First, Launch

GRACE_S = 3.0
"""Between SIGTERM and SIGKILL: SGLang's own kill_process_tree sends no TERM at all, so few need more."""

GIVE_UP_S = 30.0
"""After SIGKILL: one in an uninterruptible driver call can stay; it is reported, and not waited for."""

_PAUSE_S = 0.05
# A process that forks and exits while /proc is being read can be missed by one look, not by several.
_EMPTY_LOOKS = 3

_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Victim:
    """One live process of a run. ``start`` in clock ticks since boot; ``mark`` is the run it belongs to."""

    pid: int
    start: int
    mark: RunMark
    cmdline: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """``ended``: what was signalled and is gone. ``left``: what outlived SIGKILL, or may not be touched."""

    ended: tuple[Victim, ...]
    left: tuple[Victim, ...]


def find_marked(
    wanted: Callable[[RunMark], bool], *, launches: Iterable[Launch] = (), known: Iterable[Victim] = ()
) -> list[Victim]:
    """The live processes of every run whose mark is ``wanted``, by the three rules above.

    ``launches`` are records, ``known`` what an earlier look found: both count only while pid and start time
    fit.
    """
    table = {stat.pid: stat for stat in proc.own_processes()}
    live = {pid: stat for pid, stat in table.items() if not stat.gone}
    marks = {pid: mark_of(pid) for pid in live}
    spared = set(proc.ancestors(os.getpid()))
    recorded = [(first, launch.mark) for launch in launches if wanted(launch.mark) for first in launch.firsts]
    earlier: dict[_Key, RunMark] = {(victim.pid, victim.start): victim.mark for victim in known}
    named = earlier | {(first.pid, first.start): mark for first, mark in recorded}

    ours: dict[int, RunMark] = {}
    for pid, stat in live.items():
        mark = marks[pid]
        if mark is not None and wanted(mark):
            ours[pid] = mark
        elif (stat.pid, stat.start) in named:
            ours[pid] = named[stat.pid, stat.start]
    for pid in spared:
        ours.pop(pid, None)

    owners: dict[_Key, RunMark] = dict(earlier)
    while True:
        owners.update(((pid, live[pid].start), mark) for pid, mark in ours.items())
        sessions = _founded_sessions(recorded, table, ours)
        more: dict[int, RunMark] = {}
        for pid, stat in live.items():
            if pid in ours or pid in spared:
                continue
            mark = marks[pid]
            if mark is not None and mark.place == this_place() and (mark.owner_pid, mark.owner_start) in owners:
                more[pid] = owners[mark.owner_pid, mark.owner_start]
            elif mark is not None and owner_alive(mark):
                continue
            elif stat.ppid in ours and stat.start >= live[stat.ppid].start:
                more[pid] = ours[stat.ppid]
            elif stat.session in sessions:
                more[pid] = sessions[stat.session]
        if not more:
            return [Victim(pid, live[pid].start, ours[pid], proc.command_line(pid)) for pid in sorted(ours)]
        ours |= more


def _founded_sessions(
    recorded: Iterable[tuple[First, RunMark]], table: dict[int, proc.Stat], ours: dict[int, RunMark]
) -> dict[int, RunMark]:
    """The recorded sessions that are certainly still the recorded ones.

    A session's number is its first process's pid, and may be used again once all its members are gone. It is
    ours for sure while that process is there (running, or a zombie that nobody has waited for), or any of
    ours is in it.
    """
    found: dict[int, RunMark] = {}
    for first, mark in recorded:
        leader = table.get(first.pid)
        if (leader is not None and leader.start == first.start and leader.session == first.sid) or any(
            table[pid].session == first.sid for pid in ours
        ):
            found[first.sid] = mark
    return found


def send(victim: Victim, number: signal.Signals) -> None:
    """Signal this very process; nothing happens when it is gone and its pid belongs to another."""
    try:
        handle = proc.open_handle(victim.pid)
    except ProcessLookupError:
        return
    try:
        # The handle is bound to one process first, then the start time says whether it is the right one.
        # Without a handle the check and the signal are two steps, microseconds apart.
        if proc.is_running(victim.pid, victim.start):
            with contextlib.suppress(OSError):
                if handle is None:
                    os.kill(victim.pid, number)
                else:
                    signal.pidfd_send_signal(handle, number)
    finally:
        if handle is not None:
            os.close(handle)


def end(victims: Sequence[Victim], grace_s: float = GRACE_S, *, own: RunMark | None = None) -> Ending:
    """End these and all other processes of the same runs: SIGTERM, ``grace_s`` seconds, SIGKILL.

    Returns when several looks in a row found none (a zombie counts as gone), or ``GIVE_UP_S`` after SIGKILL.
    Processes of a run whose owner lives are left alone, unless that run is ``own``.
    """
    chosen = {victim.mark for victim in victims}
    return _end(lambda mark: mark in chosen, victims, grace_s, own, ())


def end_run(mark: RunMark, *, launches: Iterable[Launch] = (), grace_s: float = GRACE_S) -> Ending:
    """End every process of one run, our own (its owner, or the owner's guard, asks)."""
    return _end(lambda found: found == mark, (), grace_s, mark, launches)


def _end(
    wanted: Callable[[RunMark], bool],
    first: Sequence[Victim],
    grace_s: float,
    own: RunMark | None,
    launches: Iterable[Launch],
) -> Ending:
    recorded = tuple(launches)
    seen: dict[_Key, Victim] = {}
    termed: set[_Key] = set()
    verdicts: dict[RunMark, bool] = {}

    def allowed(mark: RunMark) -> bool:
        # Once an owner is known to be dead it stays dead; once it lives it is not asked again either.
        if mark not in verdicts:
            verdicts[mark] = mark == own or not owner_alive(mark)
        return verdicts[mark]

    refused = tuple(victim for victim in first if not allowed(victim.mark))
    spared = set(proc.ancestors(os.getpid()))
    seen.update(
        ((victim.pid, victim.start), victim)
        for victim in first
        if allowed(victim.mark) and victim.pid not in spared and proc.is_running(victim.pid, victim.start)
    )

    def look() -> list[Victim]:
        found = find_marked(lambda mark: wanted(mark) and allowed(mark), launches=recorded, known=tuple(seen.values()))
        seen.update(((victim.pid, victim.start), victim) for victim in found)
        return found

    kill_at = time.monotonic() + grace_s
    give_up_at = kill_at + GIVE_UP_S
    empty = 0
    left: list[Victim] = []
    while empty < _EMPTY_LOOKS:
        left = look()
        now = time.monotonic()
        if left and now >= give_up_at:
            break
        empty = 0 if left else empty + 1
        for victim in left:
            key = (victim.pid, victim.start)
            if now >= kill_at:
                send(victim, signal.SIGKILL)
            elif key not in termed:
                termed.add(key)
                send(victim, signal.SIGTERM)
        if empty < _EMPTY_LOOKS:
            time.sleep(_PAUSE_S)
    kept = {(victim.pid, victim.start) for victim in left}
    return Ending(tuple(victim for key, victim in seen.items() if key not in kept), (*left, *refused))


def end_all(
    launch: Launch, state_dir: Path, *, grace_s: float = GRACE_S
) -> tuple[Ending, tuple[closing.Unclosed, ...]]:
    """End a run of our own as its record has it: processes, then what they leave; then forget it.

    What a closer ended is not ``left``: a container's processes may belong to another user, or hang in a
    pipe to their client.
    """
    ending = end_run(launch.mark, launches=(launch,), grace_s=grace_s)
    unclosed = closing.close(launch)
    left = tuple(victim for victim in ending.left if proc.is_running(victim.pid, victim.start))
    ended = (*ending.ended, *(victim for victim in ending.left if victim not in left))
    closing.settle(state_dir, launch, unclosed, keep=bool(left))
    return Ending(ended, left), unclosed


def reap_orphans(state_dir: Path, grace_s: float = GRACE_S, tell: Callable[[str], None] | None = None) -> list[Victim]:
    """End what dead sessions of this user left running on this host; returns what was ended.

    For the start of a session. The marks that we or our ancestors carry are left alone: those processes are
    our neighbours in the terminal or batch job that we run in. ``tell`` hears, in one sentence each, of what
    a dead session left to close (a container, a batch job), and of what could not be closed: its record stays
    for the next session.
    """
    inherited = {mark_of(pid) for pid in proc.ancestors(os.getpid())}
    launches = [launch for launch in record.orphaned(state_dir) if launch.mark not in inherited]

    def is_orphan(mark: RunMark) -> bool:
        return mark not in inherited and not owner_alive(mark)

    ending = _end(is_orphan, find_marked(is_orphan, launches=launches), grace_s, None, launches)
    kept = {victim.mark for victim in ending.left}
    for launch in launches:
        unclosed = closing.close(launch)
        if tell is not None:
            for sentence in closing.account(launch, unclosed):
                tell(sentence)
        closing.settle(state_dir, launch, unclosed, keep=launch.mark in kept)
    return list(ending.ended)
