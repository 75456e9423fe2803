"""What pytest-r1perf admits to a verdict: asked of its own code wherever a number or a baseline looks odd.

``baseline.load`` refuses a stored number, ``baseline.other_hardware`` names a baseline of another machine, and
``validity.check_offline`` says that a round is no measurement. Good data are let through without asking, for speed.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from gate.decider import WORK
from pytest_r1perf.baseline import load, other_hardware, path_of
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.result import OfflineResult, ResultLine, Table
from pytest_r1perf.validity import ExpectedWorkload, check_offline

CELL, TOPOLOGY = "cell", "tp1"


def accepted(metric: str, values: Sequence[float]) -> tuple[float, ...]:
    """The stored rounds; :class:`R1PerfError` where the loader of baseline files refuses them."""
    if _plausible(values):
        return tuple(values)
    with tempfile.TemporaryDirectory() as folder:
        path = _file(Path(folder), "this", metric, values)
        try:
            return load(path).cells[CELL].samples[metric]
        except R1PerfError as error:
            raise R1PerfError(str(error).replace(f"{path.parent}/", "")) from None


def other_machine(metric: str, values: Sequence[float]) -> str:
    """Why a baseline that is stored under another machine's key is not compared with."""
    with tempfile.TemporaryDirectory() as folder:
        _file(Path(folder), "another", metric, values)
        found = other_hardware(Path(folder), "this", TOPOLOGY, CELL)
        return "; ".join(f"hardware: {file.hardware_name}, {file.hardware_count}" for file in found)


def not_a_measurement(metric: str, value: float) -> str:
    """What is wrong with a round by the checks on SGLang's result line; "" where nothing is."""
    if _plausible((value,)):
        return ""
    tokens, requests = int(WORK / 2), 50
    latency = value if metric == "total_latency" else math.inf if value == 0 else WORK / value
    rates = {
        "total_latency": latency,
        "request_throughput": _over(requests, latency),
        "input_throughput": _over(tokens, latency),
        "output_throughput": _over(tokens, latency),
        "total_throughput": value if metric == "total_throughput" else _over(2 * tokens, latency),
    }
    counts = {"successful_requests": requests, "total_input_tokens": tokens, "total_output_tokens": tokens}
    line = OfflineResult(backend="engine", last_gen_throughput=None, **counts, **rates)  # type: ignore[arg-type]
    validity = check_offline(
        [ResultLine(1, line, ())],
        Table(complete=True, **counts, **rates),  # type: ignore[arg-type]
        expected=ExpectedWorkload(requests, tokens, tokens),
        facts=LogFacts(),
        returncode=0,
        ceilings={},
    )
    return validity.failed[0].sentence if validity.failed else ""


def _plausible(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) and value > 0 for value in values)


def _over(amount: float, latency: float) -> float:
    return amount / latency if latency else math.inf


def _file(root: Path, hardware: str, metric: str, values: Sequence[float]) -> Path:
    document = {
        "version": 1,
        "hardware": {"name": f"{hardware} machine", "count": 1},
        "topology": TOPOLOGY,
        "cells": {
            CELL: {
                "metrics": {metric: {"unit": METRICS[metric].unit, "samples": list(values)}},
                "protocol": {"tp_size": 1},
                "provenance": {"date": "2026-11-30"},
            }
        },
    }
    path = path_of(root, hardware, TOPOLOGY)
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path
