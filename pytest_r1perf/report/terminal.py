"""What a session says at its end: the one table, lists under it, and the failing cells last."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_r1perf.report.plain import plain
from pytest_r1perf.report.table import counted, once, tables
from pytest_r1perf.verdict import Verdict

if TYPE_CHECKING:
    from pytest_r1perf.results import CellResult
    from pytest_r1perf.session import PerfSession

__all__ = ["effects", "legend", "lists", "over_the_suite", "reached", "tables", "wrapped", "write_summary"]

_LEAST_WIDTH = 80
_MOST_ROWS = 24
"""Rows of a table, without ``-v``: with the failing cells under it, about what a window shows."""

_LIST_LIMIT = 20
_SHORT_LIST_LIMIT = 5
"""Entries of a list: fewer where the table is cut, since the lists are as long."""

_QUIET_LISTS = ("undecided", "not compared", "baselines written")
"""What ``-q`` still lists: why a cell has no verdict, and which files were changed."""

_SHOWN_TO_HOLD = (Verdict.PASS, Verdict.IMPROVED)
_VERDICT = re.compile(rf"(?<=  )({'|'.join(verdict.value for verdict in Verdict)})$")
_SHARED_BY = 4
"""From so many cells on a note is told once, with their number."""


def write_summary(reporter: pytest.TerminalReporter, session: PerfSession, *, interrupted: bool) -> None:
    """Write the table of a session, or nothing when no perf test ran.

    ``-q`` leaves out what explains, ``-qq`` all but the table, ``--no-summary`` all but a line of a session that
    failed; ``-v`` shows every row.
    """
    if session.worker is not None:
        return
    line = session.deselected_line()
    if line is not None and session.distributes:  # there pytest prints no line after its collection
        reporter.write_line(line)
    if session.config.option.collectonly or not (session.selected or session.results):
        return
    if not session.config.getoption("no_summary", False):  # whether pytest then calls us depends on its version
        _write_body(reporter, session, session.config.get_verbosity())
    elif any(result.failed for result in session.results):
        reporter.ensure_newline()
        reporter.write_line(f"r1perf: {counts(session.results)}", red=True)
    for error in session.errors:
        reporter.write_line(f"ERROR: {plain(error)}", red=True)
    if interrupted and session.has_samples:
        reporter.write_line("")
        reporter.write_line("interrupted: the rounds measured so far are kept, and --perf-resume goes on from them")
    elif session.undecided:
        reporter.write_line("")
        reporter.write_line("nothing was decided: the session exits non-zero", red=True)


def _write_body(reporter: pytest.TerminalReporter, session: PerfSession, verbosity: int) -> None:
    results = session.results
    width = max(session.config.get_terminal_writer().fullwidth, _LEAST_WIDTH)
    reporter.write_sep("=", "performance (r1perf)")
    most = None if verbosity > 0 else _MOST_ROWS
    for title, rows in tables(results, width=width, most=most, more=" (-v shows them)"):
        _write_wrapped(reporter, title, width, bold=True)
        for row in rows.splitlines():
            _write_row(reporter, row)
    for line in over_the_suite(results):
        reporter.write_line(line, bold=True, red=session.suite_regressed)
    if verbosity <= -2:
        return
    if len(results) > 1:
        reporter.write_line(counts(results))
    if verbosity >= 0:
        for line in legend(results):
            _write_wrapped(reporter, line, width)
    for title, text in effects(results):
        reporter.write_line("")
        reporter.write_line(plain(title), bold=True)
        for line in text:
            reporter.write_line(plain(line))
    limit = _list_limit(results, verbosity)
    for title, lines in lists(results, session.unused(), [str(path) for path in session.updated]):
        if verbosity >= 0 or title in _QUIET_LISTS:
            _write_list(reporter, title, lines, width, limit)
    _write_failed(reporter, results, width, limit)


def _write_failed(reporter: pytest.TerminalReporter, results: Sequence[CellResult], width: int, most: int) -> None:
    from pytest_r1perf.report.failed import failed_lines

    failed = sorted((result for result in results if result.failed), key=lambda result: not result.judgements)
    if not failed:
        return
    _write_list(
        reporter, f"failed: {len(failed)} of {len(results)}", failed_lines(failed, most), width, len(failed) * 9
    )
    commands = list(dict.fromkeys(result.reproduce for result in failed))
    _write_list(reporter, "reproduce the failures", commands, width, most)


def _write_list(reporter: pytest.TerminalReporter, title: str, lines: Sequence[str], width: int, limit: int) -> None:
    reporter.write_line("")
    reporter.write_line(title, bold=True)
    for line in lines[:limit]:
        for part in wrapped(plain(line), width):
            reporter.write_line(part)
    if len(lines) > limit:
        reporter.write_line(f"  ... and {len(lines) - limit} more (-v shows them)")


def _write_wrapped(reporter: pytest.TerminalReporter, line: str, width: int, *, bold: bool = False) -> None:
    import textwrap

    for part in textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False):
        reporter.write_line(part, bold=bold)


def _write_row(reporter: pytest.TerminalReporter, row: str) -> None:
    """Only the verdict is coloured: a name stays readable on any background."""
    found = _VERDICT.search(row)
    if found is None:
        reporter.write_line(row)
        return
    verdict = Verdict(found[1])
    red = verdict.fails
    yellow = not verdict.decided or verdict in (Verdict.XFAIL, Verdict.MEASURED, Verdict.STORED)
    reporter.write(row[: found.start()])
    reporter.write_line(found[1], red=red, bold=red, yellow=yellow, green=not red and not yellow)


def _list_limit(results: Sequence[CellResult], verbosity: int) -> int:
    if verbosity > 0:
        return sys.maxsize
    return _SHORT_LIST_LIMIT if len(results) > _MOST_ROWS else _LIST_LIMIT


def counts(results: Sequence[CellResult]) -> str:
    """``3 REGRESSED, 497 PASS of 500 cells``."""
    rows = list(once(results))
    said = counted(result.verdict for result in rows)
    return f"{said} of {len(rows)} {'cell' if len(rows) == 1 else 'cells'}"


def effects(results: Sequence[CellResult]) -> list[tuple[str, list[str]]]:
    """What perf_lab made of several cells, under the test's id: a sentence and a table or drawing each."""
    found: dict[str, list[str]] = {}
    for result in results:
        for effect in result.effects:
            lines = found.setdefault(result.nodeid, [])
            lines += [*([""] if lines else []), *effect["text"]]
    return list(found.items())


