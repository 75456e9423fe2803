"""The document as JSON: what ``--perf-json`` writes, by ``data/report.schema.json``, and reads again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_r1perf.document.model import FORMAT, Broken, Cell, Document, Environment, Readings, Sample
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.results import finite, restored

NAME = "pytest-r1perf report"
"""Tells the document from any other JSON."""


def as_json(document: Document) -> str:
    """The document's text. Numbers that JSON does not have (an endless limit) are ``null``."""
    plain = asdict(document)
    for cell, data in zip(document.cells, plain["cells"], strict=True):
        result = cell.result.as_dict()
        del result["entry"]
        data["result"] = result
    return json.dumps(finite({"name": NAME, "format": FORMAT, **plain}), indent=1, allow_nan=False) + "\n"


def read_document(path: Path) -> Document:
    """The document of a file of this format or an older one.

    Raises :class:`R1PerfError` where the file can't be read, is no such document, or a newer one.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        said = getattr(error, "strerror", None) or "it is not JSON"
        raise R1PerfError(f"{path}: cannot be read ({said}): name a file that --perf-json wrote") from None
    if not isinstance(data, dict) or data.get("name") != NAME:
        raise R1PerfError(f"{path}: is no report of pytest-r1perf: name a file that --perf-json wrote")
    version = data.get("format")
    if not isinstance(version, int) or version < 1:
        raise R1PerfError(f"{path}: is damaged (format {str(version)[:40]!r}): write it again")
    if version > FORMAT:
        raise R1PerfError(f"{path}: written by a newer pytest-r1perf (format {version}): update this one")
    try:
        return _document(data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise R1PerfError(f"{path}: is damaged ({type(error).__name__}: {error}): write it again") from None


def _document(data: Mapping[str, Any]) -> Document:
    return Document(
        session=data["session"],
        created=data["created"],
        tool=data["tool"],
        exitstatus=data["exitstatus"],
        arguments=tuple(data["arguments"]),
        environments=tuple(Environment(**one) for one in data["environments"]),
        cells=tuple(_cell(one) for one in data["cells"]),
        suite=tuple(data["suite"]),
        unused=tuple(data["unused"]),
        updated=tuple(data["updated"]),
        errors=tuple(data["errors"]),
    )


def _cell(data: Mapping[str, Any]) -> Cell:
    return Cell(
        restored(data["result"]),
        tuple(_sample(one) for one in data["samples"]),
        tuple(Broken(**one) for one in data["broken"]),
        data["trend"],
    )


def _sample(data: Mapping[str, Any]) -> Sample:
    plain = dict(data)
    for name in ("windows", "command", "remarks", "events"):
        plain[name] = tuple(plain[name])
    readings = plain["readings"]
    if readings is not None:
        columns = {key: tuple(values) for key, values in readings.items() if key != "gpus"}
        plain["readings"] = Readings(gpus=readings["gpus"], **columns)
    return Sample(**plain)
