"""Writes a session's rounds down as they are known, and gives them back.

They are given back to a resumed session, and to another test (or xdist worker) of this one that means the same
measurement.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_r1perf import records
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.records import SessionFolder
from pytest_r1perf.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Kept:
    """What a session already has of a cell: samples in their order, or the problem that ended it."""

    samples: tuple[Sample, ...]
    problem: Problem | None
    protocol: Mapping[str, object]
    resolved: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Recorder:
    """One process's pen: ``writer`` names its file in the session's folder."""

    folder: SessionFolder
    writer: str

    def kept(self, prepared: Measurement, hardware: str) -> Kept:
        """The rounds of this cell, workload, hardware, environment and command; a problem is kept like a sample.

        Otherwise measuring again until it passes would be one ``--perf-resume`` away.
        """
        what = _what(prepared, hardware)
        own = [line for line in records.lines(self.folder) if all(line.get(key) == what[key] for key in what)]
        samples = sorted((line for line in own if line["kind"] == "sample"), key=lambda line: int(line["round"]))
        problem = next((line for line in own if line["kind"] == "problem"), None)
        return Kept(
            samples=tuple(self._sample(line) for line in samples),
            problem=_problem(problem) if problem else None,
            protocol=samples[0]["protocol"] if samples else {},
            resolved=samples[0].get("resolved", {}) if samples else {},
        )

    def sample(self, measurement: Measurement, sample: Sample, nodeid: str, hardware: str) -> None:
        """Append one round; :class:`OSError` when the disk is full."""
        line: dict[str, Any] = {
            **_identity("sample", measurement, nodeid, hardware),
            "round": sample.round,
            "metrics": dict(sample.metrics),
            "wall_s": round(sample.wall_s, 3),
            "log": sample.log,
            "remarks": list(sample.remarks),
            "events": [dict(event) for event in sample.events],
            "telemetry": dict(sample.telemetry),
            "translation": list(measurement.translation),
            "env_there": dict(measurement.env_there),
            "protocol": dict(measurement.protocol),
        }
        if sample.round == 1:
            line["resolved"] = {key: _plain(value) for key, value in measurement.resolved.items()}
        records.append(self.folder, self.writer, line)

    def problem(self, measurement: Measurement, nodeid: str, hardware: str) -> None:
        """Append why a cell broke; best effort, since the verdict is out already."""
        if measurement.problem is None:
            return
        problem = measurement.problem
        line = {
            **_identity("problem", measurement, nodeid, hardware),
            "verdict": problem.verdict.value,
            "cause": problem.cause,
            "hint": problem.hint,
            "log": problem.log,
        }
        with contextlib.suppress(OSError):
            records.append(self.folder, self.writer, line)

    def _sample(self, line: Mapping[str, Any]) -> Sample:
        return Sample(
            round=int(line["round"]),
            metrics=line["metrics"],
            wall_s=float(line["wall_s"]),
            log=line["log"],
            remarks=tuple(line["remarks"]),
            events=tuple(line.get("events", ())),
            telemetry=line.get("telemetry", {}),
        )


def _identity(kind: str, measurement: Measurement, nodeid: str, hardware: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "time": datetime.datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "nodeid": nodeid,
        "topology": measurement.cell.topology.name,
        "cell": measurement.cell.key,
        **_what(measurement, hardware),
    }


def _what(measurement: Measurement, hardware: str) -> dict[str, Any]:
    """What must be the same for two rounds to be of one measurement."""
    return {
        "fingerprint": measurement.cell.fingerprint,
        "workload": measurement.workload.digest if measurement.workload is not None else None,
        "hardware": hardware,
        "versions": dict(measurement.versions),
        "env": dict(measurement.env),
        # Rank 0's, its rendezvous a placeholder: another environment of the same version, other stated defaults.
        "command": list(measurement.command),
    }


def _plain(value: object) -> object:
    """A value that JSON gives back as it was, or its text."""
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _problem(line: Mapping[str, Any]) -> Problem:
    return Problem(Verdict(line["verdict"]), line["cause"], line["hint"], line["log"])
