"""Writes a session's rounds down as they are known, and gives them back.

They are given back to a resumed session, and to another test (or xdist worker) of this one that means the same
measurement.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_r1perf import records
from pytest_r1perf.cell import Cell
from pytest_r1perf.measurement import Discarded, Measurement, Problem, Sample
from pytest_r1perf.ownprocess import WALL_TIME
from pytest_r1perf.records import SessionFolder
from pytest_r1perf.sglang.protocol import differences
from pytest_r1perf.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Kept:
    """What a session already has of a cell: samples in their order, or the problem that ended it."""

    samples: tuple[Sample, ...] = ()
    discarded: tuple[Discarded, ...] = ()
    problem: Problem | None = None
    protocol: Mapping[str, object] = field(default_factory=dict)
    resolved: Mapping[str, object] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Where:
    """What a line says of the place: the hardware's key, the state of its host, and the side of a comparison."""

    hardware: str
    host: Mapping[str, object] = field(default_factory=dict)
    side: str | None = None


@dataclass(frozen=True, slots=True)
class Recorder:
    """One process's pen: ``writer`` names its file in the session's folder."""

    folder: SessionFolder
    writer: str

    def kept(self, prepared: Measurement, where: Where) -> Kept:
        """The rounds of this cell, workload, hardware, environment and command; a problem is kept like a sample.

        Otherwise measuring again until it passes would be one ``--perf-resume`` away. Rounds from before the host
        changed (another driver, kernel, power limit or clock) are left aside, and that is told.
        """
        what = _what(prepared, where)
        own = [line for line in records.lines(self.folder) if all(line.get(key) == what[key] for key in what)]
        here = [line for line in own if line.get("host", where.host) == where.host]
        remarks: tuple[str, ...] = ()
        if len(here) < len(own):
            then = next(line["host"] for line in reversed(own) if line not in here)
            keys = [key for key in {**then, **where.host} if then.get(key) != where.host.get(key)]
            changed = "; ".join(f"{key} {then.get(key, 'absent')} -> {where.host.get(key, 'absent')}" for key in keys)
            remarks = (f"{len(own) - len(here)} earlier rounds are not used: since then the host changed ({changed})",)
        samples = sorted((line for line in here if line["kind"] == "sample"), key=lambda line: int(line["round"]))
        problem = next((line for line in here if line["kind"] == "problem"), None)
        thrown_away = [line for line in here if line["kind"] == "discarded"]
        return Kept(
            samples=tuple(_sample(line, own_process=prepared.cell.mode == "offline") for line in samples),
            discarded=tuple(_discarded(line) for line in thrown_away),
            problem=_problem(problem) if problem else _unlike(samples),
            protocol=samples[0]["protocol"] if samples else {},
            resolved=next((line["resolved"] for line in samples if "resolved" in line), {}),
            remarks=remarks,
        )

    def rounds(self, cell: Cell, side: str | None) -> tuple[int, bool]:
        """How many rounds the session has of a cell, and whether a problem ended it; whatever they rest on."""
        own = [
            line["kind"]
            for line in records.lines(self.folder)
            if line.get("fingerprint") == cell.fingerprint and line.get("side") == side
        ]
        return own.count("sample"), "problem" in own

    def sample(self, measurement: Measurement, outcome: Sample | Discarded, nodeid: str, where: Where) -> None:
        """Append one round; :class:`OSError` when the disk is full."""
        line: dict[str, Any]
        if isinstance(outcome, Discarded):
            line = {
                **_identity("discarded", measurement, nodeid, where),
                "round": outcome.round,
                "reason": outcome.reason,
                "metrics": dict(outcome.metrics),
                "log": outcome.log,
            }
            records.append(self.folder, self.writer, line)
            return
        line = {
            **_identity("sample", measurement, nodeid, where),
            "round": outcome.round,
            "metrics": dict(outcome.metrics),
            "windows": [dict(window) for window in outcome.windows],
            "discarded": outcome.discarded,
            "wall_s": round(outcome.wall_s, 3),
            "log": outcome.log,
            "remarks": list(outcome.remarks),
            "events": [dict(event) for event in outcome.events],
            "telemetry": dict(outcome.telemetry),
            "ceiling": dict(outcome.ceiling),
            "translation": list(measurement.translation),
            "env_there": dict(measurement.env_there),
            "protocol": dict(measurement.protocol),
        }
        if outcome.round == 1:
            line["resolved"] = {key: _plain(value) for key, value in measurement.resolved.items()}
        records.append(self.folder, self.writer, line)

    def problem(self, measurement: Measurement, nodeid: str, where: Where) -> None:
        """Append why a cell broke; best effort, since the verdict is out already."""
        if measurement.problem is None:
            return
        problem = measurement.problem
        line = {
            **_identity("problem", measurement, nodeid, where),
            "verdict": problem.verdict.value,
            "cause": problem.cause,
            "hint": problem.hint,
            "log": problem.log,
        }
        with contextlib.suppress(OSError):
            records.append(self.folder, self.writer, line)


def _identity(kind: str, measurement: Measurement, nodeid: str, where: Where) -> dict[str, Any]:
    return {
        "kind": kind,
        "time": datetime.datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "nodeid": nodeid,
        "topology": measurement.cell.topology.name,
        "cell": measurement.cell.key,
        "platform": measurement.cell.platform.name,
        "host": dict(where.host),
        **_what(measurement, where),
    }


def _what(measurement: Measurement, where: Where) -> dict[str, Any]:
    """What must be the same for two rounds to be of one measurement."""
    return {
        "fingerprint": measurement.cell.fingerprint,
        "workload": measurement.workload.digest if measurement.workload is not None else None,
        "hardware": where.hardware,
        "versions": dict(measurement.versions),
        "env": dict(measurement.env),
        # Rank 0's, its rendezvous a placeholder: another environment of the same version, other stated defaults.
        "command": list(measurement.command),
        "side": where.side,
    }


def _plain(value: object) -> object:
    """A value that JSON gives back as it was, or its text."""
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _sample(line: Mapping[str, Any], *, own_process: bool) -> Sample:
    """A sample line back. In one that is older than the metric, a process of its own tells its time as ``wall_s``."""
    wall_s = float(line["wall_s"])
    return Sample(
        round=int(line["round"]),
        metrics={**({WALL_TIME: wall_s} if own_process else {}), **line["metrics"]},
        wall_s=wall_s,
        log=line["log"],
        remarks=tuple(line["remarks"]),
        events=tuple(line.get("events", ())),
        telemetry=line.get("telemetry", {}),
        windows=tuple(line.get("windows", ())),
        discarded=int(line.get("discarded", 0)),
        ceiling=line.get("ceiling", {}),
    )


def _discarded(line: Mapping[str, Any]) -> Discarded:
    return Discarded(int(line["round"]), line["reason"], line["metrics"], line["log"])


def _unlike(samples: Sequence[Mapping[str, Any]]) -> Problem | None:
    """The first round that was not measured as the first one was, whoever measured it."""
    for line in samples[1:]:
        changed = differences(samples[0]["protocol"], line["protocol"])
        if changed:
            return unlike(int(line["round"]), changed, line["log"])
    return None


def unlike(number: int, changed: Sequence[str], log: str) -> Problem:
    """Rounds that were not measured by one protocol must not be pooled."""
    cause = f"protocol: round {number} was not measured like those before it: {'; '.join(changed)}"
    return Problem(Verdict.INVALID, cause, log=log)


def _problem(line: Mapping[str, Any]) -> Problem:
    return Problem(Verdict(line["verdict"]), line["cause"], line["hint"], line["log"])
