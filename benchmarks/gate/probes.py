"""Data that nothing should be decided on: what each decider makes of it.

pytest-benchmark is asked by its own command line here, on a clock that reads the numbers out.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gate.decider import Decider, Decision, Measure, Outcome, Past, as_times
from gate.deciders.pytest_benchmark import PytestBenchmark
from gate.environments import interpreter
from gate.series import UNCHANGED, Cell, all_series
from gate.worker import WORKERS

SLOW = 0.8


@dataclass(frozen=True, slots=True)
class Probe:
    """Stored rounds and tonight's, endlessly repeated from the second on."""

    name: str
    past: Past
    tonight: tuple[float, ...]

    def measure(self) -> Measure:
        """Tonight's rounds on demand."""
        rounds = iter(self.tonight)
        return lambda: next(rounds)


def probes() -> tuple[Probe, ...]:
    """The bad data; new rounds are 20 % slow wherever they are numbers, so that a decider has something to miss."""
    cell = Cell(next(iter(all_series().values())), UNCHANGED, 0)
    good = cell.baseline
    measure = cell.night()
    slow = tuple(SLOW * measure() for _ in range(40))
    return (
        Probe("no baseline", Past(()), slow),
        Probe("NaN measured", Past(good), (math.nan, *slow)),
        Probe("zero measured", Past(good), (0.0, *slow)),
        Probe("NaN stored", Past((*good[:-1], math.nan)), slow),
        Probe("zero stored", Past((*good[:-1], 0.0)), slow),
        Probe("another machine's baseline", Past(good, comparable=False), slow),
    )


def answer(decider: Decider, probe: Probe) -> Decision:
    """What the decider says; an exception of its own is an ERROR."""
    if isinstance(decider, PytestBenchmark):
        return _by_command_line(decider, probe)
    try:
        return decider.decide(probe.past, probe.measure())
    except (ArithmeticError, ValueError, RuntimeError) as error:
        return Decision(Outcome.ERROR, 0, f"{type(error).__name__}: {error}")


def answers(deciders: Iterable[Decider]) -> dict[str, dict[str, list[str]]]:
    """Outcome and note by decider and probe."""
    table: dict[str, dict[str, list[str]]] = {}
    for decider in deciders:
        decisions = {probe.name: answer(decider, probe) for probe in probes()}
        table[decider.name] = {name: [item.outcome.value, item.note] for name, item in decisions.items()}
    return table


def _by_command_line(decider: PytestBenchmark, probe: Probe) -> Decision:
    done = command_line(
        probe.past.baseline,
        probe.tonight[: decider.rounds],
        check=f"{decider.field}:{decider.percent:.0f}%",
        another_machine=not probe.past.comparable,
    )
    status, tail = done["rc"], " ".join(done["tail"])
    if status == 0:
        return Decision(Outcome.OK, decider.rounds, "rc 0")
    regressed = status == 1 and "PerformanceRegression" in tail
    outcome = Outcome.REGRESSED if regressed else Outcome.ERROR
    return Decision(outcome, decider.rounds, f"rc {status}: {tail[-200:]}")


def command_line(
    old: Sequence[float], new: Sequence[float], *, check: str, another_machine: bool = False
) -> dict[str, Any]:
    """pytest-benchmark's exit status and last lines on throughputs; no ``old``: the stored file has another test."""
    python = interpreter("tools")
    if python is None:
        raise RuntimeError("the environment 'tools' isn't there")
    request = {
        "old": as_times(old, 1) if old else None,
        "new": as_times(new, 1),
        "check": check,
        "machine": another_machine,
    }
    command = [str(python), str(WORKERS / "cli_pytest_benchmark.py")]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
