"""What makes one cell's part of a shared process a sample, whatever the process: checks on what SGLang's log tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_r1perf.cell import Cell
from pytest_r1perf.gpu.judge import Watched
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.metrics import metric_named
from pytest_r1perf.roundcheck import events_told, moved_defaults
from pytest_r1perf.sglang.events import Effect, EventKind
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.failure import classify
from pytest_r1perf.sglang.nccl_verify import Outcome, verified_in
from pytest_r1perf.sglang.result import Check
from pytest_r1perf.sharedrun import CellRun
from pytest_r1perf.site import LOG
from pytest_r1perf.statistics import geometric_mean
from pytest_r1perf.verdict import Verdict
from pytest_r1perf.warm import drifting


def sample_or_problem(
    measurement: Measurement,
    number: int,
    part: CellRun[Any, Any],
    windows: Sequence[Mapping[str, float]],
    wrong: Sequence[Check],
    ceilings: Mapping[str, float],
) -> Sample | Problem:
    """Round ``number``: the mean of its ``windows``, unless something is ``wrong`` with them or with the run."""
    report, run, cell = part.report, part.run, measurement.cell
    failed = list(wrong)
    if not run.facts.server_args:
        failed.append(Check("resolved-arguments", "the log has no server_args: nothing shows what was measured"))
    events = events_told(run)
    failed += [Check("silent-downgrade", event.text) for event in events if event.effect is Effect.INVALID]
    collectives = verified_in(run.folder / LOG, cell.env)
    failed += [Check("nccl", str(one)) for one in collectives if one.outcome is Outcome.DOWNGRADED]
    gpus = run.gpus(report.timed[-1].end - report.timed[0].start) if report.timed else Watched()
    failed += [Check("throttled", sentence) for sentence in gpus.throttled]
    if failed:
        cause = "; ".join(f"{check.name}: {check.sentence}" for check in failed)
        return Problem(Verdict.INVALID, cause, log=run.log)
    remarks = [*_retracted(run.facts), *_drift(windows, cell), *part.remarks, *gpus.remarks]
    remarks += [event.text for event in events if event.kind is not EventKind.RETRACTION]
    remarks += [str(one) for one in collectives if one.outcome is not Outcome.DOWNGRADED]
    remarks += moved_defaults(run)
    return Sample(
        round=number,
        metrics=mean(windows),
        wall_s=part.wall_s,
        log=run.log,
        remarks=tuple(remarks),
        events=tuple(event.plain() for event in events),
        telemetry=gpus.record,
        windows=tuple(windows),
        discarded=len(report.windows) - len(report.timed),
        ceiling=ceilings,
    )


def mean(windows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The geometric mean of every metric: that of a throughput is the tokens over that of the times."""
    return {name: geometric_mean([window[name] for window in windows]) for name in windows[0]}


def by_the_log(part: CellRun[Any, Any], error: str) -> Problem:
    """Why a cell failed: the log's first cause, or else what the driver said."""
    failure = classify(part.run.facts, returncode=None, timed_out=False)
    told = failure.line_no is not None
    cause, hint = (failure.cause, failure.hint) if told else (error, "")
    return Problem(Verdict(failure.kind.value), cause, hint, part.run.log)


def number_of_windows(part: CellRun[Any, Any]) -> Iterator[Check]:
    """What can't be read, and windows that are missing."""
    for sentence in part.report.garbage:
        yield Check("garbage", sentence)
    found = len(part.report.timed)
    if found != part.planned.windows:
        yield Check("windows", f"{found} timed windows were told; {part.planned.windows} were planned")


def _retracted(facts: LogFacts) -> Iterator[str]:
    if facts.retracted_reqs:
        yield f"{facts.retracted_reqs} requests were retracted, in {facts.retractions} events: the KV cache was full"


def _drift(windows: Sequence[Mapping[str, float]], cell: Cell) -> Iterator[str]:
    name = metric_named("total_throughput").name
    sentence = drifting([window[name] for window in windows], name)
    if sentence is not None:
        yield f"{cell.label}: {sentence}"
