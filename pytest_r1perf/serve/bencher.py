"""A stress sweep with a server of our own: each repeat starts one, and its cases are the server's cells.

bencher = OwnServer(mode, template)
run_sweep(folder, asked, bencher, bencher.identify, tell)
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_r1perf.cell import Cell
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.load import Batch
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.serve.mode import ServeMode
from pytest_r1perf.sglang.serve import ACCOUNT, RESULTS, read_report
from pytest_r1perf.sglang.server_kind import Server, ServerGone, differences, server_of
from pytest_r1perf.sglang.skips import skip_reason
from pytest_r1perf.stress.bencher import Done, Failed
from pytest_r1perf.stress.cases import Case
from pytest_r1perf.stress.rows import skip_row
from pytest_r1perf.verdict import Verdict

GIVE_UP_AFTER = 3
"""Cases that fail one after another, each with a server of its own: what fails then is no single case (ours)."""

_FIRST = Case(1, 16, 4)
"""Measured once before the sweep and thrown away: it shows that the server comes up, and who it is."""


@dataclass
class OwnServer:
    """Measures cases of a sweep; ``template`` is any batch's cell, whose load each case replaces.

    ``mode`` is ours alone: it is set to one window a case, none thrown away. Before each the client sends a batch of
    its own, as in the guide's script, unless ``warm_up`` is False.
    """

    mode: ServeMode
    template: Cell
    warm_up: bool = True
    _kind: Server | None = None
    _runs: int = 0
    _told: set[Case] = field(default_factory=set)
    _seen: tuple[Path, int] | None = None
    _other: str | None = None

    def __post_init__(self) -> None:
        self.mode.windows, self.mode.discard, self.mode.warm_up = 1, 0, self.warm_up

    def identify(self) -> Server:
        """Which server is measured, and a name for its next start. Raises :class:`R1PerfError` where none comes up."""
        if self._kind is None:
            _, outcome = self._round([self.cell(_FIRST)])
            if isinstance(outcome, Problem):
                raise R1PerfError(_said(outcome))
            kind = _account(Path(outcome.log).parent)
            if kind is None:
                raise R1PerfError(f"the server told nothing of itself that can be read (log: {outcome.log})")
            self._kind = kind
        return replace(self._kind, start=secrets.token_hex(6))

    def measure(self, cases: Sequence[Case], done: Done) -> str | None:
        """See :class:`pytest_r1perf.stress.bencher.Bencher`. A case that fails is left to the next run.

        On this host ``done`` hears of a case while the next one is measured; on others when the server has ended.
        """
        self._told, self._other = set(), None
        rest, failed, in_a_row = list(cases), list[str](), 0
        kept: dict[str, Sample | Problem] = {}
        self.mode.keep = lambda measurement, outcome, nodeid: kept.update({nodeid: outcome})
        while rest:
            cells = {case: self.cell(case) for case in rest}
            self.mode.looked = lambda folder, cells=cells: self._tell(folder, cells, done)  # type: ignore[misc]
            kept.clear()
            _, first = self._round(list(cells.values()))
            if self._other is not None:
                return self._other
            outcomes = {rest[0].name: first, **kept}
            for case in rest:
                outcome = outcomes.get(case.name)
                if isinstance(outcome, Problem) and case not in self._told:
                    failed.append(f"{case.name}: {_said(outcome)}")
            if isinstance(first, Problem) and first.verdict is Verdict.INFRA:
                return failed[-1] if failed else first.cause
            in_a_row = 0 if any(case in self._told for case in rest) else in_a_row + 1
            if in_a_row == GIVE_UP_AFTER:
                return f"{in_a_row} servers one after another measured nothing, the last: {failed[-1]}"
            rest = [case for case in rest if case not in self._told and case.name not in outcomes]
        return Failed(f"{len(failed)} of {len(cases)} cases failed: {'; '.join(failed)}") if failed else None

    def cell(self, case: Case) -> Cell:
        """The template's cell with a case's load."""
        batch = Batch(case.batch_size, case.input_len, case.output_len)
        return replace(self.template, load=batch, num_prompts=case.batch_size)

    def _round(self, cells: Sequence[Cell]) -> tuple[Measurement, Sample | Problem]:
        names = {cell.fingerprint: _case(cell).name for cell in cells}
        self.mode.siblings = lambda cell, number: [
            (other, names[other.fingerprint]) for other in cells if other.fingerprint != cell.fingerprint
        ]
        prepared = self.mode.prepare(cells[0])
        if prepared.problem is not None:
            return prepared, prepared.problem
        self._runs += 1
        return self.mode.round(prepared, self._runs)

    def _tell(self, folder: Path, cells: Mapping[Case, Cell], done: Done) -> None:
        """Tell of the cases that are over by now, once each; of another server than was said, only that it is one."""
        results = folder / RESULTS
        seen = (results, results.stat().st_size if results.exists() else 0)
        if seen == self._seen:
            return  # this is asked five times a second, beside what is measured
        self._seen = seen
        planned = {case: self.mode.planned(cell) for case, cell in cells.items()}
        report = read_report(results, list(planned.values()))
        account = _account(folder)
        if account is None or self._kind is None:
            self._seen = None
            return
        changed = differences(self._kind, account)
        if changed:
            self._other = f"the server of this repeat is another one ({'; '.join(changed)}): nothing of it is kept"
            return
        for case, plan in planned.items():
            told = report.cells.get(plan.id)
            if case in self._told or told is None or not told.over or told.garbage:
                continue
            if told.failed is not None and told.failed[0] != "skipped":
                continue
            rows = _skipped(case, told.failed[1]) if told.failed is not None else _rows(folder / plan.results[0])
            if rows is None:
                continue
            self._told.add(case)
            done(case, rows)


def _said(problem: Problem) -> str:
    """What was wrong; what never came to a run has no log."""
    return f"{problem.verdict.value}: {problem.cause}" + (f" (log: {problem.log})" if problem.log else "")


def _case(cell: Cell) -> Case:
    assert isinstance(cell.load, Batch)
    return Case(cell.load.batch_size, cell.load.input_len, cell.load.output_len)


def _skipped(case: Case, said: str) -> list[dict[str, object]]:
    return [skip_row(case, skip_reason(said) or said)]


def _account(folder: Path) -> Server | None:
    try:
        return server_of(json.loads((folder / ACCOUNT).read_text(encoding="utf-8")))
    except (OSError, ValueError, ServerGone):
        return None


def _rows(path: Path) -> list[dict[str, object]] | None:
    """The client's own lines; ``None`` where one is none, or the file is not there (yet)."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        return None
    return rows if all(isinstance(row, dict) for row in rows) else None
