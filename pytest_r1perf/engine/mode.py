"""``mode="engine"``: one engine a round, several timed windows of a cell in it, and of the cells that can share it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pytest_r1perf.caches import per_window
from pytest_r1perf.cell import Cell
from pytest_r1perf.engine.check import CellRun, outcome
from pytest_r1perf.gpu.judge import Watched
from pytest_r1perf.gpu.occupancy import ALLOWED_S
from pytest_r1perf.launch.process import Poll
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.roundcheck import LINGER_S, FinishedRun, broken_by
from pytest_r1perf.roundrun import Ran, RoundRunner, asked
from pytest_r1perf.sglang.engine import (
    RESULTS,
    SCRIPT,
    CellReport,
    EngineReport,
    PlannedCell,
    driver_source,
    engine_command,
    planned,
    read_report,
)
from pytest_r1perf.sglang.enginelog import EngineLog
from pytest_r1perf.verdict import Verdict

_MARGIN_S = 60.0
"""What an engine gets beyond the limits of its cells before the supervision itself ends it; ours."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A cell of an engine's run; ``nodeid`` is the test that it belongs to, ``None`` for the round's own cell."""

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
    """What a run of one engine gave: outcomes of the members that were reached, and those that were not."""

    outcomes: tuple[tuple[_Member, Measurement, Sample | Problem], ...] = ()
    rest: tuple[_Member, ...] = ()
    stopped: Problem | None = None


@dataclass
class EngineMode(RoundRunner):
    """Runs rounds of cells in one SGLang environment, an engine a round.

    ``siblings`` gives, for a cell and a round, the other cells that share its engine and still need this round, each
    with the test that it belongs to; ``keep`` gets what became of each. Of every cell ``discard`` windows are thrown
    away and ``windows`` count. ``ids`` names a file on the host of the run with a cell's exact requests (``[[token
    ids], output tokens]`` each); without one SGLang's own sampler makes them.
    """

    siblings: Callable[[Cell, int], Sequence[tuple[Cell, str]]] = lambda cell, number: ()
    keep: Callable[[Measurement, Sample | Problem, str], None] = lambda measurement, outcome, nodeid: None
    windows: int = 3
    discard: int = 1
    ids: Callable[[Cell], str | None] = lambda cell: None
    _measurements: dict[str, Measurement] = field(default_factory=dict)

    def prepare(self, cell: Cell) -> Measurement:
        """Translate the flags, resolve paths, count the workload beforehand; a mistake is CONFIG with one sentence."""
        if cell.topology.nnodes > 1:
            return Measurement(
                cell,
                problem=Problem(
                    Verdict.CONFIG,
                    f"topology {cell.topology.name!r} has {cell.topology.nnodes} nodes, and mode='engine' keeps its "
                    f"engine on one: use mode='offline'",
                ),
            )
        measurement = self.prepared(cell, lambda cell: self._command([cell]))
        self._measurements[cell.fingerprint] = measurement
        return measurement

    def round(self, prepared: Measurement, number: int) -> tuple[Measurement, Sample | Problem]:
        """Measure the cell in a fresh engine, and then its siblings.

        A sibling that breaks the engine spoils nothing but itself: those after it are measured in another engine.
        Where that one doesn't come up, or nodes or leases are lost, they are left to their own turn.
        """
        queue: tuple[_Member, ...] = (_Member(prepared, None), *self._sharing(prepared.cell, number))
        measured: Measurement = prepared
        result: Sample | Problem | None = None
        while queue:
            over = self._engine(queue, number)
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

    # -- one engine ------------------------------------------------------------------------------------------

    def _engine(self, members: Sequence[_Member], number: int) -> _Over:
        cell = members[0].cell
        folder = self.round_folder(cell, number)
        inline = self.site.remote
        if not inline:
            (folder / SCRIPT).write_text(driver_source(), encoding="utf-8")
        argv = self._command([member.cell for member in members], inline=inline)
        log = EngineLog()
        limits = {member.id: member.cell.timeout_s for member in members}
        sizes = {member.id: member.cell for member in members}
        gpus = cell.topology.gpus_used
        late = _Late(log, limits, members[0].id, ALLOWED_S if self.site.gpus_there(0, gpus) else 0.0)

        def on_output(data: bytes) -> None:
            log.feed(data)
            if log.place.cell is None and log.begun(members[0].id):
                return  # between two cells
            shown = sizes[log.place.cell or members[0].id]
            self.show(shown, number, log.progress(shown.num_prompts))

        ids = [path for path in (self.ids(member.cell) for member in members) if path is not None]
        inputs = [self.ready(member.cell).inputs for member in members]
        ran = self.run(
            cell,
            folder,
            lambda rank: argv,
            timeout_s=sum(limits.values()) + LINGER_S + _MARGIN_S,
            mounts=tuple(dict.fromkeys([*(p for one in inputs for p in (one.model_path, one.dataset_path)), *ids])),
            fetch=(RESULTS,),
            on_output=on_output,
            poll=late,
        )
        if isinstance(ran, Problem):
            return _Over(stopped=ran)
        log.close()
        report = read_report(folder / RESULTS, [self._planned(member.cell) for member in members])
        first = self._finished(members[0], ran, log, report)
        left = broken_by(first, True)
        if left is None and report.startup_s is None:
            left = _broke(first, report, late.what)
        if left is not None:
            return _Over(stopped=left)
        return self._judged(members, number, ran, log, report, late.what)

    def _judged(
        self,
        members: Sequence[_Member],
        number: int,
        ran: Ran,
        log: EngineLog,
        report: EngineReport,
        late: str | None,
    ) -> _Over:
        """What became of every member; the first that was begun and is not over is the one that broke the engine."""
        outcomes: list[tuple[_Member, Measurement, Sample | Problem]] = []
        for place, member in enumerate(members):
            told = report.cells.get(member.id, CellReport())
            if place and not (told.done or told.failed is not None or log.begun(member.id)):
                return _Over(tuple(outcomes), tuple(members[place:]))
            run = self._finished(member, ran, log, report)
            measured = self.told(member.measurement, run.facts, ran.ended, self._protocol(told.ids_digest))
            if not (told.done or told.failed is not None):
                became: Sample | Problem = _broke(run, report, late)
                outcomes.append((member, measured, became))
                return _Over(tuple(outcomes), tuple(members[place + 1 :]))
            remarks = _remarks(ran, report, late) if place == 0 else ()
            run = replace(run, ceilings=self.ceilings(measured, run.facts))
            compiled = per_window(ran.written, [(one.time, one.time + one.end - one.start) for one in told.timed])
            seconds = told.seconds if place else told.seconds + (report.startup_s or 0.0)
            part = CellRun(run, self._planned(member.cell), told, seconds, compiled, remarks)
            outcomes.append((member, measured, outcome(measured, number, part)))
        return _Over(tuple(outcomes))

    def _finished(self, member: _Member, ran: Ran, log: EngineLog, report: EngineReport) -> FinishedRun:
        facts = log.facts(member.id)
        timed = report.cells.get(member.id, CellReport()).timed

        def seen(seconds: float) -> Watched:
            return ran.gpus(timed[0].start if timed else None, log.first_line(member.id), seconds)

        return FinishedRun(
            facts=facts,
            ended=ran.ended,
            folder=ran.folder,
            hosts=tuple(node.host for node in self.site.nodes),
            asked=asked(member.cell, self.ready(member.cell).translation),
            stated=self.stated_pins(member.cell),
            pins=self.left_pins(member.cell),
            gpus=seen,
        )

    def _protocol(self, ids_digest: str) -> dict[str, object]:
        """What this mode adds: how warm its windows are, how many make a round, and the exact requests."""
        own: dict[str, object] = {
            "cache_state": "flushed before each window",
            "windows": self.windows,
            "discard": self.discard,
        }
        return {**own, "token_ids": ids_digest[:16]} if ids_digest else own

    def _planned(self, cell: Cell) -> PlannedCell:
        return planned(
            cell.fingerprint,
            cell.num_prompts,
            cell.workload,
            self.ready(cell).inputs,
            windows=self.windows,
            discard=self.discard,
            ids=self.ids(cell),
        )

    def _command(self, cells: Sequence[Cell], *, inline: bool = False) -> tuple[str, ...]:
        ready = self.ready(cells[0])
        return engine_command(
            self.environment,
            [self._planned(cell) for cell in cells],
            ready.translation.argv,
            ready.inputs,
            inline=inline,
        )


