"""Writes documents to files: whole or not at all, and never over something that is no file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf import wholefile
from pytest_r1perf.document.model import Document
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.exports import refuse_missing, writer


@dataclass(frozen=True, slots=True)
class Wanted:
    """A report that was asked for: ``option`` is how, for errors."""

    format: str
    path: Path
    option: str


def wanted(option: str, text: str, base: Path) -> Wanted:
    """``FORMAT=FILE`` as ``--perf-export`` takes it; a relative file is below ``base``.

    Raises :class:`R1PerfError` for a format that is not known, or no file.
    """
    name, equals, path = text.partition("=")
    if not equals or not path:
        raise R1PerfError(f"{option} must be FORMAT=FILE, e.g. csv=perf.csv, got {text!r}")
    try:
        writer(name)
    except R1PerfError as error:
        raise R1PerfError(f"{option} {text}: {error}") from None
    return Wanted(name, base / path, option)


def refuse_unwritable(reports: Sequence[Wanted]) -> None:
    """Before anything is measured: :class:`R1PerfError` for a file that could not be written at the end."""
    for one in reports:
        refuse_missing(one.format)
        try:
            wholefile.refuse_unwritable(one.path)
        except OSError as error:
            raise R1PerfError(_cannot(one, error)) from None


def write(document: Document, reports: Sequence[Wanted]) -> list[str]:
    """Write each; what could not be written is a sentence, and the others are written all the same."""
    errors = []
    for one in reports:
        try:
            text = writer(one.format)(document)
            # A name of bytes that are no UTF-8 (a test's file, an argument) is no reason to have no report.
            wholefile.write_whole(one.path, text.encode("utf-8", "backslashreplace").decode("utf-8"))
        except OSError as error:
            errors.append(_cannot(one, error))
        except R1PerfError as error:
            errors.append(f"{one.option} {one.path}: {error}")
        except Exception as error:  # a fault of a format must not cost the session its end, or the other reports
            errors.append(
                f"{one.option} {one.path}: could not be made ({type(error).__name__}: {error}): a fault of ours"
            )
    return errors


def _cannot(one: Wanted, error: OSError) -> str:
    return f"{one.option} {one.path}: cannot be written ({error.strerror or error}): choose another file"
