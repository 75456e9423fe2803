"""One cell in Markdown: a line that says how much and how sure, and below it what changed and how to repeat it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_r1perf.document.model import Cell
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.report.effects import gain
from pytest_r1perf.report.gfm import block, code, words
from pytest_r1perf.report.message import bound, changes
from pytest_r1perf.report.numbers import drop, interval, number, percent
from pytest_r1perf.report.spark import trend_spark
from pytest_r1perf.results import CHANGES, CellResult
from pytest_r1perf.verdict import Judgement, Verdict

MOST_CHANGES = 12
_MOST_NOTES = 6
_MOST_CAUSES = 4

_ROUND = re.compile(r"round (\d+): ")


def line(cell: Cell) -> str:
    """Verdict, cell, and what the verdict rests on."""
    result = cell.result
    told = "; ".join(_told(result)) or words(result.cause) or "no cause was recorded"
    quarantined = ", quarantined" if result.quarantined else ""
    return f"**{result.verdict.value}** {code(result.label)} on {code(result.platform)}{quarantined}: {told}"


def detail(cell: Cell) -> str:
    """What changed, the command to repeat it, its trend, what was noticed, and the log."""
    result = cell.result
    parts = [_changed(result)] if result.verdict is Verdict.REGRESSED else []
    if result.verdict is Verdict.OUTPUTS_CHANGED and result.outputs:
        parts.append(block("\n".join(result.outputs)))
    if result.reproduce:
        parts.append(block(result.reproduce, "sh"))
    parts.append(trend_line(cell))
    noticed = [f"- {code(text, 400)}{where}" for text, where in noticed_in(result.notes)]
    more = len(noticed) - _MOST_NOTES
    if noticed:
        parts.append("\n".join(["noticed:", "", *noticed[:_MOST_NOTES], *([f"- and {more} more"] if more > 0 else [])]))
    if result.log:
        parts.append(f"log: {code(result.log, 400)}")
    return "\n\n".join(part for part in parts if part)


def measured(item: Judgement, against: str, *, power: bool = False) -> str:
    """A metric's change from what it is compared with, in the metric's own direction, with its interval.

    ``-14.8 %`` of a latency is a shorter one. ``power`` adds the drop that would have been seen.
    """
    metric = METRICS[item.metric]
    value = f"{number(item.median)} {metric.unit}"
    told = f"{metric.name} {value}"
    if item.ratio is not None and item.baseline is not None:
        ratio = item.ratio
        if item.less_is_better:
            lower, upper = _inverse(ratio.upper), _inverse(ratio.lower)
            ratio = replace(ratio, estimate=_inverse(ratio.estimate), lower=lower, upper=upper)
        told = f"{metric.name} **{gain(ratio)}**: {value}, {words(against)} {number(item.baseline)} {metric.unit}"
        if item.less_is_better:
            told += ", less is better"
        told += f", tolerance {percent(item.tolerance)}"
    if item.floor is not None:
        mean = f", mean {interval(item.mean)}" if item.mean is not None else ""
        told += f", {bound(item)}{mean}"
    told += f", {item.rounds} {'round' if item.rounds == 1 else 'rounds'}"
    if power and item.detectable is not None:
        told += f"; {drop(item.detectable)} would have been seen (95 % power)"
    return told


def trend_line(cell: Cell) -> str:
    """The nights up to now as a spark, with what its change points rest on; empty below two nights."""
    trend = cell.trend
    if trend is None or len(trend.get("means", ())) < 2:
        return ""
    first, last = str(trend["first"])[:10], str(trend["last"])[:10]
    told = f"trend of total_throughput: {code(trend_spark(trend))} {trend['nights']} nights from {first} to {last}"
    means = [mean for mean in trend["means"] if mean is not None and math.isfinite(mean)]
    told += f", {number(min(means))} to {number(max(means))} tok/s" if means else ""
    told += f", {words(str(trend['state']))}"
    for event in list(trend["events"])[-2:]:
        told += f"; {_event(event)}"
    return told


def noticed_in(notes: Iterable[str]) -> list[tuple[str, str]]:
    """Notes but those on changes, each once; and in which rounds, as `` (rounds 1, 2)``."""
    rounds: dict[str, list[str]] = {}
    for note in notes:
        if note.partition(": ")[0] in CHANGES:
            continue
        found = _ROUND.match(note)
        rounds.setdefault(note[found.end() :] if found else note, []).extend(found.groups() if found else ())
    return [
        (text, f" ({_in_rounds(list(dict.fromkeys(numbers)))})" if numbers else "") for text, numbers in rounds.items()
    ]


def _in_rounds(numbers: Sequence[str]) -> str:
    return f"{'round' if len(numbers) == 1 else 'rounds'} {', '.join(numbers)}"


def _told(result: CellResult) -> list[str]:
    """Of every metric that made the verdict."""
    verdict = result.verdict
    items = [item for item in result.judgements if item.verdict is verdict] or list(result.judgements[:1])
    if verdict is Verdict.REGRESSED:
        sure = f"wrong with probability {result.error_rate:.2g} at most"
        return [*(measured(item, result.against) for item in items), sure] if items else []
    if verdict is Verdict.UNDECIDED and items:
        return [
            *([words(result.cause)] if _adds(result, items) else []),
            *(_open(item, result.against) for item in items),
        ]
    if verdict in (Verdict.XFAIL, Verdict.XPASS) and items:
        return [*([words(result.cause)] if result.cause else []), *(measured(item, result.against) for item in items)]
    if verdict in (Verdict.PASS, Verdict.IMPROVED):
        return [measured(item, result.against, power=True) for item in items]
    return []


def _inverse(ratio: float) -> float:
    return 1 / ratio if ratio else math.inf


def _adds(result: CellResult, items: Sequence[Judgement]) -> bool:
    """The cause says more than a metric's own reason does."""
    return bool(result.cause) and all(result.cause != item.reason for item in items)


def _open(item: Judgement, against: str) -> str:
    told = measured(item, against, power=True)
    if item.verdict is not Verdict.UNDECIDED:
        return told
    if item.rounds_needed is None:
        return f"{told}; more rounds alone would not decide it"
    return f"{told}; {item.rounds_needed} rounds would decide it"


def _changed(result: CellResult) -> str:
    found = changes(result)
    since = f"changed since the {words(result.against)}:"
    if not found:
        compared = any(item.baseline is not None for item in result.judgements)
        return f"{since} nothing in versions, environment or command line" if compared else ""
    lines = []
    for note in found[:MOST_CHANGES]:
        kind, _, text = note.partition(": ")
        lines.append(f"- {kind}: {code(text, 300)}")
    if len(found) > MOST_CHANGES:
        lines.append(f"- and {len(found) - MOST_CHANGES} more")
    return "\n".join([since, "", *lines])


def _event(event: Mapping[str, Any]) -> str:
    """A step, a drift or a bad night, with what the records know to have changed."""
    size = event["size"]["estimate"]
    told = f"{words(str(event['kind']))} {str(event['after'])[:10]}"
    if size is not None:
        told += f" of {size:+.1%}".replace("%", " %")
    causes = [code(str(cause), 200) for cause in event["causes"]]
    more = f" and {len(causes) - _MOST_CAUSES} more" if len(causes) > _MOST_CAUSES else ""
    return f"{told}, with {', '.join(causes[:_MOST_CAUSES])}{more}" if causes else told
