"""The bare benchmark command and the plugin in turn, a process each: throughput, and wall time from start to end.

Shows gross mistakes only: two processes differ by several per cent (``plugin.py`` sees less).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cost import host, project
from pytest_r1perf.rig.home import dataset_path, interpreter, model_dir, rig_dir
from pytest_r1perf.statistics import interval_of_ratio

_ENV = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Measured:
    """What SGLang reports, and the wall time of the command that was typed; ``sglang_s`` of that SGLang's process."""

    tokps: float
    wall_s: float
    sglang_s: float


def bare(folder: Path, n: int) -> Measured:
    """The benchmark command as a person would type it."""
    result = folder / "bare.jsonl"
    command = [str(interpreter(rig_dir())), "-m", "sglang.benchmark.offline_throughput"]
    command += ["--model-path", str(model_dir()), "--dataset-path", str(dataset_path()), "--num-prompts", str(n)]
    command += ["--seed", "2025", "--load-format", "dummy", "--device", "cpu", "--max-total-tokens", "16384"]
    command += ["--result-filename", str(result)]
    started = time.perf_counter()
    with (folder / "bare.log").open("ab") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True, env={**os.environ, **_ENV})
    wall_s = time.perf_counter() - started
    tokps = float(json.loads(result.read_text(encoding="utf-8").splitlines()[-1])["total_throughput"])
    return Measured(tokps, wall_s, wall_s)


def through_plugin(folder: Path, n: int) -> Measured:  # noqa: ARG001 (the project has the number)
    """One test with one round."""
    session = project.run(folder, "offline", "--perf-rounds", "1")
    return Measured(session.record.rounds[-1].tokps, session.wall_s, session.processes_s)


def main(pairs: int, n: int) -> None:
    """Print the medians, and the ratio with its 95 % interval; one pair more is run first and not counted."""
    alone: list[Measured] = []
    plugin: list[Measured] = []
    print(host.load())
    since = host.moment()
    with tempfile.TemporaryDirectory(prefix="cost-") as name:
        folder = Path(name)
        project.make(folder, [n])
        for number in range(pairs + 1):
            order = (bare, through_plugin) if number % 2 else (through_plugin, bare)
            values = {measure: measure(folder, n) for measure in order}
            if number:
                alone.append(values[bare])
                plugin.append(values[through_plugin])
    print(f"{host.load()}; {since.line()}")
    for what, those in (("bare command", alone), ("through the plugin", plugin)):
        print(
            f"{what}: {_spread([one.tokps for one in those], ',.0f')} tok/s, "
            f"{_spread([one.wall_s for one in those], '.2f')} s"
        )
    extra = [one.wall_s - one.sglang_s for one in plugin]
    gap = [one.wall_s - other.wall_s for one, other in zip(plugin, alone, strict=True)]
    print(f"wall time of pytest beside its SGLang's process: {_spread(extra, '.2f')} s")
    print(f"wall time through the plugin less that of the bare command: {_spread(gap, '+.2f')} s")
    ratio = interval_of_ratio([one.tokps for one in plugin], [one.tokps for one in alone], alpha=0.025)
    if ratio is not None:
        print(f"throughput ratio {ratio.estimate:.3f}, 95 % interval {ratio.lower:.3f} to {ratio.upper:.3f}")


def _spread(values: list[float], form: str) -> str:
    return f"median {statistics.median(values):{form}}, {min(values):{form}} to {max(values):{form}}"
