"""What ``mode="engine"`` says to its driver, and what it reads back: ``scripts/engine_driver.py`` is the other side.

The driver appends one JSON object a line to a file; ``kind`` tells what it is:

``ready``        the engine is up
``cell``         a cell's requests are made: how many, their tokens, the digest of their exact ids
``window``       one window is over: times, tokens
``cell_done``    all windows of the cell are over
``cell_failed``  the cell can't be measured (``reason``), the engine may go on
``broken``       the engine doesn't answer any more; the driver ends
``end``          all cells were tried

Nothing is repaired here. A line that is none of these, or that comes where it can't be, is garbage: it is told with
its number, and the cell that it falls into counts for nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.sampling import Inputs
from pytest_r1perf.workload import Workload

RESULTS = "engine.jsonl"
"""The driver's file, in a round's folder."""

SCRIPT = "engine_driver.py"

FAILED_REASONS = ("unfit", "answer", "sampling", "error")
"""Why a cell failed: too long for the engine, an answer that is none, a sampler that miscounts, an exception."""

_SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell as the driver gets it: its name, its workload, and how often it is timed.

    ``ids``: a file on the host of the run with the exact requests, ``[[token ids], output tokens]`` each; without it
    SGLang's own sampler makes them. ``discard`` windows come before the ``windows`` that count.
    """

    id: str
    model: str
    dataset: str
    num_prompts: int
    seed: int
    output_len: int | None
    context_len: int | None
    windows: int
    discard: int
    ids: str | None = None


def planned(
    name: str,
    num_prompts: int,
    workload: Workload,
    inputs: Inputs,
    *,
    windows: int,
    discard: int,
    ids: str | None = None,
) -> PlannedCell:
    """The driver's cell for a workload."""
    return PlannedCell(
        id=name,
        model=inputs.model_path,
        dataset=inputs.dataset_path,
        num_prompts=num_prompts,
        seed=workload.seed,
        output_len=workload.sharegpt_output_len,
        context_len=workload.sharegpt_context_len,
        windows=windows,
        discard=discard,
        ids=ids,
    )


def driver_source() -> str:
    """The driver as one file that needs nothing beside SGLang: SGLang's sampler is called from a script within it."""
    source = (_SCRIPTS / SCRIPT).read_text(encoding="utf-8")
    sampler = (_SCRIPTS / "sample_workload.py").read_text(encoding="utf-8")
    return source.replace('SAMPLER = ""', f"SAMPLER = {sampler!r}", 1)


def engine_command(
    environment: SglangEnvironment,
    cells: Sequence[PlannedCell],
    server_arguments: Sequence[str],
    inputs: Inputs,
    *,
    inline: bool = False,
) -> tuple[str, ...]:
    """The argv of one engine. ``server_arguments`` are translated already.

    The driver is the file ``engine_driver.py`` in the working directory, or, ``inline``, the command has its source:
    on another host there is no such file.
    """
    script = ("-c", driver_source()) if inline else (SCRIPT,)
    plan = json.dumps({"results": RESULTS, "cells": [asdict(cell) for cell in cells]}, separators=(",", ":"))
    return (environment.python, *script, plan, "--model-path", inputs.model_path, *server_arguments)


# -- what comes back -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """One timed window, ``total_latency`` in s.

    ``start`` and ``end`` are by the monotonic clock of its host, ``time`` is the start by its calendar (seconds since
    1970). ``cached_tokens``: how much of the prompts came from the radix cache. ``aborted``: what the engine said of
    the first request that it gave up.
    """

    index: int
    discarded: bool
    time: float
    start: float
    end: float
    total_latency: float
    requests: int
    total_input_tokens: int
    total_output_tokens: int
    cached_tokens: int
    aborted: str


@dataclass(frozen=True, slots=True)
class CellReport:
    """What the driver told of one cell, so far as it came.

    ``shared_tokens``: the most that its prompts can find in a cache which was empty before. ``done``: all its windows
    are over; ``seconds`` is what it took then. ``failed`` is (reason, error); ``garbage`` is what can't be read.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    shared_tokens: int = 0
    ids_digest: str = ""
    windows: tuple[Window, ...] = ()
    done: bool = False
    seconds: float = 0.0
    failed: tuple[str, str] | None = None
    garbage: tuple[str, ...] = ()

    @property
    def timed(self) -> tuple[Window, ...]:
        """The windows that count."""
        return tuple(window for window in self.windows if not window.discarded)


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The whole file: how long the start took (``None``: the engine never came up), and what became of the cells.

    ``garbage``: lines that belong to no cell. ``last`` is the cell that was begun last and not over when the file
    ended.
    """

    startup_s: float | None = None
    cells: Mapping[str, CellReport] = field(default_factory=dict)
    broken: str | None = None
    ended: bool = False
    last: str | None = None
    garbage: tuple[str, ...] = ()


class _Garbage(Exception):
    """A line that the driver can't have written."""


