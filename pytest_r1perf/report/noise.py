"""The text of `r1perf noise`."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_r1perf.noise.components import CONFIDENCE, Component, Estimate, Series
from pytest_r1perf.noise.order import SURE, cold_first, order, outlier
from pytest_r1perf.platform import Noise


def noise_table(found: Estimate) -> str:
    """One line a level, from the timed window up."""
    from tabulate import tabulate

    windows = f"{found.windows:.3g} window{'' if found.windows == 1 else 's'}"
    rows = [
        _row("between windows of a process", found.window, "sample_cv", "windows"),
        _row("between processes, windows taken out", found.process, "", "processes"),
        _row(f"between rounds of a session ({windows} each)", found.round, "run_cv", "processes"),
        _row("between sessions", found.session, "session_cv", "sessions"),
        _row("between hosts", found.host, "host_cv", "hosts"),
    ]
    headers = ["level", "key", "CV", f"{CONFIDENCE:.0%} interval", "df", "from"]
    return tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", "left", *("right",) * 4))


def remarks(found: Estimate, series: Sequence[Series]) -> list[str]:
    """Where the model doesn't hold, or one number carries a figure; a sentence each."""
    said = []
    for name, component in (("process", found.process), ("session", found.session), ("host", found.host)):
        if component is not None and component.variance <= 0:
            said.append(
                f"{name}: the estimate is below 0, so 0 is what it says: what a {name} adds is lost in the noise below "
                f"it, and is {component.upper:.1%} at most"
            )
    if found.host is not None and found.session is None:
        said.append("host: no host has a second session, so what sessions add is in it")
    if found.session is not None and found.session.count < 10:
        said.append(
            f"session: from {found.session.count} sessions it is hardly known; nights tell more: give their records "
            "with --from"
        )
    logs = [one.logs for one in series]
    return [*said, *_outlying(series, logs), *_ordered(logs)]


def _outlying(series: Sequence[Series], logs: Sequence[Sequence[float]]) -> list[str]:
    said = []
    process = outlier(logs)
    if process is not None and process.p < SURE:
        one = series[process.group]
        value = one.runs[process.place]
        said.append(
            f"one process makes the figure: the {_ordinal(process.place)} of session {one.session} "
            f"({', '.join(f'{window:.4g}' for window in value)}); without it run_cv is {process.without:.2%} instead "
            f"of {process.cv:.2%}"
        )
    groups: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for one, values in zip(series, logs, strict=True):
        groups.setdefault((one.cell, one.host), []).append((one.session, sum(values) / len(values)))
    sessions = list(groups.values())
    session = outlier([[mean for _, mean in group] for group in sessions])
    if session is not None and session.p < SURE:
        said.append(
            f"one session makes the figure: {sessions[session.group][session.place][0]}; without it the means of "
            f"sessions differ by {session.without:.2%} instead of {session.cv:.2%}"
        )
    return said


def _ordered(logs: Sequence[Sequence[float]]) -> list[str]:
    said = []
    first = cold_first(logs)
    if first is not None and first.p < SURE:
        said.append(
            f"the first process of a session is unlike the others: {first.ratio - 1:+.1%} (p = {_p(first.p)}); it is "
            "in the figures: see that caches are warm (a process before, or --perf-rounds with one more)"
        )
    found = order(logs)
    if found is not None and found.lag1_p < SURE:
        said.append(
            f"processes that follow each other are alike (lag-1 correlation {found.lag1:.2f}, p = {_p(found.lag1_p)}): "
            "run_cv says too little of how far a few in a row lie off; measure in more --blocks, hours apart"
        )
    if found is not None and found.drift_p < SURE:
        said.append(
            f"processes drift within a session: {found.drift:+.2%} from one to the next (p = {_p(found.drift_p)})"
        )
    return said


def change_lines(old: Noise | None, new: Noise) -> list[str]:
    """Key by key, old -> new; of a platform without noise only the new."""
    lines = []
    for key in ("run_cv", "runs", "session_cv", "sessions", "sample_cv", "samples", "discard", "host_cv", "hosts"):
        now, before = getattr(new, key), getattr(old, key) if old is not None else None
        if now is None or (key == "discard" and new.sample_cv is None):
            continue
        shown = _value(now)
        lines.append(f"  {key}: {shown}" if before is None else f"  {key}: {_value(before)} -> {shown}")
    return lines


def _row(level: str, component: Component | None, key: str, unit: str) -> list[str]:
    if component is None:
        return [level, key, "not measured", "", "", ""]
    interval = f"{component.lower:.2%} to {component.upper:.2%}"
    return [level, key, f"{component.cv:.2%}", interval, f"{component.df:.3g}", f"{component.count} {unit}"]


def _value(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 1e-4 else "0.0001 or less"


def _ordinal(place: int) -> str:
    number = place + 1
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
