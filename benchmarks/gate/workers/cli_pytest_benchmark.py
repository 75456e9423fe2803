"""pytest-benchmark's command itself on recorded times: a clock that reads them out, and the stored file it compares.

``python cli_pytest_benchmark.py`` reads one JSON object from stdin: ``old`` and ``new`` (times in seconds, ``old``
may be null: no such benchmark in the stored file), ``check`` (of ``--benchmark-compare-fail``) and ``machine`` (another
machine's file). Prints one JSON line with pytest's exit status and its last lines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TEST = """
import json, pathlib
TIMES = json.loads(pathlib.Path(__file__).with_name("times.json").read_text())

def test_NAME(benchmark):
    benchmark.pedantic(lambda: None, rounds=len(TIMES))
"""
CLOCK = '''
import json, pathlib
TIMES = json.loads(pathlib.Path(__file__).with_name("times.json").read_text())
now, calls = 0.0, 0

def clock():
    """Each pair of readings is one round apart."""
    global now, calls
    if calls % 2:
        now += TIMES[calls // 2 % len(TIMES)]
    else:
        now = 0.0
    calls += 1
    return now
'''


def main() -> None:
    """Store a run of the old times, run the new ones against it."""
    request = json.loads(sys.stdin.read())
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "clock.py").write_text(CLOCK, encoding="utf-8")
        old = request["old"]
        _run(here, "other" if old is None else "cell", old or [1.0], "--benchmark-save=old")
        if request.get("machine"):
            _other_machine(here)
        compare = ("--benchmark-compare=0001", f"--benchmark-compare-fail={request['check']}")
        done = _run(here, "cell", request["new"], *compare)
        lines = [line for line in done.stdout.splitlines() + done.stderr.splitlines() if line.strip()]
        print(json.dumps({"rc": done.returncode, "tail": lines[-3:]}))


def _run(here: Path, name: str, times: list[float], *arguments: str) -> subprocess.CompletedProcess[str]:
    (here / "times.json").write_text(json.dumps(times), encoding="utf-8")
    (here / "test_cell.py").write_text(TEST.replace("NAME", name), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-timer=clock.clock"]
    storage = f"--benchmark-storage=file://{here / 'stored'}"
    # Inside an xdist worker it would take itself for one, and switch itself off.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command += [storage, *arguments]
    return subprocess.run(command, cwd=here, capture_output=True, text=True, check=False, env=own)


def _other_machine(here: Path) -> None:
    (path,) = (here / "stored").rglob("*.json")
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    stored["machine_info"]["cpu"] = {"brand_raw": "another"}
    path.write_text(json.dumps(stored), encoding="utf-8")


if __name__ == "__main__":
    main()
