"""One process more of the bare benchmark command or of the same through the plugin, in turn: bare, plugin, plugin, ...

python pairs.py PROJECT LIMIT_S      one line more in PROJECT/pairs.jsonl; exit status 1 where it broke

The bare command is what the plugin wrote into a round's ``command.txt``, so both run the same to the letter.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from settings import chosen

from pytest_r1perf.childenv import compose

OUT = ".r1perf/overhead"
IDLE_MIB = 1024


def which(number: int) -> str:
    """What the process of that number (from 0 on) is: the order changes from pair to pair, so a drift cancels out."""
    first = (number // 2) % 2 == 0
    return "bare" if first == (number % 2 == 0) else "plugin"


def command_of(project: Path) -> Path | None:
    """The newest ``command.txt`` of an offline round."""
    found = [
        path for stage in ("cold", "overhead") for path in project.glob(f".r1perf/{stage}/*/*/round-*/command.txt")
    ]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def bare(project: Path, number: int, limit_s: float) -> dict[str, Any]:
    """The command by itself, as a person would type it."""
    command = command_of(project)
    if command is None:
        return {"failed": "there is no offline round yet whose command could be taken: run the stage cold"}
    folder = project / "bare" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    wait_idle()
    begun = time.monotonic()
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            ["bash", str(command)], cwd=folder, stdout=log, stderr=log, env=compose({}), start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return {"failed": f"no end within {limit_s:.0f} s"}
    wall_s = time.monotonic() - begun
    result = folder / "result.jsonl"
    if not result.exists():
        return {"failed": f"exit status {code} and no result: {folder}/log.txt", "wall_s": wall_s}
    line = json.loads(result.read_text(encoding="utf-8").splitlines()[-1])
    return {**_metrics(line), "wall_s": wall_s, "sglang_s": wall_s}


def through_plugin(project: Path, limit_s: float) -> dict[str, Any]:
    """A pytest session of one test and one round."""
    command = ["timeout", "-k", "30", f"{limit_s:.0f}", sys.executable, "-m", "pytest", "-p", "pytest_r1perf.plugin"]
    command += ["-p", "no:cacheprovider", "--perf", "--perf-platform", chosen().platform, "--perf-out", OUT]
    command += ["--perf-rounds", "1", "--perf-detect", "0.3", "test_h200.py::test_offline"]
    begun = time.monotonic()
    subprocess.run(command, cwd=project, check=False)
    wall_s = time.monotonic() - begun
    newest = max(project.glob(f"{OUT}/*/samples-main.jsonl"), default=None)
    lines = [json.loads(text) for text in newest.read_text(encoding="utf-8").splitlines()] if newest else []
    samples = [line for line in lines if line["kind"] == "sample"]
    if not samples:
        return {"failed": "no sample, see its table", "wall_s": wall_s}
    thrown_away = sum(line["kind"] == "discarded" for line in lines)
    verdict = next((line["result"]["verdict"] for line in lines if line["kind"] == "verdict"), "")
    own = {"wall_s": wall_s, "sglang_s": samples[-1]["wall_s"], "thrown_away": thrown_away, "verdict": verdict}
    return {**_metrics(samples[-1]["metrics"]), **own}


def wait_idle(patience_s: float = 60.0) -> None:
    """Until the GPUs' memory is back, as the plugin does before it starts anything."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end and max(used_mib(), default=0) > IDLE_MIB:
        time.sleep(0.5)


def used_mib() -> Sequence[int]:
    """Memory in use of each GPU; nothing where there is none."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return [int(text) for text in said.split() if text.isdigit()]


def _metrics(line: dict[str, Any]) -> dict[str, float]:
    return {name: line[name] for name in ("total_throughput", "output_throughput", "total_latency")}


def main(project: Path, limit_s: float) -> int:
    """Run the next one and write it down."""
    file = project / "pairs.jsonl"
    number = len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0
    name = which(number)
    load = os.getloadavg()[0]
    told = bare(project, number, limit_s) if name == "bare" else through_plugin(project, limit_s)
    line = {"number": number, "pair": number // 2, "which": name, "begun": time.time(), "load": load, **told}
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)
    return 1 if "failed" in told else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
