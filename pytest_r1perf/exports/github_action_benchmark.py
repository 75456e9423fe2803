"""Metrics where more is better, for benchmark-action/github-action-benchmark with ``tool: customBiggerIsBetter``.

An entry has ``name``, ``unit``, ``value``, and where there are two rounds or more ``range``; ``extra`` is the tooltip
(the action's README and ``src/extract.ts`` at v1.22.0). One file has one direction: the other one's format is
``github-action-benchmark-smaller``. The action fails on an empty list.
"""

from __future__ import annotations

import json
import math

from pytest_r1perf.document.model import Document
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.report.gfm import bare
from pytest_r1perf.report.numbers import interval, number
from pytest_r1perf.report.series import Measured, mean, measured, one_line
from pytest_r1perf.statistics import interval_of_mean

_SURE = 0.025
"""Each end of ``range`` is wrong with this probability: a 95 % interval of the mean, from this session's rounds."""


def text(document: Document) -> str:
    """The whole file."""
    return entries(document, better=+1)


def entries(document: Document, *, better: int) -> str:
    """The JSON of the metrics of one direction that the cells are judged by."""
    found = [
        _entry(document, one, name)
        for one in measured(document)
        for name in _judged(one)
        if METRICS[name].better == better
    ]
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _judged(found: Measured) -> list[str]:
    """In the order of the judgements; of a cell that nothing is stored for, what it has a median of."""
    result = found.cell.result
    names = [item.metric for item in result.judgements] or list(result.medians)
    return [name for name in dict.fromkeys(names) if name in found.values]


def _entry(document: Document, found: Measured, name: str) -> dict[str, object]:
    values = found.values[name]
    entry: dict[str, object] = {
        "name": bare(f"{found.series} {name}"),
        "unit": METRICS[name].unit,
        "value": mean(values),
    }
    about = interval_of_mean(values, alpha=_SURE, beta=_SURE)
    if about is not None:
        half = max(about.upper - about.estimate, about.estimate - about.lower)
        if math.isfinite(half):
            entry["range"] = f"± {half!r}"
    return {**entry, "extra": _extra(document, found, name)}


def _extra(document: Document, found: Measured, name: str) -> str:
    """Verdict, ratio, versions and the command, a line each."""
    result = found.cell.result
    lines = [f"{result.verdict.value}, {len(found.values[name])} rounds, session {document.session}"]
    for item in result.judgements:
        if item.metric == name and item.ratio is not None and item.baseline is not None:
            lines.append(f"ratio to the {result.against} ({number(item.baseline)}): {interval(item.ratio)}")
    lines.append(", ".join(f"{package} {version}" for package, version in found.environment.versions.items()))
    lines.append(f"reproduce: {result.reproduce}" if result.reproduce else "")
    return "\n".join(one_line(line) for line in lines if line)
