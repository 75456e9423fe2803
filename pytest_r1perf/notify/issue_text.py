"""The texts of an issue on one cell: title, body, and the comments when there is news."""

from __future__ import annotations

from pytest_r1perf.document.model import Cell
from pytest_r1perf.notify.github import LIMIT
from pytest_r1perf.notify.memory import Memory
from pytest_r1perf.notify.standing import Standing
from pytest_r1perf.report.fitted import Part, Section, fit
from pytest_r1perf.report.gfm import bare, block, code, units
from pytest_r1perf.report.markdown_cell import detail, line
from pytest_r1perf.report.plain import clipped

_TITLE = 200
"""Columns; GitHub takes 256 characters."""


def title(cell: Cell) -> str:
    """Verdict, cell and platform: what a list of issues shows."""
    result = cell.result
    return clipped(f"perf: {result.verdict.value}: {bare(result.label)} on {bare(result.platform)}", _TITLE)


def body(standing: Standing, memory: Memory, run_url: str) -> str:
    """The newest night, and how long it has been so."""
    nights = "1 session" if memory.nights == 1 else f"{memory.nights} sessions"
    lasts = f"First in session {code(memory.first)}, last in {code(memory.last)}: {nights}."
    if memory.last != memory.told:
        lasts += f" Nothing new since {code(memory.told)}."
    closing = (
        "Written by `r1perf notify`: updated while it lasts, a comment when there is something new, closed when the "
        "cell passes. To go on measuring without an issue, give the test `quarantine_until=`; closed as not planned, "
        "it stays closed. Don't take the label or the first two lines away: they are how it is found."
    )
    head = f"{standing.marker}\n{memory.line()}\n"
    return _fitted(head, standing.cell, run_url, (lasts,), (closing,))


def went_on(cell: Cell, marker: str, run_url: str) -> str:
    """The comment of a night with news."""
    return _fitted(f"{marker}\nStill there, and not the same as before.\n", cell, run_url)


def came_back(cell: Cell, marker: str, run_url: str) -> str:
    """The comment when it is opened again."""
    return _fitted(f"{marker}\nIt is back.\n", cell, run_url)


def recovered(cell: Cell, marker: str, run_url: str) -> str:
    """The comment when it is closed."""
    run = f"\n\n{_run(run_url)}" if run_url else ""
    return f"{marker}\nRecovered, by a decided verdict.\n\n{line(cell)}{run}\n"


def _fitted(head: str, cell: Cell, run_url: str, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> str:
    """Head, line and command first; the details where GitHub's limit leaves room."""
    told, rest = line(cell), detail(cell)
    test = f"test: {code(cell.result.nodeid, 300)}"
    links = (_run(run_url),) if run_url else ()
    short = "\n\n".join([told, *before, test, *links, *after])
    if units(head) + units(short) > LIMIT:  # a cause of endless length
        short = "\n\n".join(
            [f"**{cell.result.verdict.value}** {code(cell.result.label)}", *before, test, *links, *after]
        )
    parts = (Part(f"{told}\n\n{rest}\n\n{test}", 0),)
    whole = "\n\n".join([*(part.text for part in parts), *before, *links, *after])
    if units(head) + units(whole) <= LIMIT:
        return f"{head}\n{whole}\n"
    room = LIMIT - units(head) - 2
    return (
        head
        + "\n"
        + fit(
            short,
            [Section("the command", (Part(block(cell.result.reproduce, "sh"), 0),))],
            room,
            units,
            lambda what: f"_Left out for GitHub's limit: {what}, and the details; they are in the session's report._",
        )
    )


def _run(url: str) -> str:
    return f"[The workflow's run]({url})"
