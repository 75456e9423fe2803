"""A test's results as properties of its JUnit case: names that a script can look up, values that it can read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pytest_r1perf.metrics import METRICS
from pytest_r1perf.report.plain import plain
from pytest_r1perf.results import CellResult
from pytest_r1perf.statistics import Interval
from pytest_r1perf.verdict import Judgement

Rounds = Mapping[str, Sequence[float]]
"""Metric name -> one value a round, in the metric's unit."""


def properties(results: Sequence[CellResult], rounds: Sequence[Rounds]) -> list[tuple[str, str]]:
    """(name, value) of everything that a test measured.

    The first cell's names start with ``r1perf_``, those of further ones (``perf_lab``) with ``r1perf_2_`` and so on.
    ``rounds`` are of each result; a missing one is none.
    """
    found: list[tuple[str, str]] = []
    for place, result in enumerate(results):
        prefix = "r1perf_" if not place else f"r1perf_{place + 1}_"
        own = rounds[place] if place < len(rounds) else {}
        found += [(f"{prefix}{name}", value) for name, value in _of(result, own)]
    sentences = [str(effect.get("sentence", "")) for result in results for effect in result.effects]
    found += [(f"r1perf_effect_{place}", plain(sentence)) for place, sentence in enumerate(sentences, 1)]
    return found


def _of(result: CellResult, rounds: Rounds) -> list[tuple[str, str]]:
    found = [
        ("verdict", result.verdict.value),
        ("cell", plain(f"{result.topology}/{result.key}")),
        ("platform", plain(result.platform)),
        ("hardware", plain(result.hardware)),
        ("rounds", str(result.rounds)),
    ]
    if result.quarantined:
        found.append(("quarantined", "true"))
    judged = {judgement.metric: judgement for judgement in result.judgements}
    for name in dict.fromkeys([*result.medians, *judged]):
        judgement = judged.get(name)
        median = result.medians.get(name, judgement.median if judgement is not None else None)
        if median is not None:
            found.append((name, _number(median)))
        found.append((f"{name}_unit", METRICS[name].unit if name in METRICS else ""))
        if name in rounds:
            found.append((f"{name}_samples", json.dumps([float(_number(value)) for value in rounds[name]])))
        if judgement is not None:
            found += [(f"{name}_{what}", value) for what, value in _judged(judgement)]
    if result.judgements:
        found.append(("against", result.against))
    return found


def _judged(judgement: Judgement) -> list[tuple[str, str]]:
    found = [("verdict", judgement.verdict.value)]
    if judgement.baseline is not None:
        found.append(("baseline", _number(judgement.baseline)))
        found.append(("tolerance", _number(judgement.tolerance)))
    found += _limits("ratio", judgement.ratio)
    if judgement.floor is not None:
        found.append(("limit" if judgement.less_is_better else "floor", _number(judgement.floor)))
        found += _limits("mean", judgement.mean)
    if judgement.detectable is not None:
        found.append(("detectable_drop", _number(judgement.detectable)))
    return found


def _limits(name: str, interval: Interval | None) -> list[tuple[str, str]]:
    if interval is None:
        return []
    return [
        (name, _number(interval.estimate)),
        (f"{name}_lower", _number(interval.lower)),
        (f"{name}_upper", _number(interval.upper)),
    ]


def _number(value: float) -> str:
    """Ten digits: more than was measured, and none of a binary fraction's tail. ``inf``: there is no limit."""
    return f"{value:.10g}"
