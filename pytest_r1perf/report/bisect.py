"""What ``r1perf bisect`` says in the end: the boundary, every version that was measured, and what changed there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_r1perf.bisect.run import interval
from pytest_r1perf.bisect.search import Answer, Found, Outcome, Plan, Stopped, marks
from pytest_r1perf.report.terminal import wrapped
from pytest_r1perf.sglang.resolved import differences

if TYPE_CHECKING:
    from pytest_r1perf.bisect.search import Build

WIDTH = 100


def result_lines(plan: Plan, log: Sequence[Outcome], end: Found | Stopped, *, error: float) -> list[str]:
    """``error`` is the probability of a wrong answer on one version."""
    last = marks(plan, log)
    lines = ["", *table(plan, last).splitlines(), ""]
    if isinstance(end, Stopped):
        return [*lines, end.reason]
    lines += [headline(end, last)]
    lines += [
        f"  {name}: {last[name].answer.value}: {last[name].reason}" if name in last else f"  {name}: not measured"
        for name in end.unknown
    ]
    for bad, good in end.contradictions:
        lines.append(f"not one step: {bad} is bad, and {good} after it is good again, with all rounds")
    told = sum(outcome.answer in (Answer.GOOD, Answer.BAD) for outcome in last.values())
    lines.append(f"wrong with probability {min(1.0, told * error):.2g} at most: {told} versions told, {error:.2g} each")
    changed = changes(build_of(end.good, last), build_of(end.bad, last))
    if changed:
        lines += ["", f"what changed from {end.good} to {end.bad}"]
        lines += [part for line in changed for part in wrapped(line, WIDTH)]
    return lines


def headline(end: Found, last: Mapping[str, Outcome]) -> str:
    """``first bad: 0.5.12 (0.5.11 good: ratio 1.002; 0.5.12: ratio 0.881)``, or the set that it is one of."""
    ratios = f"{end.good} good: {_ratio(last.get(end.good))}; {end.bad}: {_ratio(last.get(end.bad))}"
    if not end.unknown:
        return f"first bad: {end.bad} ({ratios})"
    return f"first bad: one of {', '.join([*end.unknown, end.bad])} ({ratios}); between them could not be told:"


def changes(old: Build | None, new: Build | None) -> list[str]:
    """Versions of packages and resolved arguments that differ."""
    if old is None or new is None:
        return []
    names = [*old.versions, *(name for name in new.versions if name not in old.versions)]
    lines = [
        f"versions: {name}: {old.versions.get(name, 'absent')} -> {new.versions.get(name, 'absent')}"
        for name in names
        if old.versions.get(name) != new.versions.get(name)
    ]
    if old.resolved and new.resolved:
        lines += [f"resolved: {line}" for line in differences(old.resolved, new.resolved)]
    return lines


def build_of(name: str, last: Mapping[str, Outcome]) -> Build | None:
    """What a version was; the good end is the reference of every other one's measurement."""
    if name in last and last[name].own.versions:
        return last[name].own
    measured = [outcome.reference for outcome in last.values() if outcome.reference.versions]
    return measured[0] if measured and name not in last else None


def table(plan: Plan, last: Mapping[str, Outcome]) -> str:
    """Every version in order; a drift shows as ratios that sink a little each time."""
    from tabulate import tabulate

    rows = []
    for name in plan.candidates:
        outcome = last.get(name)
        if outcome is None:
            rows.append((name, "", "", "the reference" if name == plan.good else "-"))
        else:
            rows.append(
                (
                    name,
                    str(outcome.rounds or ""),
                    interval(outcome.ratio) if outcome.ratio is not None else "-",
                    outcome.answer.value,
                )
            )
    headers = ("version", "rounds", f"ratio to {plan.good} [interval]", "answer")
    return tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", "right", "right", "left"))


def _ratio(outcome: Outcome | None) -> str:
    if outcome is None:
        return "the reference"
    return "not measured" if outcome.ratio is None else f"ratio {outcome.ratio[0]:.3f}"
