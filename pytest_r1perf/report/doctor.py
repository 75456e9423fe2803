"""The doctor's findings as text: one line a check, and how to mend it under each that needs it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from pytest_r1perf.doctor.check import Check, Status

_WIDTH = 118


def doctor_text(checks: Sequence[Check], *, platform: str, hosts: Sequence[str]) -> str:
    """The table, with a count and what it means in the end."""
    lines = [f"r1perf doctor: platform {platform} on {', '.join(hosts)}", ""]
    column = max((len(check.name) for check in checks), default=0)
    margin = " " * (6 + column + 2)
    for check in checks:
        first, *rest = textwrap.wrap(check.text, _WIDTH - len(margin), break_on_hyphens=False) or [""]
        lines.append(f"{check.status.value:<4}  {check.name:<{column}}  {first}")
        lines += [margin + line for line in rest]
        if check.mend:
            lines += textwrap.wrap(
                f"mend: {check.mend}",
                _WIDTH,
                initial_indent=margin,
                subsequent_indent=margin + "      ",
                break_on_hyphens=False,
            )
    counts = {status: sum(check.status is status for check in checks) for status in Status}
    said = ", ".join(f"{counts[status]} {status.value}" for status in Status if counts[status])
    return "\n".join([*lines, "", f"{said}: {_meaning(counts)}"])


def _meaning(counts: dict[Status, int]) -> str:
    if counts[Status.FAIL]:
        return "mend what FAILs, a run would break or its numbers be wrong"
    if counts[Status.WARN]:
        return "a run would work; see the warnings first"
    return "ready"
