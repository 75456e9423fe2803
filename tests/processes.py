"""Real processes for the tests of `launch/` and `devices`: small scripts that note who they are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pytest_r1perf.launch import proc

# Every script begins with this: note(role) appends "role pid start" to the file in R1PERF_TEST_NOTES.
PRELUDE = """
import os, signal, subprocess, sys, time
from pathlib import Path
NOTES = os.environ.get("R1PERF_TEST_NOTES") or sys.argv[1]
def note(role):
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    with open(NOTES, "a") as file:
        file.write(f"{role} {os.getpid()} {start}\\n")
def daemon(role, ignore_term=False, new_session=True):
    if os.fork():
        return
    if new_session:
        os.setsid()
    if os.fork():
        os._exit(0)
    if ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(role)
    time.sleep(600)
    os._exit(0)
def wait_for(role):
    while role + " " not in (Path(NOTES).read_text() if Path(NOTES).exists() else ""):
        time.sleep(0.01)
"""

# A benchmark as SGLang's can be: a child, one daemonised in its own session, one that ignores SIGTERM.
TREE = """
if os.fork() == 0:
    note("child")
    time.sleep(600)
daemon("daemon")
daemon("stubborn", ignore_term=True)
for role in ("child", "daemon", "stubborn"):
    wait_for(role)
note("main")
print("up", flush=True)
"""
TREE_ROLES = {"main", "child", "daemon", "stubborn"}

Process = tuple[int, int]


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = 90.0) -> None:
    """Wait for a condition; the deadline is only there so that a broken test ends."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.02)


def noted(notes: Path) -> dict[str, Process]:
    """Role -> (pid, start time) of the scripts' processes so far."""
    if not notes.exists():
        return {}
    lines = [line.split() for line in notes.read_text().splitlines()]
    return {role: (int(pid), int(start)) for role, pid, start in lines}


def running(process: Process) -> bool:
    return proc.is_running(*process)


def identity(pid: int) -> Process:
    stat = proc.read_stat(pid)
    assert stat is not None
    return pid, stat.start


def script(body: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + body]


@contextmanager
def started(
    body: str, notes: Path, env: Mapping[str, str] | None = None, user: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A script on its own, killed at the end of the test if it still runs; its standard output is piped."""
    environment = {**os.environ, **(env or {}), "R1PERF_TEST_NOTES": str(notes)}
    process = subprocess.Popen(script(body), env=environment, stdout=subprocess.PIPE, user=user)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
