"""A session's summary in GitHub's Markdown, for ``$GITHUB_STEP_SUMMARY`` and for a comment on a pull request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from pytest_r1perf.document.model import Cell, Document, Environment
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.report.fitted import Part, Section, fit
from pytest_r1perf.report.gfm import block, code, row, table_head, units, words
from pytest_r1perf.report.markdown_cell import detail, line, noticed_in
from pytest_r1perf.report.message import bound
from pytest_r1perf.report.numbers import interval, number, percent
from pytest_r1perf.report.spark import trend_spark
from pytest_r1perf.report.table import counted, once
from pytest_r1perf.verdict import Judgement, Verdict

LIMIT = 65_000
"""GitHub takes 65,536 characters in a comment, and 1 MiB in a step's summary; what is left is for whoever sends it."""
LEAST = 2_000
"""The headline and the line on what was left out always fit in this."""

_NOT_COMPARED = (Verdict.INCOMPARABLE, Verdict.NO_BASELINE)
_EMPTY = "-"
_MOST_ENVIRONMENTS = 4
_MOST_NAMED = 3

# What is left out first has the highest rank.
_NEWS, _DETAIL, _DIFFERENCES, _OPEN, _GOOD, _EXPECTED, _FACTS, _TABLE, _EFFECTS, _NOTES = range(10)


def summary(document: Document, *, limit: int = LIMIT) -> str:
    """The summary, of ``limit`` characters at most: counted in UTF-16 units, the most of all countings.

    What does not fit is left out in whole parts, the least important first, and one line says so. The same document
    gives the same text. Raises :class:`ValueError` for a limit below :data:`LEAST`.
    """
    if limit < LEAST:
        raise ValueError(f"limit must be at least {LEAST}, got {limit}")
    shown = {id(result) for result in once([cell.result for cell in document.cells])}
    cells = [cell for cell in document.cells if id(cell.result) in shown]
    whole = f"the whole is in session {code(document.session, 80)}: {code('r1perf report FOLDER --html FILE')}"
    return fit(
        _headline(document),
        [*_news(document, cells), *_facts(document, cells)],
        limit,
        units,
        lambda what: f"_Left out to keep within {limit:,} characters: {what}; {whole}_",
    )


def _headline(document: Document) -> str:
    results = [cell.result for cell in document.cells]
    failed = [result for result in results if result.failed]
    others = counted(result.verdict for result in results if not result.failed)
    cells = "1 cell" if len(results) == 1 else f"{len(results)} cells"
    if not results:
        told = "no cell was measured"
    elif failed:
        rest = f"; the others: {others}" if others else ""
        told = f"{len(failed)} of {cells} failed: {counted(result.verdict for result in failed)}{rest}"
    elif not any(result.verdict.decided for result in results):
        told = f"nothing was decided of {cells}: {others}"
    else:
        trouble = f"{document.trouble}; " if document.trouble else ""
        told = f"{trouble}none of {cells} failed: {others}"
    hardware = dict.fromkeys(one.hardware for one in document.environments if one.hardware)
    releases = dict.fromkeys(one.sglang for one in document.environments)
    about = [", ".join(code(name, 80) for name in list(hardware)[:_MOST_NAMED])] if hardware else []
    about += [f"SGLang {' -> '.join(code(name, 40) for name in list(releases)[:_MOST_NAMED])}"] if releases else []
    about += [f"session {code(document.session, 80)}", f"pytest-r1perf {code(document.tool, 40)}"]
    ended = "" if document.exitstatus is not None else "\n\n**The session did not come to its end.**"
    return f"## Performance: {told}\n\n{', '.join(about)}{ended}"


