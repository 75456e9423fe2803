"""When a server wants to be asked again: Retry-After (RFC 9110, 10.2.3), and GitHub's own limits.

GitHub: "Rate limits for the REST API", "Exceeding the rate limit": ``retry-after`` first, then ``x-ratelimit-reset``
where ``x-ratelimit-remaining`` is 0, else at least a minute; all of it with status 403 or 429.
"""

from __future__ import annotations

import email.utils
from collections.abc import Mapping
from datetime import timezone

SECONDARY_WAIT_S = 60.0
"""Where GitHub refuses for its secondary limit and does not say how long: "wait for at least one minute"."""
_LONGEST = 10**9


def is_refused_for_now(status: int, headers: Mapping[str, str], body: bytes = b"") -> bool:
    """Whether the server did nothing, and wants to be asked later."""
    return status in (429, 503) or (status == 403 and _is_limited(headers, body))


def asked_wait(status: int, headers: Mapping[str, str], body: bytes, now: float) -> float | None:
    """Seconds that the server asks to wait; ``None`` where it does not say. ``now`` is since the epoch."""
    asked = _retry_after(headers.get("retry-after", ""), now)
    if asked is not None:
        return asked
    reset = headers.get("x-ratelimit-reset", "")
    if headers.get("x-ratelimit-remaining") == "0" and _is_number(reset):
        return max(0.0, min(int(reset), _LONGEST * 10) - now)
    if status == 403 and _is_limited(headers, body):
        return SECONDARY_WAIT_S
    return None


def _is_limited(headers: Mapping[str, str], body: bytes) -> bool:
    return (
        "retry-after" in headers
        or headers.get("x-ratelimit-remaining") == "0"
        or b"secondary rate limit" in body[:10_000].lower()
    )


def _retry_after(text: str, now: float) -> float | None:
    text = text.strip()
    if _is_number(text):
        return float(min(int(text), _LONGEST))
    try:
        date = email.utils.parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=timezone.utc)
        return max(0.0, date.timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