def read_report(path: Path, cells: Sequence[PlannedCell]) -> EngineReport:
    """What the driver told. No file is an engine that never came up. Raises OSError when it can't be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return EngineReport()
    report = EngineReport()
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            if number == len(lines):
                raise _Garbage(f"has no line end after {len(line)} bytes: it was cut off")
            report = _taken(report, _object(line), {cell.id: cell for cell in cells})
        except _Garbage as garbage:
            report = _spoilt(report, f"line {number} of {path.name} {garbage}")
    return report


def _object(line: bytes) -> dict[str, Any]:
    def constant(name: str) -> float:
        raise _Garbage(f"holds {name}, which is no number")

    try:
        loaded = json.loads(line.decode("utf-8"), parse_constant=constant)
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise _Garbage(f"is not JSON: {line[:60]!r}") from None
    if not isinstance(loaded, dict) or not isinstance(loaded.get("kind"), str):
        raise _Garbage(f"is no object with a kind: {line[:60]!r}")
    return loaded


def _spoilt(report: EngineReport, sentence: str) -> EngineReport:
    """Garbage is the fault of the cell that was being measured, or of none."""
    if report.last is None:
        return replace(report, garbage=(*report.garbage, sentence))
    cell = report.cells[report.last]
    return _with(report, report.last, replace(cell, garbage=(*cell.garbage, sentence)))


def _with(report: EngineReport, name: str, cell: CellReport) -> EngineReport:
    return replace(report, cells={**report.cells, name: cell})


def _taken(report: EngineReport, line: Mapping[str, Any], planned: Mapping[str, PlannedCell]) -> EngineReport:
    kind = line["kind"]
    if report.ended or report.broken is not None:
        raise _Garbage(f"comes after the end: {kind}")
    if kind == "ready":
        if report.startup_s is not None:
            raise _Garbage("says a second time that the engine is ready")
        return replace(report, startup_s=_number(line, "startup_s"))
    if report.startup_s is None:
        raise _Garbage(f"comes before the engine was ready: {kind}")
    if kind == "end":
        return replace(report, ended=True, last=None)
    name = line.get("cell")
    if not isinstance(name, str) or name not in planned:
        raise _Garbage(f"names the cell {name!r}, which was not planned")
    if kind == "broken":
        return replace(report, broken=_text(line, "error"), last=name)
    cell = report.cells.get(name, CellReport())
    if cell.done or cell.failed is not None or (report.last not in (None, name)):
        raise _Garbage(f"comes when the cell {name} is not being measured: {kind}")
    if kind == "cell":
        if name in report.cells:
            raise _Garbage(f"begins the cell {name} a second time")
        begun = CellReport(
            requests=_count(line, "requests"),
            input_tokens=_count(line, "input_tokens"),
            output_tokens=_count(line, "output_tokens"),
            shared_tokens=_count(line, "shared_tokens"),
            ids_digest=_text(line, "ids_digest"),
        )
        return replace(_with(report, name, begun), last=name)
    if kind == "cell_failed":
        reason = _text(line, "reason")
        if reason not in FAILED_REASONS:
            raise _Garbage(f"has the reason {reason!r}, which is not known")
        return replace(_with(report, name, replace(cell, failed=(reason, _text(line, "error")))), last=None)
    if name not in report.cells:
        raise _Garbage(f"comes before the requests of the cell {name}: {kind}")
    if kind == "window":
        window = _window(line)
        _refuse_order(cell, window, planned[name])
        return _with(report, name, replace(cell, windows=(*cell.windows, window)))
    if kind == "cell_done":
        done = replace(cell, done=True, seconds=_number(line, "seconds"))
        return replace(_with(report, name, done), last=None)
    raise _Garbage(f"is of a kind that is not known: {kind!r}")


def _refuse_order(cell: CellReport, window: Window, planned: PlannedCell) -> None:
    number = len(cell.windows)
    discarded = number < planned.discard
    index = number if discarded else number - planned.discard
    if (window.index, window.discarded) != (index, discarded) or number >= planned.discard + planned.windows:
        which = "discarded " if window.discarded else ""
        raise _Garbage(f"is {which}window {window.index} of the cell {planned.id}, out of its order")
    if window.end < window.start or (cell.windows and window.start < cell.windows[-1].end):
        raise _Garbage(f"is a window from {window.start} to {window.end}, which can't be")


def _window(line: Mapping[str, Any]) -> Window:
    discarded, aborted = line.get("discarded"), line.get("aborted")
    if not isinstance(discarded, bool) or not isinstance(aborted, str):
        raise _Garbage("is a window without discarded or aborted")
    return Window(
        index=_count(line, "index"),
        discarded=discarded,
        time=_number(line, "time"),
        start=_number(line, "start"),
        end=_number(line, "end"),
        total_latency=_number(line, "total_latency"),
        requests=_count(line, "requests"),
        total_input_tokens=_count(line, "total_input_tokens"),
        total_output_tokens=_count(line, "total_output_tokens"),
        cached_tokens=_count(line, "cached_tokens"),
        aborted=aborted,
    )


def _text(line: Mapping[str, Any], key: str) -> str:
    value = line.get(key)
    if not isinstance(value, str) or not value:
        raise _Garbage(f"has {key} {value!r}, which is no text")
    return value


def _count(line: Mapping[str, Any], key: str) -> int:
    value = line.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _Garbage(f"has {key} {value!r}, which is no count")
    return value


def _number(line: Mapping[str, Any], key: str) -> float:
    value = line.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Garbage(f"has {key} {value!r}, which is no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _Garbage(f"has {key} {value!r}, which is not finite")
    return number
