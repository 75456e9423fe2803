"""A resumable list of commands: each step leaves a stamp when it is done, and is skipped while the stamp holds."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pytest_r1perf.errors import R1PerfError

STATE_FOLDER = "r1perf-rig"  # inside the virtual environment


class Echo(Protocol):
    """``click.echo``'s shape."""

    def __call__(self, message: str, *, nl: bool = True) -> None:
        """Show ``message``, with a line end unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: ``command`` is run, or ``action`` is called; ``repair`` is called first if it was interrupted before.

    ``content`` is what the step's result depends on: another content makes the step run again.
    """

    name: str
    says: str
    content: object
    command: Sequence[str] = ()
    action: Callable[[], None] | None = None
    repair: Callable[[], None] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A digest of the step's contents."""
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()


class StepRunner:
    """Runs steps in one virtual environment and keeps their stamps and log in its `STATE_FOLDER`."""

    def __init__(self, directory: Path, *, echo: Echo, verbose: bool = False) -> None:
        self._state = directory / STATE_FOLDER
        self._echo = echo
        self._verbose = verbose
        self.log = self._state / "install.log"

    def is_done(self, step: Step) -> bool:
        """Whether the step's stamp is there and holds its present contents."""
        stamp = self._state / f"{step.name}.done"
        return stamp.is_file() and stamp.read_text(encoding="utf-8") == step.key

    def run(self, steps: Sequence[Step]) -> None:
        """Run the steps in order, skipping what is done; a step that runs makes those after it run too.

        Raises:
            R1PerfError: a command failed; names the log and its last line.
        """
        self._state.mkdir(parents=True, exist_ok=True)
        stale = False
        for number, step in enumerate(steps, start=1):
            label = f"[{number}/{len(steps)}] {step.says}"
            if not stale and self.is_done(step):
                self._echo(f"{label}: done before")
                continue
            stale = True
            self._run(step, label)

    def _run(self, step: Step, label: str) -> None:
        stamp = self._state / f"{step.name}.done"
        begun = self._state / f"{step.name}.begun"
        stamp.unlink(missing_ok=True)
        if begun.exists() and step.repair is not None:
            step.repair()
        begun.touch()
        start = time.monotonic()
        if self._verbose and step.command:
            self._echo(f"+ {' '.join(step.command)}")
        if step.action is not None:
            step.action()
        if step.command:
            self._command(step, label, start)
        self._show(f"{label}: {time.monotonic() - start:.0f} s", end=True)
        write_atomically(stamp, step.key)
        begun.unlink()

    def _command(self, step: Step, label: str, start: float) -> None:
        with self.log.open("ab") as log:
            log.write(f"+ {' '.join(step.command)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment(step.environment),
            )
            try:
                while True:
                    try:
                        code = process.wait(timeout=1)
                        break
                    except subprocess.TimeoutExpired:
                        self._show(f"{label} … {time.monotonic() - start:.0f} s")
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if code != 0:
            self._show(f"{label}: failed", end=True)
            raise R1PerfError(
                f"{step.says} failed with exit code {code}: {_last_line(self.log)!r}; the whole output is in "
                f"{self.log}, and the same command goes on from here"
            )

    def _show(self, line: str, *, end: bool = False) -> None:
        live = sys.stdout.isatty()
        if live:
            self._echo(f"\r\x1b[K{line}", nl=end)
        elif end:
            self._echo(line)


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with ``extra``, without what would leak another Python's packages into it."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in dropped} | dict(extra)


def write_atomically(path: Path, text: str) -> None:
    """Write ``path`` so that a killed process leaves either the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "no output")
