"""The questions that the suite asks of several cells. A full-size test and its scaled twin ask by the same function.

Every function takes the test's ``perf_lab``, measures its cells (a round of each in turn, so that a host that drifts
does so for all) and returns what the lab makes of them; the lab puts it into the report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_r1perf.effects import Ablation, Grid, Interaction, LoadCurve, Scaling, Spread
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.lab import Broken, Comparison, Measured, PerfLab, PerfResult
from pytest_r1perf.modelshape import shape_of
from pytest_r1perf.published import PublishedAs
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.roundrun import paths_of

Cells = Sequence[Mapping[str, Any]]
"""Marker arguments, a mapping a cell."""

Flags = Mapping[str, FlagValue]


def stacked_path(lab: PerfLab, steps: Cells, published: PublishedAs = None) -> Ablation:
    """What each step of a path gains, one at a time."""
    return lab.ablation(*lab.in_turn(*steps), published=published)


def factorial(lab: PerfLab, a: Flags, b: Flags, published: PublishedAs = None) -> Interaction:
    """Whether two changes of flags gain more together than one by one."""
    base, with_a, with_b, both = lab.in_turn({}, {"flags": a}, {"flags": b}, {"flags": {**a, **b}})
    return lab.interaction(base, with_a, with_b, both, published=published)


def by_load(lab: PerfLab, change: Flags, loads: Sequence[int], published: PublishedAs = None) -> LoadCurve:
    """What a change of flags gains at each load, and where its sign flips."""
    return sides_by_load(lab, {"flags": change}, {}, loads, published)


def sides_by_load(
    lab: PerfLab, a: Mapping[str, Any], b: Mapping[str, Any], loads: Sequence[int], published: PublishedAs = None
) -> LoadCurve:
    """What one side is ahead of the other, at each load."""
    measured = lab.in_turn(*({**side, "n": n} for n in loads for side in (a, b)))
    return lab.by_load(list(zip(measured[::2], measured[1::2], strict=True)), published=published)


def ahead(lab: PerfLab, a: Mapping[str, Any], b: Mapping[str, Any], published: PublishedAs = None) -> Comparison:
    """What one cell is ahead of another."""
    left, right = lab.in_turn(a, b)
    return lab.compare(left, right, published=published)


def neighbours(lab: PerfLab, cells: Cells, published: PublishedAs = None) -> Spread:
    """How far neighbours are apart."""
    return lab.spread(*lab.in_turn(*cells), published=published)


def movers(lab: PerfLab, flags: Mapping[str, Sequence[FlagValue]]) -> dict[str, Spread]:
    """How far each flag moves the metric over its values; the widest is the first-order one."""
    return {
        name: lab.spread(*lab.in_turn(*({"flags": {name: value}} for value in values)))
        for name, values in flags.items()
    }


def sweep(lab: PerfLab, rows: Mapping[str, Sequence[Any]], **fixed: Any) -> Grid:
    """What all combinations of one or two things give; one that runs out of memory is a point."""
    return lab.grid(rows, **fixed)


def side_by_side(lab: PerfLab, cells: Cells, may_break: Sequence[str]) -> tuple[Spread | None, tuple[Broken, ...]]:
    """Which of several choices work here, and how far those are apart that do."""
    tried = [lab.attempt(may_break=may_break, **dict(cell)) for cell in cells]
    measured = [one for one in tried if isinstance(one, Measured)]
    return (
        lab.spread(*measured) if len(measured) > 1 else None,
        tuple(one for one in tried if isinstance(one, Broken)),
    )


def attempted(lab: PerfLab, may_break: Sequence[str], **cell: Any) -> str:
    """What becomes of a cell that may break, as a sentence for the report."""
    one = lab.attempt(may_break=may_break, **cell)
    return str(one) if isinstance(one, Broken) else f"{one.label}: did not break, {one.median():,.0f} tok/s"


def per_gpu(lab: PerfLab, cells: Cells, published: PublishedAs = None) -> Scaling:
    """What a GPU gives in each layout, counting those that are really used."""
    return lab.scaling(*lab.in_turn(*cells), published=published)


def config_of(result: PerfResult) -> Mapping[str, Any]:
    """The model's ``config.json``; skips the test where the model lies on another host."""
    try:
        path = Path(paths_of(result.cell, elsewhere=False)[0]) / "config.json"
    except R1PerfError as error:
        pytest.skip(str(error))
    if not path.is_file():
        pytest.skip(f"{path} is not on this host")
    config: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return config


def allreduces_per_forward(config: Mapping[str, Any]) -> int:
    """All-reduces of one forward pass under tensor parallelism: one after attention, one after the MLP, in each layer.

    Best-practice guide, communication reality behind TP16: "2 per layer x 61". The embedding's and the sampler's are
    not in it.
    """
    return 2 * shape_of(config, "config.json").num_layers


_ACCEPTED = re.compile(r"accept len: (\d+(?:\.\d+)?)")


def acceptance_lengths(log: str) -> list[float]:
    """The acceptance lengths of speculative decoding that a log reports; SGLang prints them with its decode batches."""
    return [float(found) for found in _ACCEPTED.findall(Path(log).read_text(encoding="utf-8", errors="replace"))]
