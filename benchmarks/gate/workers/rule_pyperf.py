"""pyperf: ``CompareResult`` of ``pyperf compare_to``: significant by its t test and slower by ``--min-speed``."""

from __future__ import annotations

from typing import Any

import pyperf  # type: ignore[import-not-found,import-untyped,unused-ignore]
from pyperf._compare import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    CompareData,
    CompareResult,
)


def decide(request: dict[str, Any]) -> dict[str, Any]:
    """Times; ``min_speed`` in percent."""
    old, new = _data("old", request["old"]), _data("new", request["new"])
    result = CompareResult(old, new, request["min_speed"])
    slower = (result.norm_mean - 1) * 100
    bare = CompareResult(old, new, None)
    return {"regressed": result.significant and slower > 0, "strength": slower if bare.significant else -100.0}


def _data(name: str, values: list[float]) -> Any:
    run = pyperf.Run(values, metadata={"name": "cell"}, collect_metadata=False)
    return CompareData(name, pyperf.Benchmark([run]))
