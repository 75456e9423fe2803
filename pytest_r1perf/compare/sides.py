"""What ``r1perf compare`` reads: a session's folder, an output directory, one ``samples-*.jsonl``, a baseline file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_r1perf import baseline, records
from pytest_r1perf.compare.cells import Measured, Side
from pytest_r1perf.datafile import is_finite_number
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.hardware import Hardware
from pytest_r1perf.history.nights import Night, read_history
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.verdict import Verdict

SIDES = ("old", "new")
_CellKey = tuple[str, str]


def read_side(given: str) -> Side:
    """One of two inputs; ``PATH:old`` and ``PATH:new`` are one side of a session that compared two environments.

    Raises :class:`R1PerfError` when it can't be read, has no cell, or has two sides and none is named.
    """
    text, _, named = given.rpartition(":")
    side = named if text and named in SIDES and not Path(given).exists() else None
    path = _session(Path(text if side else given))
    if path.suffix in (".yaml", ".yml"):
        return _baselines(path)
    sides = read_sides(path)
    if side is None and set(sides) & set(SIDES):
        raise R1PerfError(
            f"{given}: holds the two sides of a comparison: give it alone, or name a side ({given}:old, {given}:new)"
        )
    found = sides.get(side)
    if found is None:
        what = f"side {side!r}" if side else "samples"
        raise R1PerfError(f"{given}: has no {what} of any cell: give another session")
    return replace(found, name=given)


def read_both_sides(given: str) -> tuple[Side, Side]:
    """The two sides, old and new, of one session; raises :class:`R1PerfError` when it doesn't have both."""
    path = _session(Path(given))
    sides = {} if path.suffix in (".yaml", ".yml") else read_sides(path)
    old, new = (sides.get(name) for name in SIDES)
    if old is None or new is None:
        raise R1PerfError(f"{given}: doesn't hold two sides (old, new) of a comparison: give a second input")
    return replace(old, name=f"{given}:old"), replace(new, name=f"{given}:new")


def _session(path: Path) -> Path:
    """The path, or for an output directory its newest session's folder."""
    if not path.exists():
        raise R1PerfError(f"{path}: does not exist: give a session's folder, a samples-*.jsonl or a baseline file")
    if path.is_dir() and next(path.glob("samples-*.jsonl"), None) is None:
        newest = next(reversed(records.sessions(path)), None)
        if newest is None:
            raise R1PerfError(f"{path}: holds no session: give an output directory (.r1perf) or a session's folder")
        return newest.path
    return path


def read_sides(path: Path) -> dict[str | None, Side]:
    """The cells of a session's folder or file by side; ``None`` is the side of a session that has no two.

    Raises :class:`R1PerfError` when nothing of it can be used.
    """
    history = read_history([path])
    aside = _aside(path)
    cells: dict[str | None, dict[_CellKey, Measured]] = {}
    for night in history.nights:
        own = cells.setdefault(night.side, {})
        key = (night.topology, night.cell)
        own[key] = _of_night(night, aside) if key not in own else _twice(own[key])
    for (side, topology, cell), (verdict, cause, line) in aside.faults.items():
        own = cells.setdefault(side, {})
        known = own.get((topology, cell)) or _of_line(line, topology, cell)
        own[topology, cell] = replace(known, fault=(verdict, cause))
    if not cells and history.problems:
        raise R1PerfError(f"nothing can be compared: {history.problems[0]}")
    session = history.nights[0].session if history.nights else path.name
    return {side: Side(str(path), session, own, history.problems) for side, own in cells.items()}


def _of_night(night: Night, aside: _Aside) -> Measured:
    samples = {name: values for name in METRICS if len(values := night.values(name)) == len(night.rounds)}
    return Measured(
        topology=night.topology,
        key=night.cell,
        platform=night.platform,
        hardware=night.hardware,
        samples=samples,
        protocol=night.protocol,
        versions=night.versions,
        resolved=night.resolved,
        nodeid=night.nodeid,
        host=night.host,
        metrics=aside.metrics.get((night.topology, night.cell), ()),
        level=aside.levels.get((night.topology, night.cell)),
    )


def _twice(known: Measured) -> Measured:
    """A cell that one session measured in two ways: which of them is meant can't be told."""
    cause = "the session measured it in two ways (environment, command, protocol or host differ)"
    return replace(known, fault=known.fault or (Verdict.INVALID, cause))


