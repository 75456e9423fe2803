"""What would be run, before anything is: one frozen record a test, and how long such runs took before."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf import records
from pytest_r1perf.antipatterns import RuleKind
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.memory import MemoryEstimate
from pytest_r1perf.preflight.finding import Finding


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """One process of a round: the node it starts on, its argv, and the variables that are ours.

    Values of secrets arrive redacted (``***``).
    """

    rank: int
    host: str
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MatchedRule:
    """An anti-pattern that the cell is an instance of, with what it means for the test."""

    id: str
    kind: RuleKind
    title: str = ""


@dataclass(frozen=True, slots=True)
class PlannedTest:
    """One perf test as it would run.

    ``cell`` is the cell's label, ``key`` its name in a baseline file. ``notes`` are what translating the flags
    to this SGLang changed. ``rounds`` is (least, most) processes; ``expected_s`` the wall time of all of them
    in seconds, ``None`` where nobody knows, ``expected_from`` where the figure comes from. ``baseline`` is the
    file that holds one. ``skip`` says why it would not run at all.
    """

    nodeid: str
    cell: str
    key: str
    commands: tuple[PlannedCommand, ...]
    notes: tuple[str, ...]
    gpus_used: int
    gpus_allocated: int | None
    memory: MemoryEstimate | None
    fits: str
    rounds: tuple[int, int]
    expected_s: float | None
    expected_from: str
    antipatterns: tuple[MatchedRule, ...]
    findings: tuple[Finding, ...]
    baseline: Path | None
    skip: str | None = None
    unit: str = "GPUs"

    @property
    def refused(self) -> bool:
        """Whether a session would not even start it; what is skipped, or only estimated not to fit, is not."""
        return self.skip is None and any(finding.blocks for finding in self.findings)

    @property
    def runs(self) -> bool:
        """Whether processes would start."""
        return self.skip is None and not self.refused


def histories(out: Path) -> dict[str, tuple[float, ...]]:
    """Wall times (seconds, start-up included) of every recorded round, by the cell's fingerprint.

    ``out`` is the output directory of earlier sessions; sessions of a newer format are left out.
    """
    found: dict[str, list[float]] = {}
    for session in records.sessions(out):
        try:
            lines = list(records.lines(session))
        except (R1PerfError, OSError):
            continue
        for line in lines:
            wall = line.get("wall_s")
            fingerprint = line.get("fingerprint")
            if line.get("kind") == "sample" and isinstance(fingerprint, str) and isinstance(wall, (int, float)):
                found.setdefault(fingerprint, []).append(float(wall))
    return {fingerprint: tuple(walls) for fingerprint, walls in found.items()}


def history_s(out: Path, fingerprint: str) -> tuple[float, int] | None:
    """(median wall time of one process in seconds, processes) of a cell in earlier sessions, ``None`` if none."""
    walls = histories(out).get(fingerprint)
    return (statistics.median(walls), len(walls)) if walls else None


def expected(history: tuple[float, int] | None, processes: int, where: str) -> tuple[float | None, str]:
    """(seconds of so many processes, where the figure comes from) for ``expected_s`` and ``expected_from``."""
    if history is None:
        return None, "unknown: never run here"
    median, count = history
    return median * processes, f"median of {count} process{'' if count == 1 else 'es'} in {where}"
