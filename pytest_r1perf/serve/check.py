"""What one cell's part of a server's run is: a sample, or the reason why it is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_r1perf.caches import per_window
from pytest_r1perf.ceilings.bounds import above, lowest
from pytest_r1perf.load import Batch
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.serve.client import Row, read_row
from pytest_r1perf.sglang.result import Check
from pytest_r1perf.sglang.serve import CellReport, PlannedCell, ServerInfo, Window
from pytest_r1perf.sharedcheck import by_the_log, number_of_windows, sample_or_problem
from pytest_r1perf.sharedrun import CellRun
from pytest_r1perf.validity import no_compilation
from pytest_r1perf.verdict import Verdict

_STAMP_S = 2.0
"""How far the stamp of a row's file may be from its client's run: file systems stamp whole seconds (ours)."""

Part = CellRun[PlannedCell, CellReport]


def outcome(measurement: Measurement, number: int, part: Part, server: ServerInfo, version: str) -> Sample | Problem:
    """Round ``number`` of a cell that came to its end, or failed in it; ``version`` is the environment's."""
    report, run = part.report, part.run
    if report.failed is not None:
        return _failed(part, *report.failed)
    cell = measurement.cell
    ceilings = lowest(cell.platform.ceilings, run.ceilings)
    wrong = [*number_of_windows(part), *_of_the_server(measurement, server, version)]
    rows: list[Row] = []
    seen: set[Check] = set()
    for window in report.timed:
        row, checks = read_row(run.folder / window.result, cell, measurement.workload, server)
        checks += _own(window)
        if row is not None:
            rows.append(row)
            checks += [Check("ceiling", sentence) for sentence in above(row.metrics, ceilings)]
        # A fault that all windows share is told once.
        fresh = [check for check in checks if check not in seen]
        seen.update(fresh)
        wrong += [Check(check.name, f"window {window.index + 1}: {check.sentence}") for check in fresh]
    wrong += no_compilation(run.facts)
    if len(rows) == len(report.timed):
        wrong += _compiled(part, rows)
    return sample_or_problem(measurement, number, part, _common([row.metrics for row in rows]), wrong, ceilings)


def _failed(part: Part, reason: str, error: str) -> Problem:
    log = part.run.log
    if reason == "skipped":
        mend = (
            "take a smaller batch or shorter answers, or give the server more room (max_running_requests, "
            "mem_fraction_static, max_total_tokens)"
        )
        return Problem(Verdict.CONFIG, f"SGLang's client skipped the case: {error}", mend, log)
    return by_the_log(part, error)


def _of_the_server(measurement: Measurement, server: ServerInfo, version: str) -> Iterator[Check]:
    load = measurement.cell.load
    if server.version and server.version != version:
        yield Check("server-version", f"the server says it is SGLang {server.version}; the environment has {version}")
    most = server.max_running_requests
    if isinstance(load, Batch) and most is not None and load.batch_size > most * server.dp_size:
        yield Check(
            "max-running-requests",
            f"a batch of {load.batch_size} is not served as one: the server runs {most * server.dp_size} requests at "
            f"once (max_running_requests)",
        )


def _own(window: Window) -> Iterator[Check]:
    """The row was written while this window's client ran: what was there before is another run's."""
    if window.written is None:
        return  # there is no row, and that is told
    if not window.start - _STAMP_S <= window.written <= window.end + _STAMP_S:
        yield Check(
            "foreign-row",
            f"{window.result} was written {window.written - window.start:.1f} s after the client's start, and the "
            f"client ran {window.end - window.start:.1f} s",
        )


def _compiled(part: Part, rows: list[Row]) -> Iterator[Check]:
    """Kernels written into caches on disk in a timed window, which is the end of its client's run."""
    spans = []
    for window, row in zip(part.report.timed, rows, strict=True):
        end = window.time + (window.written if window.written is not None else window.end) - window.start
        spans.append((end - row.seconds, end))
    for number, written in enumerate(per_window(part.files, spans), start=1):
        if written is not None:
            yield Check("kernel-caches", f"window {number}: {written}")


def _common(windows: list[Mapping[str, float]]) -> list[dict[str, float]]:
    """The metrics that every window has: one of which no window is sure has no mean."""
    names = [name for name in windows[0] if all(name in window for window in windows)] if windows else []
    return [{name: window[name] for name in names} for window in windows]
