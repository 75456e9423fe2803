"""Why ``bench_one_batch_server`` measured nothing and ended well, from what it printed."""

from __future__ import annotations

import re

_SKIPPED = re.compile(r"Skip benchmark (?P<what>[^\n]{1,400}?) due to (?P<why>[^\n]{1,100}?)\.?=*\s*$", re.MULTILINE)
"""0.5.6 to 0.5.23: ``Skip benchmark batch_size=64 > skip_max_running_requests_threshold=48 due to max running requests
limit.`` and ``... > skip_token_capacity_threshold=... due to kv cache limit.``, between rows of ``=``."""


def skip_reason(said: str) -> str | None:
    """SGLang's own reason in one line; ``None`` where it named none."""
    found = _SKIPPED.search(said)
    return f"{found['why']}: {found['what']}" if found else None
