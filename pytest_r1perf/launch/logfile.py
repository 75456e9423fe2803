"""The log file: the command writes to it itself, we read behind it. No pipe, so nothing blocks it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from pytest_r1perf.launch.guarded import LaunchError

_CHUNK = 1 << 16
# A command that writes faster than we read must not keep us from looking at the clock.
_READ_AT_ONCE = 16 << 20
# A file system with less room than this at the start is called full.
_ROOM = 1 << 16


class LogFile:
    """Open while entered; raises ``LaunchError`` when it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> LogFile:
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
