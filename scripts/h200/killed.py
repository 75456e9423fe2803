"""Kills a pytest session and its guard with SIGKILL while an engine is up, and looks at what is left.

python killed.py PROJECT LIMIT_S     start one, kill both; what is left is written to PROJECT/killed.json
python killed.py PROJECT --left      look again: the next session of the plugin has to have ended it

The guard is the small process that ends a run when pytest was killed: without it only the next session can.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from pairs import used_mib
from settings import chosen

from pytest_r1perf.launch.reap import Victim, find_marked

OUT = ".r1perf/killed"
AFTER_S = 3.0
"""How long what is left is looked at before it is written down: a guard would have ended it by then."""


def start(project: Path, log: Path) -> subprocess.Popen[bytes]:
    """A session of one offline test, in a session of its own."""
    options = ["--perf", "--perf-platform", chosen().platform, "--perf-out", OUT, "--perf-rounds", "1"]
    command = [sys.executable, "-m", "pytest", "-p", "pytest_r1perf.plugin", "-p", "no:cacheprovider", *options]
    with log.open("wb") as out:
        return subprocess.Popen(
            [*command, "test_h200.py::test_offline"], cwd=project, stdout=out, stderr=out, start_new_session=True
        )


def of_session(pid: int) -> list[Victim]:
    """The live processes of the run that this pytest owns, or owned."""
    return find_marked(lambda mark: mark.owner_pid == pid)


def guards(pid: int) -> list[int]:
    """The guards that watch this pytest: their argument is its run's mark."""
    marks = {str(victim.mark) for victim in of_session(pid)}
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if any(word.endswith("guard.py") for word in words) and marks & set(words):
            found.append(process.info["pid"])
    return found


def is_up(project: Path, pid: int) -> bool:
    """Whether the engine holds the GPU memory that is asked for; on a CPU, whether it says its arguments."""
    held = chosen().held_mib
    if held:
        return max(used_mib(), default=0) >= held
    logs = project.glob(f"{OUT}/*/*/round-*/log.txt")
    return bool(of_session(pid)) and any(b"server_args=" in log.read_bytes() for log in logs)


def kill(project: Path, limit_s: float) -> dict[str, Any]:
    """Start, wait until it is up, kill, look."""
    begun = time.monotonic()
    process = start(project, project / "killed.log")
    while not is_up(project, process.pid):
        if process.poll() is not None:
            return {"failed": f"pytest ended by itself (exit status {process.returncode}): see killed.log"}
        if time.monotonic() - begun > limit_s:
            process.terminate()
            return {"failed": f"no engine was up within {limit_s:.0f} s"}
        time.sleep(0.2)
    up_s, held, watchers = time.monotonic() - begun, list(used_mib()), guards(process.pid)
    for pid in (*watchers, process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    at_once = [" ".join(one.cmdline)[:120] for one in of_session(process.pid)]
    time.sleep(AFTER_S)
    return {
        "up_after_s": round(up_s, 1),
        "held_mib": held,
        "killed": {"pytest": process.pid, "guards": watchers},
        "left_at_once": at_once,
        # On a host with other sessions one of them may have ended them by now.
        "left": {"after_s": AFTER_S, "pids": [one.pid for one in of_session(process.pid)], "mib": list(used_mib())},
    }


def look_again(told: dict[str, Any]) -> dict[str, Any]:
    """What is there now of those that were left."""
    owner = told.get("killed", {}).get("pytest")
    still = [victim.pid for victim in of_session(owner)] if owner else []
    return {**told, "still_there": still, "mib_then": list(used_mib())}


def main(project: Path, what: str) -> int:
    """Print and keep; 1 where it could not be shown, or something is still there."""
    file = project / "killed.json"
    if what == "--left":
        told = look_again(json.loads(file.read_text(encoding="utf-8")) if file.exists() else {})
    else:
        told = kill(project, float(what))
    file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told, indent=1), flush=True)
    return 1 if "failed" in told or told.get("still_there") else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
