"""A finished round of the offline benchmark, from a recorded result, for tests of how it is judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pytest_r1perf.caches import Kernels
from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.ceilings.bounds import Ceilings, NoCeilings
from pytest_r1perf.cell import cell_of
from pytest_r1perf.ended import Ended
from pytest_r1perf.gpu.judge import Watched
from pytest_r1perf.launch.process import Exit
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.measurement import Discarded, Measurement, Problem, Sample
from pytest_r1perf.roundcheck import RESULT, FinishedRun, outcome
from pytest_r1perf.sglang.events import Event
from pytest_r1perf.sglang.log import read_log

RECORDED = Path(__file__).parent / "recorded"


def finished(
    folder: Path,
    *,
    seconds: float = 2.0,
    ceilings: Ceilings | NoCeilings | None = None,
    gpus: Callable[[float], Watched] = lambda seconds: Watched(),
    kernels: Kernels | None = None,
    compiled: tuple[Event, ...] = (),
) -> Sample | Discarded | Problem:
    """The recorded two-rank run, as if its timed window had taken so many seconds; everything else about it is fine.

    ``compiled``: the log's own lines about compilation in the window.
    """
    folder.mkdir()
    line = json.loads((RECORDED / "otp2.jsonl").read_text().splitlines()[0])
    factor = seconds / line["total_latency"]
    line["total_latency"] = seconds
    for key in ("request_throughput", "input_throughput", "output_throughput", "total_throughput"):
        line[key] /= factor
    (folder / RESULT).write_text(json.dumps(line) + "\n")
    facts = read_log(RECORDED / "log_tp2.log")
    assert facts.table is not None
    shown = {key: round(line[key], 2) for key in line if key.endswith(("_throughput", "_latency"))}
    run = FinishedRun(
        facts=replace(facts, table=replace(facts.table, **shown), jit_in_benchmark=compiled),
        ended=Ended(Exit(0, "exit", seconds + 10)),
        folder=folder,
        hosts=("a",),
        asked={},
        stated={},
        pins={},
        gpus=gpus,
        ceilings=ceilings,
        kernels=kernels or Kernels(),
    )
    catalog = load_catalog()
    cell = cell_of(PerfSpec("tp2", n=line["successful_requests"]), catalog.platform("cpu"), catalog)
    return outcome(Measurement(cell), 1, run)
