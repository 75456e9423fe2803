"""Decide whether one offline process measured anything: pure checks on what it left behind.

SGLang checks nothing itself: ``successful_requests`` is the number of requests sent, unset numbers are -1,
and a benchmark whose requests all failed prints zeros and ends with exit code 0. A number that fails any
check is INVALID and is compared with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.result import METRICS, Check, OfflineResult, ResultLine
from pytest_r1perf.sglang.table import Table

__all__ = ["Check", "ExpectedWorkload", "Validity", "check_offline"]

REL_TOL = 1e-6  # SGLang divides the numbers in the same line, in double precision
# ext4 stamps files with a clock that lags time.time() by up to a scheduler tick, NFS by up to its server's
# granularity.

_TABLE_COUNTS = ("successful_requests", "total_input_tokens", "total_output_tokens")
_TABLE_RATES = (
    "total_latency",
    "last_gen_throughput",
    "request_throughput",
    "input_throughput",
    "output_throughput",
    "total_throughput",
)


@dataclass(frozen=True, slots=True)
class ExpectedWorkload:
    """What the workload says must come out; a total of None is not known beforehand.

    With ``ignore_eos`` (the benchmark's default) every request gives exactly the tokens it asked for, so the
    output total is known; without, answers may end early and it is only an upper bound.
    """

    num_prompts: int
    total_input_tokens: int | None = None
    total_output_tokens: int | None = None
    ignore_eos: bool = True


@dataclass(frozen=True, slots=True)
class Validity:
    """The verdict on one sample: valid when there is a result and nothing ``failed``.

    ``result`` is there whenever exactly one line could be read, valid or not, so that a report can show it.
    ``remarks`` are findings that do not spoil the number.
    """

    result: OfflineResult | None
    failed: tuple[Check, ...]
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when the result may be compared."""
        return self.result is not None and not self.failed


def check_offline(
    lines: Sequence[ResultLine],
    table: Table | None,
    *,
    expected: ExpectedWorkload,
    facts: LogFacts,
    returncode: int | None,
    ceilings: Mapping[str, float],
    bounds: Mapping[str, str] | None = None,
    lines_before: int = 0,
) -> Validity:
    """Check one offline process: the lines of its result file, its printed table and its log.

    ``ceilings`` maps a metric to the most that the hardware can do, in the metric's unit; ``bounds`` names what sets
    it, where it was computed. ``lines_before`` lines were in the file when the process started: an earlier run's.
    Raises ValueError for a ceiling of an unknown metric.
    """
    unknown = sorted(set(ceilings) - set(METRICS))
    if unknown:
        raise ValueError(f"no metric {unknown[0]!r} to have a ceiling (known: {', '.join(METRICS)})")
    new = lines[lines_before:]
    failed = [check for line in new for check in line.failed]
    failed += _one_line(new, table, lines_before)
    result = new[0].result if len(new) == 1 else None
    if new:
        failed += _table_whole(table)
    if result is not None:
        failed += positive(result)
        failed += counts_of_the_workload(result, expected, facts)
        failed += _arithmetic(result)
        failed += _below_ceilings(result, ceilings, bounds or {})
        if table is not None:
            failed += _table_agrees(result, table)
    failed += no_compilation(facts)
    return Validity(result, tuple(failed), tuple(_remarks(result, table, facts, returncode)))


def _one_line(new: Sequence[ResultLine], table: Table | None, lines_before: int) -> Iterator[Check]:
    if len(new) == 1:
        return
    if not new and table is not None:
        yield Check("table-without-jsonl", "the table was printed, and the result file has 0 new lines instead of 1")
    else:
        before = f" after the {lines_before} that were there" if lines_before else ""
        yield Check("one-result-line", f"the result file has {len(new)} new lines{before}; one process writes 1")


def _table_whole(table: Table | None) -> Iterator[Check]:
    if table is None:
        # The table is printed right after the line is written: without it the line may be another run's.
        yield Check("jsonl-without-table", "the result file has a new line, and the log has 0 tables instead of 1")
        return
    if table.headers != 1:
        yield Check("one-table", f"the log has {table.headers} tables; one process prints 1")
    if table.garbled:
        yield Check("table-garbled", f"the table's rows {', '.join(table.garbled)} cannot be read")
    elif not table.complete:
        rows = [key for key in (*_TABLE_COUNTS, *_TABLE_RATES) if getattr(table, key) is None]
        what = f"it has no {', '.join(rows)}" if rows else "its closing rule is missing"
        yield Check("table-truncated", f"the table is not whole: {what}")


def positive(result: OfflineResult) -> Iterator[Check]:
    """Every number is finite and above 0."""
    for key in METRICS:
        value = getattr(result, key)
        if not (math.isfinite(value) and value > 0):
            yield Check("positive", f"{key} is {value}; a measurement is above 0 (-1 means never set)")


def counts_of_the_workload(result: OfflineResult, expected: ExpectedWorkload, facts: LogFacts) -> Iterator[Check]:
    """Requests and tokens are the workload's, to the last one."""
    if result.successful_requests != expected.num_prompts:
        yield Check(
            "num-prompts",
            f"successful_requests is {result.successful_requests}; num_prompts is {expected.num_prompts}",
        )
    logged = facts.workload_tokens or (None, None)
    for key, wanted, printed in (
        ("total_input_tokens", expected.total_input_tokens, logged[0]),
        ("total_output_tokens", expected.total_output_tokens, logged[1]),
    ):
        value = getattr(result, key)
        bound = key == "total_output_tokens" and not expected.ignore_eos
        for name, says, source in (
            (key.replace("_", "-"), wanted, "the workload"),
            (f"logged-{key.replace('_', '-')}", printed, "the log"),
        ):
            if says is not None and (value > says if bound else value != says):
                yield Check(name, f"{key} is {value}; {source} says {'at most ' if bound else ''}{says}")


def _arithmetic(result: OfflineResult) -> Iterator[Check]:
    if result.total_latency <= 0:
        return  # reported by `positive`
    for key, amount in (
        ("request_throughput", result.successful_requests),
        ("input_throughput", result.total_input_tokens),
        ("output_throughput", result.total_output_tokens),
        ("total_throughput", result.total_input_tokens + result.total_output_tokens),
    ):
        value, quotient = getattr(result, key), amount / result.total_latency
        if not math.isclose(value, quotient, rel_tol=REL_TOL):
            yield Check(
                key.replace("_", "-"),
                f"{key} is {value}; {amount} / {result.total_latency} s is {quotient}",
            )


def _below_ceilings(result: OfflineResult, ceilings: Mapping[str, float], bounds: Mapping[str, str]) -> Iterator[Check]:
    for key, ceiling in sorted(ceilings.items()):
        value = getattr(result, key)
        if not value <= ceiling:  # also when the ceiling is NaN: a check that cannot hold must not pass
            what = f" ({bounds[key]})" if key in bounds else ""
            yield Check("ceiling", f"{key} is {value}; the hardware's ceiling is {ceiling}{what}")


def _table_agrees(result: OfflineResult, table: Table) -> Iterator[Check]:
    for key in _TABLE_COUNTS:
        printed, value = getattr(table, key), getattr(result, key)
        if printed is not None and printed != value:
            yield Check("table-differs", f"{key} is {value} in the JSON line and {printed} in the table")
    for key in _TABLE_RATES:
        printed, value = getattr(table, key), getattr(result, key)
        if printed is not None and (value is None or float(f"{value:.2f}") != printed):
            yield Check("table-differs", f"{key} is {value} in the JSON line and {printed:.2f} in the table")


def no_compilation(facts: LogFacts) -> Iterator[Check]:
    """The log of the timed window tells of no compilation."""
    if facts.jit_in_benchmark:
        first = facts.jit_in_benchmark[0]
        yield Check("compilation", f"kernels were compiled in the timed window, line {first.line_no}: {first.text}")


def _remarks(
    result: OfflineResult | None, table: Table | None, facts: LogFacts, returncode: int | None
) -> Iterator[str]:
    if returncode is None:
        yield "exit code unknown"
    elif returncode != 0 and result is not None and table is not None and table.complete:
        # Line and table come after the last request; the engine's end is often SIGKILL of its own process
        # tree.
        yield f"teardown failed (rc {returncode})"
    if facts.retracted_reqs:
        yield (f"{facts.retracted_reqs} requests were retracted, in {facts.retractions} events: the KV cache was full")
    last = result.last_gen_throughput if result is not None else None
    if last is not None and last <= 0:
        # Seen as 0.0 in good runs; -1 is its initial value: the scheduler reports every 40 decode steps.
        yield f"last_gen_throughput is {last}: DP rank 0 had no decode report"
