"""A folder's results, put together: what the report and the chart values are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_r1perf.stress import effects
from pytest_r1perf.stress.bootstrap import Values, resamples
from pytest_r1perf.stress.conclusions import Conclusion, conclusions
from pytest_r1perf.stress.effects import Box, Effect, Knee, Step
from pytest_r1perf.stress.folder import Contents
from pytest_r1perf.stress.table import MetricName, Table, table


@dataclass(frozen=True, slots=True)
class Analysis:
    """``boxes`` by batch size, in tok/s, of a value a case. ``left_out``: files and cases that don't count, and why."""

    table: Table
    boxes: dict[int, Box]
    effects: tuple[Effect, ...]
    steps: tuple[Step, ...]
    knee: Knee | None
    conclusions: tuple[Conclusion, ...]
    left_out: tuple[str, ...]
    values: dict[tuple[int, int, int], float]


def analyse(found: Contents, *, metric: MetricName = "output_throughput", pays: float = effects.PAYS) -> Analysis:
    """All numbers of a folder. Raises :class:`R1PerfError` where nothing in it counts."""
    rows = [row for file in found.files.values() if file.flaw is None for row in file.rows]
    measured = table(rows, metric)
    sample, latency = resamples(measured.repeats), resamples(measured.latency)
    found_steps = effects.steps(sample)
    return Analysis(
        table=measured,
        boxes={size: effects.box(values) for size, values in effects.by_level(sample.own).items()},
        effects=tuple(effects.effect(sample, axis) for axis in effects.AXES),
        steps=tuple(found_steps),
        knee=effects.knee(found_steps, pays),
        conclusions=tuple(conclusions(sample, latency, measured=len(sample.own), asked=len(found.files))),
        left_out=(*_left_out(found), *_lopsided(sample.own)),
        values={case.key: value for case, value in sample.own.items()},
    )


def _lopsided(values: Values) -> Iterator[str]:
    lost = len(values) - len(effects.of_sizes(values))
    if lost:
        yield (
            f"{lost} of {len(values)} cases have lengths that not every batch size was measured with: what compares "
            f"all sizes at once in the guide's conclusions (correlation, variance, whiskers) goes without them"
        )


def _left_out(found: Contents) -> tuple[str, ...]:
    lines = []
    for case, file in found.files.items():
        if file.flaw is not None:
            lines.append(f"{case.name}.jsonl {file.flaw.sentence}")
        elif file.skip is not None:
            lines.append(f"{case.name}: skipped: {file.skip.reason}")
    absent = [case.name for case, file in found.files.items() if not (file.rows or file.skip or file.flaw)]
    if absent:
        lines.append(f"not measured: {', '.join(absent)}")
    lines += [f"{name}: named as no case is (BATCH-INPUT-OUTPUT.jsonl)" for name in found.strangers]
    return tuple(lines)
