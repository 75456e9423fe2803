"""What the plugin takes from the throughput that it measures: in one engine, its processes running and stopped.

Two processes of SGLang differ by several per cent, so a plugin that takes less cannot be seen between them. Here one
engine measures window after window; whenever one is over, the plugin's processes (pytest and its guard, never
SGLang's) are stopped or continued by a signal, in the order A B B A. SGLang writes its log and the driver its results
to files, so neither notices.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cost import host, project
from cost.blocks import Switch, Window, difference, paired, state_of, windows

POLL_S = 0.02
"""How often the results file is looked at: a flush of the cache lies between two windows, and takes longer."""

_SPIN = """\
import sys, time
share = float(sys.argv[1])
while True:
    until = time.monotonic() + share / 50
    while time.monotonic() < until:
        pass
    time.sleep((1 - share) / 50)
"""


@dataclass
class Watch:
    """What was seen of one engine."""

    switches: list[Switch] = field(default_factory=list)
    running_s: float = 0.0
    """Wall seconds from window line to window line, with the plugin running."""
    cpu_s: float = 0.0
    """CPU seconds of the plugin's processes in them."""
    started: float = 0.0
    """When SGLang's process was first seen."""
    ended: float = 0.0


def cpu_seconds(pids: Sequence[int]) -> float:
    """What the scheduler gave the threads of these processes so far, to the nanosecond (of children nothing)."""
    spent = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                spent += int(task.read_text(encoding="ascii").split()[0])
    return spent / 1e9


def switch(pids: Sequence[int], running: bool) -> Switch:
    """Stop the processes or let them go on, and wait until they are."""
    begun = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGCONT if running else signal.SIGSTOP)
    while not running and any(_stat(pid)[0] not in "TZ" for pid in pids):
        time.sleep(0.0005)
    return Switch(running, begun, time.monotonic())


def guards(owner: int) -> list[int]:
    """The watchers that belong to this pytest: its pid is in the mark that they are started with."""
    return [
        pid
        for pid, arguments in _processes()
        if any(one.endswith("/launch/guard.py") for one in arguments) and any(f"-{owner}-" in one for one in arguments)
    ]


def driver(owner: int) -> int | None:
    """The first process of SGLang: the child of pytest that runs the engine's driver."""
    return next(
        (
            pid
            for pid, arguments in _processes()
            if any(one.endswith("engine_driver.py") for one in arguments) and int(_stat(pid)[1]) == owner
        ),
        None,
    )


def left_over(session: str) -> list[int]:
    """Processes that still carry a session's mark, in their environment or among their arguments."""
    found = []
    for pid, arguments in _processes():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if session.encode() in environment or any(session in one for one in arguments):
                found.append(pid)
    return found


def engine(folder: Path, count: int, block: int, burn: float) -> tuple[list[Window], Watch, str]:
    """One engine with ``count`` windows: those that were timed, what was seen, and a line on the test as a whole.

    ``burn`` is the control: beside the plugin a process for each CPU takes that share of it, so that there is
    something to be seen.
    """
    watch = Watch()
    options = ("--perf-rounds", "1", "--perf-windows", str(count), "--perf-discard", "2")
    known = set((folder / ".r1perf").glob("*"))
    begun = time.monotonic()
    with (folder / "pytest.out").open("wb") as out:
        pytest = subprocess.Popen(
            project.command("engine", options), cwd=folder, stdout=out, stderr=out, start_new_session=True
        )
        own: list[int] = []
        spin = [sys.executable, "-c", _SPIN, str(burn)]
        burners = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)] if burn else []
        try:
            results = _wait_for_results(folder, known, pytest, watch)
            sglang = driver(pytest.pid)
            own = [pytest.pid, *guards(pytest.pid), *(one.pid for one in burners)]
            _toggle(results, own, count, block, watch)
        except BaseException:
            _go_on(own)
            pytest.send_signal(signal.SIGINT)  # it ends SGLang
            pytest.wait()
            raise
        finally:
            _go_on(own)
            for one in burners:
                one.kill()
                one.wait()
        while sglang is not None and _alive(sglang):
            time.sleep(POLL_S)
        watch.ended = time.monotonic()
        code = pytest.wait()
    over = time.monotonic()
    session = results.parents[2].name
    left = left_over(session)
    line = (
        f"pytest (exit code {code}) took {over - begun:.1f} s, SGLang's process {watch.ended - watch.started:.1f} s of "
        f"it: {watch.started - begun:.2f} s before it, {over - watch.ended:.2f} s after it; processes that are stopped "
        f"and continued: {len(own)}; left running: {left or 'none'}"
    )
    with results.open(encoding="utf-8") as lines:
        return windows(lines), watch, line