def _broke(run: FinishedRun, report: EngineReport, late: str | None) -> Problem:
    """Why the engine ended in the middle of a cell."""
    if late is not None:
        # The supervision was told to end it, which it calls lingering; for what the log says it is a timeout.
        run = replace(run, ended=replace(run.ended, exit=replace(run.ended.exit, ended_by="timeout")))
    problem = broken_by(run, False)
    if problem is None:
        code = run.ended.returncode
        problem = Problem(Verdict.CRASH, f"the driver ended with exit code {code} in the middle of a cell", log=run.log)
    said = report.broken
    if said is not None and problem.verdict is Verdict.CRASH and problem.cause.startswith("no cause in the log"):
        problem = replace(problem, cause=f"the engine does not answer as it should: {said}")
    return problem


def _remarks(ran: Ran, report: EngineReport, late: str | None) -> tuple[str, ...]:
    remarks = [f"the driver's file has a line that belongs to no cell: {sentence}" for sentence in report.garbage]
    if late is not None:
        remarks.append(late if report.ended else f"after this cell the engine was ended: {late}")
    elif not report.ended:
        remarks.append(f"after this cell the engine ended (exit code {ran.ended.returncode}) before all was over")
    elif ran.ended.exit.ended_by == "exit" and ran.ended.returncode != 0:
        remarks.append(f"teardown failed (rc {ran.ended.returncode})")
    if ran.ended.exit.log_full:
        remarks.append("the disk was full at the end: the log may be cut short")
    return tuple(remarks)


class _Late:
    """Ends an engine that takes longer for a cell than the cell's limit, or that doesn't exit at its end.

    The first cell's limit holds from the start of the process on; ``waiting_s`` is what may come before that: agents
    wait for the memory of earlier runs.
    """

    def __init__(self, log: EngineLog, limits: dict[str, float], first: str, waiting_s: float) -> None:
        self._log = log
        self._limits = limits
        self._first = first
        self._waiting_s = waiting_s
        self._started: float | None = None
        self.what: str | None = None

    def __call__(self) -> Poll:
        place = self._log.place
        if self._started is None:
            self._started = time.monotonic() + self._waiting_s
        since, limit = place.since, self._limits[place.cell or self._first]
        what = f"a cell had no end within {limit:g} s"
        if place.ended:
            limit, what = LINGER_S, f"the engine did not exit within {LINGER_S:g} s of its end and was ended"
        elif place.cell == self._first or not self._log.begun(self._first):
            since = self._started
        if time.monotonic() - since <= limit:
            return Poll.GO_ON
        self.what = what
        return Poll.END
