"""``mode="serve"``: one server a round, and SGLang's own clients against it, one a timed window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from pytest_r1perf.cell import Cell
from pytest_r1perf.childenv import compose
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launch.mark import marked_environment, new_mark
from pytest_r1perf.launch.process import LaunchError
from pytest_r1perf.load import Batch, batch_workload
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.rig.home import home
from pytest_r1perf.serve.check import outcome
from pytest_r1perf.serve.client import client_command, definition_of, kind_of
from pytest_r1perf.sglang.clientoptions import Client, ClientKind, ask_client
from pytest_r1perf.sglang.driven import Report
from pytest_r1perf.sglang.sampling import Inputs
from pytest_r1perf.sglang.serve import (
    ACCOUNT,
    CLIENTS,
    MARK,
    RESULTS,
    SCRIPT,
    CellReport,
    PlannedCell,
    ServerInfo,
    addressed,
    driver_command,
    driver_source,
    planned,
    read_report,
    server_command,
)
from pytest_r1perf.sglang.translate_nouns import Note
from pytest_r1perf.sharedrun import CellRun, SharedMode, Start
from pytest_r1perf.site import free_port
from pytest_r1perf.verdict import Verdict
from pytest_r1perf.workload import SampledWorkload

RENDEZVOUS = "HEAD:PORT"
"""Stands for rank 0's address in a command that is only written down."""


