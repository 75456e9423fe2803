"""Does the plugin slow down what it measures? The bare benchmark command and the plugin, interleaved.

    python benchmarks/overhead.py [PAIRS]

Needs the CPU rig (``make rig``). Each pair is one process of the bare command and one round through the plugin;
compared is what SGLang itself reports, total_throughput in tok/s.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_r1perf.rig.home import dataset_path, interpreter, model_dir, rig_dir
from pytest_r1perf.statistics import interval_of_ratio

_TEST = "import pytest\n\n@pytest.mark.perf(topology='tp1', n=50, rounds='1')\ndef test_cell():\n    pass\n"
_ENV = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}


def bare(folder: Path) -> float:
    """total_throughput of the benchmark command as a person would type it."""
    result = folder / "bare.jsonl"
    command = [str(interpreter(rig_dir())), "-m", "sglang.benchmark.offline_throughput"]
    command += ["--model-path", str(model_dir()), "--dataset-path", str(dataset_path()), "--num-prompts", "50"]
    command += ["--seed", "2025", "--load-format", "dummy", "--device", "cpu", "--max-total-tokens", "16384"]
    with (folder / "bare.log").open("ab") as log:
        subprocess.run(
            [*command, "--result-filename", str(result)], stdout=log, stderr=log, check=True, env={**os.environ, **_ENV}
        )
    return float(json.loads(result.read_text(encoding="utf-8").splitlines()[-1])["total_throughput"])


def through_plugin(folder: Path) -> float:
    """total_throughput of one round through pytest."""
    (folder / "test_cell.py").write_text(_TEST, encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--perf", "test_cell.py"], cwd=folder, capture_output=True, check=False
    )
    newest = max((folder / ".r1perf").glob("*/samples-main.jsonl"), key=lambda path: path.stat().st_mtime)
    lines = [json.loads(line) for line in newest.read_text(encoding="utf-8").splitlines()]
    return float(next(line for line in lines if line["kind"] == "sample")["metrics"]["total_throughput"])


def main(pairs: int) -> None:
    """Print both medians and the ratio with its 95 % interval."""
    plugin, alone = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        for number in range(pairs + 1):
            order = (bare, through_plugin) if number % 2 else (through_plugin, bare)
            values = {measure: measure(folder) for measure in order}
            if number:
                alone.append(values[bare])
                plugin.append(values[through_plugin])
    ratio = interval_of_ratio(plugin, alone, alpha=0.025)
    print(f"bare command: median {statistics.median(alone):,.0f} tok/s, {min(alone):,.0f} to {max(alone):,.0f}")
    print(
        f"through the plugin: median {statistics.median(plugin):,.0f} tok/s, {min(plugin):,.0f} to {max(plugin):,.0f}"
    )
    if ratio is not None:
        print(f"ratio {ratio.estimate:.3f}, 95 % interval {ratio.lower:.3f} to {ratio.upper:.3f} ({pairs} pairs)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