def wrapped(line: str, width: int) -> list[str]:
    """An entry of a list at the terminal's width; a command or a path, which somebody will copy, is never broken."""
    import textwrap

    if line.startswith(("pytest ", "/", "log: ")):
        return [f"  {line}"]
    return textwrap.wrap(
        line,
        width=max(width, _LEAST_WIDTH),
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def legend(results: Iterable[CellResult]) -> list[str]:
    """What the columns mean, with this session's own numbers."""
    from pytest_r1perf.report.numbers import percent

    judged = [result for result in results if result.judgements]
    if not judged:
        return []

    def either(values: Iterable[str]) -> str:
        return " or ".join(dict.fromkeys(values))

    alarm = either(f"{rate:.2g}" for rate in sorted({result.error_rate for result in judged}))
    missed = either(f"{rate:.2g}" for rate in sorted({result.missed_rate for result in judged}))
    judgements = [item for result in judged for item in result.judgements]
    tolerance = either(percent(value) for value in sorted({item.tolerance for item in judgements}))
    excludes = either(percent(value) for value in sorted({item.excludes for item in judgements}))
    against = either(result.against for result in judged)
    return [
        f"ratio: this run over the {against} in the better direction, looked at after every round.",
        f"REGRESSED: its upper end is below 1 - tolerance ({tolerance}); wrong with probability {alarm} at most.",
        f"PASS: its lower end excludes a drop of {excludes}; wrong with probability {missed} at most.",
    ]


def over_the_suite(results: Sequence[CellResult]) -> list[str]:
    """Of two environments: the ratio of all cells together."""
    from pytest_r1perf.report.numbers import interval, percent
    from pytest_r1perf.suite import suite_ratio

    suite = suite_ratio(results)
    if suite is None:
        return []
    verdict = f": REGRESSED as a whole (tolerance {percent(suite.tolerance)})" if suite.regressed else ""
    return [f"over the suite ({suite.cells} cells): new / old {interval(suite.ratio)}{verdict}"]


def lists(results: Sequence[CellResult], unused: Sequence[str], updated: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The titled lists under the table; empty ones are left out."""
    from pytest_r1perf.report.message import describe
    from pytest_r1perf.report.numbers import drop

    rows = list(once(results))

    def described(verdict: Verdict) -> list[str]:
        found = []
        for result in rows:
            if result.verdict is verdict:
                lines = (describe(item, result.against) for item in result.judgements if item.verdict is verdict)
                found.append(f"{result.label}: {next(lines, result.cause)}")
        return found

    def caused(*verdicts: Verdict, named: bool = False) -> list[str]:
        return [
            f"{result.label}: {f'{result.verdict.value}: ' if named else ''}{result.cause}"
            for result in rows
            if result.verdict in verdicts
        ]

    def seen(result: CellResult) -> list[str]:
        compared = [j for j in result.judgements if not j.gate] or list(result.judgements)
        powers = [j.detectable for j in compared if j.detectable is not None]
        return [f"{result.label}: {drop(max(powers))}"] if powers else []

    baselines = "improved" if all(row.side_by_side for row in rows) else "improved: consider --perf-update"
    power = [line for result in rows if result.verdict in _SHOWN_TO_HOLD for line in seen(result)]
    ceilings = [f"{result.label}: {reached(result.ceilings)}" for result in rows if result.ceilings]
    warming = [f"{result.label}: {result.discarded}" for result in rows if result.discarded]
    quarantined = [f"{result.label}: {result.verdict.value}" for result in rows if result.quarantined]
    entries = [
        (baselines, described(Verdict.IMPROVED)),
        ("undecided", described(Verdict.UNDECIDED)),
        ("not compared", caused(Verdict.INCOMPARABLE, Verdict.NO_BASELINE, named=True)),
        ("expected to lose", caused(Verdict.XFAIL)),
        ("would have been seen with 95 % power", power),
        ("greedy answers of both environments", _answers(rows)),
        ("of what the hardware can do", ceilings),
        ("thrown away as warm-up", warming),
        ("quarantined", quarantined),
        ("notes", _notes(results)),
        ("baselines written", list(updated)),
        ("baseline entries that no test uses", list(unused)),
    ]
    return [(title, lines) for title, lines in entries if lines]


def _notes(results: Sequence[CellResult]) -> list[str]:
    """Each note with its cell; one that many cells share once, with their number."""
    cells: dict[str, dict[str, None]] = {}
    for result in results:
        for note in result.notes:
            cells.setdefault(note, {})[result.label] = None
    shared = [f"{note} ({len(labels)} cells)" for note, labels in cells.items() if len(labels) >= _SHARED_BY]
    single = [f"{result.label}: {note}" for result in results for note in result.notes if len(cells[note]) < _SHARED_BY]
    return [*shared, *dict.fromkeys(single)]


def _answers(results: Iterable[CellResult]) -> list[str]:
    """Each comparison of answers once, with the cells whose server arguments it is of."""
    cells: dict[tuple[str, ...], list[str]] = {}
    for result in results:
        if result.outputs:
            cells.setdefault(result.outputs, []).append(result.label)
    return [line for outputs, labels in cells.items() for line in (f"{', '.join(labels)}:", *outputs)]


def reached(ceilings: Mapping[str, float]) -> str:
    """Fractions of the hardware's bounds, the nearest to its bound first."""
    from pytest_r1perf.report.numbers import percent

    nearest = sorted(ceilings.items(), key=lambda item: -item[1])
    return ", ".join(f"{percent(fraction)} of its {metric} ceiling" for metric, fraction in nearest)
