"""asv: ``asv.commands.compare._is_result_better``, as ``asv compare`` and ``asv continuous`` call it for "worsened"."""

from __future__ import annotations

from typing import Any

from asv.commands.compare import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    _is_result_better,
    _isna,
)
from asv_runner.statistics import compute_stats  # type: ignore[import-not-found,import-untyped,unused-ignore]

NO_FACTOR = 1e-9


def decide(request: dict[str, Any]) -> dict[str, Any]:
    """Times; ``factor`` is the ``--factor`` option."""
    old, new = request["old"], request["new"]
    old_value, old_stats = compute_stats(old, 1)
    new_value, new_stats = compute_stats(new, 1)
    if _isna(old_value) or _isna(new_value):
        return {"regressed": False, "strength": 0.0, "shown": "n/a"}
    arguments = (old_value, new_value, (old_stats, old), (new_stats, new))
    different = _is_result_better(*arguments, NO_FACTOR)
    return {
        "regressed": _is_result_better(*arguments, request["factor"]),
        "strength": new_value / old_value if different else 0.0,
    }
