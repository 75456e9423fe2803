"""Run deciders over simulated cells on several processes; every number of a series comes from its index."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

from gate.decider import Decider, Decision, Outcome, Tunable, drawn
from gate.deciders.packaged import Packaged, decide_many, strengths_of
from gate.series import SCENARIOS, Cell, all_series

CHUNK = 500
MOST_NIGHTS = 20


@dataclass
class Tally:
    """What came of many cell-nights."""

    cells: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    rounds: int = 0

    def add(self, other: Tally) -> None:
        """Put another's counts to these."""
        self.cells += other.cells
        self.outcomes.update(other.outcomes)
        self.rounds += other.rounds

    def count(self, outcome: Outcome) -> int:
        """How many came to it."""
        return self.outcomes[outcome.value]


@dataclass(frozen=True, slots=True)
class Job:
    """So many cells of a series in a scenario, each for one night."""

    decider: Decider
    series: str
    scenario: str
    cells: int
    first: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """Where its tally goes."""
        return self.decider.name, self.series, self.scenario

    def chunks(self) -> Iterator[Job]:
        """The same in parts of :data:`CHUNK` cells."""
        for start in range(0, self.cells, CHUNK):
            count = min(CHUNK, self.cells - start)
            yield Job(self.decider, self.series, self.scenario, count, self.first + start)


def tally(job: Job) -> Tally:
    """Decide each cell once."""
    series, scenario = all_series()[job.series], SCENARIOS[job.scenario]
    cells = [Cell(series, scenario, index) for index in range(job.first, job.first + job.cells)]
    result = Tally()
    for decision in _decisions(job.decider, cells):
        result.cells += 1
        result.outcomes[decision.outcome.value] += 1
        result.rounds += decision.rounds
    return result


def _decisions(decider: Decider, cells: Sequence[Cell]) -> list[Decision]:
    if isinstance(decider, Packaged):
        return decide_many(decider, [(cell.past(), drawn(cell.night(), decider.rounds)) for cell in cells])
    return [decider.decide(cell.past(), cell.night()) for cell in cells]


def nights_to_alarm(job: Job) -> list[int]:
    """For each cell the night of the first alarm, from 1; 0 where :data:`MOST_NIGHTS` had none.

    Each night's rounds are stored, so that a baseline that rolls on does so.
    """
    series, scenario = all_series()[job.series], SCENARIOS[job.scenario]
    cells = (Cell(series, scenario, index) for index in range(job.first, job.first + job.cells))
    return [_first_alarm(job.decider, cell) for cell in cells]


def _first_alarm(decider: Decider, cell: Cell) -> int:
    since: list[tuple[float, ...]] = []
    for night in range(1, MOST_NIGHTS + 1):
        measured: list[float] = []
        decision = decider.decide(cell.past(since), cell.night(measured))
        if decision.outcome is Outcome.REGRESSED:
            return night
        since.append(tuple(measured))
    return 0


@dataclass(frozen=True, slots=True)
class Strengths:
    """Job of a tunable rule: the strength of every cell's night."""

    rule: Tunable
    series: str
    scenario: str
    cells: int
    first: int = 0


def strengths(job: Strengths) -> list[float]:
    """One strength a cell; all attempts are measured."""
    series, scenario = all_series()[job.series], SCENARIOS[job.scenario]
    cells = (Cell(series, scenario, index) for index in range(job.first, job.first + job.cells))
    nights = [(cell.past(), drawn(cell.night(), job.rule.rounds * job.rule.attempts)) for cell in cells]
    if isinstance(job.rule, Packaged):
        return strengths_of(job.rule, nights)
    return [job.rule.strength(past, values) for past, values in nights]


class Pool:
    """Some processes; results come in the order of the jobs."""

    def __init__(self, processes: int | None = None) -> None:
        self._pool = ProcessPoolExecutor(processes or min(2, os.cpu_count() or 1))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *args: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def tallies(self, jobs: Iterable[Job]) -> dict[tuple[str, str, str], Tally]:
        """The tallies of all jobs by decider, series and scenario."""
        running: list[tuple[Job, Future[Tally]]] = [
            (job, self._pool.submit(tally, part)) for job in jobs for part in job.chunks()
        ]
        result: dict[tuple[str, str, str], Tally] = {}
        for job, future in running:
            result.setdefault(job.key, Tally()).add(future.result())
        return result

    def nights(self, jobs: Sequence[Job]) -> dict[str, list[int]]:
        """The nights to the first alarm by decider."""
        running = [(job, [self._pool.submit(nights_to_alarm, part) for part in job.chunks()]) for job in jobs]
        return {job.decider.name: [*chain.from_iterable(part.result() for part in parts)] for job, parts in running}

    def strengths(self, rule: Tunable, series: str, scenario: str, cells: int, *, first: int = 0) -> list[float]:
        """The strengths of that many cells."""
        parts = [
            Strengths(rule, series, scenario, min(CHUNK, cells - start), first + start)
            for start in range(0, cells, CHUNK)
        ]
        return [*chain.from_iterable(self._pool.map(strengths, parts))]
