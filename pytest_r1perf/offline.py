"""``mode="offline"``: SGLang's own offline throughput benchmark, verbatim, a fresh process a round."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pytest_r1perf.caches import Kernels
from pytest_r1perf.cell import Cell
from pytest_r1perf.coldcaches import CACHE_STATE
from pytest_r1perf.gpu.judge import Watched
from pytest_r1perf.launch.process import Poll
from pytest_r1perf.measurement import Discarded, Measurement, Problem, Sample
from pytest_r1perf.ownprocess import COLD
from pytest_r1perf.roundcheck import LINGER_S, RESULT, FinishedRun, outcome
from pytest_r1perf.roundrun import RoundRunner, asked
from pytest_r1perf.sglang.command import offline_command
from pytest_r1perf.sglang.facts import Phase
from pytest_r1perf.sglang.log import LogReader, progress
from pytest_r1perf.sglang.nccl_verify import ASKED, answer, questions, verified_in
from pytest_r1perf.site import LOG
from pytest_r1perf.startup import Startup

LATE_S = 0.3
"""How late the begin of the timed window may be seen: the log is looked at five times a second."""


@dataclass
class OfflineMode(RoundRunner):
    """Runs rounds of cells in one SGLang environment, on the nodes of a site."""

    def prepare(self, cell: Cell) -> Measurement:
        """Translate the flags, resolve paths, count the workload beforehand; a mistake is CONFIG with one sentence."""
        rendezvous = "HEAD:PORT" if cell.topology.nnodes > 1 else None
        return self.prepared(cell, lambda cell: self._command(cell, 0, rendezvous))

    def round(self, prepared: Measurement, number: int) -> tuple[Measurement, Sample | Discarded | Problem]:
        """Start the benchmark on every node, watch it, end every process of it, and judge what rank 0 left."""
        cell = prepared.cell
        folder = self.round_folder(cell, number)
        ready = self.ready(cell)
        rendezvous = self.site.rendezvous()
        argv = {rank: self._command(cell, rank, rendezvous) for rank in range(cell.topology.nnodes)}
        asking = self._questions(prepared)
        reader = LogReader()
        startup = Startup()

        def on_output(data: bytes) -> None:
            reader.feed(data)
            facts = reader.facts
            startup.seen(facts)
            self.show(cell, number, progress(facts, cell.num_prompts))

        ran = self.run(
            cell,
            folder,
            argv.__getitem__,
            timeout_s=cell.timeout_s,
            mounts=(ready.inputs.model_path, ready.inputs.dataset_path),
            fetch=(RESULT,),
            on_output=on_output,
            poll=_Lingering(reader),
            beside=asking,
        )
        if isinstance(ran, Problem):
            return prepared, ran
        reader.close()
        startup.started = ran.started

        def seen(seconds: float) -> Watched:
            line = next((mark.line_no for mark in reader.facts.phases if mark.phase is Phase.BENCHMARK), None)
            return ran.gpus(startup.window, line, seconds)

        state = {"cache_state": CACHE_STATE} if cell.kernel_caches == COLD else None
        measured = self.told(prepared, reader.facts, ran.ended, state)
        run = FinishedRun(
            facts=reader.facts,
            ended=ran.ended,
            folder=folder,
            hosts=tuple(node.host for node in self.site.nodes),
            asked=asked(cell, ready.translation),
            stated=self.stated_pins(cell),
            pins=self.left_pins(cell),
            gpus=seen,
            ceilings=self.ceilings(measured, reader.facts),
            kernels=Kernels(ran.written, _by_calendar(startup.window), len(prepared.discarded)),
            startup=startup,
            beside=asking,
            remarks=ran.remarks,
        )
        became = outcome(measured, number, run)
        if asking and not isinstance(became, Problem):
            findings = verified_in(folder / LOG, {**cell.env, **asking})
            became = Discarded(number, answer(findings), became.metrics, run.log)
        return measured, became

    def _questions(self, prepared: Measurement) -> dict[str, str]:
        """What the first process of a cell is asked of NCCL; nothing on a CPU, which has none."""
        asked_before = any(one.reason.startswith(ASKED) for one in prepared.discarded)
        if prepared.cell.platform.is_cpu or prepared.samples or asked_before:
            return {}
        return questions(prepared.cell.env)

    def _command(self, cell: Cell, rank: int, rendezvous: str | None) -> tuple[str, ...]:
        ready = self.ready(cell)
        return offline_command(
            cell,
            self.environment,
            ready.translation.argv,
            ready.inputs,
            result=RESULT,
            rank=rank,
            rendezvous=rendezvous,
        )


def _by_calendar(began: float | None) -> float | None:
    """When the timed window may have begun, in seconds since 1970, if it was seen at ``began`` (monotonic clock)."""
    return None if began is None else began + time.time() - time.monotonic() - LATE_S


class _Lingering:
    """Ends a process that printed its whole result and then doesn't exit."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._since: float | None = None

    def __call__(self) -> Poll:
        table = self._reader.facts.table
        if table is None or not table.complete:
            return Poll.GO_ON
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return Poll.END if now - self._since > LINGER_S else Poll.GO_ON
