"""The short messages of failures and skips: verdict, cause, log, how to reproduce."""

from __future__ import annotations

from pytest_r1perf.metrics import METRICS
from pytest_r1perf.report.numbers import drop, interval, number, percent
from pytest_r1perf.report.plain import plain
from pytest_r1perf.results import CHANGES, CellResult
from pytest_r1perf.verdict import Judgement, Verdict

MOST_CHANGES = 6
"""Changes that a message names; the notes under the table have all."""


def failure_message(result: CellResult) -> str:
    """A few lines for the failure section and JUnit: what, how much, how sure, what changed, how to repeat."""
    lines = [f"{result.verdict.value}: {result.label} on {result.platform}"]
    failing = failing_metrics(result)
    if failing:
        lines += [f"  {describe(item, result.against)}" for item in failing]
    if result.cause and all(result.cause != item.reason for item in failing):
        lines.append(f"  cause: {result.cause}")
    since = changed(result)
    if since:
        lines.append(f"  {since}")
    if result.verdict is Verdict.OUTPUTS_CHANGED:
        lines += [f"  {line}" for line in result.outputs]
    if result.log:
        lines.append(f"  log: {result.log}")
    lines.append(f"  reproduce: {result.reproduce}")
    return "\n".join(plain(line) for line in lines)


def failing_metrics(result: CellResult) -> list[Judgement]:
    """Metrics that keep the cell from passing."""
    return [item for item in result.judgements if item.verdict.fails or not item.verdict.decided]


def changed(result: CellResult) -> str:
    """Of a regression: what is different from what it was compared with, or that nothing is; else empty."""
    if result.verdict is not Verdict.REGRESSED:
        return ""
    found = changes(result)
    if found:
        more = f"; and {len(found) - MOST_CHANGES} more" if len(found) > MOST_CHANGES else ""
        return f"changed since the {result.against}: {'; '.join(map(plain, found[:MOST_CHANGES]))}{more}"
    if any(item.baseline is not None for item in result.judgements):
        return f"changed since the {result.against}: nothing in versions, environment or command line"
    return ""


def changes(result: CellResult) -> list[str]:
    """What differs from what it was compared with, most likely explanations first."""
    return sorted(result.changed, key=lambda note: CHANGES.index(note.partition(": ")[0]))


def skip_message(result: CellResult) -> str:
    """One line."""
    quarantine = "quarantined " if result.quarantined else ""
    reason = result.cause
    if result.judgements and result.verdict is Verdict.UNDECIDED:
        item = next(item for item in result.judgements if item.verdict is Verdict.UNDECIDED)
        reason = describe(item, result.against)
    return " ".join(plain(f"{quarantine}{result.verdict.value}: {result.label}: {reason}").splitlines())


def bound(item: Judgement) -> str:
    """The floor, or of a metric where less is better the limit with its unit: ``limit 420 s``."""
    value = number(item.floor or 0.0)
    return f"limit {value} {METRICS[item.metric].unit}" if item.less_is_better else f"floor {value}"


def describe(item: Judgement, against: str = "baseline") -> str:
    """One metric's verdict in one line, with everything it rests on."""
    rounds = "1 round" if item.rounds == 1 else f"{item.rounds} rounds"
    parts = [f"{item.metric} {item.verdict.value}: median {number(item.median)} over {rounds}"]
    if item.ratio is not None and item.baseline is not None:
        parts.append(
            f"{against} {number(item.baseline)}, ratio {interval(item.ratio)}, tolerance {percent(item.tolerance)}"
        )
    if item.floor is not None:
        mean = f", mean {interval(item.mean)}" if item.mean is not None else ""
        parts.append(f"{bound(item)}{mean}")
    parts.append(item.reason)
    if item.verdict is Verdict.UNDECIDED:
        parts.append(
            f"{item.rounds_needed} rounds would decide it"
            if item.rounds_needed is not None
            else "more rounds alone would not decide it"
        )
    if item.detectable is not None:
        parts.append(f"{drop(item.detectable)} would have been seen (95 % power)")
    return "; ".join(parts)
