"""``mode="engine"``: one engine a round, several timed windows of a cell in it, and of the cells that can share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pytest_r1perf.cell import Cell
from pytest_r1perf.engine.check import outcome
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.sglang.driven import Report
from pytest_r1perf.sglang.engine import (
    RESULTS,
    SCRIPT,
    CellReport,
    PlannedCell,
    driver_source,
    engine_command,
    planned,
    read_report,
)
from pytest_r1perf.sharedrun import CellRun, SharedMode, Start
from pytest_r1perf.verdict import Verdict


@dataclass
class EngineMode(SharedMode[PlannedCell, CellReport]):
    """Runs rounds of cells in one SGLang environment, an engine a round.

    ``ids`` names a file on the host of the run with a cell's exact requests (``[[token ids], output tokens]`` each);
    without one SGLang's own sampler makes them.
    """

    what: ClassVar[str] = "engine"
    mark: ClassVar[str] = "r1perf-engine: "

    ids: Callable[[Cell], str | None] = lambda cell: None

    def prepare(self, cell: Cell) -> Measurement:
        """As every mode does; an engine is on one node."""
        if cell.topology.nnodes > 1:
            return Measurement(
                cell,
                problem=Problem(
                    Verdict.CONFIG,
                    f"topology {cell.topology.name!r} has {cell.topology.nnodes} nodes, and mode='engine' keeps its "
                    f"engine on one: use mode='offline' or mode='serve'",
                ),
            )
        return super().prepare(cell)

    def planned(self, cell: Cell) -> PlannedCell:
        """The cell as the driver gets it."""
        return planned(
            cell.fingerprint,
            cell.num_prompts,
            cell.workload,
            self.ready(cell).inputs,
            windows=self.windows,
            discard=self.discard,
            ids=self.ids(cell),
        )

    def command(self, cells: Sequence[Cell], *, inline: bool = False) -> tuple[str, ...]:
        """The driver's command with all cells in its plan."""
        first = self.ready(cells[0])
        return engine_command(
            self.environment,
            [self.planned(cell) for cell in cells],
            first.translation.argv,
            first.inputs,
            inline=inline,
        )

    def started(self, cells: Sequence[Cell], folder: Path) -> Start:
        """The driver, on the one node."""
        inline = self.site.remote
        if not inline:
            (folder / SCRIPT).write_text(driver_source(), encoding="utf-8")
        argv = self.command(cells, inline=inline)
        inputs = [self.ready(cell).inputs for cell in cells]
        ids = [path for path in map(self.ids, cells) if path is not None]
        mounts = dict.fromkeys([*(path for one in inputs for path in (one.model_path, one.dataset_path)), *ids])
        return Start(lambda rank: argv, tuple(mounts), (RESULTS,))

    def read(self, folder: Path, planned: Sequence[PlannedCell]) -> Report[CellReport]:
        """What the driver told."""
        return read_report(folder / RESULTS, planned)

    def judged(self, measurement: Measurement, number: int, part: CellRun[PlannedCell, CellReport]) -> Sample | Problem:
        """A sample, or the reason why it is none."""
        return outcome(measurement, number, part)

    def own_protocol(self, part: CellRun[PlannedCell, CellReport]) -> dict[str, object]:
        """The exact requests."""
        return {"token_ids": part.report.ids_digest[:16]} if part.report.ids_digest else {}
