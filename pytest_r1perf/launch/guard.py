"""The watcher that ends a run when pytest cannot: a small process that outlives it by no more than that takes.

pytest starts it before the benchmark and holds one end of a socket pair. When the socket closes without the
word "done", or the owner in the mark dies, the guard ends every process with that mark and runs the closers
of its record. No handler in pytest can do that after SIGKILL or the kernel's out-of-memory killer.

The file is run by path as ``python -I -S guard.py``: no site-packages, no ``.pth`` files, no coverage hooks,
and the package's ``__init__`` is not executed; so what it imports is standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from pytest_r1perf.launch.mark import RunMark

_DONE = b"done"
_START_S = 60.0
_STOP_S = 10.0
# How often the owner is looked at where the kernel cannot tell us that it died (no pidfd).
_LOOK_S = 1.0


class GuardError(Exception):
    """The watcher did not come up."""


@dataclass(frozen=True, slots=True)
class Guard:
    """pytest's side of the watcher, which is no child of ours: see ``main``."""

    pid: int
    line: socket.socket

    def dismiss(self) -> None:
        """Tell it that the run is over, and wait until it is gone; one that died meanwhile is no error."""
        with contextlib.suppress(OSError):
            self.line.sendall(_DONE)
        try:
            self.line.settimeout(_STOP_S)
            # Nothing but its end ever comes: the kernel closes its side.
            self.line.recv(1)
        except TimeoutError:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
        except OSError:
            pass
        finally:
            self.line.close()

    def abandon(self) -> None:
        """Leave the run to it: without the word it ends everything, as if pytest had died."""
        self.line.close()


def start(mark: RunMark, state_dir: Path) -> Guard:
    """Start the watcher of one run and wait until it watches. Raises ``GuardError``.

    It gets its own session (no terminal's Ctrl-C), no standard streams and no other descriptor of ours (a
    lease's lock, a pipe to xdist), and an environment without a mark.
    """
    # Not at the top: the watcher itself, which executes this file too, needs neither.
    import socket
    import subprocess

    ours, theirs = socket.socketpair()
    # A Python from an environment module may need LD_LIBRARY_PATH to load its own library.
    environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    command = [
        sys.executable,
        "-I",
        "-S",
        __file__,
        str(theirs.fileno()),
        str(mark),
        str(state_dir.absolute()),
    ]
    process = None
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        ours.settimeout(_START_S)
        code = process.wait(_START_S)
        pid = ours.recv(32)
        if code != 0 or not pid.isdigit():
            raise GuardError(f"it ended (exit code {code} of its first process) instead of watching")
        ours.settimeout(None)
    except BaseException as error:
        ours.close()
        theirs.close()
        if process is not None:
            process.kill()
            process.wait()
        if isinstance(error, (OSError, subprocess.SubprocessError)):
            raise GuardError(f"{sys.executable} guard.py: {error}") from error
        raise
    return Guard(int(pid), ours)


def _said_done(line: int, owner_pid: int, owner_start: int) -> bool:
    """Block until the run is over; whether its owner said so itself."""
    from pytest_r1perf.launch import proc

    poller = select.poll()
    poller.register(line, select.POLLIN)
    try:
        handle = proc.open_handle(owner_pid)
    except ProcessLookupError:
        handle = None
    if handle is not None:
        poller.register(handle, select.POLLIN)
    said = b""
    while True:
        # The socket alone would do, had not a process that pytest forked (and never executed) a copy of its
        # end.
        ready = {fd for fd, _ in poller.poll(_LOOK_S * 1000 if handle is None else None)}
        if line in ready:
            try:
                chunk = os.read(line, 16)
            except OSError:
                return False
            said += chunk
            if said == _DONE:
                return True
            if not chunk:
                return False
        elif not proc.is_running(owner_pid, owner_start):
            return False


def main(arguments: list[str]) -> None:
    """``guard.py DESCRIPTOR MARK STATE_DIR``."""
    # No child of our owner's: when a client of Slurm's dies, Slurm kills the step's process and all below it at once
    # (measured with 22.05 and proctrack/linuxproc), whatever their sessions; but not what has another parent.
    if os.fork():
        os._exit(0)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGTSTP,
        signal.SIGPIPE,
    ):
        # Not SIG_IGN, which the closers would inherit.
        signal.signal(number, lambda *_: None)
    here = Path(__file__).parent
    for name, folder in (("pytest_r1perf", here.parent), ("pytest_r1perf.launch", here)):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    from pytest_r1perf.launch import mark as marks
    from pytest_r1perf.launch import reap, record

    line, mark, state_dir = int(arguments[0]), marks.parse(arguments[1]), Path(arguments[2])
    if mark is None:
        raise SystemExit(f"{arguments[1]!r} is no run mark")
    os.write(line, str(os.getpid()).encode())
    if not _said_done(line, mark.owner_pid, mark.owner_start):
        recorded = [launch for launch in record.read(state_dir) if launch.mark == mark]
        reap.end_all(recorded[0] if recorded else record.Launch(mark, "?"), state_dir)


if __name__ == "__main__":
    main(sys.argv[1:])
