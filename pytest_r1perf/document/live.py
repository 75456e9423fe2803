"""The document of a session that is ending: its record, and what only the session knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_r1perf.childenv import redact
from pytest_r1perf.document.build import document_of
from pytest_r1perf.document.model import Document

if TYPE_CHECKING:
    from pytest_r1perf.session import PerfSession


def session_document(session: PerfSession, exitstatus: int) -> Document:
    """The document of a session; also of an interrupted one, whose record has no verdicts."""
    from pytest_r1perf.report.terminal import over_the_suite

    made = document_of(
        session.folder, session.results, history=session.options.out, baselines=session.options.baselines
    )
    return replace(
        made,
        exitstatus=exitstatus,
        arguments=tuple(redact("", str(argument)) for argument in session.config.invocation_params.args),
        suite=tuple(over_the_suite(session.results)),
        unused=tuple(session.unused()),
        updated=tuple(str(path) for path in session.updated),
        errors=tuple(session.errors),
    )
