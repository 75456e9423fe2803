"""What parity needs of a measured thing, wherever it is kept: a session, a baseline, a measurement of just now."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_r1perf.baseline import Baseline
from pytest_r1perf.changes import command_line
from pytest_r1perf.compare.cells import Measured
from pytest_r1perf.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Recorded:
    """One measured cell, as its record has it.

    ``key`` is its name in a baseline file. ``resolved`` is empty, ``command`` empty and ``env`` ``None`` where the
    record does not have them; ``runs_without`` is how many of its rounds came without a command line or an environment
    of their own.
    """

    name: str
    topology: str
    key: str = ""
    protocol: Mapping[str, object] = field(default_factory=dict)
    resolved: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    env: Mapping[str, str] | None = None
    runs_without: int = 0


def of_measured(cell: Measured, command: str = "", env: Mapping[str, str] | None = None) -> Recorded:
    """A cell as ``r1perf compare`` reads it, with the command line and the environment of its rounds."""
    return Recorded(
        name=cell.label,
        topology=cell.topology,
        key=cell.key,
        protocol=cell.protocol,
        resolved=cell.resolved,
        versions=cell.versions,
        command=command,
        env=env,
    )


def of_baseline(topology: str, entry: Baseline) -> Recorded:
    """A stored baseline."""
    command, env, versions, resolved = (entry.provenance.get(key) for key in ("command", "env", "versions", "resolved"))
    shell = Measured(topology, entry.key, entry.key.partition("/")[0], "", {}, entry.protocol)
    return replace(
        of_measured(shell, command if isinstance(command, str) else "", _texts(env)),
        versions=_texts(versions) or {},
        resolved=resolved if isinstance(resolved, Mapping) else {},
    )


def of_measurement(measurement: Measurement) -> Recorded:
    """A measurement of this session."""
    cell = measurement.cell
    return Recorded(
        name=cell.label,
        topology=cell.topology.name,
        key=cell.key,
        protocol=measurement.protocol,
        resolved=measurement.resolved,
        versions=measurement.versions,
        command=command_line(measurement) if measurement.command else "",
        env=measurement.whole_env,
    )


def command_of(words: object) -> str:
    """A recorded argv as text; empty where it is none."""
    if isinstance(words, Sequence) and words and all(isinstance(word, str) for word in words):
        return words if isinstance(words, str) else shlex.join(words)
    return ""


def _texts(value: object) -> dict[str, str] | None:
    return {str(name): str(item) for name, item in value.items()} if isinstance(value, Mapping) else None
