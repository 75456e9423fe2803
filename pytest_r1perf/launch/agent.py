"""What runs on another node: there it does what ``process.py`` does here, and holds leases.

It is told what to do on standard input, and that it is over by the end of standard input (or by SIGTERM,
SIGHUP, SIGINT, or when nobody reads its output any more): however its connection breaks, everything that it
started ends. Killed itself, its guard sees to that.

Standard library only, and files of this package that are too (``bundle.py`` lists them).
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_r1perf import devices
from pytest_r1perf.childenv import compose, recorded
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launch.client import Client
from pytest_r1perf.launch.guarded import LaunchError
from pytest_r1perf.launch.held import Held, held
from pytest_r1perf.launch.launcher import RankCommand
from pytest_r1perf.launch.mark import VARIABLE, marked_environment, new_mark
from pytest_r1perf.launch.process import Poll, supervise
from pytest_r1perf.launch.reap import Victim, reap_orphans
from pytest_r1perf.launch.smi import Idle
from pytest_r1perf.launch.smiwatch import SmiWatch
from pytest_r1perf.launch.wire import frame, packed, packed_env, telemetry_name, unpack_command, unpacked

FETCH_LIMIT = 64 << 20
"""Bytes of one file: results are kilobytes, and a log that went astray must not hold up the end of a run."""

BROKE = 125
"""The exit code when the command was not run at all, as of ``env`` and ``docker run``."""

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_CHUNK = 1 << 16
_DRAIN_S = 60.0


def main(spec: Mapping[str, Any], home: str) -> int:
    """Do what ``spec`` says; ``home`` is the agent's folder, removed with the rest. The exit code."""
    # srun passes the environment of the pytest side on, with a mark in it that is not for what runs here.
    os.environ.pop(VARIABLE, None)
    line = Line()
    with contextlib.ExitStack() as handlers:
        for number in _SIGNALS:
            handlers.callback(signal.signal, number, signal.signal(number, line.stop))
        try:
            state_dir = spec["state_dir"]
            directory = devices.lease_directory(Path(unpacked(state_dir)) if state_dir else None)
            if spec["kind"] == "hold":
                return _hold(spec, home, directory, line)
            return _run(spec, home, directory, line)
        except (R1PerfError, OSError) as error:
            say("problem", sentence=f"{socket.gethostname()}: {error}")
            return BROKE


def say(event: str, **fields: Any) -> None:
    """Tell pytest; when nobody listens any more the run is being ended anyway."""
    data = frame(event, **fields)
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]


class _Stopped(Exception):
    """Raised where we wait for a lease, by a signal."""


class Line:
    """Whether we are still wanted. ``reason``: why not."""

    def __init__(self) -> None:
        self.reason = ""
        self.interrupts = False
        self._poller = select.poll()
        self._poller.register(0, select.POLLIN)
        for output in (1, 2):
            self._poller.register(output, 0)  # errors and hang-ups are always told

    def stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """The handler of signals that end us."""
        self.reason = self.reason or signal.Signals(number).name
        if self.interrupts:
            self.interrupts = False
            raise _Stopped

    def wanted(self, wait_s: float = 0.0) -> bool:
        """Look, waiting ``wait_s`` for a change."""
        for descriptor, _ in [] if self.reason else self._poller.poll(1000 * wait_s):
            if descriptor != 0:
                self.reason = self.reason or "output closed"
            elif not _read_some():
                self.reason = self.reason or "lifeline"
        return not self.reason

    def poll(self) -> Poll:
        """For ``supervise``."""
        return Poll.GO_ON if self.wanted() else Poll.END


def _read_some() -> bytes:
    try:
        return os.read(0, _CHUNK)
    except OSError:
        return b""


def _reap(directory: Path) -> None:
    for victim in reap_orphans(directory, tell=lambda sentence: say("reaped", sentence=sentence)):
        say("reaped", sentence=f"ended a leftover of a dead session: pid {victim.pid}")


# -- a command -----------------------------------------------------------------------------------------------


def _run(spec: Mapping[str, Any], home: str, directory: Path, line: Line) -> int:
    command = unpack_command(spec["command"])
    _reap(directory)
    with _working_directory(command.cwd) as made:
        folders = [Path(home), *([Path(command.cwd)] if made else [])]
        with held(spec["session"], directory, folders=folders) as hold:
            watch = SmiWatch(command.gpus, {**compose({}), **marked_environment(hold.mark)}, line.wanted)
            if _may_start(command, spec, watch, line):
                told = _supervised(command, spec, Path(home), directory, line, watch)
            else:
                told = {"returncode": None, "ended_by": line.reason or None, "unclosed": []}
    return _ended(told, hold)


def _may_start(command: RankCommand, spec: Mapping[str, Any], watch: SmiWatch, line: Line) -> bool:
    """Whether the GPUs are free, and we are still wanted when they are."""
    if not command.gpus:
        return True
    host = socket.gethostname()
    dirty = watch.not_free(Idle(**spec["idle"]), lambda sentence: say("waiting", host=host, sentence=sentence))
    if dirty is not None:
        say("dirty", sentence=f"{host}: {dirty}")
    return dirty is None and line.wanted()


