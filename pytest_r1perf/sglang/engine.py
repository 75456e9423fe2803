"""What ``mode="engine"`` says to its driver, and what it reads back: ``scripts/engine_driver.py`` is the other side.

The driver's file is read as :mod:`pytest_r1perf.sglang.driven` says; here is what an engine's own lines hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pytest_r1perf.sglang import driven
from pytest_r1perf.sglang.driven import DrivenCell, Grammar, Report, TimedWindow, count_of, number_of, text_of
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.onefile import one_file
from pytest_r1perf.sglang.sampling import Inputs
from pytest_r1perf.workload import Workload

RESULTS = "engine.jsonl"
"""The driver's file, in a round's folder."""

SCRIPT = "engine_driver.py"

FAILED_REASONS = ("unfit", "answer", "sampling", "error")
"""Why a cell failed: too long for the engine, an answer that is none, a sampler that miscounts, an exception."""


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
    return one_file(SCRIPT, SAMPLER="sample_workload.py", TELLING="telling.py")


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
class Window(TimedWindow):
    """One timed window, ``total_latency`` in s.

    ``cached_tokens``: how much of the prompts came from the radix cache. ``aborted``: what the engine said of the first
    request that it gave up.
    """

    total_latency: float
    requests: int
    total_input_tokens: int
    total_output_tokens: int
    cached_tokens: int
    aborted: str


@dataclass(frozen=True, slots=True)
class CellReport(DrivenCell[Window]):
    """What the driver told of one cell, so far as it came.

    ``shared_tokens``: the most that its prompts can find in a cache which was empty before.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    shared_tokens: int = 0
    ids_digest: str = ""


EngineReport: TypeAlias = Report[CellReport]


def read_report(path: Path, cells: Sequence[PlannedCell]) -> EngineReport:
    """What the driver told. No file is an engine that never came up. Raises OSError when it can't be read."""
    return driven.read(path, cells, _GRAMMAR)


def _begun(line: Mapping[str, Any]) -> CellReport:
    return CellReport(
        requests=count_of(line, "requests"),
        input_tokens=count_of(line, "input_tokens"),
        output_tokens=count_of(line, "output_tokens"),
        shared_tokens=count_of(line, "shared_tokens"),
        ids_digest=text_of(line, "ids_digest"),
    )


def _window(line: Mapping[str, Any]) -> Window:
    aborted = line.get("aborted")
    if not isinstance(line.get("discarded"), bool) or not isinstance(aborted, str):
        driven.garbage("is a window without discarded or aborted")
    return Window(
        **driven.when_of(line),
        total_latency=number_of(line, "total_latency"),
        requests=count_of(line, "requests"),
        total_input_tokens=count_of(line, "total_input_tokens"),
        total_output_tokens=count_of(line, "total_output_tokens"),
        cached_tokens=count_of(line, "cached_tokens"),
        aborted=aborted,
    )


_GRAMMAR = Grammar("engine", FAILED_REASONS, _begun, _window, CellReport())
