"""Something of ours that is no process: a Slurm job, leases on other nodes, folders on this one.

    with held(session, state_dir, closers=[Closer(("scancel", "--name=r1perf-1f"))]) as hold:
        subprocess.Popen(["salloc", ...], env={**os.environ, **marked_environment(hold.mark)})
        ...

However the block is left it is closed; when this process is killed the guard does it, and when the guard is
killed as well, the next session (``reap.reap_orphans``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.launch import guard, reap
from pytest_r1perf.launch.guarded import LaunchError, begin
from pytest_r1perf.launch.launcher import Closer
from pytest_r1perf.launch.mark import RunMark, new_mark
from pytest_r1perf.launch.record import Folder, Launch
from pytest_r1perf.launch.shield import Shield


@dataclass
class Held:
    """``mark``: processes that carry it are ended too, before the closers. ``unclosed``: known after the block."""

    mark: RunMark
    unclosed: tuple[str, ...] = ()


@contextlib.contextmanager
def held(
    session: str,
    state_dir: Path,
    *,
    closers: Sequence[Closer] = (),
    folders: Sequence[Path] = (),
    grace_s: float = reap.GRACE_S,
) -> Iterator[Held]:
    """Close these when the block is left: first the marked processes, then ``closers``, then ``folders``.

    To be entered before what ``closers`` end exists. ``folders`` exist already and are removed with all in
    them. Raises ``LaunchError`` when nothing could see to it.
    """
    hold = Held(new_mark(session))
    launch = Launch(hold.mark, "held", closers=tuple(closers), folders=tuple(map(_identified, folders)))
    watcher: guard.Guard | None = None
    try:
        with Shield():
            watcher = begin(state_dir, launch)
        yield hold
    finally:
        with Shield():
            if watcher is not None:
                hold.unclosed = _end(launch, state_dir, watcher, grace_s)


def _identified(folder: Path) -> Folder:
    try:
        status = os.lstat(folder)
    except OSError as error:
        raise LaunchError(f"the folder {folder} is not there ({error.strerror})") from error
    return Folder(str(folder.absolute()), status.st_dev, status.st_ino)


def _end(launch: Launch, state_dir: Path, watcher: guard.Guard, grace_s: float) -> tuple[str, ...]:
    try:
        _, unclosed = reap.end_all(launch, state_dir, grace_s=grace_s)
    except BaseException:
        watcher.abandon()
        raise
    watcher.dismiss()
    return tuple(one.sentence for one in unclosed)
