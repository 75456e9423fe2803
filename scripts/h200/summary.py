"""What the stages' records say so far, in a page of tables.

python summary.py PROJECT      reads PROJECT/.r1perf/<stage>/<session>, stages.jsonl, pairs.jsonl and killed.json
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from settings import chosen
from tabulate import tabulate

from pytest_r1perf.statistics import log_variance

TOTAL, OUTPUT = "total_throughput", "output_throughput"
CONFIDENCE = 0.95


@dataclass
class Stage:
    """All lines of one stage's sessions, by kind, and how long each took (seconds, with pytest's own)."""

    name: str
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Lines of that kind, in their order."""
        return self.lines.get(kind, [])


def stages(project: Path) -> dict[str, Stage]:
    """By name, in the order of their first session."""
    found: dict[str, Stage] = {}
    for path in sorted(project.glob(".r1perf/*/*/samples-*.jsonl"), key=lambda path: path.parent.name):
        name = path.parts[-3]
        stage = found.setdefault(name, Stage(name))
        for line in lines_of(path):
            stage.lines.setdefault(str(line.get("kind")), []).append(line)
    for line in lines_of(project / "stages.jsonl"):
        if line["stage"] in found:
            found[line["stage"]].seconds.append(line["seconds"])
    return found


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of a file; nothing where it isn't there."""
    if not path.exists():
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(text)
        except ValueError:
            continue


def load_of(line: dict[str, Any]) -> int:
    """N, from the cell's key."""
    return next(int(part[1:]) for part in str(line["cell"]).split("/") if part[0] == "n" and part[1:].isdigit())


def cv(values: Sequence[float]) -> str:
    """The spread in per cent."""
    return f"{100 * math.sqrt(log_variance(values)):.1f} %" if len(values) > 1 else "-"


def cells(stage: Stage) -> str:
    """A row a cell and round: windows, their mean and spread, the share of the ceiling, clocks, the verdict."""
    results = {line["result"]["nodeid"]: line["result"] for line in stage.of("verdict")}
    rows = []
    for line in stage.of("sample"):
        values = [window[TOTAL] for window in line["windows"]] or [line["metrics"][TOTAL]]
        result = results.get(line["nodeid"], {})
        share = line["metrics"][TOTAL] / line["ceiling"][TOTAL] if line.get("ceiling", {}).get(TOTAL) else None
        overall = line.get("telemetry", {}).get("overall", {})
        rows.append(
            [
                f"{line['topology']} {line.get('side') or ''}".strip(),
                load_of(line),
                " ".join(f"{value:,.0f}" for value in values),
                f"{line['metrics'][TOTAL]:,.0f}",
                f"{line['metrics'][OUTPUT]:,.0f}",
                cv(values),
                f"{100 * share:.1f} %" if share else "-",
                overall.get("sm_mhz", {}).get("min", "-"),
                overall.get("power_w", {}).get("max", "-"),
                " ".join(overall.get("reasons", {})) or "-",
                f"{line['wall_s']:.0f}",
                result.get("verdict", "-"),
                _ratio(result),
            ]
        )
    for line in stage.of("discarded"):
        tokps = line["metrics"].get(TOTAL, 0)
        rows.append([line["topology"], load_of(line), "thrown away", f"{tokps:,.0f}", *[""] * 7, line["reason"][:60]])
    # One that broke in another cell's engine is told there, and again by its own test.
    for line in {(one["cell"], one["cause"]): one for one in stage.of("problem")}.values():
        rows.append([line["topology"], load_of(line), "", *[""] * 8, line["verdict"], line["cause"][:110]])
    head = [
        "",
        "N",
        "windows, tok/s",
        "mean",
        "output",
        "CV",
        "ceiling",
        "SM MHz",
        "W",
        "reasons",
        "s",
        "verdict",
        "ratio",
    ]
    took = ", ".join(f"{seconds:.0f} s" for seconds in stage.seconds)
    return f"{stage.name} ({took})\n{tabulate(rows, head, disable_numparse=True)}"


def _ratio(result: dict[str, Any]) -> str:
    for judgement in result.get("judgements", ()):
        ratio = judgement.get("ratio")
        if ratio:
            seen = judgement.get("detectable")
            power = f", sees {100 * seen:.0f} %" if seen is not None else ""
            return f"{ratio['estimate']:.3f} [{_limit(ratio['lower'])}, {_limit(ratio['upper'])}]{power}"
    return "-"