def _supervised(
    command: RankCommand, spec: Mapping[str, Any], home: Path, directory: Path, line: Line, watch: SmiWatch
) -> dict[str, Any]:
    mark = new_mark(spec["session"])
    env = {**compose(command.env), **marked_environment(mark)}
    say("started", host=socket.gethostname(), pid=os.getpid(), mark=str(mark), env=packed_env(recorded(env)))
    output = home / "output"
    stream = _Stream(output)

    def on_output(new: bytes) -> None:
        watch.mark(stream.publish(new))

    client = Client(command.rank, command.argv, env, Path(command.cwd), output, closers=command.closers)
    with watch:
        exit_ = supervise(
            [client],
            timeout_s=spec["timeout_s"],
            mark=mark,
            state_dir=directory,
            on_output=on_output,
            poll=line.poll,
            grace_s=spec["grace_s"],
        )
    stream.finish(line)
    for name in command.fetch:
        _fetch(Path(command.cwd), name)
    if command.gpus:
        _send(telemetry_name(command.rank), watch.text())
    return {
        "returncode": exit_.returncode,
        "ended_by": line.reason if exit_.ended_by == "lingering" else exit_.ended_by,
        "survivors": [_described(victim) for victim in exit_.survivors],
        "left": [_described(victim) for victim in exit_.left],
        "unclosed": list(exit_.unclosed),
        "log_full": exit_.log_full,
    }


def _ended(told: dict[str, Any], hold: Held) -> int:
    say("ended", **{**told, "unclosed": [*told["unclosed"], *hold.unclosed]})
    code: int | None = told["returncode"]
    if code is None:
        return BROKE
    return code if code >= 0 else 128 - code


def _described(victim: Victim) -> str:
    return f"pid {victim.pid}: {packed(' '.join(victim.cmdline))[:300]}"


@contextlib.contextmanager
def _working_directory(cwd: str) -> Iterator[bool]:
    """Make it when it is missing, with mode 0700; whether it was. Parents made too go when they are empty."""
    path = Path(cwd)
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    made: list[Path] = []
    try:
        for folder in reversed(missing):
            try:
                folder.mkdir(0o700)
            except FileExistsError:  # another rank's agent was faster
                continue
            except OSError as error:
                raise LaunchError(f"cannot make the working directory {cwd} ({error.strerror})") from error
            made.append(folder)
        yield path in made
    finally:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _fetch(folder: Path, name: str) -> None:
    """Send a file of the working directory; one that the command did not write is not there, and that's all."""
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        say("problem", sentence=f"{socket.gethostname()}: cannot read {folder / name} ({error.strerror})")
        return
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > FETCH_LIMIT:
            sentence = f"{folder / name} is no file of at most {FETCH_LIMIT >> 20} MiB and stays there"
            say("problem", sentence=f"{socket.gethostname()}: {sentence}")
            return
        content = file.read(FETCH_LIMIT)
    _send(name, content)


def _send(name: str, content: bytes) -> None:
    say("file", name=packed(name), size=len(content), base64=base64.b64encode(content).decode("ascii"))


class _Stream:
    """Copies the command's output to ours from a file: a connection that stalls stops nobody but this thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._over = False
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def publish(self, new: bytes) -> int:
        """So much more of the file is output; how much that is in all."""
        self._size += len(new)
        return self._size

    def finish(self, line: Line) -> None:
        """Wait until all is copied, a minute at most; a quarter of it when nobody wants us any more."""
        self._over = True
        started = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(0.1)
            if time.monotonic() - started > (_DRAIN_S if line.wanted() else _DRAIN_S / 4):
                return

    def _copy(self) -> None:
        offset = 0
        while True:
            over, size = self._over, self._size
            if offset < size:
                try:
                    with self._path.open("rb", buffering=0) as file:
                        data = os.pread(file.fileno(), min(_CHUNK, size - offset), offset)
                    offset += len(data)
                    while data:
                        data = data[os.write(1, data) :]
                except OSError:
                    return
            elif over:
                return
            else:
                time.sleep(0.02)


# -- leases --------------------------------------------------------------------------------------------------


def _hold(spec: Mapping[str, Any], home: str, directory: Path, line: Line) -> int:
    """Take the leases of this node, say so, and keep them for as long as we are wanted."""
    watcher = threading.Thread(target=_signal_the_end, args=(line,), daemon=True)

    def waiting(holder: devices.Holder | None) -> None:
        say(
            "waiting",
            host=socket.gethostname(),
            device=holder.device if holder else "",
            holder=str(holder) if holder else "an unknown session",
        )

    with held(spec["session"], directory, folders=[Path(home)]), contextlib.suppress(_Stopped):
        try:
            line.interrupts = True
            watcher.start()
            with devices.acquire(
                spec["devices"],
                directory=directory,
                share_host=spec["share_host"],
                timeout_s=None,
                waiting=waiting,
                session=spec["session"],
                test=spec["test"],
            ) as lease:
                _reap(directory)
                say("leased", host=socket.gethostname(), devices=list(lease.devices))
                while True:
                    time.sleep(3600)
        finally:
            line.interrupts = False
    return 0


def _signal_the_end(line: Line) -> None:
    """The end of standard input is seen in a thread, since taking a lease may wait for hours."""
    while line.wanted(wait_s=60.0):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
