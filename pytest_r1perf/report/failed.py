"""The failing cells at the end, where a terminal stands still: the first one in full, the others in a line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_r1perf.report.message import changed, describe, failing_metrics
from pytest_r1perf.report.numbers import interval
from pytest_r1perf.report.plain import plain

if TYPE_CHECKING:
    from pytest_r1perf.results import CellResult

_LONGEST_CAUSE = 120


def failed_lines(results: Sequence[CellResult], most: int | None) -> list[str]:
    """Of failed results: which, how much, how sure, what changed, and the log; unwrapped.

    ``most`` are told, all with ``None``; what is left out is counted.
    """
    if not results:
        return []
    shown = results if most is None else results[:most]
    lines = _in_full(shown[0])
    lines += [_in_short(result) for result in shown[1:]]
    if len(shown) < len(results):
        lines.append(f"... and {len(results) - len(shown)} more (-v shows them)")
    return lines


def _in_full(result: CellResult) -> list[str]:
    failing = failing_metrics(result)
    lines = [f"{plain(result.label)}: {describe(item, result.against)}" for item in failing]
    if not failing:
        lines.append(f"{plain(result.label)}: {result.verdict.value}: {plain(result.cause)}")
    elif result.cause and all(result.cause != item.reason for item in failing):
        lines.append(f"cause: {plain(result.cause)}")
    since = changed(result)
    if since:
        lines.append(since)
    if result.log:
        lines.append(f"log: {plain(result.log)}")
    return lines


def _in_short(result: CellResult) -> str:
    worst = next((item for item in result.judgements if item.verdict is result.verdict), None)
    if worst is None:
        told = " ".join(plain(result.cause).split())
        told = told if len(told) <= _LONGEST_CAUSE else told[:_LONGEST_CAUSE].rsplit(" ", 1)[0] + " ..."
    elif worst.ratio is not None:
        told = f"{worst.metric} {interval(worst.ratio)} of the {result.against}"
    else:
        told = f"{worst.metric}: {worst.reason}"
    return f"{plain(result.label)}: {result.verdict.value}: {told}"