def _limit(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def pooled(groups: Iterable[Sequence[float]]) -> tuple[float, int] | None:
    """The common standard deviation of the logarithms within groups, and its degrees of freedom."""
    several = [group for group in groups if len(group) > 1]
    df = sum(len(group) - 1 for group in several)
    if not df:
        return None
    return math.sqrt(math.fsum(log_variance(group) * (len(group) - 1) for group in several) / df), df


def _pooled(groups: Iterable[Sequence[float]]) -> str:
    found = pooled(groups)
    return f"{100 * found[0]:.1f} % ({found[1]} degrees of freedom)" if found else "not measured"


def noise(found: dict[str, Stage], fresh: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Windows within engines by load, engines of one load, fresh processes."""
    unchanged = [stage for stage in found.values() if stage.name not in ("slow", "ablation")]
    samples = [line for stage in unchanged for line in stage.of("sample") if line["windows"]]
    for name, low, high in chosen().classes:
        windows = [[one[TOTAL] for one in line["windows"]] for line in samples if low <= load_of(line) <= high]
        yield f"windows of one engine, {name} load (N {low} to {high}): CV {_pooled(windows)}"
    by_cell: dict[tuple[object, ...], list[float]] = {}
    for line in samples:
        by_cell.setdefault((line["cell"], line["topology"], len(line["windows"])), []).append(line["metrics"][TOTAL])
    yield f"engines of one load and number of windows: CV {_pooled(by_cell.values())}"
    values = [one[TOTAL] for one in fresh]
    if values:
        shown = " ".join(f"{value:,.0f}" for value in values)
        yield f"fresh processes, N = {chosen().offline_n}: {shown}: CV {cv(values)} ({len(values)} processes)"


def overhead(pairs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Plugin over bare: throughput pair by pair with a 95 % interval, and wall time."""
    by_pair: dict[int, dict[str, dict[str, Any]]] = {}
    for one in pairs:
        if "failed" not in one:
            by_pair.setdefault(one["pair"], {})[one["which"]] = one
    whole = [pair for pair in by_pair.values() if len(pair) == 2]
    if not whole:
        return
    logs = [math.log(pair["plugin"][TOTAL] / pair["bare"][TOTAL]) for pair in whole]
    mean = statistics.fmean(logs)
    text = f"plugin / bare, {len(whole)} pairs: {math.exp(mean):.4f}"
    if len(logs) > 1:
        from scipy.stats import t

        half = float(t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
        text += f" [{math.exp(mean - half):.4f}, {math.exp(mean + half):.4f}], 95 %"
    yield f"{text}; pair by pair {' '.join(f'{math.exp(one):.3f}' for one in logs)}"
    extra = [pair["plugin"]["wall_s"] - pair["plugin"]["sglang_s"] for pair in whole]
    yield f"wall time of pytest beside its SGLang process: median {statistics.median(extra):.1f} s"


def gpu_time(found: dict[str, Stage], fresh: Sequence[dict[str, Any]]) -> Iterator[str]:
    """One engine for all loads against a fresh process for every window."""
    stage = found.get("engine")
    if stage is None or not stage.seconds or not stage.of("sample") or not fresh:
        return
    first = {line["nodeid"]: line for line in reversed(stage.of("sample"))}
    counted = sum(len(line["windows"]) for line in first.values())
    wall = statistics.median([one["wall_s"] for one in fresh if "wall_s" in one])
    seconds = stage.seconds[0]
    yield (
        f"{len(first)} cells, {counted} windows behind one start: {seconds:.0f} s of pytest; as fresh processes "
        f"{counted} x {wall:.1f} s = {counted * wall:.0f} s, EXTRAPOLATED from {len(fresh)} processes of "
        f"N = {chosen().offline_n}: {counted * wall / seconds:.1f} times as much"
    )


def fresh_processes(found: dict[str, Stage], pairs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All warm processes of the offline cell: of the stage cold, and of the pairs."""
    cold = found.get("cold", Stage("cold")).of("sample")
    own = [{**line["metrics"], "wall_s": line["wall_s"], "which": "plugin"} for line in cold]
    return own + [{**one, "wall_s": one["sglang_s"]} for one in pairs if "failed" not in one]


def main(project: Path) -> None:
    """Print all that is known."""
    found = stages(project)
    pairs = list(lines_of(project / "pairs.jsonl"))
    fresh = fresh_processes(found, pairs)
    for stage in found.values():
        print(f"{cells(stage)}\n")
    for one in pairs:
        print(json.dumps(one))
    print()
    for text in (*noise(found, fresh), *overhead(pairs), *gpu_time(found, fresh)):
        print(text)
    killed = project / "killed.json"
    if killed.exists():
        print(f"killed: {json.dumps(json.loads(killed.read_text(encoding='utf-8')))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
