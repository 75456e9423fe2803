"""The whole comparison: what is simulated, how often, and the numbers as one JSON document."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gate.decider import Decider, Outcome, Tunable
from gate.deciders import AS_THEY_COME, OURS, STRICT, TUNABLE
from gate.deciders.ours import DETECT, MISSED, PER_NIGHT, SUITE, TOLERANCE, Ours
from gate.environments import interpreter
from gate.equal import FRESH, Tuned, tune
from gate.probes import answers
from gate.rates import Rate, fixed_rounds, most_strict_pass, of_a_night
from gate.series import (
    BASELINE_ROUNDS,
    DOUBLED,
    DROP_5,
    DROPS,
    FASTER,
    LATENCY_FASTER,
    LATENCY_SLOWER,
    TARGET_SERIES,
    TOLERATED,
    UNCHANGED,
    all_series,
)
from gate.simulate import MOST_NIGHTS, Job, Pool, Tally

T = TypeVar("T")

ALPHA = PER_NIGHT / SUITE
CV = 0.02
PLANS = ((3, 12), (2, 12), (2, 16), (3, 20), (5, 20))
"""Others than 2 to 20; 3 to 12 is what the H200 platforms are set to."""


@dataclass(frozen=True, slots=True)
class Size:
    """Cells a number is taken from; nights are these over 40."""

    ours: int
    unchanged: int
    changed: int
    series: int
    nights: int
    tuning: int


FULL = Size(ours=160_000, unchanged=20_000, changed=2_000, series=4_000, nights=200, tuning=40_000)
QUICK = Size(ours=2_000, unchanged=800, changed=200, series=200, nights=40, tuning=2_000)


def run(size: Size, processes: int | None = None) -> dict[str, Any]:
    """Everything; deciders whose environment isn't there are left out and named."""
    started = time.monotonic()
    deciders = [item for item in AS_THEY_COME if available(item)]
    rules = [item for item in TUNABLE if available(item)]
    with Pool(processes) as pool:
        result: dict[str, Any] = {
            "size": {name: getattr(size, name) for name in Size.__slots__},
            "left_out": [item.name for item in AS_THEY_COME if not available(item)],
            "rules": {item.name: [item.rule, item.package] for item in deciders},
            "theory": theory(),
            "main": _told("as they come", _main(pool, deciders, size)),
            "plans": _told("other plans", _plans(pool, size)),
            "nights": _told("nights to an alarm", _nights(pool, deciders, size)),
            "series": _told("other series", _series(pool, deciders, size)),
            "equal": _told("same false-alarm rate", _equal(pool, rules, size)),
        }
    result["probes"] = answers(deciders)
    result["seconds"] = time.monotonic() - started
    return result


def _told(what: str, found: T) -> T:
    print(f"done: {what}", file=sys.stderr)
    return found


def available(decider: Decider) -> bool:
    """Whether its package can be run."""
    environment = {"apache-otava": "otava", "pytest-r1perf": None, None: None}.get(decider.package, "tools")
    return environment is None or interpreter(environment) is not None


def theory() -> dict[str, Any]:
    """What can be known without a simulation."""
    common = {"alpha": ALPHA, "power": 0.95, "bound": TOLERANCE, "cv": CV}
    return {
        "fixed": fixed_rounds(drop=DETECT, reference=BASELINE_ROUNDS, **common),
        "strict_pass": {
            str(missed): most_strict_pass(bound=TOLERANCE, missed=missed, cv=CV, reference=BASELINE_ROUNDS)
            for missed in (MISSED, 0.05)
        },
    }


def _main(pool: Pool, deciders: Sequence[Decider], size: Size) -> dict[str, Any]:
    jobs = []
    for decider in deciders:
        unchanged = size.ours if decider == OURS else size.unchanged
        jobs += [Job(decider, TARGET_SERIES, UNCHANGED.name, size.changed if decider == STRICT else unchanged)]
        scenarios = (*DROPS, FASTER, LATENCY_SLOWER, LATENCY_FASTER)
        jobs += [Job(decider, TARGET_SERIES, scenario.name, size.changed) for scenario in scenarios]
    jobs.append(Job(OURS, TARGET_SERIES, TOLERATED.name, size.unchanged))
    return _by_name(pool.tallies(jobs))


