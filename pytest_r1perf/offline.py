"""``mode="offline"``: SGLang's own offline throughput benchmark, verbatim, a fresh process a round."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_r1perf.cell import Cell
from pytest_r1perf.childenv import compose, recorded, shown
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launch.mark import marked_environment, new_mark
from pytest_r1perf.launch.process import Exit, LaunchError, Poll, run
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.platform import expand
from pytest_r1perf.rig.home import home
from pytest_r1perf.sglang.command import offline_command, shell_line
from pytest_r1perf.sglang.downgrade import silently_downgraded
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.facts import Progress
from pytest_r1perf.sglang.failure import classify
from pytest_r1perf.sglang.log import LogReader, progress
from pytest_r1perf.sglang.protocol import protocol_of
from pytest_r1perf.sglang.result import Check, OfflineResult, read_result_lines
from pytest_r1perf.sglang.sampling import sample
from pytest_r1perf.validity import ExpectedWorkload, check_offline
from pytest_r1perf.verdict import Verdict

LINGER_S = 60.0
"""How long a process may take to exit after its result is printed (SGLang's own shutdown waits up to 60 s)."""


@dataclass
class OfflineMode:
    """Runs rounds of cells in one SGLang environment.

    ``folder`` takes a folder a round: the log as it grows, the result file, the command. ``show`` is called
    about five times a second with the round's number and progress.
    """

    environment: SglangEnvironment
    folder: Path
    session: str
    state_dir: Path
    show: Callable[[Cell, int, Progress], None] = lambda cell, number, now: None
    _inputs: dict[str, tuple[str, str]] = field(default_factory=dict)

    def prepare(self, cell: Cell) -> Measurement:
        """Resolve paths, count the workload beforehand; a mistake is CONFIG with one sentence."""
        try:
            model, dataset = self._paths(cell)
            workload = sample(
                cell.workload,
                cell.num_prompts,
                environment=self.environment,
                model_path=model,
                dataset_path=dataset,
                cache=home() / "workloads",
                env={**compose(cell.env), **marked_environment(new_mark(self.session))},
            )
        except R1PerfError as error:
            return Measurement(cell, problem=Problem(Verdict.CONFIG, str(error)))
        self._inputs[cell.fingerprint] = model, dataset
        command = offline_command(
            cell, self.environment, model_path=model, dataset_path=dataset, result=Path("result.jsonl")
        )
        return Measurement(
            cell,
            command=command,
            env={**recorded(compose(cell.env)), **shown(cell.env)},
            versions=self.environment.versions,
            workload=workload,
        )

    def round(self, prepared: Measurement, number: int) -> tuple[Measurement, Sample | Problem]:
        """Start the benchmark, watch it, end every process of it, and judge what it left."""
        cell = prepared.cell
        folder = self._round_folder(cell, number)
        log, result = folder / "log.txt", folder / "result.jsonl"
        model, dataset = self._inputs[cell.fingerprint]
        argv = offline_command(cell, self.environment, model_path=model, dataset_path=dataset, result=result)
        mark = new_mark(self.session)
        env = {**compose(cell.env), **marked_environment(mark)}
        (folder / "command.txt").write_text(shell_line(argv, shown(cell.env)) + "\n", encoding="utf-8")
        reader = LogReader()
        lingering = _Lingering(reader)
        lines_before = len(read_result_lines(result))

        def on_output(data: bytes) -> None:
            reader.feed(data)
            self.show(cell, number, progress(reader.facts, cell.num_prompts))

        try:
            exit_ = run(
                argv,
                env=env,
                cwd=folder,
                log_path=log,
                timeout_s=cell.timeout_s,
                mark=mark,
                state_dir=self.state_dir,
                on_output=on_output,
                poll=lingering,
            )
        except LaunchError as error:
            return prepared, Problem(Verdict.INFRA, str(error), log=str(log))
        reader.close()
        told = self._told(prepared, reader, model)
        return told, self._outcome(told, reader, exit_, number, log, result, lines_before)

    def _outcome(
        self,
        measurement: Measurement,
        reader: LogReader,
        exit_: Exit,
        number: int,
        log: Path,
        result: Path,
        lines_before: int,
    ) -> Sample | Problem:
        cell, facts = measurement.cell, reader.facts
        workload = measurement.workload
        if exit_.left:
            pids = ", ".join(str(victim.pid) for victim in exit_.left)
            return Problem(Verdict.INFRA, f"processes {pids} of the benchmark could not be ended", log=str(log))
        expected = ExpectedWorkload(
            num_prompts=cell.num_prompts,
            total_input_tokens=workload.total_input_tokens if workload else None,
            total_output_tokens=workload.total_output_tokens if workload else None,
        )
        timed_out = exit_.ended_by == "timeout"
        lines = read_result_lines(result)
        validity = check_offline(
            lines,
            facts.table,
            expected=expected,
            facts=facts,
            returncode=exit_.returncode if exit_.ended_by == "exit" else 0,
            ceilings=cell.platform.ceilings,
            lines_before=lines_before,
        )
        if not lines and not (facts.table and facts.table.complete) and (timed_out or exit_.returncode != 0):
            failure = classify(facts, returncode=exit_.returncode, timed_out=timed_out)
            return Problem(Verdict(failure.kind.value), failure.cause, failure.hint, str(log))
        failed = [*validity.failed, *silently_downgraded(cell.flags, facts)]
        if not facts.server_args:
            failed.append(Check("resolved-arguments", "the log has no server_args: nothing shows what was measured"))
        if validity.result is None or failed:
            cause = "; ".join(f"{check.name}: {check.sentence}" for check in failed)
            return Problem(Verdict.INVALID, cause, log=str(log))
        remarks = [*validity.remarks, *_remarks(exit_)]
        return Sample(
            round=number,
            metrics=_metrics(validity.result, cell),
            wall_s=exit_.wall_s,
            log=str(log),
            remarks=tuple(remarks),
        )

    def _told(self, measurement: Measurement, reader: LogReader, model: str) -> Measurement:
        """The measurement with what SGLang resolved; the first round that tells it is kept."""
        resolved = reader.facts.server_args
        if measurement.protocol or not resolved or measurement.workload is None:
            return measurement
        protocol = protocol_of(measurement.cell, measurement.workload, resolved, _model_digest(Path(model)))
        return replace(measurement, protocol=protocol, resolved=dict(resolved))

    def _paths(self, cell: Cell) -> tuple[str, str]:
        platform = cell.platform
        model = expand(platform.model_path, what=f"platform {platform.name!r}: model_path", home=home())
        try:
            dataset = platform.datasets[cell.workload.dataset]
        except KeyError:
            raise R1PerfError(
                f"platform {platform.name!r} has no data set {cell.workload.dataset!r}, which workload "
                f"{cell.workload.name!r} needs: add it under the platform's datasets in your r1perf.yaml"
            ) from None
        return model, expand(dataset, what=f"platform {platform.name!r}: datasets.{cell.workload.dataset}", home=home())

    def _round_folder(self, cell: Cell, number: int) -> Path:
        """A folder that did not exist: a stale result can't be taken for a new one."""
        slug = re.sub(r"[^A-Za-z0-9.=_-]+", "-", f"{cell.topology.name}-{cell.key}")[:80]
        base = self.folder / f"{slug}-{cell.fingerprint[:6]}"
        base.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 1000):
            folder = base / (f"round-{number}" if attempt == 1 else f"round-{number}.{attempt}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
        raise R1PerfError(f"{base} is full of rounds: choose another --perf-out")


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


def _remarks(exit_: Exit) -> list[str]:
    remarks = []
    if exit_.ended_by == "timeout":
        remarks.append("the result was complete, but the process ran into the timeout and was ended")
    if exit_.ended_by == "lingering":
        remarks.append(f"the process did not exit within {LINGER_S:g} s of its result and was ended")
    if exit_.log_full:
        remarks.append("the disk was full at the end: the log may be cut short")
    return remarks


def _metrics(result: OfflineResult, cell: Cell) -> dict[str, float]:
    return {
        "total_throughput": result.total_throughput,
        "output_throughput": result.output_throughput,
        "input_throughput": result.input_throughput,
        "request_throughput": result.request_throughput,
        "tokps_per_gpu": result.total_throughput / cell.topology.gpus_used,
        "total_latency": result.total_latency,
    }


def _model_digest(model: Path) -> str:
    """Identifies the architecture (config.json), whatever folder it lies in."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "unknown"
    config.pop("_name_or_path", None)
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
