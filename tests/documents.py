"""Documents for the tests of reports: a cell with what it needs and nothing of a session's folder."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_r1perf.document.model import Cell, Document, Environment, Sample
from pytest_r1perf.results import CellResult
from pytest_r1perf.statistics import Interval
from pytest_r1perf.verdict import Judgement, Verdict

NOW = datetime.datetime(2026, 11, 30, 22, 15, 0, 250000, tzinfo=datetime.timezone.utc)


def judgement(verdict: Verdict = Verdict.PASS, metric: str = "total_throughput", **changes: Any) -> Judgement:
    given: dict[str, Any] = {
        "metric": metric,
        "verdict": verdict,
        "rounds": 3,
        "median": 16082.25,
        "spread": 0.004,
        "baseline": 18876.5,
        "ratio": Interval(0.852, 0.845, 0.926, 0.01, 2.0, 0.0033, 0.025),
        "tolerance": 0.05,
        "detectable": 0.18,
        "excludes": 0.05,
        "reason": "as it says",
    }
    return Judgement(**{**given, **changes})


def cell(
    verdict: Verdict = Verdict.PASS,
    *,
    label: str = "tp8 champion n=100",
    judgements: Sequence[Judgement] | None = None,
    samples: Sequence[Sample] = (),
    trend: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Cell:
    given: dict[str, Any] = {
        "nodeid": f"test_perf.py::test[{label}]",
        "topology": "tp8",
        "key": f"h200x8/champion/sharegpt/{label}/engine",
        "label": label,
        "platform": "h200x8",
        "hardware": "8x-nvidia-h200",
        "verdict": verdict,
        "failed": verdict.fails,
        "judgements": (judgement(verdict),) if judgements is None else tuple(judgements),
        "error_rate": 0.0033,
        "rounds": 3,
        "reproduce": "pytest test_perf.py --perf",
    }
    return Cell(CellResult(**{**given, **changes}), tuple(samples), (), trend)


def samples(metrics: Mapping[str, Sequence[float]], *, began: datetime.datetime = NOW, place: int = 0) -> list[Sample]:
    """A round for each value, a minute apart."""
    count = max(len(values) for values in metrics.values())
    return [
        Sample(
            round=number + 1,
            time=(began + datetime.timedelta(minutes=number)).isoformat(timespec="milliseconds"),
            metrics={name: values[number] for name, values in metrics.items() if number < len(values)},
            environment=place,
        )
        for number in range(count)
    ]


def trend(means: Sequence[float | None], *, last: datetime.datetime = NOW, **changes: Any) -> dict[str, Any]:
    """A night a day up to ``last``."""
    times = [(last - datetime.timedelta(days=back)).isoformat() for back in reversed(range(len(means)))]
    given: dict[str, Any] = {
        "state": "steady",
        "nights": len(means),
        "first": times[0],
        "last": times[-1],
        "events": [],
        "notes": [],
        "means": list(means),
        "times": times,
    }
    return {**given, **changes}


def environment(side: str | None = None, sglang: str = "0.5.20", **changes: Any) -> Environment:
    given: dict[str, Any] = {
        "side": side,
        "hardware": "8x-nvidia-h200",
        "host": {"hostname": "node-1", "gpu driver": "580.159.04"},
        "versions": {"sglang": sglang, "torch": "2.11.0"},
        "env": {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"},
    }
    return Environment(**{**given, **changes})


def document(*cells: Cell, environments: Sequence[Environment] | None = None, **changes: Any) -> Document:
    given: dict[str, Any] = {
        "session": "20261130.221500.ab12",
        "created": "2026-11-30T23:00:00+00:00",
        "tool": "0.1.0",
        "exitstatus": 1,
        "environments": tuple(environments) if environments is not None else (environment(),),
        "cells": cells,
    }
    return Document(**{**given, **changes})
