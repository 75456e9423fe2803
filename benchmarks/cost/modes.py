"""Wall time a verdict in ``offline`` and in ``engine`` mode, 15 cells with five or six samples each.

A sample is one timed window. In ``offline`` mode it is a process of its own, so five samples are five rounds. In
``engine`` mode it is measured twice: with all windows in one engine start (one round: what differs from process to
process is then taken from the platform's stored noise, not from the data), and with two windows in each of three
engine starts (three rounds, six samples).
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cost import project
from cost.project import Session


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to measure all cells: what is asked of pytest beside the test file."""

    name: str
    mode: str
    rounds: int
    windows: int

    @property
    def options(self) -> tuple[str, ...]:
        rounds = ("--perf-rounds", str(self.rounds))
        return rounds if self.mode == "offline" else (*rounds, "--perf-windows", str(self.windows))


OFFLINE = Variant("offline: 5 processes a cell, a window each", "offline", 5, 1)
ONE_START = Variant("engine: 1 start, 5 windows a cell", "engine", 1, 5)
THREE_STARTS = Variant("engine: 3 starts, 2 windows a cell each", "engine", 3, 2)

STEP = 1
FIRST = 10
"""Prompts of the smallest cell: from there on a window takes about a tenth of a start (on the H200: a fifteenth)."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one session cost; ``whole`` is how many cells it stands for (more than it measured: extrapolated)."""

    variant: Variant
    session: Session
    whole: int

    @property
    def cells(self) -> int:
        """How many cells it measured."""
        return len({one.cell for one in self.session.record.rounds})

    @property
    def per_verdict_s(self) -> float:
        """Wall seconds of pytest for each cell that was decided."""
        decided = [one for one in self.session.record.verdicts.values() if one in ("PASS", "IMPROVED", "REGRESSED")]
        return self.session.wall_s / len(decided) if decided else float("nan")

    def lines(self) -> list[str]:
        """A few lines with all that was counted."""
        record = self.session.record
        samples = Counter(one.cell for one in record.rounds for _ in range(one.windows))
        counts = ", ".join(f"{count} {name}" for name, count in Counter(record.verdicts.values()).items())
        own_s = self.session.wall_s - self.session.processes_s
        lines = [
            f"{self.variant.name}: {self.session.wall_s:.1f} s for {len(record.verdicts)} verdicts ({counts}), "
            f"{self.per_verdict_s:.2f} s a verdict; {_span(samples.values())} samples a cell; "
            f"SGLang's processes {self.session.processes_s:.1f} s, the rest of pytest {own_s:.1f} s"
        ]
        if self.variant.mode == "offline":
            times = [one.wall_s for one in record.rounds]
            lines.append(f"  {len(times)} processes: median {statistics.median(times):.2f} s, {_range(times)} s")
        else:
            lines += [f"  round {number}: {seconds:.1f} s for all cells" for number, seconds in _engines(self.session)]
        if self.cells < self.whole:
            lines.append(f"  EXTRAPOLATED to {self.whole} cells: {self.per_verdict_s * self.whole:.0f} s")
        if self.session.waits:
            lines.append(f"  WAITED for another session's lease, {self.session.waits} times told: not to be used")
        lines += [f"  problem: {problem}" for problem in record.problems]
        return lines


def ratio(offline: Sequence[Cost], engine: Sequence[Cost]) -> str:
    """Offline over engine, by seconds a verdict: from the medians, and the smallest and largest of all pairs."""
    every = [one.per_verdict_s / other.per_verdict_s for one in offline for other in engine]
    middle = statistics.median(one.per_verdict_s for one in offline) / statistics.median(
        one.per_verdict_s for one in engine
    )
    return f"{middle:.2f} ({_range(every)}; {len(offline)} sessions against {len(engine)})"


def main(cells: int, offline_cells: int, repeats: int, first: int = FIRST, step: int = STEP) -> None:
    """Measure and print; the engine sessions are before and after the long offline one."""
    ns = [first + step * number for number in range(cells)]
    costs: dict[Variant, list[Cost]] = {OFFLINE: [], ONE_START: [], THREE_STARTS: []}

    def measure(folder: Path, variant: Variant) -> None:
        print(f"{project.load()}: {variant.name} ...", flush=True)
        whole = cells
        cost = Cost(variant, project.run(folder, variant.mode, *variant.options), whole)
        costs[variant].append(cost)
        print(*cost.lines(), sep="\n", flush=True)

    with tempfile.TemporaryDirectory(prefix="cost-") as name:
        engine, offline = Path(name) / "engine", Path(name) / "offline"
        for folder, those in ((engine, ns), (offline, _spread(ns, offline_cells))):
            folder.mkdir()
            project.make(folder, those)
        print(f"{project.load()}: cells with N = {', '.join(map(str, ns))}; a first session counts every workload's")
        print("tokens (kept in a cache) and stores the engine mode's baseline", flush=True)
        first_of_all = project.run(engine, "engine", "--perf-rounds", "1", "--perf-windows", "1", "--perf-update")
        print(f"  that took {first_of_all.wall_s:.1f} s", flush=True)
        for number in range(repeats):
            for variant in (ONE_START, THREE_STARTS) if number % 2 == 0 else (THREE_STARTS, ONE_START):
                measure(engine, variant)
            if number == 0:
                measure(offline, OFFLINE)
    print(project.load())
    for variant in (ONE_START, THREE_STARTS):
        print(f"offline / {variant.name}: {ratio(costs[OFFLINE], costs[variant])}")


def _spread(ns: Sequence[int], count: int) -> list[int]:
    """``count`` of them at equal distances, ends included."""
    if count >= len(ns):
        return list(ns)
    if count == 1:
        return [ns[len(ns) // 2]]
    return [ns[round(place * (len(ns) - 1) / (count - 1))] for place in range(count)]


def _engines(session: Session) -> list[tuple[int, float]]:
    """Of every round the wall seconds of its engine."""
    numbers = sorted({one.number for one in session.record.rounds})
    return [(number, sum(one.wall_s for one in session.record.rounds if one.number == number)) for number in numbers]


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _span(counts: object) -> str:
    values = sorted(set(counts))  # type: ignore[call-overload]
    return "/".join(map(str, values))
