"""Where a document comes from: a session's folder, an output directory, or a file of ``--perf-json``."""

from __future__ import annotations

from pathlib import Path

from pytest_r1perf.document.build import document_of
from pytest_r1perf.document.file import read_document
from pytest_r1perf.document.model import Document
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.records import SessionFolder, sessions


def document_from(source: Path, baselines: Path | None = None) -> Document:
    """The document of ``source``; of an output directory the newest session's.

    Raises :class:`R1PerfError` where there is nothing to report.
    """
    if source.is_file():
        return read_document(source)
    if not source.exists():
        raise R1PerfError(f"{source}: there is no such file or folder: measure with `pytest -m perf`, or name another")
    if next(source.glob("samples-*.jsonl"), None) is not None:
        return document_of(SessionFolder(source), history=source.parent, baselines=baselines)
    newest = next(reversed(sessions(source)), None)
    if newest is None:
        raise R1PerfError(f"{source}: has no session: name an output directory, a session's folder or a file")
    return document_of(newest, history=source, baselines=baselines)
