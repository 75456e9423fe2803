"""The guide's checklist for people: six items with both values, and one line for a report."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_r1perf.parity.check import State, broken, check, check_measurements, not_known
from pytest_r1perf.parity.recorded import Recorded, of_baseline, of_measurement

if TYPE_CHECKING:
    from pytest_r1perf.baseline import Baseline
    from pytest_r1perf.measurement import Measurement
    from pytest_r1perf.parity.check import Item

WIDTH = 110


def pair_lines(a: Recorded, b: Recorded, items: Sequence[Item]) -> list[str]:
    """Who is held against whom, then the items, each with both values."""
    same = a.name == b.name
    lines = [a.name if same else f"A: {a.name}", *([] if same else [f"B: {b.name}"]), summary(items)]
    for item in items:
        lines += ["", f"  {item.state.value}: {item.name}", *_wrapped(f'"{item.says}"')]
        values = (f"A and B: {item.a}",) if item.a == item.b else (f"A: {item.a}", f"B: {item.b}")
        for text in (*values, *item.why):
            lines += _wrapped(text)
    return lines


def alone_lines(cell: Recorded, items: Sequence[Item]) -> list[str]:
    """What a cell by itself does not record, or is not aligned with; one line where there is nothing."""
    if not items:
        return [f"{cell.name}: records all that parity needs"]
    lines = [f"{cell.name}: {_named(items)}"]
    for item in items:
        lines += _wrapped(f"{item.state.value}: {item.name}: {'; '.join(item.why) or item.a}")
    return lines


def summary(items: Sequence[Item]) -> str:
    """``4 of 6 held, 1 broken, 1 not known``."""
    counts = [(state, sum(item.state is state for item in items)) for state in State]
    held, *others = [f"{count} {state.value}" for state, count in counts if count or state is State.HELD]
    number, _, word = held.partition(" ")
    return ", ".join([f"{number} of {len(items)} {word}", *others])


def parity_line(items: Sequence[Item], *, what: str = "parity") -> str | None:
    """One line for a report: what is broken, with both values, and what is not known; ``None`` where all six hold."""
    if all(item.held for item in items):
        return None
    parts = [summary(items)]
    parts += [str(item) for item in broken(items)]
    missing = not_known(items)
    if missing:
        parts.append(f"not recorded: {', '.join(item.name for item in missing)}")
    return f"{what}: {'; '.join(parts)}"


def notes_against(stored: Baseline | None, measurement: Measurement) -> list[str]:
    """The note on a measurement beside the baseline that it is judged by; nothing where all six items hold."""
    if stored is None:
        return []
    now = of_measurement(measurement)
    return _notes(check(of_baseline(now.topology, stored), now), "parity with the baseline")


def notes_between(old: Measurement, new: Measurement) -> list[str]:
    """The note on two measurements of one session; nothing where all six items hold."""
    return _notes(check_measurements(old, new), "parity")


def section(found: Iterable[tuple[Recorded, Recorded, Sequence[Item]]]) -> list[str]:
    """A line for each pair that is not held in all six, for the lists under a comparison."""
    lines = []
    for _, new, items in found:
        line = parity_line(items, what=f"{new.name}: parity")
        lines += [line] if line is not None else []
    return lines


def plain(a: Recorded, b: Recorded | None, items: Sequence[Item]) -> dict[str, Any]:
    """Plain data; ``b`` is ``None`` for a cell by itself."""
    return {
        "a": a.name,
        "b": b.name if b is not None else None,
        "items": [
            {"name": item.name, "state": item.state.value, "a": item.a, "b": item.b, "why": list(item.why)}
            for item in items
        ],
    }


def _notes(items: Sequence[Item], what: str) -> list[str]:
    line = parity_line(items, what=what)
    return [line] if line is not None else []


def _named(items: Iterable[Item]) -> str:
    return ", ".join(f"{item.name} {item.state.value}" for item in items)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=WIDTH,
        initial_indent="      ",
        subsequent_indent="        ",
        break_long_words=False,
        break_on_hyphens=False,
    )
