"""pytest-benchmark: what ``BenchmarkSession.prepare_benchmarks`` does with ``--benchmark-compare-fail``.

``pytest_benchmark.utils.parse_compare_fail`` and its check's ``fails``, on ``pytest_benchmark.stats.Stats``.
"""

from __future__ import annotations

from typing import Any

from pytest_benchmark.stats import Stats  # type: ignore[import-not-found,import-untyped,unused-ignore]
from pytest_benchmark.utils import parse_compare_fail  # type: ignore[import-not-found,import-untyped,unused-ignore]


def decide(request: dict[str, Any]) -> dict[str, Any]:
    """``field`` and ``percent``; ``percent`` is put past the parser, which takes whole numbers only."""
    check = parse_compare_fail(f"{request['field']}:0%")
    check.threshold = request["percent"]
    current, compared = _stats(request["new"], check.field), _stats(request["old"], check.field)
    return {"regressed": check.fails(current, compared) is not None, "strength": check.compute(current, compared)}


def _stats(values: list[float], field: str) -> dict[str, float]:
    stats = Stats()
    for value in values:
        stats.update(value)
    return {field: getattr(stats, field)}
