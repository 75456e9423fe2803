"""Documents that a page is made of: sessions with everything in them, with odd names, with 500 cells."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_r1perf import procedures
from pytest_r1perf.document.model import Broken, Cell, Document, Environment, Readings, Sample
from pytest_r1perf.effects import BrokenPoint, Effect, Point
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.procedures import Basis
from pytest_r1perf.results import OLD_ENVIRONMENT, CellResult
from pytest_r1perf.statistics import Interval
from pytest_r1perf.verdict import Judgement, Verdict

ODD = (
    "a|b <img src=x onerror=alert(1)> & \"quotes\" 'and' "
    + "\U0001f680 \x1b[31mred\x1b[0m </script><!-- $x$ #010101 {{7*7}}"
)
BASIS = Basis(METRICS["total_throughput"], 0.01)


def point(label: str, mean: float, *, n: int = 7000, gpus: int = 8, topology: str = "tp8") -> Point:
    return Point(label, topology, gpus, n, f"n={n}", (mean, mean * 1.004, mean * 0.996))


def effects() -> list[Effect]:
    """One of every kind."""
    loads = ((1000, 19000.0), (5000, 20010.0), (7000, 22000.0), (10000, 24120.0))
    pairs = [(point("off", mean, n=n), point("on", 20000, n=n)) for n, mean in loads]
    broken = BrokenPoint("0.87/2048", "OOM", "CUDA out of memory")
    swept: list[Point | BrokenPoint] = [point("0.83/256", 20000), point("0.83/2048", 22000), point("0.87/256", 21900)]
    return [
        procedures.ablation(
            [
                point("tp8 baseline n=7000", 12021),
                point("+ mem_fraction_static=0.87", 14000),
                point("+ decode_attention_backend=flashinfer + enable_flashinfer_allreduce_fusion", 15000),
                point("- enable_piecewise_cuda_graph", 14400),
                point("+ cuda_graph_max_bs=2048", 22854),
            ],
            BASIS,
            {"total": "+90.1 %"},
        ),
        procedures.scaling(
            [
                point("tp8 tp8-champion n=7000", 22854),
                point("pp2 pp2-champion n=7000", 29426, gpus=16, topology="pp2"),
                point("tp16 tp16-reference n=8000", 21416, gpus=16, topology="tp16", n=8000),
            ],
            BASIS,
        ),
        procedures.by_load(pairs, BASIS, "up to +20.6 %", a="tp8 off", b="tp8 on"),
        procedures.interaction(
            point("base", 20000), point("+ lof", 20300), point("+ fi", 20280), point("both", 21500), BASIS
        ),
        procedures.spread([point("fa3", 20000), point("flashmla", 20900), point("triton", 20100)], BASIS),
        procedures.grid(
            {"mem_fraction_static": [0.83, 0.87], "cuda_graph_max_bs": [256, 2048]}, [*swept, broken], BASIS
        ),
        procedures.comparison(point("a", 20000), point("b", 19000), BASIS),
    ]


def readings(seconds: int = 60) -> Readings:
    return Readings(
        gpus=8,
        at=tuple(float(second) for second in range(seconds)),
        sm_mhz=tuple(345.0 if second < 20 else 1980.0 if second % 17 else None for second in range(seconds)),
        power_w=tuple(8 * (80.0 if second < 20 else 600.0 + second) for second in range(seconds)),
        temperature_c=tuple(38.0 + second / 3 for second in range(seconds)),
        memory_mib=tuple(0.0 if second < 10 else 8 * 131399.0 for second in range(seconds)),
    )


def sample(number: int, value: float, *, environment: int = 0, read: Readings | None = None) -> Sample:
    windows = tuple({"total_throughput": value * (1 + part)} for part in (-0.004, 0.001, 0.003))
    event = {"kind": "retraction", "text": f"KV cache is full {ODD}", "count": 3, "line_no": 42, "effect": "remark"}
    return Sample(
        round=number, time=f"2026-11-30T02:0{number % 10}:10.368+00:00", metrics={"total_throughput": value},
        environment=environment, windows=windows, discarded=1, wall_s=38.6, log=f"/var/log/round-{number}/log.txt",
        events=(event,), readings=read,
    )  # fmt: skip


def judgement(verdict: Verdict, over: float, *, metric: str = "total_throughput", **changes: Any) -> Judgement:
    given: dict[str, Any] = {
        "baseline": 20000.0,
        "ratio": Interval(over, over * 0.97, over * 1.03, 0.01, 4.0, 0.001, 0.025),
        "floor": 19000.0,
        "mean": Interval(20000 * over, 19400 * over, 20600 * over, 0.01, 4.0, 0.001, 0.025),
        "tolerance": 0.05,
        "detectable": 0.04,
        "reason": "surely below the reference less the tolerance",
        "excludes": 0.05,
    }
    return Judgement(metric, verdict, 3, 20000 * over, 0.004, **{**given, **changes})


def result(verdict: Verdict, ratio: float = 1.0, label: str = "tp8 champion n=7000", **changes: Any) -> CellResult:
    judged = (judgement(verdict, ratio),) if verdict in (Verdict.REGRESSED, Verdict.PASS, Verdict.IMPROVED) else ()
    given: dict[str, Any] = {
        "cause": "CUDA out of memory" if verdict is Verdict.OOM else "",
        "judgements": judged,
        "rounds": 3,
        "medians": {"total_throughput": 20000.0 * ratio},
        "log": "/var/log/r1/log.txt",
        "reproduce": f"pytest 'perf_tests/test_tp8.py::test_{verdict.name.lower()}' --perf",
        "failed": verdict.fails,
        "error_rate": 0.001,
        "missed_rate": 0.025,
    }
    key = f"h200x8/champion/sharegpt/{label}"
    return CellResult(
        f"test_perf.py::test[{label}]", "tp8", key, label, "h200x8", "8x-nvidia-h200", verdict, **{**given, **changes}
    )


def trend(nights: int = 24, **changes: Any) -> dict[str, Any]:
    """A step of -8 % at the bump in the middle, and a bad night."""
    start = datetime.datetime(2026, 11, 1, 2, tzinfo=datetime.timezone.utc)
    times = [(start + datetime.timedelta(days=night)).isoformat() for night in range(nights)]
    half = nights // 2
    means = [20000.0 + 60 * math.sin(night) - (1600 if night >= half else 0) for night in range(nights)]
    if half > 4:
        means[3] = 17000.0
    size = {"estimate": -0.08, "lower": -0.09, "upper": -0.07}
    step = {"kind": "step", "before": times[max(0, half - 1)], "after": times[half], "size": size, "a_night": None,
            "worse": True, "sure": True, "causes": ["sglang 0.5.17 -> 0.5.20", "torch 2.9 -> 2.11"]}  # fmt: skip
    on = times[min(3, half)]
    bad = {**step, "kind": "bad night", "before": on, "after": on, "causes": []}
    return {"state": "STEP", "nights": nights, "nights_needed": 8, "times": times, "means": means,
            "events": [bad, step], "notes": ["no night from 2026-11-07 to 2026-11-09"],
            "against_baseline": {"estimate": 0.92, "lower": 0.91, "upper": 0.93}, **changes}  # fmt: skip


def environment(side: str | None = None, sglang: str = "0.5.20") -> Environment:
    versions = {"sglang": sglang, "torch": "2.11"}
    host = {"hostname": "vm", "gpu driver": "580.1"}
    return Environment(side, "8x-nvidia-h200", host, versions, {"NCCL_DEBUG": ODD})


def document(cells: Sequence[Cell], environments: Sequence[Environment] = (), **changes: Any) -> Document:
    given: Mapping[str, Any] = {"exitstatus": 1, "arguments": ("-m", "perf"), **changes}
    return Document(
        "20261130.221915.6432", "2026-11-30T02:09:43+00:00", "0.1.0",
        cells=tuple(cells), environments=tuple(environments), **given,
    )  # fmt: skip


def whole() -> Document:
    """Everything at once: each verdict of note, each effect, a trend, telemetry, broken processes, odd names."""
    changed = ("versions: sglang: 0.5.17 -> 0.5.20", "command: --chunked-prefill-size 4096 -> 8192")
    rounds = tuple(sample(number, 18400 + 20 * number, read=readings()) for number in (1, 2, 3))
    lab = result(Verdict.MEASURED, label="lab", effects=tuple(effect.as_dict() for effect in effects()))
    latency = judgement(Verdict.PASS, 1.01, metric="ttft_ms", baseline=200.0, floor=260.0, mean=None)
    served = result(Verdict.PASS, 1.01, "serve n=500", judgements=(latency,), medians={"ttft_ms": 198.0})
    return document(
        [
            Cell(result(Verdict.PASS, 1.0), (sample(1, 20010), sample(2, 19990))),
            Cell(result(Verdict.REGRESSED, 0.92, ODD, notes=changed), rounds, (), trend()),
            Cell(result(Verdict.OOM, label="tp8 big n=10000"), (), (Broken(None, "OOM", f"CUDA {ODD}", "/var/log/x"),)),
            Cell(lab),
            Cell(served, (Sample(1, "", {"ttft_ms": 199.0}), Sample(2, "", {"ttft_ms": math.nan}))),
        ],
        [environment()],
        errors=(f"baseline could not be written {ODD}",),
    )


def pair() -> Document:
    """Two environments, twelve cells."""
    cells = []
    for place in range(12):
        ratio = 0.9 + 0.02 * place
        said = Verdict.REGRESSED if ratio < 0.93 else Verdict.IMPROVED if ratio > 1.06 else Verdict.PASS
        rounds = [
            sample(number, 20000 * (ratio if side else 1), environment=side) for number in (1, 2) for side in (0, 1)
        ]
        cells.append(Cell(result(said, ratio, f"tp8 n={1000 + place}", against=OLD_ENVIRONMENT), tuple(rounds)))
    return document(cells, [environment("old", "0.5.9"), environment("new")])


def many(count: int = 500) -> Document:
    """A night of so many cells, every tenth of them regressed, each with rounds, telemetry and a trend."""
    read, history = readings(120), trend(60)
    cells = []
    for place in range(count):
        said, ratio = (Verdict.REGRESSED, 0.9) if place % 10 == 0 else (Verdict.PASS, 1.0)
        rounds = tuple(sample(number, 20000 * ratio + number, read=read) for number in (1, 2, 3))
        cells.append(Cell(result(said, ratio, f"tp8 cell {place} {ODD if place == 7 else ''}"), rounds, (), history))
    return document(cells, [environment()])