@dataclass
class ServeMode(SharedMode[PlannedCell, CellReport]):
    """Runs rounds of cells in one SGLang environment, a server a round.

    ``port`` makes the server take that port of its host instead of a free one. ``warm_up``: each client of a batch
    sends a batch of its own before the one that it times.
    """

    what: ClassVar[str] = "server"
    mark: ClassVar[str] = MARK

    port: int | None = None
    warm_up: bool = False
    _clients: dict[ClientKind, Client] = field(default_factory=dict)

    def prepare(self, cell: Cell) -> Measurement:
        """As every mode does, and ask for the client's options; what it can't be told is CONFIG, or a remark."""
        notes: list[Note] = []
        try:
            self._ask_client(cell)
            measurement = super().prepare(cell)
            if measurement.problem is None:
                self._client_command(cell, notes)
        except LaunchError as error:
            return Measurement(cell, problem=Problem(Verdict.INFRA, str(error)))
        except R1PerfError as error:
            return Measurement(cell, problem=Problem(Verdict.CONFIG, str(error)))
        measurement = replace(
            measurement,
            translation=(*measurement.translation, *(f"{note.kind.value} {note.flag}: {note.text}" for note in notes)),
            remarks=(*measurement.remarks, *(f"{note.flag}: {note.text}" for note in notes if note.matters)),
        )
        self._measurements[cell.fingerprint] = measurement
        return measurement

    def sampled(self, cell: Cell, inputs: Inputs, env: Mapping[str, str]) -> SampledWorkload:
        """A batch is what it is; its prompts are drawn from the data set's texts."""
        if isinstance(cell.load, Batch):
            return batch_workload(cell.load, [inputs.dataset_digest, inputs.tokenizer_digest, cell.workload.seed])
        return super().sampled(cell, inputs, env)

    def planned(self, cell: Cell) -> PlannedCell:
        """The cell as the driver gets it."""
        return planned(cell.fingerprint, self._client_command(cell), windows=self.windows, discard=self.discard)

    def command(self, cells: Sequence[Cell], *, inline: bool = False) -> tuple[str, ...]:
        """The driver's command with all cells in its plan."""
        several = cells[0].topology.nnodes > 1
        return self._driver(cells, RENDEZVOUS if several else None, inline=inline)

    def started(self, cells: Sequence[Cell], folder: Path) -> Start:
        """The driver on rank 0, and the servers of the other ranks beside it; they end with it."""
        inline = self.site.remote
        if not inline:
            (folder / SCRIPT).write_text(driver_source(), encoding="utf-8")
        rendezvous = self.site.rendezvous()
        ports = {rank: self._port(rank) for rank in range(1, cells[0].topology.nnodes)}
        commands = {0: self._driver(cells, rendezvous, avoid=tuple(ports.values()), inline=inline)}
        for rank, port in ports.items():
            commands[rank] = addressed(self._server(cells[0], rank, rendezvous), port)
        inputs = [self.ready(cell).inputs for cell in cells]
        mounts = dict.fromkeys(path for one in inputs for path in (one.model_path, one.dataset_path))
        rows = [name for cell in cells for name in self.planned(cell).results]
        return Start(commands.__getitem__, tuple(mounts), (RESULTS, CLIENTS, ACCOUNT, *rows))

    def read(self, folder: Path, planned: Sequence[PlannedCell]) -> Report[CellReport]:
        """What the driver told."""
        return read_report(folder / RESULTS, planned)

    def judged(self, measurement: Measurement, number: int, part: CellRun[PlannedCell, CellReport]) -> Sample | Problem:
        """A sample, or the reason why it is none."""
        part = replace(part, remarks=(*part.remarks, *_not_flushed(part.report)))
        return outcome(measurement, number, part, ServerInfo(**part.told), self.environment.version)

    def own_protocol(self, part: CellRun[PlannedCell, CellReport]) -> dict[str, object]:
        """Which client measured, what of, and whether its windows found an empty cache."""
        load = part.cell.load
        own: dict[str, object] = {"metric_definition": _definition(part)}
        if load is not None and load.parts:
            own["load"] = " ".join(load.parts)
        if not all(window.flushed for window in part.report.windows):
            own["cache_state"] = "not flushed between windows"
        return own

    # -- commands --------------------------------------------------------------------------------------------

    def _driver(
        self, cells: Sequence[Cell], rendezvous: str | None, *, avoid: Sequence[int] = (), inline: bool = False
    ) -> tuple[str, ...]:
        return driver_command(
            self.environment,
            self._server(cells[0], 0, rendezvous),
            [self.planned(cell) for cell in cells],
            avoid=avoid,
            port=self.port,
            inline=inline,
        )

    def _server(self, cell: Cell, rank: int, rendezvous: str | None) -> tuple[str, ...]:
        ready = self.ready(cell)
        return server_command(self.environment, ready.translation.argv, ready.inputs, rank=rank, rendezvous=rendezvous)

    def _client_command(self, cell: Cell, notes: list[Note] | None = None) -> tuple[str, ...]:
        client = self._clients[kind_of(cell)]
        inputs = self.ready(cell).inputs
        return client_command(cell, client, self.environment.python, inputs, warm_up=self.warm_up, notes=notes)

    def _ask_client(self, cell: Cell) -> None:
        kind = kind_of(cell)
        if kind not in self._clients:
            own = {**cell.env, **marked_environment(new_mark(self.site.session.name))}
            env = own if self.site.remote or self.image is not None else compose(own)
            self._clients[kind] = ask_client(self.environment, kind, env, cache=home() / "probes")

    def _port(self, rank: int) -> int:
        """A port for another rank's server, which listens for its health only: beside those of the rendezvous.

        Ranks that share a host must not share it, and rank 0's driver takes one of its own.
        """
        if not self.site.remote:
            return free_port() + 8 * rank
        families = self.site.infos[rank].free_families if self.site.infos else None
        return (families or (26000,))[-1] + rank


def _definition(part: CellRun[PlannedCell, CellReport]) -> str:
    """As the first row that can be read has it: what the same key means moved between releases."""
    found = (definition_of(part.run.folder / window.result, part.cell) for window in part.report.timed)
    return next(filter(None, found), kind_of(part.cell).title)


def _not_flushed(report: CellReport) -> tuple[str, ...]:
    if all(window.flushed for window in report.windows):
        return ()
    return ("this server has no /flush_cache: a window may find prompts of the one before it in the cache",)
