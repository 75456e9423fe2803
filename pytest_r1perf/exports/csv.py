"""A row for each cell and time, a column for each metric: for spreadsheets, and for Apache Otava's change points.

Rows of earlier nights, from the trend, come first: they have no ``session``, and only ``total_throughput``. Otava
(0.8.0) reads one series of a file by its ``branch`` column, so that column names the series: what may be compared over
time is one cell on one hardware. A cell without a valid number has no row, since Otava takes an empty field of a metric
for a fault of the whole file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping

from pytest_r1perf.document.model import Document
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.report.series import Measured, mean, measured, nights_before, one_line

COLUMNS = ("session", "time", "branch", "cell", "topology", "hardware", "version", "verdict", "rounds", *METRICS)
"""The same for every document, so that rows can be appended to an older file."""


def text(document: Document) -> str:
    """The whole file: one line a row, numbers with all their digits, times in ISO 8601.

    A metric is the geometric mean over the rounds, as in the trend.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for found in measured(document):
        writer.writerows(_rows(document, found))
    return out.getvalue()


def _rows(document: Document, found: Measured) -> Iterator[Mapping[str, object]]:
    result = found.cell.result
    series = {
        "branch": found.series,
        "cell": one_line(found.cell.name),
        "topology": one_line(result.topology),
        "hardware": one_line(result.hardware),
    }
    for time, value in nights_before(found.cell, found.began):
        yield {**series, "time": time, "total_throughput": repr(value)}
    yield {
        **series,
        "session": one_line(document.session),
        "time": found.began,
        "version": one_line(found.environment.sglang),
        "verdict": result.verdict.value,
        "rounds": found.rounds,
        **{name: repr(mean(values)) for name, values in found.values.items()},
    }
