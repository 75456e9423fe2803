"""Records as the recorder writes them, with values that a test chooses: whole histories in a second."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

CELL = "h200x8/tp8-champion/sharegpt/n5000/offline"
HARDWARE = "8x-nvidia-h200"
START = datetime.datetime(2026, 9, 1, 2, 30, tzinfo=datetime.timezone.utc)
PROTOCOL = {"tp_size": 8, "mode": "offline", "workload": "67bb13adba50d579", "kv_cache_dtype": "auto"}
RESOLVED = {"schedule_policy": "fcfs", "mem_fraction_static": 0.85, "random_seed": 7, "tp_size": 8}


def sample(number: int = 1, value: float = 20000.0, **changes: Any) -> dict[str, Any]:
    """One sample line: every metric that one throughput gives."""
    line: dict[str, Any] = {
        "format": 1,
        "kind": "sample",
        "time": START.isoformat(timespec="milliseconds"),
        "nodeid": "perf_tests/test_tp8.py::test_champion",
        "topology": "tp8",
        "cell": CELL,
        "fingerprint": "a96434a1c85bc53d",
        "workload": "67bb13adba50d579",
        "hardware": HARDWARE,
        "versions": {"sglang": "0.5.9", "torch": "2.9.1"},
        "env": {"OMP_NUM_THREADS": "1"},
        "command": ["python", "-m", "sglang.bench_offline_throughput"],
        "round": number,
        "metrics": {"total_throughput": value, "total_latency": 3.2e7 / value},
        "wall_s": 61.5,
        "log": "log.txt",
        "remarks": [],
        "protocol": PROTOCOL,
        "platform": "h200x8",
        "host": {"hostname": "gpu3"},
    }
    if number == 1:
        line["resolved"] = RESOLVED
    return {**line, **changes}


def verdict(said: str, **changes: Any) -> dict[str, Any]:
    result = {"nodeid": sample()["nodeid"], "topology": "tp8", "key": CELL, "hardware": HARDWARE, "verdict": said}
    return {"format": 1, "kind": "verdict", "time": START.isoformat(), "result": {**result, **changes}}


def write_session(
    out: Path, name: str, lines: Iterable[Mapping[str, Any]], *, writer: str = "main", ended: bool = True
) -> Path:
    """One process's file of a session."""
    path = out / name / f"samples-{writer}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    start = {"format": 1, "kind": "start", "session": name, "owner": f"{name}-host-1-1-1"}
    end = [{"format": 1, "kind": "end", "exitstatus": 0}] if ended else []
    path.write_text("".join(json.dumps(line) + "\n" for line in (start, *lines, *end)), encoding="utf-8")
    return path


def nightly(
    count: int, *, shape: Callable[[int], float], cv: float = 0.01, seed: int = 1, rounds: int = 3
) -> list[list[float]]:
    """Values a night: ``shape`` is the relative level, ``cv`` the spread of nights; rounds vary by 0.5 %."""
    rng = random.Random(seed)
    found = []
    for night in range(count):
        level = 20000 * (1 + shape(night)) * (1 + rng.gauss(0, cv))
        found.append([level * (1 + rng.gauss(0, 0.005)) for _ in range(rounds)])
    return found


def write_nights(
    out: Path,
    nights: Sequence[Sequence[float]],
    *,
    change: Callable[[int], Mapping[str, Any]] = lambda night: {},
    day: Callable[[int], float] = float,
) -> None:
    """A session a night, at ``day(night)`` days from the start, with ``change(night)`` in its lines."""
    for night, values in enumerate(nights):
        begin = START + datetime.timedelta(days=day(night))
        lines = [
            sample(
                number,
                value,
                **{"time": (begin + datetime.timedelta(minutes=number)).isoformat(), **change(night)},
            )
            for number, value in enumerate(values, 1)
        ]
        write_session(out, f"{begin:%Y%m%d.%H%M%S}.{night:04x}", lines)