def _news(document: Document, cells: Sequence[Cell]) -> Iterator[Section]:
    """What a reader looks for, in this order: it fell, it broke, it is open, it rose."""
    yield Section("errors", tuple(Part(f"**ERROR** {code(error, 600)}", _NEWS) for error in document.errors))
    yield Section("the suite's ratio", tuple(Part(f"**{words(told)}**", _NEWS) for told in document.suite))
    known = (Verdict.REGRESSED, Verdict.UNDECIDED, *_NOT_COMPARED)

    def other(cell: Cell) -> bool:
        verdict = cell.result.verdict
        return verdict not in known and not verdict.broken and (cell.result.failed or verdict.fails)

    yield _full("Regressed", "regressions", (cell for cell in cells if cell.result.verdict is Verdict.REGRESSED))
    yield _full("Failed", "failures", filter(other, cells))
    yield _full("Not measured", "broken cells", (cell for cell in cells if cell.result.verdict.broken))
    yield _differences(document.environments)
    yield _lines("Undecided", "undecided cells", _OPEN, cells, lambda c: c.result.verdict is Verdict.UNDECIDED)
    improved = [c for c in cells if c.result.verdict is Verdict.IMPROVED and not other(c)]
    stale = any(not cell.result.side_by_side for cell in improved)
    update = "Consider a new baseline: `--perf-update`.\n\n" if stale else ""
    yield _lines("Improved", "improved cells", _GOOD, improved, lambda _: True, update)
    yield _lines("Not compared", "cells not compared", _GOOD, cells, lambda c: c.result.verdict in _NOT_COMPARED)
    expected = "Known to lose, measured to see that they still do.\n\n"
    yield _lines(
        "Anti-patterns", "anti-patterns", _EXPECTED, cells, lambda c: c.result.verdict is Verdict.XFAIL, expected
    )


def _full(title: str, name: str, cells: Iterable[Cell]) -> Section:
    """Cells with their details; the first one's stand before the other cells' lines, should it get narrow."""
    parts: list[Part] = []
    for cell in cells:
        parts.append(Part(line(cell), _NEWS))
        below = detail(cell)
        if below:
            parts.append(Part(below, _DETAIL if len(parts) > 1 else _NEWS))
    return Section(f"parts of {name}", tuple(parts), f"### {title}\n\n")


def _lines(
    title: str, name: str, rank: int, cells: Iterable[Cell], chosen: Callable[[Cell], bool], opening: str = ""
) -> Section:
    parts = tuple(Part(f"- {line(cell)}", rank) for cell in cells if chosen(cell))
    return Section(name, parts, f"### {title}\n\n{opening}", joined="\n")


def _facts(document: Document, cells: Sequence[Cell]) -> Iterator[Section]:
    """What is folded: all cells by metric, the lab's effects, the environment, notes, files."""
    yield from _tables(cells)
    texts = [
        effect.get("text") or [str(effect.get("sentence", ""))]
        for cell in document.cells
        for effect in cell.result.effects
    ]
    effects = tuple(Part(block("\n".join(map(str, text))), _EFFECTS) for text in texts)
    yield _folded("effects", f"Effects ({len(effects)})", effects)
    yield _environment(document)
    yield _folded("notes", "Notes", tuple(_notes(cells)), joined="\n")
    files = [f"- baseline written: {code(path, 400)}" for path in document.updated]
    files += [f"- baseline entry that no test uses: {code(entry, 400)}" for entry in document.unused]
    yield _folded("baselines", "Baselines", tuple(Part(text, _NOTES) for text in files), joined="\n")


def _folded(name: str, title: str, parts: tuple[Part, ...], head: str = "", joined: str = "\n\n") -> Section:
    """``title`` is HTML and has to be our own words."""
    opening = f"<details><summary>{title}</summary>\n\n{head}"
    return Section(name, parts, opening, "\n\n</details>", joined)


def _tables(cells: Sequence[Cell]) -> Iterator[Section]:
    by_metric: dict[str, list[tuple[Cell, Judgement | None]]] = {}
    for cell in sorted(cells, key=_urgency):
        for item in cell.result.judgements or (None,):
            name = item.metric if item is not None else next(iter(cell.result.medians), "total_throughput")
            by_metric.setdefault(name, []).append((cell, item))
    for name, rows in by_metric.items():
        metric = METRICS[name]
        better = "more is better" if metric.better > 0 else "less is better"
        against = words("/".join(dict.fromkeys(cell.result.against for cell, _ in rows)))
        headers = ["verdict", "cell", "rounds", "median", "spread", against, "ratio [interval]"]
        headers += ["floor" if metric.better > 0 else "limit", "would have seen"]
        trends = name == "total_throughput" and any(_spark(cell) != _EMPTY for cell, _ in rows)
        parts = tuple(
            Part(row([*_row(cell, item, name), *([_spark(cell)] if trends else [])]), _TABLE) for cell, item in rows
        )
        count = "1 cell" if len(rows) == 1 else f"{len(rows)} cells"
        title = f"{name} in {metric.unit}, {better}: {count}"
        head = table_head([*headers, *(["trend"] if trends else [])], right=range(2, 9)) + "\n"
        yield _folded(f"rows of {name}", title, parts, head, joined="\n")


