"""Ending what no signal reaches: containers, batch jobs (``launcher.Closer``), and folders made for a run.

Run after the processes of the run were ended, since most clients pass SIGTERM on and a container or job then
ends cleanly; what the client's own death leaves (a container whose ``podman run`` was killed, a job whose
``salloc`` was) is what is left for these.

Standard library only: the guard loads this file without site-packages (see ``guard.py``).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from pytest_r1perf.launch import record
from pytest_r1perf.launch.launcher import Closer
from pytest_r1perf.launch.record import Folder, Launch

TIMEOUT_S = 60.0
"""For one try of one command. ``podman rm -f`` waits 10 s for the container before it kills it."""

_TRIES = 2
_PAUSE_S = 0.05
_BETWEEN_TRIES_S = 1.0
_OUTPUT = 1 << 16


@dataclass(frozen=True, slots=True)
class Unclosed:
    """What could not be closed, and a sentence that says why."""

    what: Closer | Folder
    sentence: str


def close(launch: Launch, *, timeout_s: float = TIMEOUT_S) -> tuple[Unclosed, ...]:
    """Run all closers of a run at once, those that fail twice, then remove its folders; what is left of both."""
    failed = _run_all(launch.closers, timeout_s)
    if failed:
        time.sleep(_BETWEEN_TRIES_S)
        failed = _run_all([one.what for one in failed if isinstance(one.what, Closer)], timeout_s)
    return (*failed, *_remove_all(launch.folders))


def account(launch: Launch, unclosed: Iterable[Unclosed]) -> list[str]:
    """One sentence for each closer of a dead session: done, or not."""
    failed = {id(one.what): one.sentence for one in unclosed}
    done = [
        f"closed what a dead session left: {shlex.join(one.argv)}" for one in launch.closers if id(one) not in failed
    ]
    return [*done, *failed.values()]


def settle(state_dir: Path, launch: Launch, unclosed: Sequence[Unclosed], *, keep: bool) -> None:
    """Forget the run, or, when something of it is left (``keep``: a process), note what the next session must do."""
    if not unclosed and not keep:
        record.remove(state_dir, launch.mark)
        return
    closers = tuple(one.what for one in unclosed if isinstance(one.what, Closer))
    folders = tuple(one.what for one in unclosed if isinstance(one.what, Folder))
    # When it cannot be written the old record stays, and everything is closed once more: that is harmless.
    with contextlib.suppress(OSError):
        record.write(state_dir, replace(launch, closers=closers, folders=folders))


@dataclass
class _Try:
    """One run of one closer."""

    closer: Closer
    output: IO[bytes]
    process: subprocess.Popen[bytes] | None
    problem: str = ""


def _run_all(closers: Sequence[Closer], timeout_s: float) -> tuple[Unclosed, ...]:
    """Run them at the same time; a file takes the output, so that a forgotten grandchild can't hold us up."""
    with contextlib.ExitStack() as stack:
        tries = [_begin(closer, stack) for closer in closers]
        deadline = time.monotonic() + timeout_s
        while any(one.process is not None and one.process.poll() is None for one in tries):
            if time.monotonic() >= deadline:
                break
            time.sleep(_PAUSE_S)
        return tuple(
            Unclosed(one.closer, f"{shlex.join(one.closer.argv)}: {problem}")
            for one in tries
            if (problem := _judged(one, timeout_s))
        )


def _begin(closer: Closer, stack: contextlib.ExitStack) -> _Try:
    output = stack.enter_context(_scratch())
    try:
        process = subprocess.Popen(
            list(closer.argv),
            env={**os.environ, **closer.env},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return _Try(closer, output, None, f"cannot be started: {getattr(error, 'strerror', None) or error}")
    return _Try(closer, output, process)


def _scratch() -> IO[bytes]:
    """A file that needs no disk, which may be what is full."""
    try:
        return os.fdopen(os.memfd_create("r1perf-closer"), "w+b")
    except (AttributeError, OSError):
        return tempfile.TemporaryFile()


def _judged(one: _Try, timeout_s: float) -> str:
    """Why this try closed nothing, or an empty string."""
    if one.process is None:
        return one.problem
    code = one.process.poll()
    if code is None:
        with contextlib.suppress(OSError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()
        return f"did not end within {timeout_s:g} s"
    if code == 0:
        return ""
    size = one.output.seek(0, os.SEEK_END)
    one.output.seek(max(0, size - _OUTPUT))
    said = one.output.read(_OUTPUT).decode("utf-8", "replace")
    if one.closer.gone and re.search(one.closer.gone, said, re.IGNORECASE):
        return ""
    last = (said.strip().splitlines() or ["it said nothing"])[-1]
    return f"exit code {code}: {last[:300]}"


def _remove_all(folders: Iterable[Folder]) -> tuple[Unclosed, ...]:
    left = []
    for folder in folders:
        try:
            status = os.lstat(folder.path)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) != (folder.device, folder.inode):
            continue
        try:
            _remove(folder.path)
        except OSError as error:
            left.append(Unclosed(folder, f"the folder {folder.path} cannot be removed ({error.strerror})"))
    return tuple(left)


def _remove(path: str) -> None:
    for last in (False, False, True):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if not os.path.lexists(path):
                return
        except OSError:
            # Somebody may have written there in the meantime.
            if last:
                raise
        else:
            return
