"""A temporary project with perf tests on the cpu platform, sessions of pytest in it, and what they recorded."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost import host

FLOOR = 50
"""tok/s: a twentieth of what two busy cores do, so every cell has a floor that it surely holds and gets a verdict."""

_TEST = """\
import pytest


@pytest.mark.parametrize("n", {ns})
@pytest.mark.perf(topology="tp1", mode="{mode}", min_tokps={floor}, timeout={timeout})
def test_cell():
    pass
"""


@dataclass(frozen=True, slots=True)
class Round:
    """One recorded round of one cell; ``wall_s`` is its share of its process, an engine's start with its first cell.

    ``window_s`` is how long a timed window took (the mean of several, as the plugin gives it).
    """

    cell: str
    number: int
    windows: int
    wall_s: float
    tokps: float
    window_s: float


@dataclass(frozen=True, slots=True)
class Record:
    """What a session wrote down: its rounds, and the verdict of every cell."""

    rounds: tuple[Round, ...]
    verdicts: dict[str, str]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    """A session of pytest: ``wall_s`` from its start to its end, its record, and what ran ``beside`` it."""

    wall_s: float
    record: Record
    output: str
    beside: str = ""

    @property
    def processes_s(self) -> float:
        """Wall seconds that SGLang's processes took, of the rounds that count."""
        return sum(one.wall_s for one in self.record.rounds)

    @property
    def waits(self) -> int:
        """How often it told that another session has the device; its time is then not its own."""
        return self.output.count("waiting for the device")


def parse(lines: Iterable[str]) -> Record:
    """The record of one session from the lines of its ``samples-main.jsonl``."""
    rounds: list[Round] = []
    verdicts: dict[str, str] = {}
    problems: list[str] = []
    for text in lines:
        line: dict[str, Any] = json.loads(text)
        if line["kind"] == "sample":
            windows = line.get("windows") or [line["metrics"]]  # offline: the process is its only window
            rounds.append(
                Round(
                    cell=line["cell"],
                    number=line["round"],
                    windows=len(windows),
                    wall_s=line["wall_s"],
                    tokps=line["metrics"]["total_throughput"],
                    window_s=line["metrics"]["total_latency"],
                )
            )
        elif line["kind"] == "verdict":
            verdicts[line["result"]["key"]] = line["result"]["verdict"]
        elif line["kind"] == "problem":
            problems.append(f"{line.get('cell', '?')}: {line.get('verdict', '?')}: {line.get('cause', '')}")
    return Record(tuple(rounds), verdicts, tuple(problems))


def make(folder: Path, ns: Sequence[int], *, timeout_s: int = 3600) -> None:
    """Write ``test_offline.py`` and ``test_engine.py`` with a cell each ``n``."""
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    for mode in ("offline", "engine"):
        text = _TEST.format(ns=list(ns), mode=mode, floor=FLOOR, timeout=timeout_s)
        (folder / f"test_{mode}.py").write_text(text, encoding="utf-8")


def command(mode: str, options: Sequence[str]) -> list[str]:
    """The command of a session as a user starts it, without the other plugins of the development environment."""
    own = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:cov"]
    return [*own, "--perf", "--perf-platform", "cpu", f"test_{mode}.py", *options]


def run(folder: Path, mode: str, *options: str) -> Session:
    """One session; its record is the newest one under ``folder``. Ends the program when nothing was recorded."""
    since, started = host.moment(), time.perf_counter()
    done = subprocess.run(command(mode, options), cwd=folder, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - started
    record = newest_record(folder)
    if not record.rounds:
        raise SystemExit(f"nothing was measured: {record.problems}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return Session(wall_s, record, done.stdout + done.stderr, since.line())


def newest_record(folder: Path) -> Record:
    """The record of the session that wrote last."""
    files = list((folder / ".r1perf").glob("*/samples-main.jsonl"))
    if not files:
        return Record((), {})
    newest = max(files, key=lambda path: path.stat().st_mtime)
    return parse(newest.read_text(encoding="utf-8").splitlines())
