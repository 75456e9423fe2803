"""Wall time a verdict in ``offline`` and in ``engine`` mode, 15 cells with five or six samples each.

A sample is one timed window. In ``offline`` mode it is a process of its own, so five samples are five rounds. In
``engine`` mode it is measured twice: with all windows in one engine start (one round: what differs from process to
process is then taken from the platform's stored noise, not from the data), and with two windows in each of three
engine starts (three rounds, six samples). Each engine start throws one window of every cell away.

All cells are judged by a floor; those with one engine start against a stored baseline as well.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cost import host, project
from cost.project import Session


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to measure all cells: ``windows`` of each in each of ``rounds`` processes."""

    mode: str
    rounds: int
    windows: int

    @property
    def name(self) -> str:
        starts = "processes a cell" if self.mode == "offline" else "engine starts for all cells"
        return f"{self.mode}: {self.rounds} {starts}, {self.windows} windows a cell in each"

    @property
    def options(self) -> tuple[str, ...]:
        rounds = ("--perf-rounds", str(self.rounds))
        return rounds if self.mode == "offline" else (*rounds, "--perf-windows", str(self.windows))


OFFLINE = Variant("offline", 5, 1)
ONE_START = Variant("engine", 1, 5)
THREE_STARTS = Variant("engine", 3, 2)
QUICK = (Variant("offline", 2, 1), Variant("engine", 1, 2), Variant("engine", 2, 1))
"""Instead of the three above, to see in two minutes that it works."""

STEP = 1
FIRST = 10
"""Prompts of the smallest cell: from there on a window takes about a tenth of a start (on the H200: a fifteenth)."""


TRIES = 3
"""A session that had to wait for another one's lease is measured again, so many times in all."""


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
        windows_s = [one.window_s for one in record.rounds]
        lines.append(f"  a window: median {statistics.median(windows_s):.2f} s, {_range(windows_s)} s")
        if self.variant.mode == "offline":
            times = [one.wall_s for one in record.rounds]
            lines.append(f"  {len(times)} processes: median {statistics.median(times):.2f} s, {_range(times)} s")
        else:
            lines += [f"  round {number}: {seconds:.1f} s for all cells" for number, seconds in _engines(self.session)]
        if self.cells < self.whole:
            lines.append(f"  EXTRAPOLATED to {self.whole} cells: {self.per_verdict_s * self.whole:.0f} s")
        lines.append(f"  {self.session.beside}")
        if self.session.waits:
            lines.append(
                f"  WAITED for another session's lease (told {self.session.waits} times, every 5 s): of no use"
            )
        lines += [f"  problem: {problem}" for problem in record.problems]
        return lines


def ratio(offline: Sequence[Cost], engine: Sequence[Cost]) -> str:
    """Offline over engine, by seconds a verdict: from the medians, and the smallest and largest of all pairs."""
    every = [one.per_verdict_s / other.per_verdict_s for one in offline for other in engine]
    middle = statistics.median(one.per_verdict_s for one in offline) / statistics.median(
        one.per_verdict_s for one in engine
    )
    return f"{middle:.2f} ({_range(every)}; {len(offline)} sessions against {len(engine)})"


def main(
    cells: int,
    offline_cells: int,
    repeats: int,
    first: int = FIRST,
    step: int = STEP,
    variants: Sequence[Variant] = (OFFLINE, ONE_START, THREE_STARTS),
) -> None:
    """Measure and print; the engine sessions are before and after the long offline one."""
    ns = [first + step * number for number in range(cells)]
    costs: dict[Variant, list[Cost]] = {variant: [] for variant in variants}
    slow, *fast = variants

    def measure(folder: Path, variant: Variant) -> None:
        for _ in range(TRIES):
            print(f"{host.load()}: {variant.name} ...", flush=True)
            cost = Cost(variant, project.run(folder, variant.mode, *variant.options), cells)
            print(*cost.lines(), sep="\n", flush=True)
            if not cost.session.waits:
                break
        costs[variant].append(cost)

    with tempfile.TemporaryDirectory(prefix="cost-") as name:
        folders = {variant: Path(name) / str(place) for place, variant in enumerate(variants)}
        for variant, folder in folders.items():
            folder.mkdir()
            project.make(folder, _spread(ns, offline_cells) if variant is slow else ns)
        stored = fast[0]
        print(f"{host.load()}: cells with N = {', '.join(map(str, ns))}. A session that is not compared counts every")
        print(f"workload's tokens (kept in a cache) and stores a baseline for '{stored.name}'", flush=True)
        before = project.run(folders[stored], stored.mode, *stored.options, "--perf-update")
        print(f"  that took {before.wall_s:.1f} s; {before.beside}", flush=True)
        for number in range(repeats):
            for variant in fast if number % 2 == 0 else reversed(fast):
                measure(folders[variant], variant)
            if number == 0:
                measure(folders[slow], slow)
    print(host.load())
    for variant in fast:
        print(f"{slow.mode} / {variant.name}: {ratio(costs[slow], costs[variant])}")


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