def main(count: int, block: int, engines: int, n: int, burn: float = 0.0) -> None:
    """Print what each engine gave, and all pairs together."""
    every: list[float] = []
    control = f", beside the plugin {burn:.0%} of every CPU" if burn else ""
    with tempfile.TemporaryDirectory(prefix="cost-") as name:
        folder = Path(name)
        project.make(folder, [n], timeout_s=36000)
        for _ in range(engines):
            print(f"{host.load()}: one engine, {count} windows of N = {n}, blocks of {block}{control} ...", flush=True)
            since = host.moment()
            found, watch, line = engine(folder, count, block, burn)
            values = paired(found, watch.switches, block)
            every += values
            spread = statistics.stdev(map(_log, found))
            print(line)
            print(since.line())
            print(
                f"{len(found)} windows, median {statistics.median(one.end - one.start for one in found):.2f} s and "
                f"{statistics.median(one.tokps for one in found):,.0f} tok/s, CV {100 * spread:.1f} %; "
                f"{len(watch.switches)} switches, {len(values)} of {len(found) // (2 * block)} pairs usable"
            )
            print(
                f"CPU time of the plugin's processes: {1000 * watch.cpu_s / watch.running_s:.1f} ms a second "
                f"({watch.cpu_s:.2f} s in {watch.running_s:.0f} s)"
            )
            print(difference(values).line(), flush=True)
    print(host.load())
    if engines > 1:
        print(f"all {engines} engines: {difference(every).line()}")


def _toggle(results: Path, own: Sequence[int], count: int, block: int, watch: Watch) -> None:
    """Follow the results file to its last window; the plugin runs at the end."""
    running, size, done = True, 0, 0
    cpu, at = cpu_seconds(own), time.monotonic()
    while done < count:
        time.sleep(POLL_S)
        if not _alive(own[0]):
            raise SystemExit(f"pytest ended after {done} of {count} windows: see its output")
        if results.stat().st_size == size:
            continue
        size = results.stat().st_size
        with results.open(encoding="utf-8") as lines:
            now = len(windows(lines))
        if now == done:
            continue
        done = now
        spent, then = cpu_seconds(own) - cpu, time.monotonic()
        if running and done > 1:
            watch.cpu_s += spent
            watch.running_s += then - at
        cpu, at = cpu + spent, then
        wanted = done >= count or state_of(done, block)
        if wanted is not running:
            watch.switches.append(switch(own, wanted))
            running = wanted


def _go_on(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _wait_for_results(folder: Path, known: set[Path], pytest: subprocess.Popen[bytes], watch: Watch) -> Path:
    """The results file of the session's only engine, once it is there."""
    while pytest.poll() is None:
        if not watch.started and driver(pytest.pid) is not None:
            watch.started = time.monotonic()
        for session in set((folder / ".r1perf").glob("*")) - known:
            found = next(session.glob("*/round-1/engine.jsonl"), None)
            if found is not None:
                return found
        time.sleep(POLL_S)
    raise SystemExit(f"pytest ended before a window:\n{(folder / 'pytest.out').read_text(errors='replace')[-3000:]}")


def _log(window: Window) -> float:
    import math

    return math.log(window.tokps)


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on; of a process that is gone a zombie's with no times."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ["Z"] + ["0"] * 50
    return text.rpartition(")")[2].split()


def _alive(pid: int) -> bool:
    return _stat(pid)[0] not in "ZX"


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Every process with its arguments."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
