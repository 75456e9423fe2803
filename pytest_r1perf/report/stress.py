"""The text of `r1perf stress`."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_r1perf.report.numbers import number, percent
from pytest_r1perf.stress.analysis import Analysis
from pytest_r1perf.stress.bootstrap import LEVEL, Estimate
from pytest_r1perf.stress.conclusions import Conclusion
from pytest_r1perf.stress.effects import Axis, Box, Knee
from pytest_r1perf.stress.folder import Contents
from pytest_r1perf.stress.run import Ended

_WIDTH = 100
_PLOT = 72
_NAMES: Mapping[Axis, str] = {
    "batch_size": "batch size",
    "input_len": "input length",
    "output_len": "output length",
}


def ended_lines(ended: Ended, folder: str) -> list[str]:
    """What a run did, and what is left to do."""
    lines = [
        f"{ended.cases} cases x {ended.repeats}: {ended.new} measured now, {ended.kept} were there, "
        f"{ended.skipped} cases skipped, {ended.missing} measurements missing"
    ]
    if ended.why is not None:
        lines.append(ended.why)
    if ended.missing:
        lines.append(f"what was measured is in {folder}: run the same command again to measure the rest")
    return lines


def report_lines(found: Contents, done: Analysis) -> list[str]:
    """The whole report."""
    table = done.table
    lines = [*_about(found, done), ""]
    lines += [f"{table.metric} in tok/s by batch size: a value a case, every length in it", _boxes(done.boxes), ""]
    lines += [*box_plot(done.boxes), ""]
    lines += [_effects(done), "", _steps(done), *_knee(done.knee), ""]
    lines += [*_legend(done), ""]
    lines += ["the guide's conclusions on these data", *_conclusions(done.conclusions)]
    for title, entries in (("notes", table.notes), ("left out", done.left_out)):
        if entries:
            lines += ["", title, *(line for entry in entries for line in _wrapped(entry, "  ", "    "))]
    return lines


def as_json(found: Contents, done: Analysis) -> str:
    """The same as one object, for charts: values, boxes, effects, conclusions; limits that are not there are null."""
    manifest = found.manifest
    data: dict[str, Any] = {
        "metric": done.table.metric,
        "definition": done.table.definition,
        "unit": "tok/s",
        "repeats": len(done.table.repeats),
        "server": None if manifest is None else manifest.server.as_json(),
        "starts": done.table.starts,
        "values": [
            {"batch_size": key[0], "input_len": key[1], "output_len": key[2], "value": value}
            for key, value in sorted(done.values.items())
        ],
        "boxes": [{"batch_size": size, **_box(one)} for size, one in done.boxes.items()],
        "effects": [
            {
                "axis": one.axis,
                "from": one.low,
                "to": one.high,
                "ratio": _estimate(one.ratio),
                "factor_per_doubling": _estimate(one.doubling),
                "correlation": _estimate(one.correlation),
                "log_correlation": _estimate(one.log_correlation),
            }
            for one in done.effects
        ],
        "steps": [
            {"from": one.low, "to": one.high, "ratio": _estimate(one.whole), "factor_per_doubling": _estimate(one.gain)}
            for one in done.steps
        ],
        "knee": None
        if done.knee is None
        else {name: getattr(done.knee, name) for name in ("pays", "size", "earliest", "latest", "sure", "gaps")},
        "conclusions": [
            {
                "quote": one.quote,
                "holds": one.holds.value,
                "sentence": one.sentence,
                "estimate": _estimate(one.estimate),
            }
            for one in done.conclusions
        ],
        "notes": list(done.table.notes),
        "left_out": list(done.left_out),
    }
    return json.dumps(data, indent=1, allow_nan=False)


def box_plot(boxes: Mapping[int, Box]) -> list[str]:
    """A line a batch size, on one logarithmic axis: whiskers, box and median; ``o`` is a value beyond the whiskers."""
    values = [value for one in boxes.values() for value in (one.low, one.high, *one.outliers)]
    low, high = math.log(min(values)), math.log(max(values))
    width = high - low

    def at(value: float) -> int:
        return round((math.log(value) - low) / width * (_PLOT - 1)) if width else 0

    lines = []
    for size, one in boxes.items():
        cells = [" "] * _PLOT
        cells[at(one.low) : at(one.high) + 1] = "-" * (at(one.high) - at(one.low) + 1)
        cells[at(one.q1) : at(one.q3) + 1] = "=" * (at(one.q3) - at(one.q1) + 1)
        cells[at(one.low)] = cells[at(one.high)] = "|"
        for value in one.outliers:
            cells[at(value)] = "o"
        cells[at(one.median)] = "#"
        lines.append(f"{size:>6}  {''.join(cells).rstrip()}")
    left, right = number(min(values)), number(max(values))
    return [*lines, f"{'':>6}  {left}{right:>{_PLOT - len(left)}}  (log scale)"]


def _about(found: Contents, done: Analysis) -> Iterator[str]:
    table, manifest = done.table, found.manifest
    if manifest is None:
        yield "server: not known (no sweep.json: results of the guide's own script, or copied)"
    else:
        server = manifest.server
        client = ", ".join(f"{name} {value}" for name, value in manifest.conditions.items())
        yield f"server: {server.model}, SGLang {server.version}{f'; client: {client}' if client else ''}"
    count, repeats, starts = len(done.values), len(table.repeats), table.starts
    cases, times = _plural(count, "case"), _plural(repeats, "repeat")
    where = f", on {_plural(starts, 'start')} of the server" if starts else ""
    yield f"{cases}, {times}{where}; {table.definition}"


def _boxes(boxes: Mapping[int, Box]) -> str:
    from tabulate import tabulate

    headers = ["batch size", "cases", "median", "25 %", "75 %", "box height", "of median", "whiskers", "outliers"]
    rows = [
        [
            size,
            one.count,
            number(one.median),
            number(one.q1),
            number(one.q3),
            number(one.height),
            percent(one.height / one.median),
            f"{number(one.low)} to {number(one.high)}",
            len(one.outliers) or "",
        ]
        for size, one in boxes.items()
    ]
    return tabulate(rows, headers=headers, disable_numparse=True, colalign=("right",) * len(headers))


def _effects(done: Analysis) -> str:
    from tabulate import tabulate

    headers = ["effect of", "from", "to", "throughput times", "a doubling", "r", "r of logs"]
    rows = [
        [
            _NAMES[one.axis],
            one.low,
            one.high,
            _shown(one.ratio if one.low != one.high else None),
            _shown(one.doubling),
            _shown(one.correlation),
            _shown(one.log_correlation),
        ]
        for one in done.effects
    ]
    return tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", *("right",) * 6))


def _steps(done: Analysis) -> str:
    from tabulate import tabulate

    headers = ["batch size", "throughput times", "a doubling"]
    rows = [[f"{one.low} to {one.high}", _shown(one.whole), _shown(one.gain)] for one in done.steps]
    return tabulate(rows, headers=headers, disable_numparse=True, colalign=("right",) * 3)


def _knee(knee: Knee | None) -> Iterator[str]:
    if knee is None:
        return
    pays = percent(knee.pays)
    if knee.size is None:
        text = f"doubling the batch pays (gains {pays} or more) at every step that was measured"
    else:
        text = f"doubling the batch stops paying at batch size {knee.size}: from there it gains less than {pays}"
    if not knee.sure:
        text += "; measured once, so how sure that is is not known"
    elif knee.earliest is None:
        text += f" ({percent(LEVEL)} sure)"
    else:
        last = "beyond the largest" if knee.latest is None else str(knee.latest)
        text += f" (where it stops: {knee.earliest} at the earliest, {last} at the latest; {percent(LEVEL)} sure)"
    if knee.gaps:
        steps = ", ".join(f"{low} to {high}" for low, high in knee.gaps)
        text += f"; nothing is known of {steps}: no lengths were measured with both sizes"
    yield from _wrapped(text, "", "")


def _legend(done: Analysis) -> Iterator[str]:
    repeats = len(done.table.repeats)
    lines = ["throughput times, a doubling: geometric means over cases that differ in nothing else; r: Pearson's."]
    if repeats < 2:
        lines.append("No intervals: every case was measured once. --repeats 3 or more gives them.")
    else:
        lines.append(
            f"[ ]: {percent(LEVEL)}, from resampling the {repeats} repeats, each whole, since its cases share a "
            f"server's state and an hour (Student's t with {_plural(repeats - 1, 'degree')} of freedom); of steps all "
            f"together."
        )
        if done.table.starts and done.table.starts < repeats:
            lines.append(
                f"The repeats ran on {_plural(done.table.starts, 'start')} of the server: what differs from one start "
                f"to another is not in the intervals."
            )
    for line in lines:
        yield from _wrapped(line, "", "")


def _conclusions(found: tuple[Conclusion, ...]) -> Iterator[str]:
    for one in found:
        yield from _wrapped(f'"{one.quote}": {one.holds.value.upper()}: {one.sentence}', "  ", "    ")


def _shown(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} [{_limit(estimate.low)}, {_limit(estimate.high)}]"


def _limit(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1000 else "..."


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    limits = [None if limit is None or not math.isfinite(limit) else limit for limit in (estimate.low, estimate.high)]
    return {"value": estimate.value, "low": limits[0], "high": limits[1], "level": estimate.level}


def _box(one: Box) -> dict[str, Any]:
    names = ("count", "low", "q1", "median", "q3", "high")
    return {**{name: getattr(one, name) for name in names}, "outliers": list(one.outliers)}


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _wrapped(text: str, first: str, later: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
