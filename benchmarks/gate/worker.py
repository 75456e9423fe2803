"""A persistent process in another environment that answers JSON lines: so that each package decides by itself."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gate.environments import interpreter

WORKERS = Path(__file__).parent / "workers"


class Worker:
    """One rule's process, started when it is first asked and ended with this one."""

    def __init__(self, python: Path, rule: str) -> None:
        self._process = subprocess.Popen(
            [str(python), str(WORKERS / "serve.py"), rule],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)

    def ask(self, requests: Sequence[dict[str, object]]) -> list[dict[str, Any]]:
        """The rule's answers; one has ``error`` where the package raised. RuntimeError where the process is gone."""
        pipes = self._process
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        try:
            pipes.stdin.write(json.dumps(requests) + "\n")
            pipes.stdin.flush()
            line = pipes.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"the worker {pipes.args!r} ended with status {pipes.wait()}")
        answers: list[dict[str, Any]] = json.loads(line)
        return answers

    def close(self) -> None:
        """End it: its input's end is its signal."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


@cache
def _of_process(environment: str, rule: str, pid: int) -> Worker:  # noqa: ARG001
    python = interpreter(environment)
    if python is None:
        raise FileNotFoundError(f"the environment {environment!r} isn't there: python benchmarks/gate environments")
    return Worker(python, rule)


def worker(environment: str, rule: str) -> Worker:
    """This process's worker for a rule: a fork starts its own."""
    return _of_process(environment, rule, os.getpid())
