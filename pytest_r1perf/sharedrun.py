"""A process that several cells share for a round: an engine, or a server with its clients.

A driver starts it and measures cell after cell, several timed windows each; what it tells is read as
:mod:`pytest_r1perf.sglang.driven` says. A mode says what is started and how a cell's part is judged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pytest_r1perf.caches import CacheFile
from pytest_r1perf.cell import Cell
from pytest_r1perf.gpu.judge import Watched
from pytest_r1perf.gpu.occupancy import ALLOWED_S
from pytest_r1perf.late import Late
from pytest_r1perf.launch.process import Poll
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.roundcheck import LINGER_S, FinishedRun, broken_by
from pytest_r1perf.roundrun import Ran, RoundRunner, asked
from pytest_r1perf.sglang.driven import FOREIGN, DrivenCell, Planned, Report
from pytest_r1perf.sglang.enginelog import EngineLog
from pytest_r1perf.verdict import Verdict

_MARGIN_S = 60.0
"""What a process gets beyond the limits of its cells before the supervision itself ends it; ours."""

P = TypeVar("P", bound=Planned)
C = TypeVar("C", bound=DrivenCell[Any])


@dataclass(frozen=True, slots=True)
class CellRun(Generic[P, C]):
    """One cell's part of a run: what was planned and told of it.

    ``told`` is what the process says of itself. ``wall_s`` is how long the cell took, in s, of the first cell with the
    start of the process. ``files``: the kernel cache files that were written during the whole run.
    """

    cell: Cell
    run: FinishedRun
    planned: P
    report: C
    told: Mapping[str, Any]
    wall_s: float
    files: tuple[CacheFile, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """What is started: one command a rank, what it needs to see in a container, and what comes back of rank 0."""

    argv_of: Callable[[int], Sequence[str]]
    mounts: tuple[str, ...]
    fetch: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Member:
    """A cell of a shared run; ``nodeid`` is the test that it belongs to, ``None`` for the round's own cell."""

    measurement: Measurement
    nodeid: str | None

    @property
    def cell(self) -> Cell:
        return self.measurement.cell

    @property
    def id(self) -> str:
        """As the driver and the log name it."""
        return self.cell.fingerprint


@dataclass(frozen=True, slots=True)
class _Over:
    """What a run gave: outcomes of the members that were reached, and those that were not."""

    outcomes: tuple[tuple[_Member, Measurement, Sample | Problem], ...] = ()
    rest: tuple[_Member, ...] = ()
    stopped: Problem | None = None


