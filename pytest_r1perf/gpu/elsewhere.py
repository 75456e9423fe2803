"""What the GPUs of other hosts did in the timed window, from what their agents sent (``launch/smiwatch.py``).

    watched = watch_of(folder, {0: uuids_of_rank_0, 1: uuids_of_rank_1}, line_no, seconds)

When was the timed window? Rank 0's agent notes how many bytes of output there were at which time there, so the line of
the log that opens the window has a time by that clock, late by at most 0.3 s: the agent looks at the output five times
a second, and keeps ten such notes a second at most. The window ends so many seconds later.

Other hosts have other clocks. All agents are started together, so their first times differ by what connecting took,
and by how far the clocks are apart. Up to ``CLOCKS_AGREE_S`` the clocks are taken to be in step, as they are where NTP
runs; beyond it that host's readings are moved by the difference, which is right to within the time that connecting
took, and said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.gpu.judge import Watched, judge
from pytest_r1perf.gpu.nvml import Gpu, Reading
from pytest_r1perf.gpu.summary import TelemetrySummary, TimedReading, summarize
from pytest_r1perf.launch.ranks import log_name
from pytest_r1perf.launch.smiwatch import FORMAT
from pytest_r1perf.launch.wire import telemetry_name

CLOCKS_AGREE_S = 2.0
"""Connecting to two hosts (ssh's or srun's doing) differs by less, as a rule."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class NodeTelemetry:
    """One node's readings, at times of its own clock (seconds since 1970); ``note``: why there are none.

    ``began``: when its agent did. ``outputs``: (time, bytes that the command had written by then), in order.
    """

    host: str
    began: float
    period_s: float
    gpus: tuple[Gpu, ...]
    readings: tuple[TimedReading, ...]
    outputs: tuple[tuple[float, int], ...]
    note: str = ""


def watch_of(folder: Path, gpus: Mapping[int, Sequence[str]], line_no: int | None, seconds: float) -> Watched:
    """Judge the window that opens with line ``line_no`` (from 1) of rank 0's log in ``folder``, for ``seconds``.

    ``gpus``: which of them were to be watched, by rank. Raises nothing: what is missing is a remark.
    """
    if not any(gpus.values()):
        return Watched()
    if line_no is None:
        return Watched(remarks=("telemetry: the timed window was not seen in the log",))
    nodes, remarks = _loaded(folder, [rank for rank in gpus if gpus[rank]])
    start = _time_of(line_no, folder / log_name(0), nodes[0]) if 0 in nodes else None
    if start is None:
        said = remarks or ["telemetry: none, since rank 0's agent did not tell when the timed window was"]
        return Watched(remarks=tuple(said))
    summary, more = summary_of(nodes, start, seconds)
    throttled, judged = judge(summary)
    return Watched(dict(summary.as_record()), tuple(throttled), (*remarks, *more, *judged))


def summary_of(
    nodes: Mapping[int, NodeTelemetry], start: float, seconds: float
) -> tuple[TelemetrySummary, tuple[str, ...]]:
    """All nodes' GPUs from ``start`` (rank 0's clock) on, and remarks: nodes that were not read, clocks that differ."""
    remarks: list[str] = []
    gpus: list[Gpu] = []
    readings: list[TimedReading] = []
    for _, node in sorted(nodes.items()):
        if node.note:
            remarks.append(f"telemetry: none of {node.host}, since {node.note}: throttling would not be seen")
            continue
        behind = 0.0 if node.host == nodes[0].host else node.began - nodes[0].began
        if abs(behind) <= CLOCKS_AGREE_S:
            behind = 0.0
        else:
            remarks.append(
                f"telemetry: the clocks of {nodes[0].host} and {node.host} differ, or its agent came up late: its "
                f"readings are moved by {-behind:.1f} s (is NTP running on both?)"
            )
        # Another host's GPU is found by its host's name, not by its number.
        gpus += [replace(gpu, name=f"{node.host}: {gpu.name}") for gpu in node.gpus]
        readings += [_placed(item, behind, start) for item in node.readings]
    period_s = max((node.period_s for node in nodes.values()), default=1.0)
    return summarize(readings, gpus, start, start + seconds, period_s=period_s), tuple(remarks)


def load(path: Path) -> NodeTelemetry:
    """Read what an agent sent. Raises :class:`R1PerfError`."""
    try:
        head, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if head["format"] > FORMAT:
            raise R1PerfError(f"{path}: written by a newer pytest-r1perf (format {head['format']}): update this one")
        return NodeTelemetry(
            host=str(head["host"]),
            began=float(head["began"]),
            period_s=float(head["period_s"]),
            gpus=tuple(Gpu(**gpu) for gpu in head["gpus"]),
            readings=tuple(_timed(row) for row in rows if "uuid" in row),
            outputs=tuple((float(row["at"]), int(row["output"])) for row in rows if "output" in row),
            note=str(head["note"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise R1PerfError(
            f"{path}: is no telemetry of another host ({error}); give one that a round has left"
        ) from None


def _loaded(folder: Path, ranks: Sequence[int]) -> tuple[dict[int, NodeTelemetry], list[str]]:
    nodes, remarks = {}, []
    for rank in ranks:
        path = folder / telemetry_name(rank)
        if not path.exists():
            remarks.append(
                f"telemetry: none of rank {rank}, since {path.name} did not come back: throttling would not be seen"
            )
            continue
        try:
            nodes[rank] = load(path)
        except R1PerfError as error:
            remarks.append(f"telemetry: {error}")
    return nodes, remarks


def _timed(row: dict[str, Any]) -> TimedReading:
    at, uuid = float(row.pop("at")), str(row.pop("uuid"))
    if "error" in row:
        return TimedReading(at, uuid, None, str(row["error"]))
    mib = row.pop("memory_mib", None)
    return TimedReading(at, uuid, Reading(**row, memory_bytes=None if mib is None else int(mib) << 20))


def _placed(item: TimedReading, behind: float, start: float) -> TimedReading:
    """By rank 0's clock; ``nvidia-smi`` does not come back after an error, so an early one counts for the window."""
    at = item.at - behind
    return replace(item, at=at if item.reading is not None else max(at, start))


def _time_of(line_no: int, log: Path, node: NodeTelemetry) -> float | None:
    """When the command had written the whole of a line, by its node's clock; ``None`` when that isn't known."""
    try:
        end, size = _end_of(line_no, log), log.stat().st_size
    except OSError:
        return None
    written = node.outputs[-1][1] if node.outputs else 0
    # What a login shell there prints first is in our log, and no output of the command.
    end -= max(0, size - written)
    return next((at for at, output in node.outputs if output >= end), None)


def _end_of(line_no: int, log: Path) -> int:
    """How many bytes there are up to the end of the line, its newline counted."""
    place = lines = 0
    for chunk in _chunks(log):
        ends = chunk.count(b"\n")
        if lines + ends < line_no:
            lines += ends
            place += len(chunk)
            continue
        at = -1
        for _ in range(line_no - lines):
            at = chunk.index(b"\n", at + 1)
        return place + at + 1
    return place


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
