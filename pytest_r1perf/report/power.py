"""The text of `r1perf power`."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_r1perf.noise.power import POWER, Power, Setting
from pytest_r1perf.report.numbers import percent


def power_table(found: Sequence[Power], round_s: float | None) -> str:
    """One line a plan; ``round_s``: wall time of a process in seconds, where it is known."""
    from tabulate import tabulate

    headers = [
        "rounds",
        f"detects ({POWER:.0%})",
        "fixed number",
        "PASS",
        "UNDECIDED",
        "REGRESSED",
        "hidden",
        "rounds taken",
        "time a cell",
    ]
    rows = [
        [
            _rounds(power),
            "nothing" if power.detectable is None else percent(power.detectable),
            percent(power.fixed) if power.fixed < 0.99 else "nothing",
            percent(power.passes),
            percent(power.undecided),
            percent(power.alarms),
            percent(power.hidden),
            f"{power.rounds:.1f}",
            "unknown" if round_s is None else duration(power.rounds * round_s),
        ]
        for power in found
    ]
    return tabulate(rows, headers=headers, disable_numparse=True, colalign=("right",) * len(headers))


def power_legend(setting: Setting) -> list[str]:
    """What the table rests on."""
    terms = setting.terms
    against = (
        "two environments, measured in turn"
        if setting.baseline_rounds is None
        else f"against a baseline of {setting.baseline_rounds} rounds of another session"
    )
    excludes = f", a PASS excludes {percent(terms.excludes)}" if terms.excludes > terms.tolerance else ""
    return [
        f"run CV {setting.run_cv:.2%}, session CV {setting.session_cv:.2%}; {against}; tolerance "
        f"{percent(terms.tolerance)}{excludes}; error rates of a cell: {terms.alpha:.2g} for REGRESSED, "
        f"{terms.beta:.2g} for PASS.",
        f"detects: the smallest drop that is REGRESSED with {POWER:.0%} power, by the verdict's own rule, simulated.",
        "fixed number: the same by the formula of the pooled t test, for exactly the most rounds, looked at once.",
        "PASS, UNDECIDED, REGRESSED, rounds taken and time: of a cell that has not changed; hidden: how often a drop "
        f"of {percent(terms.excludes)} PASSes.",
    ]


def duration(seconds: float) -> str:
    """``95`` is ``1m35s``; hours from 100 minutes on."""
    if seconds < 100:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 100 else f"{seconds / 3600:.1f}h"


def _rounds(power: Power) -> str:
    low, high = power.plan.minimum, power.plan.maximum
    return str(high) if low == high else f"{low}:{high}"