@dataclass
class SharedMode(RoundRunner, ABC, Generic[P, C]):
    """Runs rounds of cells in one SGLang environment, one process a round for all that can share it.

    ``siblings`` gives, for a cell and a round, the other cells that share its process and still need this round, each
    with the test that it belongs to; ``keep`` gets what became of each. Of every cell ``discard`` windows are thrown
    away and ``windows`` count. ``looked`` is called about five times a second with the folder of the round that runs,
    and once when it is over.
    """

    what: ClassVar[str]
    """The process, in sentences."""
    mark: ClassVar[str]
    """What the driver's own lines in the log begin with."""

    siblings: Callable[[Cell, int], Sequence[tuple[Cell, str]]] = lambda cell, number: ()
    keep: Callable[[Measurement, Sample | Problem, str], None] = lambda measurement, outcome, nodeid: None
    windows: int = 3
    discard: int = 1
    looked: Callable[[Path], None] = lambda folder: None
    _measurements: dict[str, Measurement] = field(default_factory=dict)

    @abstractmethod
    def planned(self, cell: Cell) -> P:
        """The cell as the driver gets it."""

    @abstractmethod
    def command(self, cells: Sequence[Cell], *, inline: bool = False) -> tuple[str, ...]:
        """The driver's command for these cells; ``inline``: it brings its source along."""

    @abstractmethod
    def started(self, cells: Sequence[Cell], folder: Path) -> Start:
        """What runs these cells; files that it needs are laid into the folder."""

    @abstractmethod
    def read(self, folder: Path, planned: Sequence[P]) -> Report[C]:
        """What the driver told."""

    @abstractmethod
    def judged(self, measurement: Measurement, number: int, part: CellRun[P, C]) -> Sample | Problem:
        """Round ``number`` of a cell that came to its end, or failed in it."""

    @abstractmethod
    def own_protocol(self, part: CellRun[P, C]) -> dict[str, object]:
        """What this mode adds to the protocol, by what was told or lies in the round's folder."""

    def prepare(self, cell: Cell) -> Measurement:
        """Translate the flags, resolve paths, count the workload beforehand; a mistake is CONFIG with one sentence."""
        measurement = self.prepared(cell, lambda cell: self.command([cell]))
        self._measurements[cell.fingerprint] = measurement
        return measurement

    def round(self, prepared: Measurement, number: int) -> tuple[Measurement, Sample | Problem]:
        """Measure the cell in a fresh process, and then its siblings.

        A sibling that breaks the process spoils nothing but itself: those after it are measured in another one.
        Where that one doesn't come up, or nodes or leases are lost, they are left to their own turn.
        """
        queue: tuple[_Member, ...] = (_Member(prepared, None), *self._sharing(prepared.cell, number))
        measured: Measurement = prepared
        result: Sample | Problem | None = None
        while queue:
            over = self._together(queue, number)
            if over.stopped is not None:
                return (measured, result) if result is not None else (prepared, over.stopped)
            for member, told, became in over.outcomes:
                if member.nodeid is None:
                    measured, result = told, became
                elif not isinstance(became, Problem) or became.verdict is not Verdict.INFRA:
                    self.keep(told, became, member.nodeid)
            # Where the round's own cell is spoilt its siblings have a turn of their own.
            queue = over.rest if isinstance(result, Sample) else ()
        assert result is not None
        return measured, result

    def _sharing(self, cell: Cell, number: int) -> list[_Member]:
        """The siblings that can be prepared; what is wrong with another is told in its own turn."""
        members, taken = [], {cell.fingerprint}
        for other, nodeid in self.siblings(cell, number):
            known = self._measurements.get(other.fingerprint)
            measurement = known if known is not None else self.prepare(other)
            if measurement.problem is not None or other.fingerprint in taken:
                continue
            taken.add(other.fingerprint)
            if self.ready(other).translation.argv == self.ready(cell).translation.argv:
                members.append(_Member(measurement, nodeid))
        return members

    # -- one process -----------------------------------------------------------------------------------------

    def _together(self, members: Sequence[_Member], number: int) -> _Over:
        cell = members[0].cell
        folder = self.round_folder(cell, number)
        start = self.started([member.cell for member in members], folder)
        log = EngineLog(self.mark)
        limits = {member.id: member.cell.timeout_s for member in members}
        sizes = {member.id: member.cell for member in members}
        gpus = cell.topology.gpus_used // cell.topology.nnodes
        waiting = ALLOWED_S if self.site.gpus_there(0, gpus) else 0.0
        late = Late(log, limits, members[0].id, waiting, what=self.what)

        def on_output(data: bytes) -> None:
            log.feed(data)
            if log.place.cell is None and log.begun(members[0].id):
                return  # between two cells
            shown = sizes[log.place.cell or members[0].id]
            self.show(shown, number, log.progress(shown.num_prompts))

        def poll() -> Poll:
            self.looked(folder)
            return late()

        ran = self.run(
            cell,
            folder,
            start.argv_of,
            timeout_s=sum(limits.values()) + LINGER_S + _MARGIN_S,
            mounts=start.mounts,
            fetch=start.fetch,
            on_output=on_output,
            poll=poll,
        )
        self.looked(folder)
        if isinstance(ran, Problem):
            return _Over(stopped=ran)
        log.close()
        report = self.read(folder, [self.planned(member.cell) for member in members])
        first = self._finished(members[0], ran, log, report)
        left = broken_by(first, True)
        if left is None and report.startup_s is None:
            left = _foreign(first, report) or self._broke(first, report, late.said)
        if left is not None:
            return _Over(stopped=left)
        return self._outcomes(members, number, ran, log, report, late.said)

    def _outcomes(
        self,
        members: Sequence[_Member],
        number: int,
        ran: Ran,
        log: EngineLog,
        report: Report[C],
        late: str | None,
    ) -> _Over:
        """What became of every member; the first that was begun and is not over is the one that broke the process."""
        outcomes: list[tuple[_Member, Measurement, Sample | Problem]] = []
        for place, member in enumerate(members):
            found = report.cells.get(member.id)
            if place and not ((found is not None and found.over) or log.begun(member.id)):
                return _Over(tuple(outcomes), tuple(members[place:]))
            run = self._finished(member, ran, log, report)
            if found is None or not found.over:
                measured = self.told(member.measurement, run.facts, ran.ended, self._windows())
                outcomes.append((member, measured, self._broke(run, report, late)))
                return _Over(tuple(outcomes), tuple(members[place + 1 :]))
            remarks = self._remarks(ran, report, late) if place == 0 else ()
            seconds = found.seconds if place else found.seconds + (report.startup_s or 0.0)
            planned = self.planned(member.cell)
            part = CellRun(member.cell, run, planned, found, report.told, seconds, ran.written, remarks)
            protocol = {**self._windows(), **self.own_protocol(part)}
            measured = self.told(member.measurement, run.facts, ran.ended, protocol)
            part = replace(part, run=replace(run, ceilings=self.ceilings(measured, run.facts)))
            outcomes.append((member, measured, self.judged(measured, number, part)))
        return _Over(tuple(outcomes))

    def _finished(self, member: _Member, ran: Ran, log: EngineLog, report: Report[C]) -> FinishedRun:
        found = report.cells.get(member.id)
        timed = found.timed if found is not None else ()

        def seen(seconds: float) -> Watched:
            return ran.gpus(timed[0].start if timed else None, log.first_line(member.id), seconds)

        return FinishedRun(
            facts=log.facts(member.id),
            ended=ran.ended,
            folder=ran.folder,
            hosts=tuple(node.host for node in self.site.nodes),
            asked=asked(member.cell, self.ready(member.cell).translation),
            stated=self.stated_pins(member.cell),
            pins=self.left_pins(member.cell),
            gpus=seen,
        )

    def _windows(self) -> dict[str, object]:
        """How warm the windows are, and how many make a round."""
        return {"cache_state": "flushed before each window", "windows": self.windows, "discard": self.discard}

    def _broke(self, run: FinishedRun, report: Report[C], late: str | None) -> Problem:
        """Why the process ended in the middle of a cell."""
        if late is not None:
            # The supervision was told to end it, which it calls lingering; for what the log says it is a timeout.
            run = replace(run, ended=replace(run.ended, exit=replace(run.ended.exit, ended_by="timeout")))
        problem = broken_by(run, False)
        if problem is None:
            code = run.ended.returncode
            cause = f"the driver ended with exit code {code} in the middle of a cell"
            problem = Problem(Verdict.CRASH, cause, log=run.log)
        said = report.broken
        if said is not None and problem.verdict is Verdict.CRASH and problem.cause.startswith("no cause in the log"):
            problem = replace(problem, cause=f"the {self.what} does not answer as it should: {said}")
        return problem

    def _remarks(self, ran: Ran, report: Report[C], late: str | None) -> tuple[str, ...]:
        remarks = [f"the driver's file has a line that belongs to no cell: {sentence}" for sentence in report.garbage]
        if late is not None:
            remarks.append(late if report.ended else f"after this cell the {self.what} was ended: {late}")
        elif not report.ended:
            code = ran.ended.returncode
            remarks.append(f"after this cell the {self.what} ended (exit code {code}) before all was over")
        elif ran.ended.exit.ended_by == "exit" and ran.ended.returncode != 0:
            remarks.append(f"teardown failed (rc {ran.ended.returncode})")
        if ran.ended.exit.log_full:
            remarks.append("the disk was full at the end: the log may be cut short")
        return tuple(remarks)


def _foreign(run: FinishedRun, report: Report[Any]) -> Problem | None:
    """Another server has our port: what the log says then is of no use, and may be about that one."""
    if report.refused is None or report.refused[0] != FOREIGN:
        return None
    hint = "end the other one, or see who starts servers on this host (`r1perf doctor` lists its ports)"
    return Problem(Verdict.INFRA, report.refused[1], hint, run.log)
