"""The table of cells: one a metric, failures first, of what holds no more rows than fit only a count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_r1perf.report.columns import EMPTY, Column, fitted
from pytest_r1perf.report.plain import plain

if TYPE_CHECKING:
    from pytest_r1perf.results import CellResult
    from pytest_r1perf.verdict import Judgement, Verdict

WIDTH = 100
"""Columns of a table that is not for a terminal of a known width."""


@dataclass(frozen=True, slots=True)
class _Row:
    result: CellResult
    judgement: Judgement | None
    cells: tuple[str, ...]


def tables(
    results: Sequence[CellResult], *, width: int = WIDTH, most: int | None = None, more: str = ""
) -> list[tuple[str, str]]:
    """(title, table) a metric; cells without a number go under the first.

    Of more than ``most`` rows those that passed are counted instead, by verdict; ``more`` says how to see them.
    """
    from pytest_r1perf.metrics import METRICS

    against = "/".join(sorted({result.against.split()[0] for result in results}) or ["baseline"])
    found = []
    for name, rows in _by_metric(results).items():
        metric = METRICS[name]
        better = "more is better" if metric.better > 0 else "less is better"
        title = f"{name} in {metric.unit}: {metric.meaning}; {better}"
        shown = rows if most is None or len(rows) <= most else _urgent(rows)[:most] or rows[:most]
        heads = _heads(against, "floor" if metric.better > 0 else "limit")
        lines = fitted(heads, [row.cells for row in shown], width)
        if len(shown) < len(rows):
            rest = counted(_verdict(row) for row in rows[len(shown) :])
            lines.append(f"  ... and {len(rows) - len(shown)} more: {rest}{more}")
        found.append((title, "\n".join(lines)))
    return found


def counted(verdicts: Iterable[Verdict]) -> str:
    """``3 REGRESSED, 495 PASS``: failures first, then what is open."""
    counts = Counter(verdicts)
    ordered = sorted(counts, key=lambda verdict: (not verdict.fails, verdict.decided, -counts[verdict]))
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in ordered)


def once(results: Sequence[CellResult]) -> Iterator[CellResult]:
    """Tests that share one measurement and one verdict share one row; failures never do."""
    seen: set[tuple[object, ...]] = set()
    for result in results:
        key = (result.platform, result.topology, result.key, result.verdict, result.judgements, result.cause)
        if result.failed or key not in seen:
            seen.add(key)
            yield result


def _by_metric(results: Sequence[CellResult]) -> dict[str, list[_Row]]:
    rows: dict[str, list[_Row]] = {}
    for result in sorted(once(results), key=_urgency):
        if result.judgements:
            for judgement in result.judgements:
                rows.setdefault(judgement.metric, []).append(_Row(result, judgement, _row(result, judgement)))
        else:
            first = next(iter(result.medians), "total_throughput")
            rows.setdefault(first, []).append(_Row(result, None, _bare_row(result, first)))
    return rows


def _urgency(result: CellResult) -> int:
    """Failures first, then what is open or quarantined: these are the rows that a long table keeps."""
    if result.failed:
        return 0
    return 1 if result.verdict.fails or not result.verdict.decided else 2


def _urgent(rows: Sequence[_Row]) -> list[_Row]:
    return [row for row in rows if _urgency(row.result) < 2]


def _heads(against: str, bound: str) -> tuple[Column, ...]:
    return (
        Column("cell", right=False),
        Column("rounds", leaves=2),
        Column("median"),
        Column("spread", leaves=1),
        Column(against, leaves=3),
        Column("ratio [interval]", leaves=5),
        Column(bound, leaves=4),
        Column("verdict", right=False),
    )


def _verdict(row: _Row) -> Verdict:
    if row.judgement is None or len(row.result.judgements) == 1:
        return row.result.verdict
    return row.judgement.verdict


def _row(result: CellResult, judgement: Judgement) -> tuple[str, ...]:
    from pytest_r1perf.report.message import bound
    from pytest_r1perf.report.numbers import interval, number, percent

    verdict = result.verdict if len(result.judgements) == 1 else judgement.verdict
    return (
        plain(result.label),
        str(judgement.rounds),
        number(judgement.median),
        percent(judgement.spread) if judgement.spread is not None else EMPTY,
        number(judgement.baseline) if judgement.baseline is not None else EMPTY,
        interval(judgement.ratio) if judgement.ratio is not None else EMPTY,
        bound(judgement).partition(" ")[2] if judgement.floor is not None else EMPTY,
        verdict.value,
    )


def _bare_row(result: CellResult, metric: str) -> tuple[str, ...]:
    from pytest_r1perf.report.numbers import number

    median = number(result.medians[metric]) if metric in result.medians else EMPTY
    return (plain(result.label), str(result.rounds), median, *(EMPTY,) * 4, result.verdict.value)
