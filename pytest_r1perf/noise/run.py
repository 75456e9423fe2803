"""The sessions that ``r1perf noise`` measures: pytest on the given perf tests, once a block."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from pytest_r1perf.errors import R1PerfError

LEAST_RUNS = 10
"""Ours: by the chi-squared distribution the 95 % limits of a CV from ten values are 0.69 and 1.83 of it; from five
they are 0.60 and 2.87."""


def measure_noise(platform: str, runs: int, blocks: int, out: Path, arguments: Sequence[str]) -> Path:
    """Run pytest once a block; gives the folder of the records.

    Raises :class:`R1PerfError` for too few runs, and when pytest could not run or was interrupted.
    """
    import secrets

    if runs < LEAST_RUNS:
        raise R1PerfError(f"--runs {runs}: noise takes {LEAST_RUNS} processes at least")
    if blocks < 1 or runs // blocks < 2:
        raise R1PerfError(f"--blocks {blocks}: each session needs two of the {runs} runs at least")
    if not arguments:
        raise R1PerfError(
            "name the perf tests to measure, e.g. `r1perf noise perf_tests/test_cpu.py::test_tp1`, or give records "
            "with --from"
        )
    folder = (out / f"{datetime.datetime.now():%Y%m%d.%H%M%S}.{secrets.token_hex(2)}").absolute()
    for block in range(blocks):
        # The first blocks take what is left over: 11 runs in 2 blocks are 6 and 5.
        rounds = runs // blocks + (block < runs % blocks)
        options = ["--perf", f"--perf-platform={platform}", f"--perf-rounds={rounds}:{rounds}", f"--perf-out={folder}"]
        click.echo(f"r1perf noise: session {block + 1} of {blocks}, {rounds} processes of each cell", err=True)
        status = _pytest([sys.executable, "-m", "pytest", *options, *arguments])
        if status == 2:
            raise R1PerfError(f"interrupted: nothing is written; what was measured lies in {folder} (see --from)")
        if status not in (0, 1):
            raise R1PerfError(f"pytest ended with status {status}, see above: nothing was measured")
        _refuse_broken(folder, rounds)
    return folder


def _pytest(command: Sequence[str]) -> int:
    """Run it to its end, also after Ctrl-C or SIGTERM: it has processes of its own to end."""
    import subprocess

    import pytest

    from pytest_r1perf.launch.stop import sigterm_as_interrupt

    with sigterm_as_interrupt():
        process = subprocess.Popen(command)
        try:
            return process.wait()
        except KeyboardInterrupt:  # the terminal has told it as well
            process.wait()
            return 2
        except pytest.exit.Exception:
            process.terminate()
            process.wait()
            return 2


def _refuse_broken(folder: Path, rounds: int) -> None:
    """A session in which a cell broke, or has too few rounds, is no measurement of noise."""
    from pytest_r1perf import records

    counted: dict[str, int] = {}
    for line in (line for session in records.sessions(folder)[-1:] for line in records.lines(session)):
        result = line.get("result", {}) if line.get("kind") == "verdict" else line
        name = f"{line.get('topology', result.get('topology'))} {line.get('cell', result.get('key'))}"
        if line.get("kind") == "sample":
            counted[name] = counted.get(name, 0) + 1
        elif result.get("verdict") in _BROKEN:
            raise R1PerfError(f"{name}: {result['verdict']}: {result.get('cause', '')}; nothing is written")
    for name, count in counted.items():
        if count < rounds:
            raise R1PerfError(
                f"{name}: only {count} of {rounds} processes were measured, see above; nothing is written"
            )


_BROKEN = ("INVALID", "OOM", "HANG", "INFRA", "CONFIG", "CRASH")
