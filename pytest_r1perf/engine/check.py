"""What one cell's part of an engine's run is: a sample, or the reason why it is none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from pytest_r1perf.caches import per_window
from pytest_r1perf.ceilings.bounds import above, lowest
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.roundcheck import metrics_of
from pytest_r1perf.sglang.engine import CellReport, PlannedCell, Window
from pytest_r1perf.sglang.result import Check, OfflineResult
from pytest_r1perf.sharedcheck import by_the_log, number_of_windows, sample_or_problem
from pytest_r1perf.sharedrun import CellRun
from pytest_r1perf.validity import ExpectedWorkload, counts_of_the_workload, no_compilation, positive
from pytest_r1perf.verdict import Verdict


def outcome(measurement: Measurement, number: int, part: CellRun[PlannedCell, CellReport]) -> Sample | Problem:
    """Round ``number`` of a cell that came to its end in the engine, or failed in it."""
    report, run = part.report, part.run
    if report.failed is not None:
        return _failed(part, *report.failed)
    cell = measurement.cell
    results = [_result(window) for window in report.timed]
    ceilings = lowest(cell.platform.ceilings, run.ceilings)
    wrong = list(_wrong(measurement, part, results, ceilings))
    windows = [metrics_of(result, cell) for result in results]
    return sample_or_problem(measurement, number, part, windows, wrong, ceilings)


def _failed(part: CellRun[PlannedCell, CellReport], reason: str, error: str) -> Problem:
    log = part.run.log
    if reason == "unfit":
        mend = "take a smaller n or workload, or give the KV cache more room (mem_fraction_static, max_total_tokens)"
        return Problem(Verdict.CONFIG, f"the workload does not fit: {error}", mend, log)
    if reason in ("answer", "sampling"):
        return Problem(Verdict.INVALID, f"{reason}: {error}", log=log)
    return by_the_log(part, error)


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
    measurement: Measurement,
    part: CellRun[PlannedCell, CellReport],
    results: Sequence[OfflineResult],
    ceilings: Mapping[str, float],
) -> Iterator[Check]:
    """What makes the windows no measurement; a fault that all of them share is told once."""
    report, cell = part.report, measurement.cell
    yield from number_of_windows(part)
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
    spans = [(one.time, one.time + one.end - one.start) for one in report.timed]
    for number, written in enumerate(per_window(part.files, spans), start=1):
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
