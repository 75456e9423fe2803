"""Otava: ``Series.analyze`` with the options of ``otava analyze``; change points, since it has no gate of its own."""

from __future__ import annotations

import math
from typing import Any

from otava.series import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    AnalysisOptions,
    Metric,
    Series,
)


def decide(request: dict[str, Any]) -> dict[str, Any]:
    """A change for the worse at or after point ``first`` of ``values``.

    ``strength`` (where ``graded``) is -log10 of the smallest p of ``grid`` that finds one, 0 where none does; what a
    smaller p finds, a larger one may lose, as it splits the series further.
    """
    if not request.get("graded"):
        return {"regressed": _worse(request, request["max_pvalue"])}
    grid = request["grid"]
    if not (_worse(request, grid[0]) or _worse(request, grid[len(grid) // 2])):  # most unchanged cells, at less cost
        return {"strength": 0.0}
    found = [max_pvalue for max_pvalue in grid if _worse(request, max_pvalue)]
    return {"strength": -math.log10(min(found))}


def _worse(request: dict[str, Any], max_pvalue: float) -> bool:
    options = AnalysisOptions()
    options.max_pvalue = max_pvalue
    values, better = request["values"], request["better"]
    metrics = {"cell": Metric(better, 1.0, "")}
    series = Series("cell", None, list(range(len(values))), metrics, {"cell": values}, {})
    points = series.analyze(options).change_points["cell"]
    return any(point.index >= request["first"] and point.forward_change_percent() * better < 0 for point in points)
