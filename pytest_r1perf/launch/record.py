"""What was launched, on disk: ``<state_dir>/launches/<mark>.json``.

The mark finds a run's processes as long as their environment can be read; the record still names the first
process and its session where it cannot (a wiped environment, ``env -i``).

Standard library only: the guard loads this file without site-packages (see ``guard.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.launch import proc
from pytest_r1perf.launch.mark import RunMark, owner_alive, parse, this_place


@dataclass(frozen=True, slots=True)
class Launch:
    """The first process of a run, which leads its session (``sid``). ``pid`` 0: about to be started.

    ``start`` is in clock ticks since boot, and names the process together with ``pid``.
    """

    mark: RunMark
    program: str
    pid: int = 0
    start: int = 0
    sid: int = 0


def _folder(state_dir: Path) -> Path:
    return state_dir / "launches"


def write(state_dir: Path, launch: Launch) -> None:
    """Write or replace the record: a reader sees the old one or the new one, whole. Raises ``OSError``."""
    folder = _folder(state_dir)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {
            "mark": str(launch.mark),
            "program": launch.program,
            "pid": launch.pid,
            "start": launch.start,
            "sid": launch.sid,
            "host": socket.gethostname(),
            "boot": proc.boot_id(),
        }
    )
    scratch = folder / f".{launch.mark}.{os.getpid()}.tmp"
    try:
        scratch.write_text(text, encoding="utf-8")
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

    A record of another user is not believed: it could name one of our own processes. Of a damaged one
    only the mark is known.
    """
    found: list[Launch] = []
    for path in sorted(_folder(state_dir).glob("*.json")):
        mark = parse(path.stem)
        if mark is None or mark.place != this_place():
            continue
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    continue
                data = json.load(file)
            launch = Launch(mark, str(data["program"]), int(data["pid"]), int(data["start"]), int(data["sid"]))
        except (OSError, ValueError, KeyError, TypeError):
            launch = Launch(mark, "?")
        found.append(launch)
    return found


def remove_stale(state_dir: Path) -> None:
    """Remove the records whose owner is dead, or which this host wrote before it was booted again."""
    for path in sorted(_folder(state_dir).glob("*.json")):
        mark = parse(path.stem)
        if mark is None:
            continue
        stale = not owner_alive(mark)
        if not stale and mark.place != this_place():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                data = json.loads(path.read_bytes())
                stale = data["host"] == socket.gethostname() and data["boot"] != proc.boot_id()
        if stale:
            remove(state_dir, mark)
