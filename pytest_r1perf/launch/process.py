"""Run one command under supervision, and leave nothing of it behind.

    mark = new_mark(session)
    exit = run(argv, env={**os.environ, **marked_environment(mark)}, cwd=cwd, log_path=log, timeout_s=3600,
               mark=mark, state_dir=state)

However ``run`` is left (the command ended, a timeout, Ctrl-C, an error in a callback), every process of the
run has been ended before. When pytest itself is killed, the guard does it (``guard.py``); when the guard is
killed as well, the next session does (``reap.reap_orphans``).
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launch import guard, proc, reap, record
from pytest_r1perf.launch.mark import VARIABLE, RunMark, owner_alive, this_place
from pytest_r1perf.launch.reap import Victim
from pytest_r1perf.launch.record import Launch
from pytest_r1perf.launch.shield import Shield

EndedBy = Literal["exit", "timeout", "lingering"]

# SGLang's launcher returns before its children are gone (PR #36589 made it wait): who ends within this is no
# survivor.
_SETTLE_S = 1.0
_CHUNK = 1 << 16
# A command that writes faster than we read must not keep us from looking at the clock.
_READ_AT_ONCE = 16 << 20
# A file system with less room than this at the start is called full.
_ROOM = 1 << 16


class LaunchError(R1PerfError):
    """The command could not be started at all."""


class Poll(enum.Enum):
    """What the caller's ``poll`` wants: ``END`` when the result is complete but the command does not exit."""

    GO_ON = "go on"
    END = "end"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a run ended.

    ``returncode``: of the first process, negative for a signal (also ours), ``None`` when somebody else
    waited for it. ``wall_s``: from start to the end of the first process, or to our decision to end it;
    monotonic clock. ``survivors``: every other process that still ran then and had to be ended. ``left``:
    what could not be ended. ``log_full``: there was no room to write on the log's file system at the end, so
    the log may be cut short.
    """

    returncode: int | None
    ended_by: EndedBy
    wall_s: float
    survivors: tuple[Victim, ...] = ()
    left: tuple[Victim, ...] = ()
    log_full: bool = False


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

    Every ``poll_interval_s`` the log's new bytes go to ``on_output`` and ``poll`` is asked. After
    ``timeout_s``, or when ``poll`` says so, the run is ended: SIGTERM, ``grace_s`` seconds, SIGKILL.
    ``mark`` must be owned by this process and be in ``env`` (``marked_environment``), and is used for one
    run only.

    Raises ``LaunchError`` when the command cannot be started, and whatever the callbacks or signal handlers
    raise.
    """
    _check(argv, env, mark)
    with Shield() as shield, _Log(log_path) as log:
        launch = Launch(mark, argv[0])
        # Record and guard come first: from its first instruction on, the command has mark, record and guard.
        _write_record(state_dir, launch)
        try:
            watcher = guard.start(mark, state_dir)
        except guard.GuardError as error:
            record.remove(state_dir, mark)
            raise LaunchError(
                f"the watcher for {argv[0]!r} did not start ({error}); is {guard.__file__} readable?"
            ) from None
        child: subprocess.Popen[bytes] | None = None
        ended_by: EndedBy = "exit"
        returncode: int | None = None
        started = stopped = time.monotonic()
        try:
            child = _start(argv, env, cwd, log.descriptor)
            stat = proc.read_stat(child.pid)
            launch = replace(launch, pid=child.pid, start=stat.start if stat is not None else 0, sid=child.pid)
            _write_record(state_dir, launch)
            shield.release()
            for _ in _ticks(child.pid, poll_interval_s, started + timeout_s):
                shield.serve()
                log.tail(on_output)
                if poll is not None and poll() is Poll.END:
                    ended_by = "lingering"
                    break
            else:
                ended_by = "timeout"
            # What ended in the last moment ended by itself.
            if _exit_code(child.pid) is not _RUNNING:
                ended_by = "exit"
            shield.serve()
            stopped = time.monotonic()
            shield.hold()
            if ended_by == "exit":
                _settle(mark, launch)
        finally:
            shield.hold()
            # The first process is not waited for until all is over: its zombie keeps its pid, and so the
            # session's number, from being used again.
            try:
                ending = reap.end_run(mark, launches=(launch,), grace_s=grace_s)
            except BaseException:
                watcher.abandon()
                raise
            if child is not None:
                code = _exit_code(child.pid)
                returncode = code if isinstance(code, int) else None
                if code is not _RUNNING:
                    child.wait()
            if not ending.left:
                record.remove(state_dir, mark)
            watcher.dismiss()
        shield.release()
        log.tail(on_output, everything=True)
        survivors = tuple(victim for victim in ending.ended if victim.pid != launch.pid)
        return Exit(returncode, ended_by, stopped - started, survivors, ending.left, log.no_room() is not None)