def _of_line(line: Mapping[str, Any], topology: str, cell: str) -> Measured:
    """A cell of which nothing but a fault is known."""
    versions = line.get("versions")
    return Measured(
        topology=topology,
        key=cell,
        platform=str(line.get("platform") or cell.split("/")[0]),
        hardware=str(line.get("hardware", "")),
        samples={},
        protocol={},
        versions=versions if isinstance(versions, dict) else {},
        nodeid=str(line.get("nodeid", "")),
    )


@dataclass(slots=True)
class _Aside:
    """What a history passes over: broken cells, samples that are none, what a session judged and at which level."""

    faults: dict[tuple[str | None, str, str], tuple[Verdict, str, Mapping[str, Any]]] = field(default_factory=dict)
    metrics: dict[_CellKey, tuple[str, ...]] = field(default_factory=dict)
    levels: dict[_CellKey, tuple[float, float]] = field(default_factory=dict)


def _aside(path: Path) -> _Aside:
    found = _Aside()
    for line in _lines(path):
        topology, cell, side = line.get("topology"), line.get("cell"), line.get("side")
        kind = line.get("kind")
        if kind == "verdict":
            _note_judged(found, line.get("result"))
        elif isinstance(topology, str) and isinstance(cell, str):
            key = (side if side is None else str(side), topology, cell)
            if kind == "problem":
                found.faults.setdefault(key, (_verdict(line), str(line.get("cause", "")), line))
            elif kind == "sample" and (wrong := _wrong_metric(line.get("metrics"))):
                cause = f"round {line.get('round')}: {wrong}: no number of this cell is used"
                found.faults.setdefault(key, (Verdict.INVALID, cause, line))
    return found


def _note_judged(found: _Aside, result: object) -> None:
    if not isinstance(result, dict) or not isinstance(result.get("judgements"), list):
        return
    key = (str(result.get("topology")), str(result.get("key")))
    items = [item for item in result["judgements"] if isinstance(item, dict) and item.get("metric") in METRICS]
    judged = [item for item in items if not item.get("gate")]  # a limit is no comparison
    if judged:
        found.metrics[key] = tuple(dict.fromkeys(item["metric"] for item in judged))
    limits = [item[name] for item in judged for name in ("ratio", "mean") if isinstance(item.get(name), dict)]
    levels = [(limit.get("alpha"), limit.get("beta")) for limit in limits]
    known = [(alpha, beta) for alpha, beta in levels if is_finite_number(alpha) and is_finite_number(beta)]
    if known:
        found.levels[key] = (min(alpha for alpha, _ in known), min(beta for _, beta in known))


def _verdict(line: Mapping[str, Any]) -> Verdict:
    try:
        return Verdict(line.get("verdict"))
    except ValueError:
        return Verdict.CRASH


def _wrong_metric(metrics: object) -> str:
    """What is wrong with the first metric that is no finite number above 0."""
    if not isinstance(metrics, dict) or not metrics:
        return "it has no metrics"
    for name, value in metrics.items():
        if not is_finite_number(value) or value <= 0:
            return f"{name} is {value!r}"
    return ""


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a session's folder or of one file; :class:`R1PerfError` for a newer format."""
    if path.is_dir():
        yield from records.lines(records.SessionFolder(path))
        return
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    continue
                if isinstance(line, dict):
                    yield line
    except OSError as error:
        raise R1PerfError(f"{path}: cannot be read ({error.strerror or error})") from None


def _baselines(path: Path) -> Side:
    file = baseline.load(path)
    cells = {(file.topology, key): _of_baseline(file, entry) for key, entry in file.cells.items()}
    if not cells:
        raise R1PerfError(f"{path}: has no cell: give another baseline file")
    return Side(str(path), "", cells)


def _of_baseline(file: baseline.BaselineFile, entry: baseline.Baseline) -> Measured:
    versions, arguments = entry.provenance.get("versions"), entry.provenance.get("resolved")
    return Measured(
        topology=file.topology,
        key=entry.key,
        platform=entry.key.split("/")[0],
        hardware=_hardware_key(file),
        samples=entry.samples,
        protocol=entry.protocol,
        versions=versions if isinstance(versions, Mapping) else {},
        resolved=arguments if isinstance(arguments, Mapping) else {},
        tolerance=entry.tolerance,
    )


def _hardware_key(file: baseline.BaselineFile) -> str:
    """The key of what the file says it was measured on, its folder's name; also where it was taken out of there."""
    folder = file.path.absolute().parent.name
    on_cpu = any(entry.protocol.get("device") == "cpu" for entry in file.cells.values())
    gpus, cpu = (Hardware(file.hardware_name, file.hardware_count, (), is_cpu=is_cpu).key for is_cpu in (False, True))
    return folder if folder in (gpus, cpu) else cpu if on_cpu else gpus