def _plans(pool: Pool, size: Size) -> list[dict[str, Any]]:
    """Ours with other numbers of rounds."""
    rows = []
    for minimum, maximum in PLANS:
        plan = Ours(minimum, maximum)
        jobs = [Job(plan, TARGET_SERIES, UNCHANGED.name, size.series)]
        jobs += [Job(plan, TARGET_SERIES, DROP_5.name, size.changed)]
        found = _by_name(pool.tallies(jobs))[plan.name]
        rows.append({"minimum": minimum, "maximum": maximum, **found})
    return rows


def _nights(pool: Pool, deciders: Sequence[Decider], size: Size) -> dict[str, Any]:
    jobs = [Job(item, TARGET_SERIES, DROP_5.name, size.nights) for item in deciders]
    return {
        name: {
            "cells": len(nights),
            "found": sum(night > 0 for night in nights),
            "median": statistics.median(night or MOST_NIGHTS + 1 for night in nights),
        }
        for name, nights in pool.nights(jobs).items()
    }


def _series(pool: Pool, deciders: Sequence[Decider], size: Size) -> dict[str, Any]:
    """Every other series; ours also as the plugin would be set up for it."""
    jobs = []
    for name, series in all_series().items():
        if name == TARGET_SERIES:
            continue
        entrants = [item for item in deciders if item != STRICT]
        if series.session_cv:
            entrants.append(replace(OURS, session_cv=series.session_cv))
        if name == "cold first":
            entrants.append(replace(OURS, discard=1))
        for decider in entrants:
            jobs.append(Job(decider, name, UNCHANGED.name, size.series))
            jobs.append(Job(decider, name, DROP_5.name, size.changed // 2))
    result: dict[str, Any] = {}
    for (decider_name, series_name, scenario), tally in pool.tallies(jobs).items():
        result.setdefault(series_name, {}).setdefault(decider_name, {})[scenario] = summary(tally)
    return {name: {"about": all_series()[name].about, "deciders": found} for name, found in result.items()}


def _equal(pool: Pool, rules: Sequence[Tunable], size: Size) -> dict[str, Any]:
    """The rules at the rate of ours, tuned on unchanged cells, and again on cells that lost the tolerated 1 %."""
    rows: dict[str, Any] = {}
    for rule in rules:
        found = tune(pool, rule, UNCHANGED.name, alpha=ALPHA, cells=size.tuning, power_cells=size.changed)
        strict = tune(pool, rule, TOLERATED.name, alpha=ALPHA, cells=size.tuning // 2, power_cells=size.changed)
        rows[rule.family] = {
            **_tuned(found),
            "tolerated": _tuned(strict),
            "checked": _checked(pool, found.rule, size),
        }
    ours = _checked(pool, OURS, size)
    return {"rules": rows, "ours": ours}


def _checked(pool: Pool, decider: Decider, size: Size) -> dict[str, Any]:
    """Fresh cells of the target series, and cells of noise that the threshold was not tuned to."""
    jobs = [
        Job(decider, TARGET_SERIES, UNCHANGED.name, size.unchanged, FRESH),
        Job(decider, TARGET_SERIES, DROP_5.name, size.changed, FRESH),
    ]
    jobs.append(Job(decider, DOUBLED, UNCHANGED.name, size.unchanged, FRESH))
    others = ("heavy tails", "AR(1) 0.5", "CPU rounds")
    jobs += [Job(decider, name, UNCHANGED.name, size.series, FRESH) for name in others]
    return {f"{series}|{scenario}": summary(tally) for (_, series, scenario), tally in pool.tallies(jobs).items()}


def _tuned(found: Tuned) -> dict[str, Any]:
    return {
        "name": found.rule.name,
        "threshold": found.threshold,
        "rounds": found.rule.rounds,
        "reached": found.reached,
        "tried": [list(item) for item in found.tried],
    }


def _by_name(tallies: dict[tuple[str, str, str], Tally]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for (name, _, scenario), tally in tallies.items():
        result.setdefault(name, {})[scenario] = summary(tally)
    return result


def summary(tally: Tally) -> dict[str, Any]:
    """Shares with their intervals; ``night`` is the false-alarm rate of a night of 40 such cells."""
    alarms = Rate(tally.count(Outcome.REGRESSED), tally.cells)
    low, high = alarms.interval
    return {
        "cells": tally.cells,
        "alarms": alarms.count,
        "rate": alarms.value,
        "interval": [low, high],
        "night": of_a_night(alarms.value, SUITE),
        "night_interval": [of_a_night(low, SUITE), of_a_night(high, SUITE)],
        "undecided": tally.count(Outcome.NO_VERDICT) / tally.cells,
        "errors": tally.count(Outcome.ERROR) / tally.cells,
        "rounds": tally.rounds / tally.cells,
    }
