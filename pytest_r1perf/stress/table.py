"""From rows to repeats that can be compared: every repeat with the same cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.sglang.one_batch import RowFormat
from pytest_r1perf.stress.bootstrap import Values
from pytest_r1perf.stress.cases import Case
from pytest_r1perf.stress.rows import Row

MetricName = Literal["output_throughput", "overall_throughput"]

_SEVEN_KEYS = (
    "rows of seven keys do not tell how they were measured: taken as SGLang 0.4.3 to 0.4.6 measured them, though "
    "`r1perf stress convert` writes such rows of any release"
)


@dataclass(frozen=True, slots=True)
class Table:
    """``repeats``: each the tok/s of the same cases, in order of their numbers. ``latency``: the same in seconds.

    ``starts``: how many starts of the server they were measured on; 0 where the rows don't tell. ``notes``: what was
    left out, a sentence each. ``definition``: what the metric is.
    """

    metric: MetricName
    definition: str
    repeats: tuple[Values, ...]
    latency: tuple[Values, ...]
    starts: int
    notes: tuple[str, ...]


def table(rows: Iterable[Row], metric: MetricName = "output_throughput") -> Table:
    """Order rows into repeats.

    A repeat that lacks cases which others have is left out, as long as one is whole; otherwise the cases that all
    have are kept. The n-th unmarked row of a case is its n-th repeat. Raises :class:`R1PerfError` where there is
    nothing, or rows of two definitions.
    """
    found: dict[int, dict[Case, Row]] = {}
    counted: dict[Case, int] = {}
    for row in rows:
        counted[row.case] = counted.get(row.case, 0) + 1
        number = row.mark.repeat if row.mark is not None else counted[row.case]
        found.setdefault(number, {}).setdefault(row.case, row)
    if not found:
        raise R1PerfError("no case has been measured yet")
    definitions = sorted({row.result.definition(metric) for one in found.values() for row in one.values()})
    if len(definitions) > 1:
        raise R1PerfError(
            f"rows of releases that measure differently ({'; '.join(definitions)}): no numbers of theirs are comparable"
        )
    every = {case for one in found.values() for case in one}
    kept, cases, notes = _balanced(found, every)
    used = [row for number in kept for case, row in found[number].items() if case in cases]
    if any(row.mark is None and row.result.format is RowFormat.WHOLE for row in used):
        notes = (*notes, _SEVEN_KEYS)
    return Table(
        metric=metric,
        definition=definitions[0],
        repeats=tuple({case: getattr(found[number][case].result, metric) for case in sorted(cases)} for number in kept),
        latency=tuple({case: found[number][case].result.latency_s for case in sorted(cases)} for number in kept),
        starts=len({row.mark.server for row in used if row.mark is not None}),
        notes=notes,
    )


def _balanced(
    found: Mapping[int, Mapping[Case, Row]], every: set[Case]
) -> tuple[list[int], set[Case], tuple[str, ...]]:
    numbers = sorted(found)
    whole = [number for number in numbers if found[number].keys() == every]
    if whole:
        short = [number for number in numbers if number not in whole]
        notes = [f"repeat {n} has {len(found[n])} of {len(every)} cases and is left out" for n in short]
        return whole, every, tuple(notes)
    common = set.intersection(*(set(found[number]) for number in numbers))
    if not common:
        most = max(numbers, key=lambda number: (len(found[number]), -number))
        note = f"no case is in every repeat: only repeat {most} is used, {len(found[most])} of {len(every)} cases"
        return [most], set(found[most]), (note,)
    lost = sorted(every - common)
    note = f"{len(lost)} cases are not in every repeat and are left out: {', '.join(case.name for case in lost)}"
    return numbers, common, (note,)
