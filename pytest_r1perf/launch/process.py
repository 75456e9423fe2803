"""Run the ranks of a benchmark under supervision, and leave nothing of them behind.

    mark = new_mark(session)
    exit = run(argv, env={**os.environ, **marked_environment(mark)}, cwd=cwd, log_path=log, timeout_s=3600,
               mark=mark, state_dir=state)

:func:`run` is for one command on this host, :func:`supervise` for a local process (``Client``) a rank.
However they are left (rank 0 ended, a timeout, Ctrl-C, an error in a callback), every process of the run has
been ended before, and what is no process of ours has been closed. When pytest itself is killed, the guard
does it (``guard.py``); when the guard is killed as well, the next session does (``reap.reap_orphans``).
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pytest_r1perf.launch import guarded, reap
from pytest_r1perf.launch.client import Client, Running, start
from pytest_r1perf.launch.crew import hang_up, settle, ticks
from pytest_r1perf.launch.guarded import LaunchError
from pytest_r1perf.launch.logfile import LogFile
from pytest_r1perf.launch.mark import VARIABLE, RunMark, owner_alive, this_place
from pytest_r1perf.launch.reap import Victim
from pytest_r1perf.launch.record import Launch
from pytest_r1perf.launch.shield import Shield

__all__ = ["Client", "EndedBy", "Exit", "LaunchError", "Poll", "RankExit", "run", "supervise"]

EndedBy = Literal["exit", "timeout", "lingering", "rank"]

RANK_GRACE_S = 10.0
"""How long rank 0 may run on when another rank has ended: SGLang's ranks end together, though not at once."""

LIFELINE_S = 20.0
"""How long a client may take, beyond the grace, to end and to report once its lifeline is closed: its agent
ends all on its node, runs closers, and sends files."""


class Poll(enum.Enum):
    """What the caller's ``poll`` wants: ``END`` when the result is complete but the command does not exit."""

    GO_ON = "go on"
    END = "end"


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank's client ended; ``early``: before rank 0 did, and before we ended the run.

    Of a rank from 1 on, the ``returncode`` means nothing when it was not early: we ended it. ``after_s``: seconds
    from the start to when the end of an early one was seen, monotonic clock.
    """

    rank: int
    returncode: int | None
    early: bool
    after_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a run ended.

    ``returncode``: of rank 0's first process, negative for a signal (also ours), ``None`` when somebody else
    waited for it. ``ended_by``: ``rank`` when another rank had ended and rank 0 did not within the grace.
    ``wall_s``: from start to the end of rank 0's first process, or to our decision to end it; monotonic
    clock. ``survivors``: every other process that still ran then and had to be ended, first processes of
    ranks excepted. ``left``: what could not be ended. ``log_full``: there was no room to write on a log's file
    system at the end, so the log may be cut short. ``unclosed``: containers or jobs that could not be
    ended, a sentence each; the next session tries again.
    """

    returncode: int | None
    ended_by: EndedBy
    wall_s: float
    survivors: tuple[Victim, ...] = ()
    left: tuple[Victim, ...] = ()
    log_full: bool = False
    ranks: tuple[RankExit, ...] = ()
    unclosed: tuple[str, ...] = ()

    @property
    def first_early(self) -> RankExit | None:
        """The rank that ended first, before rank 0; of several that were seen ended at once, one that failed."""
        early = [one for one in self.ranks if one.early]
        return min(early, key=lambda one: (one.after_s or 0.0, one.returncode == 0, one.rank), default=None)


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log_path: Path,
    timeout_s: float,
    mark: RunMark,
    state_dir: Path,
    on_output: Callable[[bytes], None] | None = None,
    poll: Callable[[], Poll] | None = None,
    poll_interval_s: float = 0.2,
    grace_s: float = reap.GRACE_S,
) -> Exit:
    """Run ``argv`` (no shell) with exactly ``env``, its output appended to ``log_path``, until it ends.

    The rest is as for :func:`supervise`.
    """
    if isinstance(argv, str):
        raise TypeError(f"argv is a list of the program and its arguments, not {argv!r}")
    return supervise(
        [Client(0, tuple(argv), env, cwd, log_path)],
        timeout_s=timeout_s,
        mark=mark,
        state_dir=state_dir,
        on_output=on_output,
        poll=poll,
        poll_interval_s=poll_interval_s,
        grace_s=grace_s,
    )


