"""The record: one JSON line a sample, appended and fsynced as soon as it is known.

A session is a folder of the output directory; each process of it (an xdist worker, or pytest itself) writes a
file of its own, so no line is ever interleaved. A killed session is one without an ``end`` line:
``--perf-resume`` goes on in its folder.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launch.mark import new_mark, owner_alive, parse

FORMAT = 1
"""Version of the line format; readers refuse a newer one."""


@dataclass(frozen=True, slots=True)
class SessionFolder:
    """One session's folder: ``samples-*.jsonl``, and a folder of logs a cell."""

    path: Path

    @property
    def name(self) -> str:
        """The session's id, e.g. ``20261130.101500.3fa9``."""
        return self.path.name


def plan_session(out: Path, *, resume: bool) -> SessionFolder:
    """A new session's folder, or with ``resume`` the newest one if it never ended; makes nothing yet."""
    newest = next(reversed(sessions(out)), None) if resume else None
    if newest is not None and _is_dead(newest):
        return newest
    return SessionFolder(out / f"{datetime.datetime.now():%Y%m%d.%H%M%S}.{secrets.token_hex(2)}")


def begin(folder: SessionFolder, writer: str) -> None:
    """Make the folder, unless another process of the session has, and show that it can be written.

    Raises :class:`R1PerfError` when it can't.
    """
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        append(folder, writer, {"kind": "start", "session": folder.name, "owner": str(new_mark(folder.name))})
    except OSError as error:
        raise R1PerfError(
            f"--perf-out {folder.path.parent}: cannot be written ({error.strerror or error}): choose another directory"
        ) from None


def sessions(out: Path) -> list[SessionFolder]:
    """The sessions of an output directory, oldest first."""
    if not out.is_dir():
        return []
    return [SessionFolder(path) for path in sorted(out.iterdir()) if next(path.glob("samples-*.jsonl"), None)]


def append(folder: SessionFolder, writer: str, line: Mapping[str, Any]) -> None:
    """Append one line and force it to the disk; raises :class:`OSError` (a full disk, for one)."""
    text = json.dumps({"format": FORMAT, **line}, allow_nan=False, sort_keys=False) + "\n"
    handle = os.open(folder.path / f"samples-{writer}.jsonl", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        data = text.encode()
        before = os.fstat(handle).st_size
        if before and os.pread(handle, 1, before - 1) != b"\n":
            data = b"\n" + data  # a killed writer left half a line: it must not swallow this one
        if os.write(handle, data) < len(data):
            os.ftruncate(handle, before)
            raise OSError(28, "No space left on device")
        os.fsync(handle)
    finally:
        os.close(handle)


def lines(folder: SessionFolder) -> Iterator[dict[str, Any]]:
    """Every whole line of a session; a truncated last line (the writer was killed) is passed over."""
    for path in sorted(folder.path.glob("samples-*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except ValueError:
                    continue
                if not isinstance(line, dict):
                    continue
                if line.get("format", 0) > FORMAT:
                    raise R1PerfError(
                        f"{path}: written by a newer pytest-r1perf (format {line['format']}): update this one"
                    )
                yield line


def _is_dead(folder: SessionFolder) -> bool:
    """Whether a session was killed: it has no end, and none of its processes lives."""
    known = list(lines(folder))
    owners = [parse(str(line["owner"])) for line in known if "owner" in line]
    ended = any(line.get("kind") == "end" for line in known)
    return not ended and not any(owner is not None and owner_alive(owner) for owner in owners)
