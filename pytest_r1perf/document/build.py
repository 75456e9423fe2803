"""Makes the document of a session from its folder: results, rounds, readings, and the nights before it."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

from pytest_r1perf import records
from pytest_r1perf.document.model import Broken, Cell, Document, Environment, Readings, Sample
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.records import SessionFolder
from pytest_r1perf.results import CellResult, restored

MOST_READINGS = 120
"""Moments of a round that are kept: what a strip a few hundred pixels wide can show."""

_TELEMETRY = "telemetry.jsonl"

_Key: TypeAlias = tuple[str, str, str]
"""Topology, key and platform of a cell."""


def document_of(
    folder: SessionFolder,
    results: Sequence[CellResult] | None = None,
    *,
    history: Path | None = None,
    baselines: Path | None = None,
) -> Document:
    """The document of a session's folder.

    ``results`` are those of a session that is ending, whose record may lack them (it was interrupted); by default they
    are read from the record. ``history`` is an output directory whose sessions give each cell its trend.

    Raises :class:`R1PerfError` where the folder has no record, or one of a newer format.
    """
    if not folder.path.is_dir():
        raise R1PerfError(f"{folder.path}: there is no such session: name a folder below the output directory")
    lines = list(records.lines(folder))
    if not lines:
        raise R1PerfError(f"{folder.path}: has no record (samples-*.jsonl): name a session's folder")
    if results is None:
        results = [restored(line["result"]) for line in lines if line.get("kind") == "verdict"]
    environments: dict[str, tuple[int, Environment]] = {}
    samples, broken = _by_cell(lines, "sample"), _by_cell(lines, "problem", "discarded")
    trends = _trends(history, baselines) if history is not None else {}

    @cache  # several tests may share a cell, and its telemetry is read from files
    def rounds(cell: _Key) -> tuple[Sample, ...]:
        return tuple(_sample(line, folder, environments) for line in samples.get(cell, ()))

    cells = tuple(
        Cell(
            replace(result, entry=None),
            rounds(_key(result)),
            _once(_broken(line) for line in broken.get(_key(result), ())),
            trends.get((result.topology, result.key, result.hardware)),
        )
        for result in results
    )
    ends = [line for line in lines if line.get("kind") == "end"]
    return Document(
        session=folder.name,
        created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        tool=tool_version(),
        exitstatus=ends[-1].get("exitstatus") if ends else None,
        environments=tuple(environment for _, environment in environments.values()),
        cells=cells,
    )


def tool_version() -> str:
    """This plugin's own version, or ``?`` where it is not installed as a package."""
    try:
        return version("pytest-r1perf")
    except PackageNotFoundError:
        return "?"


def _key(result: CellResult) -> _Key:
    return result.topology, result.key, result.platform


def _by_cell(lines: Iterable[Mapping[str, Any]], *kinds: str) -> dict[_Key, list[Mapping[str, Any]]]:
    """A shared measurement's rounds stand under the first test that asked for it, so a cell is told by its key."""
    found: dict[_Key, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line.get("kind") in kinds:
            key = str(line.get("topology")), str(line.get("cell")), str(line.get("platform"))
            found.setdefault(key, []).append(line)
    return found


def _sample(line: Mapping[str, Any], folder: SessionFolder, environments: dict[str, tuple[int, Environment]]) -> Sample:
    environment = Environment(
        side=line.get("side"),
        hardware=str(line.get("hardware", "")),
        host=line.get("host") or {},
        versions=line.get("versions") or {},
        env=line.get("env") or {},
    )
    key = json.dumps([environment.side, environment.hardware, environment.host, environment.versions, environment.env])
    place, _ = environments.setdefault(key, (len(environments), environment))
    return Sample(
        round=int(line["round"]),
        time=str(line.get("time", "")),
        metrics=line["metrics"],
        environment=place,
        windows=tuple(line.get("windows") or ()),
        discarded=int(line.get("discarded") or 0),
        wall_s=float(line.get("wall_s") or 0.0),
        command=tuple(line.get("command") or ()),
        log=str(line.get("log", "")),
        remarks=tuple(line.get("remarks") or ()),
        events=tuple(line.get("events") or ()),
        telemetry=line.get("telemetry") or {},
        readings=readings_beside(_now(str(line.get("log", "")), folder)),
    )


def _broken(line: Mapping[str, Any]) -> Broken:
    return Broken(
        side=line.get("side"),
        verdict=str(line.get("verdict", "")),
        cause=str(line.get("cause") or line.get("reason") or ""),
        log=str(line.get("log") or ""),
        time=str(line.get("time", "")),
    )


def _once(found: Iterable[Broken]) -> tuple[Broken, ...]:
    """Tests that share a cell each record its one broken process: by its log it is the same."""
    known: dict[tuple[object, ...], Broken] = {}
    for number, one in enumerate(found):
        known.setdefault((one.side, one.verdict, one.cause, one.log) if one.log else (number,), one)
    return tuple(known.values())


def _now(log: str, folder: SessionFolder) -> Path:
    """Where a log is now: the record has the path that the session had, and a session may have been moved."""
    path = Path(log)
    if folder.name in path.parts:
        at = len(path.parts) - 1 - path.parts[::-1].index(folder.name)
        return folder.path.joinpath(*path.parts[at + 1 :])
    return path


def readings_beside(log: Path) -> Readings | None:
    """The readings that were saved beside a round's log; ``None`` where there are none, or no longer."""
    path = log.with_name(_TELEMETRY)
    if not log.name or not path.is_file():
        return None
    by_moment: dict[int, list[Mapping[str, Any]]] = {}
    uuids: set[str] = set()
    for one in _told(path):
        by_moment.setdefault(round(float(one["at"])), []).append(one)
        uuids.add(str(one.get("uuid")))
    if not by_moment:
        return None
    moments = sorted(by_moment)
    moments = moments[:: max(1, -(-len(moments) // MOST_READINGS))]
    chosen = [by_moment[moment] for moment in moments]

    def column(name: str, over: Any, scale: float = 1.0) -> tuple[float | None, ...]:
        values = [[one[name] for one in moment if one.get(name) is not None] for moment in chosen]
        return tuple(round(over(each) / scale, 1) if each else None for each in values)

    return Readings(
        gpus=len(uuids),
        at=tuple(float(moment - moments[0]) for moment in moments),
        sm_mhz=column("sm_mhz", min),
        power_w=column("power_w", sum),
        temperature_c=column("temperature_c", max),
        memory_mib=column("memory_bytes", sum, 2**20),
    )


def _told(path: Path) -> Iterator[Mapping[str, Any]]:
    """Readings of a file; a line that is none (the head, an error, half a line) is passed over."""
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            with contextlib.suppress(ValueError):
                one = json.loads(text)
                if isinstance(one, dict) and isinstance(one.get("at"), (int, float)) and "sm_mhz" in one:
                    yield one


def _trends(history: Path, baselines: Path | None) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    """By topology, key and hardware; nothing where no night can be read, since a report must not fail for it."""
    from pytest_r1perf.history.nights import read_history
    from pytest_r1perf.history.trend import Terms, as_dict, trends
    from pytest_r1perf.metrics import METRICS

    try:
        found = trends(read_history([history]), Terms(METRICS["total_throughput"], baselines=baselines))
    except R1PerfError:
        return {}
    return {(one.topology, one.cell, one.hardware): as_dict(one) for one in found if not one.superseded}