def _urgency(cell: Cell) -> tuple[bool, bool, bool]:
    """The rows that a long table keeps."""
    verdict = cell.result.verdict
    return not cell.result.failed, not verdict.fails, verdict in (Verdict.PASS, Verdict.MEASURED, Verdict.STORED)


def _row(cell: Cell, item: Judgement | None, metric: str) -> list[str]:
    result = cell.result
    if item is None:
        median = number(result.medians[metric]) if metric in result.medians else _EMPTY
        return [result.verdict.value, code(result.label), str(result.rounds), median, *[_EMPTY] * 5]
    verdict = result.verdict if len(result.judgements) == 1 else item.verdict
    return [
        verdict.value,
        code(result.label),
        str(item.rounds),
        number(item.median),
        percent(item.spread) if item.spread is not None else _EMPTY,
        number(item.baseline) if item.baseline is not None else _EMPTY,
        interval(item.ratio) if item.ratio is not None else _EMPTY,
        bound(item).partition(" ")[2] if item.floor is not None else _EMPTY,
        f"-{percent(item.detectable)}" if item.detectable is not None else _EMPTY,
    ]


def _spark(cell: Cell) -> str:
    trend = cell.trend
    return code(trend_spark(trend, width=16)) if trend is not None and len(trend["means"]) > 1 else _EMPTY


def _facts_of(environment: Environment) -> dict[str, str]:
    """In the order of what most likely explains a difference."""
    found = {"hardware": environment.hardware, **environment.versions}
    found |= {str(name): str(value) for name, value in environment.host.items()}
    return {**found, **{f"${name}": value for name, value in environment.env.items()}}


def _compared(environments: Sequence[Environment]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Headers and rows of a table with a column for each environment."""
    columns = [_facts_of(one) for one in environments[:_MOST_ENVIRONMENTS]]
    headers = ["", *(words(one.side or "") if one.side else "value" for one in environments[:_MOST_ENVIRONMENTS])]
    names = list(dict.fromkeys(name for column in columns for name in column))
    return headers, [(name, [column.get(name, "absent") for column in columns]) for name in names]


def _differences(environments: Sequence[Environment]) -> Section:
    """What differs between the environments of this session: the two of a comparison, or hosts."""
    headers, rows = _compared(environments)
    parts = tuple(
        Part(row([code(name), *map(code, values)]), _DIFFERENCES) for name, values in rows if len(set(values)) > 1
    )
    return Section("rows of what differs", parts, f"### What differs\n\n{table_head(headers)}\n", joined="\n")


def _environment(document: Document) -> Section:
    headers, rows = _compared(document.environments)
    parts = [Part(row([code(name), *map(code, values)]), _FACTS) for name, values in rows]
    more = len(document.environments) - _MOST_ENVIRONMENTS
    title = (
        f"Environment (the first {_MOST_ENVIRONMENTS} of {len(document.environments)})" if more > 0 else "Environment"
    )
    if document.arguments and parts:
        command = code(" ".join(("pytest", *document.arguments)), 400)
        parts.append(Part(row([code("command"), command, *[""] * (len(headers) - 2)]), _FACTS))
    return _folded("rows of the environment", title, tuple(parts), table_head(headers) + "\n", joined="\n")


def _notes(cells: Sequence[Cell]) -> Iterator[Part]:
    """Each once, with the cells that have it."""
    labels: dict[str, list[str]] = {}
    for cell in cells:
        for text, _ in noticed_in(cell.result.notes):
            labels.setdefault(text, []).append(cell.result.label)
    for text, having in labels.items():
        named = ", ".join(code(label, 80) for label in having[:_MOST_NAMED])
        more = f" and {len(having) - _MOST_NAMED} more" if len(having) > _MOST_NAMED else ""
        yield Part(f"- {code(text, 400)}: {named}{more}", _NOTES)
