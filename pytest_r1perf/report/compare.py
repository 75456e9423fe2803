"""What ``r1perf compare`` prints: the sessions' own table, and under it what else differs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_r1perf.report.message import describe
from pytest_r1perf.report.numbers import percent
from pytest_r1perf.report.parity import plain, section
from pytest_r1perf.report.terminal import tables, wrapped
from pytest_r1perf.results import finite
from pytest_r1perf.verdict import Verdict

if TYPE_CHECKING:
    from pytest_r1perf.compare.cells import Comparison, Measured, Side
    from pytest_r1perf.parity.check import Item
    from pytest_r1perf.parity.recorded import Recorded
    from pytest_r1perf.results import CellResult

    Held = tuple[Recorded, Recorded, Sequence[Item]]

WIDTH = 100


def comparison_lines(done: Comparison, parity: Sequence[Held] = ()) -> list[str]:
    """The table of the cells that both sides have, the verdicts' reasons, and the cells that only one has."""
    lines = [f"A (reference): {_what(done.reference)}", f"B (new): {_what(done.new)}", ""]
    for title, table in tables(done.results):
        lines += [title, table]
    lines += _legend(done.results)
    for title, entries in [*_lists(done), ("parity, by the guide's checklist", section(parity))]:
        if not entries:
            continue
        lines += ["", title]
        lines += [part for entry in entries for part in wrapped(entry, WIDTH)]
    return [*lines, "", summary(done.results)]


def summary(results: Sequence[CellResult]) -> str:
    """``3 cells in both: 2 PASS, 1 REGRESSED``."""
    if not results:
        return "no cell is in both: nothing could be compared"
    counts = {verdict: sum(result.verdict is verdict for result in results) for verdict in Verdict}
    said = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    return f"{len(results)} {'cell' if len(results) == 1 else 'cells'} in both: {said}"


def as_text(done: Comparison, status: int, parity: Sequence[Held] = ()) -> str:
    """One JSON object; a limit of an interval that no number holds is null."""
    data = {
        "reference": {"name": done.reference.name, "session": done.reference.session},
        "new": {"name": done.new.name, "session": done.new.session},
        "exit_status": status,
        "results": [result.as_dict() for result in done.results],
        "only_in_reference": [_named(cell) for cell in done.only_reference],
        "only_in_new": [_named(cell) for cell in done.only_new],
        "parity": [plain(*one) for one in parity],
        "problems": [*done.reference.problems, *done.new.problems],
    }
    return json.dumps(finite(data), indent=2, allow_nan=False)


def _legend(results: Sequence[CellResult]) -> list[str]:
    judged = [(result, item) for result in results for item in result.judgements]
    if not judged:
        return []

    def either(values: Iterable[str]) -> str:
        return " or ".join(dict.fromkeys(values))

    tolerance = either(percent(item.tolerance) for _, item in judged)
    excludes = either(percent(item.excludes) for _, item in judged)
    return [
        "ratio: B over A in the better direction, of all rounds that are there.",
        f"REGRESSED: its upper end is below 1 - tolerance ({tolerance}); wrong with probability "
        f"{either(f'{result.error_rate:.2g}' for result, _ in judged)} at most.",
        f"PASS: its lower end excludes a drop of {excludes}; wrong with probability "
        f"{either(f'{result.missed_rate:.2g}' for result, _ in judged)} at most.",
    ]


def _lists(done: Comparison) -> list[tuple[str, list[str]]]:
    undecided = [
        f"{result.label}: {describe(item, result.against)}"
        for result in done.results
        for item in result.judgements
        if item.verdict is Verdict.UNDECIDED
    ]
    regressed = [
        f"{result.label}: {describe(item, result.against)}"
        for result in done.results
        for item in result.judgements
        if item.verdict is Verdict.REGRESSED
    ]
    others = [f"{r.label}: {r.verdict.value}: {r.cause}" for r in done.results if not r.judgements]
    entries = [
        ("regressed", regressed),
        ("undecided", undecided),
        ("not compared", others),
        ("what else differs, from A to B", list(_grouped(done.results))),
        ("only in A", [_fault(cell) for cell in done.only_reference]),
        ("only in B", [_fault(cell) for cell in done.only_new]),
        ("left out", [*done.reference.problems, *done.new.problems]),
    ]
    return [(title, lines) for title, lines in entries if lines]


def _grouped(results: Iterable[CellResult]) -> Iterable[str]:
    """Each difference once, with the cells that have it unless all do."""
    cells: dict[str, list[str]] = {}
    every = list(results)
    for result in every:
        for note in result.notes:
            cells.setdefault(note, []).append(result.label)
    for note, labels in cells.items():
        yield note if len(labels) == len(every) else f"{note} ({', '.join(labels)})"


def _what(side: Side) -> str:
    releases = sorted({cell.versions["sglang"] for cell in side.cells.values() if "sglang" in cell.versions})
    parts = [f"session {side.session}"] if side.session and side.session not in side.name else []
    parts += [f"sglang {' and '.join(releases)}"] if releases else []
    return f"{side.name} ({', '.join(parts)})" if parts else side.name


def _fault(cell: Measured) -> str:
    return cell.label if cell.fault is None else f"{cell.label}: {cell.fault[0].value}: {cell.fault[1]}"


def _named(cell: Measured) -> dict[str, Any]:
    fault = None if cell.fault is None else {"verdict": cell.fault[0].value, "cause": cell.fault[1]}
    return {"topology": cell.topology, "key": cell.key, "fault": fault}
