"""What reading a log costs: parse a big one in a process of its own and print wall time and peak memory.

Run ``python benchmarks/parse_log.py [MiB]`` (200 by default). The log is made in a temporary directory by
repeating recorded lines: prefill and decode reports of an H200, as most of a real log is, with two of a
server's access-log lines to each round of them.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytest_r1perf.sglang.log import read_log

RECORDED = Path(__file__).parent.parent / "tests" / "recorded" / "r1-slice_n1000_fa3_fresh2.log"
ACCESS = b'[2026-11-30 10:01:23] INFO:     127.0.0.1:36118 - "POST /generate HTTP/1.1" 200 OK'


def make_log(path: Path, size: int) -> int:
    """Write a log of about ``size`` bytes to ``path``; returns its number of lines."""
    recorded = RECORDED.read_bytes().split(b"\n")
    begin = recorded.index(b"Benchmark...") + 1
    end = next(n for n, line in enumerate(recorded) if b"Offline Throughput" in line) - 1
    reports = recorded[begin:end]
    block = b"\n".join([*reports[:12], ACCESS, *reports[12:], ACCESS]) + b"\n"
    head = b"\n".join(recorded[:begin]) + b"\n"
    tail = b"\n".join(recorded[end:])
    lines = head.count(b"\n") + tail.count(b"\n")
    with path.open("wb") as file:
        file.write(head)
        written = len(head)
        while written < size:
            file.write(block)
            written += len(block)
            lines += block.count(b"\n")
        file.write(tail)
    return lines


def parse(path: Path) -> None:
    """Read ``path`` and print what it cost this process."""
    begun = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts = read_log(path)
    wall_s = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
    if facts.table is None or not facts.table.complete:
        raise SystemExit("the table at the end of the log was not read")
    mib = path.stat().st_size / 2**20
    print(
        f"{mib:.0f} MiB, {facts.lines} lines, {facts.decode.lines} decode reports, "
        f"{len(facts.decode.points)} kept: {wall_s:.2f} s ({mib / wall_s:.0f} MiB/s), "
        f"peak RSS {peak / 1024:.1f} MiB ({before / 1024:.1f} MiB before reading)"
    )


def main(argv: list[str]) -> int:
    """Make the log, then parse it in a fresh process, so that making it is not measured."""
    if argv[:1] == ["--parse"]:
        parse(Path(argv[1]))
        return 0
    size = int(argv[0] if argv else 200) * 2**20
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sglang.log"
        make_log(path, size)
        return subprocess.run([sys.executable, __file__, "--parse", str(path)], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
