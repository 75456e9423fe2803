"""A local process that stands for one rank: the command itself, or what connects us to it on another node."""

from __future__ import annotations

import contextlib
import enum
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pytest_r1perf.launch import proc
from pytest_r1perf.launch.guarded import LaunchError
from pytest_r1perf.launch.launcher import Closer
from pytest_r1perf.launch.record import First


@dataclass(frozen=True, slots=True)
class Client:
    """What is started here for ``rank``, and where its output goes.

    ``env`` is its whole environment, the run's mark in it. Standard output is appended to ``log_path``;
    standard error too, unless ``errors_path`` is given. ``stdin`` is written to it, and then the pipe stays
    open until the run is over: the end of it tells an agent on another node that we are done or dead.
    Without, standard input is empty. ``closers`` end what the client's end does not.
    """

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log_path: Path
    errors_path: Path | None = None
    stdin: bytes | None = None
    closers: tuple[Closer, ...] = ()


class _State(enum.Enum):
    RUNNING = 0


RUNNING = _State.RUNNING


class Running:
    """A started client. Its zombie stays until :meth:`collect`: it keeps the pid from being used again."""

    def __init__(self, client: Client, process: subprocess.Popen[bytes]) -> None:
        stat = proc.read_stat(process.pid)
        self.client = client
        self.first = First(process.pid, stat.start if stat is not None else 0, process.pid)
        self._process = process
        self._pipe: IO[bytes] | None = process.stdin
        self._unwritten = memoryview(client.stdin or b"")
        if self._pipe is not None:
            os.set_blocking(self._pipe.fileno(), False)

    @property
    def pid(self) -> int:
        """The client's."""
        return self._process.pid

    @property
    def has_lifeline(self) -> bool:
        """Whether it is one that ends, and says how, when its standard input ends."""
        return self.client.stdin is not None

    @property
    def wants_input(self) -> int | None:
        """The descriptor to wait on while there is input to write."""
        return self._pipe.fileno() if self._pipe is not None and self._unwritten else None

    def pump(self) -> None:
        """Write as much of the input as goes in without waiting; a client that does not read it is no error here."""
        while self._pipe is not None and self._unwritten:
            try:
                self._unwritten = self._unwritten[os.write(self._pipe.fileno(), self._unwritten) :]
            except BlockingIOError:
                return
            except OSError:  # it has ended, or closed its input
                self._unwritten = memoryview(b"")

    def close_lifeline(self) -> None:
        """End its standard input."""
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                self._pipe.close()
            self._pipe = None

    def code(self) -> int | _State | None:
        """The exit status; ``None`` when somebody else waited for it.

        Not Popen's: that one says 0 for a child which somebody else waited for.
        """
        try:
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if info is None:
            return RUNNING
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def ended(self) -> bool:
        """Whether it has."""
        return self.code() is not RUNNING

    def collect(self) -> int | None:
        """The exit status, and no zombie any more; ``None`` when it is not known or it still runs."""
        self.close_lifeline()
        code = self.code()
        if isinstance(code, _State):
            return None
        self._process.wait()
        return code


def start(client: Client, output: int, errors: int) -> Running:
    """Start it with these descriptors as its output, leading a session of its own. Raises ``LaunchError``."""
    program, cwd = client.argv[0], client.cwd
    if not cwd.is_dir():
        raise LaunchError(f"cannot start {program!r}: its working directory {cwd} is not a directory")
    try:
        process = subprocess.Popen(
            list(client.argv),
            env=dict(client.env),
            cwd=cwd,
            stdin=subprocess.DEVNULL if client.stdin is None else subprocess.PIPE,
            stdout=output,
            stderr=errors,
            bufsize=0,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise LaunchError(
            f"cannot start {program!r}: no such program, or its interpreter is missing; check the path"
        ) from None
    except PermissionError:
        raise LaunchError(
            f"cannot start {program!r}: not permitted; is it a file with the execute bit (chmod +x), "
            f"and may this user enter {cwd}?"
        ) from None
    except OSError as error:
        size = sum(len(item) + 1 for item in client.argv)
        size += sum(len(name) + len(value) + 2 for name, value in client.env.items())
        raise LaunchError(
            f"cannot start {program!r}: {error.strerror} ({len(client.argv)} arguments, {size} characters with the "
            "environment)"
        ) from error
    except ValueError as error:
        raise LaunchError(f"cannot start {program!r}: {error} in an argument or environment variable") from None
    return Running(client, process)