def supervise(
    clients: Sequence[Client],
    *,
    timeout_s: float,
    mark: RunMark,
    state_dir: Path,
    on_output: Callable[[bytes], None] | None = None,
    poll: Callable[[], Poll] | None = None,
    poll_interval_s: float = 0.2,
    grace_s: float = reap.GRACE_S,
    rank_grace_s: float = RANK_GRACE_S,
    lifeline_s: float = LIFELINE_S,
) -> Exit:
    """Run all ``clients`` until the first of them, rank 0, ends.

    Every ``poll_interval_s`` the new bytes of rank 0's log go to ``on_output`` and ``poll`` is asked. After
    ``timeout_s``, or when ``poll`` says so, or ``rank_grace_s`` after another rank ended, the run is ended:
    lifelines are closed and their clients waited for, ``grace_s`` and ``lifeline_s`` together at most, then
    SIGTERM, ``grace_s`` seconds, SIGKILL, closers. ``mark`` must be owned by this
    process and be in each ``env`` (``marked_environment``), and is used for one run only.

    Raises ``LaunchError`` when a client cannot be started, and whatever the callbacks or signal handlers
    raise.
    """
    _check(clients, mark)
    with Shield() as shield, contextlib.ExitStack() as files:
        logs = [files.enter_context(LogFile(client.log_path)) for client in clients]
        errors = [
            log if client.errors_path is None else files.enter_context(LogFile(client.errors_path))
            for client, log in zip(clients, logs, strict=True)
        ]
        launch = Launch(mark, clients[0].argv[0], closers=tuple(one for client in clients for one in client.closers))
        watcher = guarded.begin(state_dir, launch)
        crew: list[Running] = []
        ended_by: EndedBy = "exit"
        early: dict[int, float] = {}
        codes: dict[int, int | None] = {}
        started = stopped = time.monotonic()
        try:
            for client, log, error in zip(clients, logs, errors, strict=True):
                crew.append(start(client, log.descriptor, error.descriptor))
                launch = replace(launch, firsts=tuple(one.first for one in crew))
                guarded.note(state_dir, launch)
            head, others = crew[0], crew[1:]
            shield.release()
            end_at: float | None = None
            for _ in ticks(crew, poll_interval_s, started + timeout_s):
                shield.serve()
                logs[0].tail(on_output)
                now = time.monotonic() - started
                early.update({one.client.rank: now for one in others if one.client.rank not in early and one.ended()})
                if poll is not None and poll() is Poll.END:
                    ended_by = "lingering"
                    break
                if early and end_at is None:
                    end_at = time.monotonic() + rank_grace_s
                if end_at is not None and time.monotonic() >= end_at:
                    ended_by = "rank"
                    break
            else:
                ended_by = "timeout"
            # What ended in the last moment ended by itself.
            if head.ended():
                ended_by = "exit"
            shield.serve()
            stopped = time.monotonic()
            shield.hold()
            if ended_by == "exit":
                settle(mark, launch)
        finally:
            shield.hold()
            # The first processes are not waited for until all is over: their zombies keep their pids, and so the
            # sessions' numbers, from being used again.
            try:
                hang_up(crew, grace_s + lifeline_s)
                if not crew:  # nothing was started: nothing to close
                    launch = replace(launch, closers=())
                ending, unclosed = reap.end_all(launch, state_dir, grace_s=grace_s)
            except BaseException:
                watcher.abandon()
                raise
            codes = {one.client.rank: one.collect() for one in crew}
            watcher.dismiss()
        shield.release()
        logs[0].tail(on_output, everything=True)
        firsts = {one.pid for one in crew}
        return Exit(
            codes[clients[0].rank],
            ended_by,
            stopped - started,
            tuple(victim for victim in ending.ended if victim.pid not in firsts),
            ending.left,
            any(log.no_room() is not None for log in logs),
            tuple(RankExit(rank, code, rank in early, early.get(rank)) for rank, code in codes.items()),
            tuple(one.sentence for one in unclosed),
        )


def _check(clients: Sequence[Client], mark: RunMark) -> None:
    """Refuse what would make processes that cannot be found again: mistakes of the calling code."""
    if mark.place != this_place() or not owner_alive(mark):
        raise ValueError(f"the owner of {mark} is not a live process of this host: use new_mark(session)")
    if not clients or len({client.rank for client in clients}) != len(clients):
        raise ValueError(f"one client a rank, rank 0 first, not {[client.rank for client in clients]}")
    for client in clients:
        if isinstance(client.argv, str) or not client.argv:
            raise TypeError(f"argv is a list of the program and its arguments, not {client.argv!r}")
        if client.env.get(VARIABLE) != str(mark):
            raise ValueError(f"the environment lacks {VARIABLE}={mark}: add marked_environment(mark)")
