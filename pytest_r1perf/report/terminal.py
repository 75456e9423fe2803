"""The one table at the end, and the lists under it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_r1perf.verdict import Verdict

if TYPE_CHECKING:
    from pytest_r1perf.results import CellResult
    from pytest_r1perf.session import PerfSession
    from pytest_r1perf.verdict import Judgement

_HEADERS = ("cell", "rounds", "median", "spread", "{against}", "ratio [interval]", "{bound}", "verdict")
_ALIGN = ("left", *("right",) * 6, "left")
_LIST_LIMIT = 20
_LEAST_WIDTH = 80
_SHOWN_TO_HOLD = (Verdict.PASS, Verdict.IMPROVED)


def write_summary(reporter: pytest.TerminalReporter, session: PerfSession, *, interrupted: bool) -> None:
    """Write the table of a session, or nothing when no perf test ran."""
    if session.worker is not None:
        return
    line = session.deselected_line()
    if line is not None and session.distributes:  # there pytest prints no line after its collection
        reporter.write_line(line)
    if session.config.option.collectonly or not (session.selected or session.results):
        return
    reporter.write_sep("=", "performance (r1perf)")
    for title, rows in tables(session.results):
        reporter.write_line(title, bold=True)
        reporter.write_line(rows)
    for line in legend(session.results):
        reporter.write_line(line)
    for line in over_the_suite(session.results):
        reporter.write_line(line, bold=True, red=session.suite_regressed)
    for title, text in effects(session.results):
        reporter.write_line("")
        reporter.write_line(title, bold=True)
        for line in text:
            reporter.write_line(line)
    for title, lines in lists(session.results, session.unused(), [str(path) for path in session.updated]):
        reporter.write_line("")
        reporter.write_line(title, bold=True)
        for line in lines[:_LIST_LIMIT]:
            for part in wrapped(line, session.config.get_terminal_writer().fullwidth):
                reporter.write_line(part)
        if len(lines) > _LIST_LIMIT:
            reporter.write_line(f"  ... and {len(lines) - _LIST_LIMIT} more")
    for error in session.errors:
        reporter.write_line(f"ERROR: {error}", red=True)
    if interrupted and session.has_samples:
        reporter.write_line("")
        reporter.write_line("interrupted: the rounds measured so far are kept, and --perf-resume goes on from them")
    elif session.undecided:
        reporter.write_line("")
        reporter.write_line("nothing was decided: the session exits non-zero", red=True)


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

    if line.startswith(("pytest ", "/")):
        return [f"  {line}"]
    return textwrap.wrap(
        line,
        width=max(width, _LEAST_WIDTH),
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def tables(results: Sequence[CellResult]) -> list[tuple[str, str]]:
    """(title, table) a metric; cells without a number go under the first."""
    from tabulate import tabulate

    from pytest_r1perf.metrics import METRICS

    by_metric: dict[str, list[tuple[str, ...]]] = {}
    for result in sorted(_once(results), key=lambda result: not result.failed):  # failures first
        if result.judgements:
            for judgement in result.judgements:
                by_metric.setdefault(judgement.metric, []).append(_row(result, judgement))
        else:
            first = next(iter(result.medians), "total_throughput")
            by_metric.setdefault(first, []).append(_bare_row(result, first))
    found = []
    against = sorted({result.against.split()[0] for result in results}) or ["baseline"]
    for name, rows in by_metric.items():
        metric = METRICS[name]
        better = "more is better" if metric.better > 0 else "less is better"
        title = f"{name} in {metric.unit}: {metric.meaning}; {better}"
        bound = "floor" if metric.better > 0 else "limit"
        headers = [text.format(against="/".join(against), bound=bound) for text in _HEADERS]
        found.append((title, tabulate(rows, headers=headers, disable_numparse=True, colalign=_ALIGN)))
    return found


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
    from pytest_r1perf.report.numbers import percent

    once = list(_once(results))

    def described(verdict: Verdict) -> list[str]:
        found = []
        for result in once:
            if result.verdict is verdict:
                lines = (describe(item, result.against) for item in result.judgements if item.verdict is verdict)
                found.append(f"{result.label}: {next(lines, result.cause)}")
        return found

    def seen(result: CellResult) -> list[str]:
        compared = [j for j in result.judgements if not j.gate] or list(result.judgements)
        powers = [j.detectable for j in compared if j.detectable is not None]
        return [f"{result.label}: a drop of {percent(max(powers))}"] if powers else []

    entries = [
        (
            "improved" if all(r.side_by_side for r in once) else "improved: consider --perf-update",
            described(Verdict.IMPROVED),
        ),
        ("undecided", described(Verdict.UNDECIDED)),
        (
            "not compared",
            [
                f"{result.label}: {result.verdict.value}: {result.cause}"
                for result in once
                if result.verdict in (Verdict.INCOMPARABLE, Verdict.NO_BASELINE)
            ],
        ),
        (
            "expected to lose",
            [f"{result.label}: {result.cause}" for result in once if result.verdict is Verdict.XFAIL],
        ),
        (
            "would have been seen with 95 % power",
            [line for result in once if result.verdict in _SHOWN_TO_HOLD for line in seen(result)],
        ),
        (
            "greedy answers of both environments",
            _answers(once),
        ),
        (
            "of what the hardware can do",
            [f"{result.label}: {reached(result.ceilings)}" for result in once if result.ceilings],
        ),
        (
            "thrown away as warm-up",
            [f"{result.label}: {result.discarded}" for result in once if result.discarded],
        ),
        ("quarantined", [f"{result.label}: {result.verdict.value}" for result in once if result.quarantined]),
        ("notes", list(dict.fromkeys(f"{result.label}: {note}" for result in results for note in result.notes))),
        ("baselines written", list(updated)),
        ("baseline entries that no test uses", list(unused)),
        ("reproduce the failures", list(dict.fromkeys(r.reproduce for r in once if r.failed))),
    ]
    return [(title, lines) for title, lines in entries if lines]


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


def _once(results: Sequence[CellResult]) -> Iterable[CellResult]:
    """Tests that share one measurement and one verdict share one row; failures never do."""
    seen: set[tuple[object, ...]] = set()
    for result in results:
        key = (result.platform, result.topology, result.key, result.verdict, result.judgements)
        if result.failed or key not in seen:
            seen.add(key)
            yield result


def _row(result: CellResult, judgement: Judgement) -> tuple[str, ...]:
    from pytest_r1perf.report.message import bound
    from pytest_r1perf.report.numbers import interval, number, percent

    single = len(result.judgements) == 1
    verdict = result.verdict if single else judgement.verdict
    return (
        _wrapped(result.label),
        str(judgement.rounds),
        number(judgement.median),
        percent(judgement.spread) if judgement.spread is not None else "-",
        number(judgement.baseline) if judgement.baseline is not None else "-",
        interval(judgement.ratio) if judgement.ratio is not None else "-",
        bound(judgement).partition(" ")[2] if judgement.floor is not None else "-",
        verdict.value,
    )


def _bare_row(result: CellResult, metric: str) -> tuple[str, ...]:
    from pytest_r1perf.report.numbers import number

    median = number(result.medians[metric]) if metric in result.medians else "-"
    return (_wrapped(result.label), str(result.rounds), median, "-", "-", "-", "-", result.verdict.value)


def _wrapped(label: str, width: int = 24) -> str:
    """A cell's name over several lines, so that the table keeps to 100 columns."""
    lines = [""]
    for word in label.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("  " + word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip() if lines[-1] else word
    return "\n".join(lines)
