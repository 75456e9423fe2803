"""ReFrame: ``reframe.utility.sanity.assert_reference``, as ``check_performance`` calls it for each variable."""

from __future__ import annotations

from typing import Any

from reframe.core.exceptions import SanityError  # type: ignore[import-not-found,import-untyped,unused-ignore]
from reframe.utility import sanity  # type: ignore[import-not-found,import-untyped,unused-ignore]


def decide(request: dict[str, Any]) -> dict[str, Any]:
    """``reference`` is (value, lower, upper), the bounds as fractions; absent: what it takes where there is none."""
    value, lower, upper = request.get("reference") or (0, None, None)
    try:
        sanity.evaluate(sanity.assert_reference(request["value"], value, lower, upper))
        regressed = False
    except SanityError:
        regressed = True
    # The bound at which it would begin to fail.
    strength = (1 - request["value"] / value) * request["better"] if value else 0.0
    return {"regressed": regressed, "strength": strength}
