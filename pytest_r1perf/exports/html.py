"""One self-contained page for people, with charts (needs the ``html`` extra)."""

from __future__ import annotations

from pytest_r1perf.document.model import Document


def text(document: Document) -> str:
    """The page. Raises :class:`R1PerfError` where the extra is not installed."""
    from pytest_r1perf.report.html.page import page

    return page(document)


def refuse_missing() -> None:
    """Before anything is measured: :class:`R1PerfError` where the extra is not installed."""
    from pytest_r1perf.report.html.canvas import refuse_missing

    refuse_missing()