def _check(argv: Sequence[str], env: Mapping[str, str], mark: RunMark) -> None:
    """Refuse what would make processes that cannot be found again: mistakes of the calling code."""
    if mark.place != this_place() or not owner_alive(mark):
        raise ValueError(f"the owner of {mark} is not a live process of this host: use new_mark(session)")
    if isinstance(argv, str) or not argv:
        raise TypeError(f"argv is a list of the program and its arguments, not {argv!r}")
    if env.get(VARIABLE) != str(mark):
        raise ValueError(f"the environment lacks {VARIABLE}={mark}: add marked_environment(mark)")


def _write_record(state_dir: Path, launch: Launch) -> None:
    try:
        record.write(state_dir, launch)
    except OSError as error:
        raise LaunchError(
            f"cannot record the launch of {launch.program!r} under {state_dir} ({error.strerror}); "
            "make the directory writable or free some space"
        ) from error


def _start(argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: int) -> subprocess.Popen[bytes]:
    if not cwd.is_dir():
        raise LaunchError(f"cannot start {argv[0]!r}: its working directory {cwd} is not a directory")
    try:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise LaunchError(
            f"cannot start {argv[0]!r}: no such program, or its interpreter is missing; check the path"
        ) from None
    except PermissionError:
        raise LaunchError(
            f"cannot start {argv[0]!r}: not permitted; is it a file with the execute bit (chmod +x), "
            f"and may this user enter {cwd}?"
        ) from None
    except OSError as error:
        size = sum(len(item) + 1 for item in argv) + sum(len(k) + len(v) + 2 for k, v in env.items())
        raise LaunchError(
            f"cannot start {argv[0]!r}: {error.strerror} ({len(argv)} arguments, {size} characters with the "
            "environment)"
        ) from error
    except ValueError as error:
        raise LaunchError(f"cannot start {argv[0]!r}: {error} in an argument or environment variable") from None


class _Running(enum.Enum):
    RUNNING = 0


_RUNNING = _Running.RUNNING


def _exit_code(pid: int) -> int | _Running | None:
    """The exit status of our child, whose zombie stays; ``None`` when somebody else waited for it.

    Not Popen's: that one says 0 for a child which somebody else waited for.
    """
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if info is None:
        return _RUNNING
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _ticks(pid: int, interval_s: float, deadline: float) -> Iterator[None]:
    """Yield every ``interval_s`` until the child ``pid`` has ended or ``deadline`` (monotonic) is past."""
    try:
        handle = proc.open_handle(pid)
    except ProcessLookupError:
        return
    poller = select.poll()
    if handle is not None:
        poller.register(handle, select.POLLIN)
    try:
        while _exit_code(pid) is _RUNNING:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            poller.poll(1000 * min(interval_s, remaining))
            yield
    finally:
        if handle is not None:
            os.close(handle)


def _settle(mark: RunMark, launch: Launch) -> None:
    """Give helpers that end by themselves (multiprocessing's resource tracker) the time to."""
    until = time.monotonic() + _SETTLE_S
    while time.monotonic() < until and reap.find_marked(lambda found: found == mark, launches=(launch,)):
        time.sleep(0.05)


class _Log:
    """The log file: the command writes to it itself, we read behind it. No pipe, so nothing blocks it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> _Log:
        try:
            self.descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._stack.callback(os.close, self.descriptor)
            self._reader = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._stack.callback(os.close, self._reader)
        except OSError as error:
            self._stack.close()
            raise LaunchError(
                f"cannot write the log {self._path} ({error.strerror}); is its directory there and writable?"
            ) from error
        self._offset = os.fstat(self._reader).st_size
        problem = self.no_room()
        if problem is not None:
            self._stack.close()
            raise LaunchError(f"cannot write the log {self._path}: {problem}; free some space")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def no_room(self) -> str | None:
        """Why 64 KiB cannot be written now (full, over quota), or ``None``; they are taken back at once."""
        size = os.fstat(self.descriptor).st_size
        try:
            written = os.write(self.descriptor, b"\n" * _ROOM)
        except OSError as error:
            return os.strerror(error.errno or 0)
        finally:
            os.ftruncate(self.descriptor, size)
        return None if written == _ROOM else "its file system is full"

    def tail(self, on_output: Callable[[bytes], None] | None, *, everything: bool = False) -> None:
        """Hand over what was appended since the last call."""
        if on_output is None:
            return
        limit = self._offset + _READ_AT_ONCE
        while everything or self._offset < limit:
            new = os.pread(self._reader, _CHUNK, self._offset)
            if not new:
                return
            self._offset += len(new)
            on_output(new)
