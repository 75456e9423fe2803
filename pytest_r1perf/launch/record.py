"""What was launched, on disk: ``<state_dir>/launches-<uid>/<mark>.json``.

The mark finds a run's processes as long as their environment can be read; the record still names the first
process of each rank and its session where it cannot (a wiped environment, ``env -i``). It also names what is
no process of ours: containers and batch jobs (as commands that end them), and folders that go with the run.

Standard library only: the guard loads this file without site-packages (see ``guard.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_r1perf.launch import proc
from pytest_r1perf.launch.launcher import Closer
from pytest_r1perf.launch.mark import RunMark, owner_alive, parse, this_place


@dataclass(frozen=True, slots=True)
class First:
    """The first process of a rank, which leads its session (``sid``); ``start`` in clock ticks since boot."""

    pid: int
    start: int
    sid: int


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder made for the run. Device and inode tell it from a later one of the same name."""

    path: str
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One run. ``firsts`` is empty before anything was started; ``closers`` and ``folders`` outlast processes."""

    mark: RunMark
    program: str
    firsts: tuple[First, ...] = ()
    closers: tuple[Closer, ...] = ()
    folders: tuple[Folder, ...] = ()


def _folder(state_dir: Path) -> Path:
    # One for each user: the state directory is everybody's, and the umask makes a folder its maker's.
    return state_dir / f"launches-{os.geteuid()}"


def write(state_dir: Path, launch: Launch) -> None:
    """Write or replace the record: a reader sees the old one or the new one, whole. Raises ``OSError``."""
    folder = _folder(state_dir)
    state_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise NotADirectoryError(20, f"{folder.name} is not a directory of this user", str(folder))
    text = json.dumps(
        {
            "mark": str(launch.mark),
            "program": launch.program,
            "firsts": [[first.pid, first.start, first.sid] for first in launch.firsts],
            "closers": [{"argv": one.argv, "env": dict(one.env), "gone": one.gone} for one in launch.closers],
            "folders": [[one.path, one.device, one.inode] for one in launch.folders],
            "host": socket.gethostname(),
            "boot": proc.boot_id(),
        }
    )
    scratch = folder / f".{launch.mark}.{os.getpid()}.tmp"
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        scratch.replace(folder / f"{launch.mark}.json")
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def remove(state_dir: Path, mark: RunMark) -> None:
    """Forget a launch; a record that is gone already, or another user's, is left as it is."""
    with contextlib.suppress(OSError):
        (_folder(state_dir) / f"{mark}.json").unlink()


def read(state_dir: Path) -> list[Launch]:
    """The launches that this user recorded in this place (boot and PID namespace).

    A record of another user, or under another name than its own, is not believed: it could name one of our
    own processes. Of such a one, and of a damaged one, only the mark is known.
    """
    return [launch for launch, _ in _records(state_dir) if launch.mark.place == this_place()]


def orphaned(state_dir: Path) -> list[Launch]:
    """The launches whose owner is dead, and those of this host from before it was booted again.

    Of the latter no process is left, but a batch job may be.
    """
    return [
        launch if launch.mark.place == this_place() else replace(launch, firsts=())
        for launch, rebooted in _records(state_dir)
        if rebooted or not owner_alive(launch.mark)
    ]


def _records(state_dir: Path) -> Iterator[tuple[Launch, bool]]:
    """Every record of ours, and whether this host wrote it before it was booted again."""
    for path in sorted(_folder(state_dir).glob("*.json")):
        mark = parse(path.stem)
        if mark is None:
            continue
        launch, rebooted = Launch(mark, "?"), False
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    continue
                data = json.load(file)
            rebooted = data["host"] == socket.gethostname() and data["boot"] != proc.boot_id()
            launch = _parsed(mark, data)
        yield launch, rebooted and mark.place != this_place()


def _parsed(mark: RunMark, data: dict[str, Any]) -> Launch:
    if data["mark"] != str(mark):
        raise ValueError(data["mark"])
    return Launch(
        mark,
        str(data["program"]),
        tuple(First(int(pid), int(start), int(sid)) for pid, start, sid in data["firsts"]),
        tuple(
            Closer(
                tuple(str(item) for item in one["argv"]),
                {str(name): str(value) for name, value in one["env"].items()},
                str(one["gone"]),
            )
            for one in data["closers"]
        ),
        tuple(Folder(str(path), int(device), int(inode)) for path, device, inode in data["folders"]),
    )
