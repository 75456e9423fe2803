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
    """A change for the worse at or after point ``first`` of ``values``; ``strength`` is -log10 of its p."""
    options = AnalysisOptions()
    options.max_pvalue = request["max_pvalue"]
    values, better = request["values"], request["better"]
    metrics = {"cell": Metric(better, 1.0, "")}
    series = Series("cell", None, list(range(len(values))), metrics, {"cell": values}, {})
    points = series.analyze(options).change_points["cell"]
    late = [point for point in points if point.index >= request["first"]]
    worse = [point.pvalue() for point in late if point.forward_change_percent() * better < 0]
    strength = -math.log10(max(min(worse), 1e-300)) if worse else 0.0
    return {"regressed": bool(worse), "strength": strength}
