"""What a finished run of the offline benchmark is: a sample, a warm-up, or the reason why it is neither."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_r1perf.caches import Action, Decision, Kernels
from pytest_r1perf.ceilings.bounds import Ceilings, NoCeilings, above, lowest
from pytest_r1perf.cell import Cell
from pytest_r1perf.coldcaches import told
from pytest_r1perf.ended import Ended
from pytest_r1perf.gpu.judge import Watched
from pytest_r1perf.launch.process import Exit, RankExit
from pytest_r1perf.launch.ranks import log_name
from pytest_r1perf.measurement import Discarded, Measurement, Problem, Sample
from pytest_r1perf.ownprocess import COLD
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.downgrade import events_of
from pytest_r1perf.sglang.events import Effect, Event, EventKind
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.failure import classify
from pytest_r1perf.sglang.log import LogReader
from pytest_r1perf.sglang.nccl_verify import ASKED, Outcome, verified_in
from pytest_r1perf.sglang.result import METRICS as IN_RESULT
from pytest_r1perf.sglang.result import Check, OfflineResult, read_result_lines
from pytest_r1perf.site import LOG
from pytest_r1perf.startup import Startup
from pytest_r1perf.validity import ExpectedWorkload, check_offline
from pytest_r1perf.verdict import Verdict

RESULT = "result.jsonl"
"""The benchmark's own file, in a round's folder."""

LINGER_S = 60.0
"""How long a process may take to exit after its result is printed (SGLang's own shutdown waits up to 60 s)."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """All that a run left: its log as facts, its end, its folder, and what was watched beside it.

    ``asked`` are the cell's flags with the values that this SGLang was given, ``stated`` the moved defaults that
    were given to it beside them, ``pins`` those that were left to it. ``gpus`` gives what the GPUs did in a timed
    window of so many seconds. ``ceilings``: the most that the hardware can do with this workload.
    ``kernels``: what it wrote into kernel caches on disk. ``startup``: when its steps began. ``beside``: variables
    that this process alone was given, beside the cell's. ``remarks``: what else was seen.
    """

    facts: LogFacts
    ended: Ended
    folder: Path
    hosts: tuple[str, ...]
    asked: Mapping[str, FlagValue]
    stated: Mapping[str, FlagValue]
    pins: Mapping[str, FlagValue]
    gpus: Callable[[float], Watched]
    ceilings: Ceilings | NoCeilings | None = None
    kernels: Kernels = field(default_factory=Kernels)
    startup: Startup = field(default_factory=Startup)
    beside: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def log(self) -> str:
        """Rank 0's."""
        return str(self.folder / LOG)


def outcome(measurement: Measurement, number: int, run: FinishedRun) -> Sample | Discarded | Problem:
    """Round ``number``: a sample that passed every check, or a broken run, or a number that is no measurement.

    One that only compiled kernels for those after it is thrown away, also where its log shows that it did. One with
    empty kernel caches is meant to compile: that is said, and no fault.
    """
    lines = read_result_lines(run.folder / RESULT)
    finished = bool(lines) or (run.facts.table is not None and run.facts.table.complete)
    broken = broken_by(run, finished)
    if broken is not None:
        return broken
    cell, workload, exit_ = measurement.cell, measurement.workload, run.ended.exit
    ceilings = lowest(cell.platform.ceilings, run.ceilings)
    validity = check_offline(
        lines,
        run.facts.table,
        expected=ExpectedWorkload(
            num_prompts=cell.num_prompts,
            total_input_tokens=workload.total_input_tokens if workload else None,
            total_output_tokens=workload.total_output_tokens if workload else None,
        ),
        facts=run.facts,
        returncode=run.ended.returncode if exit_.ended_by == "exit" else 0,
        ceilings={name: value for name, value in ceilings.items() if name in IN_RESULT},
        bounds=_bounds(ceilings, run.ceilings),
        lines_before=0,
    )
    failed = list(validity.failed)
    if validity.result is not None:  # what SGLang's line has not is computed from it
        own = {name: value for name, value in metrics_of(validity.result, cell).items() if name not in IN_RESULT}
        failed += [Check("ceiling", sentence) for sentence in above(own, ceilings)]
    if not run.facts.server_args:
        failed.append(Check("resolved-arguments", "the log has no server_args: nothing shows what was measured"))
    events = events_told(run)
    failed += [Check("silent-downgrade", event.text) for event in events if event.effect is Effect.INVALID]
    collectives = verified_in(run.folder / LOG, {**cell.env, **run.beside})
    failed += [Check("nccl", str(one)) for one in collectives if one.outcome is Outcome.DOWNGRADED]
    gpus = run.gpus(validity.result.total_latency) if validity.result is not None else Watched()
    failed += [Check("throttled", sentence) for sentence in gpus.throttled]
    warming = Decision(Action.KEEP)
    if cell.kernel_caches == COLD:
        failed, compiled = _without_compilation(failed)
        warming = Decision(Action.REMARK, _cold(run, validity.result, compiled))
    elif validity.result is not None:
        warming = run.kernels.judged(validity.result.total_latency)
    only_cold = all(check.name == "compilation" for check in failed)
    if validity.result is not None and only_cold and warming.action is Action.DISCARD:
        return Discarded(number, warming.sentence, _all_metrics(run, validity.result, cell), run.log)
    if warming.action is Action.INVALID:
        failed.append(Check("kernel-caches", warming.sentence))
    if validity.result is None or failed:
        cause = "; ".join(f"{check.name}: {check.sentence}" for check in failed)
        return Problem(Verdict.INVALID, cause, log=run.log)
    remarks = [*validity.remarks, *_remarks(exit_), *run.remarks, *gpus.remarks]
    remarks += [event.text for event in events if event.kind is not EventKind.RETRACTION]  # validity tells those
    asked_before = [one.reason for one in measurement.discarded if one.reason.startswith(ASKED)]
    remarks += asked_before or [str(one) for one in collectives if one.outcome is not Outcome.DOWNGRADED]
    remarks += moved_defaults(run)
    if warming.action is Action.REMARK:
        remarks.append(warming.sentence)
    return Sample(
        round=number,
        metrics=_all_metrics(run, validity.result, cell),
        wall_s=exit_.wall_s,
        log=run.log,
        remarks=tuple(remarks),
        events=(*(event.plain() for event in events), *run.startup.events(run.facts)),
        telemetry=gpus.record,
        ceiling=ceilings,
    )


def _all_metrics(run: FinishedRun, result: OfflineResult, cell: Cell) -> dict[str, float]:
    """What the result has, and what only a process of its own has."""
    return {**metrics_of(result, cell), **run.startup.metrics(run.ended.exit.wall_s, result.total_latency)}


def _without_compilation(failed: Sequence[Check]) -> tuple[list[Check], list[Check]]:
    """The checks without those that only say that kernels were compiled in the window; and those."""
    compiled = [check for check in failed if check.name == "compilation"]
    return [check for check in failed if check not in compiled], compiled


def _cold(run: FinishedRun, result: OfflineResult | None, compiled: Sequence[Check]) -> str:
    inside = run.kernels.inside(result.total_latency) if result is not None else ()
    return "; ".join([told(run.kernels.files, inside, run.folder), *(check.sentence for check in compiled)])


def _bounds(ceilings: Mapping[str, float], computed: Ceilings | NoCeilings | None) -> dict[str, str]:
    """What sets those of the ceilings that were computed and not overridden."""
    if not isinstance(computed, Ceilings):
        return {}
    return {name: computed.binding for name, value in computed.values.items() if ceilings[name] == value}


def broken_by(run: FinishedRun, finished: bool) -> Problem | None:
    """Why a run gave no result at all, or left something behind; ``None`` when there is one to be checked."""
    exit_ = run.ended.exit
    if run.ended.left:
        why = f"{run.ended.launch_problem}; so " if run.ended.launch_problem is not None else ""
        left = "; ".join(run.ended.left)
        return Problem(Verdict.INFRA, f"{why}the benchmark could not be ended whole: {left}", log=run.log)
    if finished:
        return None
    if run.ended.launch_problem is not None:
        return Problem(Verdict.INFRA, run.ended.launch_problem, log=run.log)
    first = exit_.first_early
    if exit_.ended_by == "rank" and first is not None:
        return _rank_problem(run, first)
    timed_out = exit_.ended_by == "timeout"
    if not timed_out and run.ended.returncode == 0:
        return None
    failure = classify(run.facts, returncode=run.ended.returncode, timed_out=timed_out)
    return Problem(Verdict(failure.kind.value), failure.cause, failure.hint, run.log)


def _rank_problem(run: FinishedRun, first: RankExit) -> Problem:
    """A rank other than 0 ended first: its own log has the cause, and the others only waited for it."""
    log = run.folder / log_name(first.rank)
    reader = LogReader()
    if log.exists():
        with log.open("rb") as file:
            while chunk := file.read(1 << 20):
                reader.feed(chunk)
    reader.close()
    told = run.ended.told.get(first.rank)
    returncode = first.returncode if told is None or told.ended_by is None else told.returncode
    failure = classify(reader.facts, returncode=returncode, timed_out=False)
    host = run.hosts[first.rank]
    where = f"rank {first.rank}" + (f" on {host}" if host else "")
    return Problem(Verdict(failure.kind.value), f"{where} ended first: {failure.cause}", failure.hint, str(log))


def events_told(run: FinishedRun) -> tuple[Event, ...]:
    """What became of the flags; only one that the cell itself gives, and that was replaced, spoils the number."""
    replaced = {event.text for event in events_of(run.asked, run.facts) if event.effect is Effect.INVALID}
    return tuple(
        event if event.text in replaced else replace(event, effect=Effect.REMARK)
        for event in events_of({**run.stated, **run.asked}, run.facts)
    )


def moved_defaults(run: FinishedRun) -> list[str]:
    """Where SGLang's own default, left to it on purpose, is not what would have been stated."""
    if not run.pins:
        return []
    anyway = {event.text for event in events_of({}, run.facts)}
    differing = [event.text for event in events_of(run.pins, run.facts) if event.text not in anyway]
    return [f"a default of SGLang's own differs from the stated one: {text}" for text in differing]


def _remarks(exit_: Exit) -> list[str]:
    remarks = []
    if exit_.ended_by == "timeout":
        remarks.append("the result was complete, but the process ran into the timeout and was ended")
    if exit_.ended_by == "lingering":
        remarks.append(f"the process did not exit within {LINGER_S:g} s of its result and was ended")
    if exit_.log_full:
        remarks.append("the disk was full at the end: the log may be cut short")
    return remarks


def metrics_of(result: OfflineResult, cell: Cell) -> dict[str, float]:
    """A sample's metrics, in the units of :mod:`pytest_r1perf.metrics`."""
    return {
        "total_throughput": result.total_throughput,
        "output_throughput": result.output_throughput,
        "input_throughput": result.input_throughput,
        "request_throughput": result.request_throughput,
        "tokps_per_gpu": result.total_throughput / cell.topology.gpus_used,
        "total_latency": result.total_latency,
    }
