"""What one cell's part of an engine's run is: a sample, or the reason why it is none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_r1perf.ceilings.bounds import above, lowest
from pytest_r1perf.cell import Cell
from pytest_r1perf.gpu.judge import Watched
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.metrics import metric_named
from pytest_r1perf.roundcheck import FinishedRun, events_told, metrics_of, moved_defaults
from pytest_r1perf.sglang.engine import CellReport, PlannedCell, Window
from pytest_r1perf.sglang.events import Effect, EventKind
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.failure import classify
from pytest_r1perf.sglang.nccl_verify import Outcome, verified_in
from pytest_r1perf.sglang.result import Check, OfflineResult
from pytest_r1perf.site import LOG
from pytest_r1perf.statistics import geometric_mean
from pytest_r1perf.validity import ExpectedWorkload, counts_of_the_workload, no_compilation, positive
from pytest_r1perf.verdict import Verdict
from pytest_r1perf.warm import drifting


@dataclass(frozen=True, slots=True)
class CellRun:
    """One cell's part of a run: what was planned and told of it.

    ``wall_s`` is how long it took, in s, of the first cell with the engine's start. ``compiled`` has a sentence for
    each timed window in which kernel cache files were written, ``None`` for others.
    """

    run: FinishedRun
    planned: PlannedCell
    report: CellReport
    wall_s: float
    compiled: tuple[str | None, ...] = ()
    remarks: tuple[str, ...] = ()


def outcome(measurement: Measurement, number: int, part: CellRun) -> Sample | Problem:
    """Round ``number`` of a cell that came to its end in the engine, or failed in it."""
    report, run = part.report, part.run
    if report.failed is not None:
        return _failed(part, *report.failed)
    cell = measurement.cell
    results = [_result(window) for window in report.timed]
    ceilings = lowest(cell.platform.ceilings, run.ceilings)
    failed = list(_wrong(measurement, part, results, ceilings))
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
    windows = tuple(metrics_of(result, cell) for result in results)
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
        windows=windows,
        discarded=len(report.windows) - len(report.timed),
        ceiling=ceilings,
    )


def mean(windows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The geometric mean of every metric: that of a throughput is the tokens over that of the times."""
    return {name: geometric_mean([window[name] for window in windows]) for name in windows[0]}


def _failed(part: CellRun, reason: str, error: str) -> Problem:
    log = part.run.log
    if reason == "unfit":
        mend = "take a smaller n or workload, or give the KV cache more room (mem_fraction_static, max_total_tokens)"
        return Problem(Verdict.CONFIG, f"the workload does not fit: {error}", mend, log)
    if reason in ("answer", "sampling"):
        return Problem(Verdict.INVALID, f"{reason}: {error}", log=log)
    failure = classify(part.run.facts, returncode=None, timed_out=False)
    cause = failure.cause if failure.line_no is not None else error
    return Problem(Verdict(failure.kind.value), cause, failure.hint if failure.line_no is not None else "", log)


def _result(window: Window) -> OfflineResult:
    """The same numbers as the offline benchmark's line has, with its definitions: amounts over the window's time."""
    seconds = window.total_latency if window.total_latency > 0 else math.nan
    tokens = window.total_input_tokens + window.total_output_tokens
    return OfflineResult(
        backend="engine",
        successful_requests=window.requests,
        total_latency=window.total_latency,
        total_input_tokens=window.total_input_tokens,
        total_output_tokens=window.total_output_tokens,
        request_throughput=window.requests / seconds,
        input_throughput=window.total_input_tokens / seconds,
        output_throughput=window.total_output_tokens / seconds,
        total_throughput=tokens / seconds,
    )


def _wrong(
    measurement: Measurement, part: CellRun, results: Sequence[OfflineResult], ceilings: Mapping[str, float]
) -> Iterator[Check]:
    """What makes the windows no measurement; a fault that all of them share is told once."""
    report, planned, cell = part.report, part.planned, measurement.cell
    for sentence in report.garbage:
        yield Check("garbage", sentence)
    if len(results) != planned.windows:
        yield Check("windows", f"{len(results)} timed windows were told; {planned.windows} were planned")
    workload = measurement.workload
    expected = ExpectedWorkload(
        num_prompts=cell.num_prompts,
        total_input_tokens=workload.total_input_tokens if workload else None,
        total_output_tokens=workload.total_output_tokens if workload else None,
    )
    seen: set[Check] = set()
    for window, result in zip(report.timed, results, strict=True):
        checks = list(counts_of_the_workload(result, expected, part.run.facts)) or list(_as_sent(window, report))
        checks += positive(result)
        checks += [Check("ceiling", sentence) for sentence in above(metrics_of(result, cell), ceilings)]
        checks += _answers(window, report, retracted=part.run.facts.retracted_reqs > 0)
        for check in checks:
            if check not in seen:
                seen.add(check)
                yield Check(check.name, f"window {window.index + 1}: {check.sentence}")
    yield from no_compilation(part.run.facts)
    for number, written in enumerate(part.compiled, start=1):
        if written is not None:
            yield Check("kernel-caches", f"window {number}: {written}")


def _as_sent(window: Window, report: CellReport) -> Iterator[Check]:
    made = (report.requests, report.input_tokens, report.output_tokens)
    told = (window.requests, window.total_input_tokens, window.total_output_tokens)
    if told != made:
        yield Check("answers", f"(requests, input, output tokens) are {told}; what was sent makes {made}")


def _answers(window: Window, report: CellReport, *, retracted: bool) -> Iterator[Check]:
    if window.aborted:
        yield Check("aborted", f"the engine gave up a request: {window.aborted}")
    # A retracted request finds its own tokens in the cache when it comes again.
    if window.cached_tokens > report.shared_tokens and not retracted:
        yield Check(
            "cache",
            f"{window.cached_tokens} prompt tokens came from the cache, and prompts of one window share at most "
            f"{report.shared_tokens}: the cache was not empty before it",
        )


def _retracted(facts: LogFacts) -> Iterator[str]:
    if facts.retracted_reqs:
        yield f"{facts.retracted_reqs} requests were retracted, in {facts.retractions} events: the KV cache was full"


def _drift(windows: Sequence[Mapping[str, float]], cell: Cell) -> Iterator[str]:
    name = metric_named("total_throughput").name
    sentence = drifting([window[name] for window in windows], name)
    if sentence is not None:
        yield f"{cell.label}: {sentence}"
