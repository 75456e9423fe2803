"""A cell's result as plain data: what travels from an xdist worker to the table, the record and a baseline."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pytest_r1perf.statistics import Interval
from pytest_r1perf.verdict import Judgement, Verdict

OLD_ENVIRONMENT = "old environment"
"""What a cell is compared with in a session of two environments."""


CHANGES = ("versions", "host", "command", "env", "resolved")
"""Kinds of notes on what differs from what a cell is compared with, in the order of what most likely explains it."""


@dataclass(frozen=True, slots=True)
class MeasuredOn:
    """The hardware that a cell was measured on, here or on another host: what a baseline is filed under."""

    key: str
    name: str
    count: int


@dataclass(frozen=True)
class CellResult:
    """One measured (or skipped) cell of one test; JSON-able by :meth:`as_dict`.

    ``hardware`` is the key; ``hardware_name`` and ``hardware_count`` are the rest of it, empty and 0 where the
    cell came to no hardware (it is then ``"none"``, or what this host has).
    ``notes`` are sentences for the report: advisories, floors not applied, what differs from the baseline.
    ``engine`` is the same for cells whose rounds are of the same engines. ``against`` is what it is compared with.
    ``discarded`` processes and windows only warmed up. ``ceilings`` are the fractions of the hardware's bound that were
    reached, by metric. ``outputs`` are lines on two environments' answers. ``effects`` are what ``perf_lab`` made of
    several cells, as plain data with their ``text`` for a terminal (:meth:`pytest_r1perf.effects.Effect.as_dict`).
    ``entry`` is what a baseline would store, ``None`` when there is nothing to store.
    """

    nodeid: str
    topology: str
    key: str
    label: str
    platform: str
    hardware: str
    verdict: Verdict
    cause: str = ""
    judgements: tuple[Judgement, ...] = ()
    medians: Mapping[str, float] = field(default_factory=dict)
    rounds: int = 0
    log: str = ""
    reproduce: str = ""
    notes: tuple[str, ...] = ()
    quarantined: bool = False
    failed: bool = False
    error_rate: float = 0.0
    missed_rate: float = 0.0
    hardware_name: str = ""
    hardware_count: int = 0
    engine: str = ""
    against: str = "baseline"
    outputs: tuple[str, ...] = ()
    discarded: int = 0
    ceilings: Mapping[str, float] = field(default_factory=dict)
    effects: tuple[Mapping[str, Any], ...] = ()
    entry: Mapping[str, Any] | None = None

    @property
    def measured_on(self) -> MeasuredOn | None:
        """The hardware of the node that it was measured on; ``None`` where there was none."""
        if not self.hardware_name:
            return None
        return MeasuredOn(self.hardware, self.hardware_name, self.hardware_count)

    @property
    def changed(self) -> tuple[str, ...]:
        """What differs from what it is compared with: versions, host settings, command line, environment, ..."""
        return tuple(note for note in self.notes if note.partition(": ")[0] in CHANGES)

    @property
    def side_by_side(self) -> bool:
        """Whether two environments of one session were compared, not a session with a baseline."""
        return self.against == OLD_ENVIRONMENT

    def as_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists, texts and numbers only."""
        data = asdict(self)
        data["verdict"] = self.verdict.value
        for judgement in data["judgements"]:
            judgement["verdict"] = judgement["verdict"].value
        data["judgements"] = list(data["judgements"])
        data["notes"] = list(self.notes)
        data["outputs"] = list(self.outputs)
        data["effects"] = list(self.effects)
        return data


def result_from(data: Mapping[str, Any]) -> CellResult:
    """The inverse of :meth:`CellResult.as_dict`."""
    plain = dict(data)
    plain["verdict"] = Verdict(plain["verdict"])
    plain["judgements"] = tuple(_judgement(item) for item in plain["judgements"])
    plain["notes"] = tuple(plain["notes"])
    plain["outputs"] = tuple(plain["outputs"])
    plain["effects"] = tuple(plain["effects"])
    return CellResult(**plain)


def restored(data: Mapping[str, Any]) -> CellResult:
    """A result out of JSON, where an endless limit is ``null`` and an older record may lack what came later."""
    known = {item.name for item in fields(CellResult)}
    plain = {key: value for key, value in data.items() if key in known}
    judgements = []
    for item in plain.get("judgements", ()):
        judgement = dict(item)
        for key in ("ratio", "mean"):
            if judgement.get(key) is not None:
                judgement[key] = {name: math.inf if v is None else v for name, v in judgement[key].items()}
        judgements.append(judgement)
    return result_from({"notes": (), "outputs": (), "effects": (), **plain, "judgements": judgements})


def verdict_line(result: CellResult) -> dict[str, Any]:
    """A result's line in the session's record. An endless limit (nothing was known yet) is ``null`` there."""
    now = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
    return {"kind": "verdict", "time": now, "result": finite(result.as_dict())}


def finite(value: Any) -> Any:
    """Plain data as JSON can hold it: an endless limit is ``None``."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _judgement(data: Mapping[str, Any]) -> Judgement:
    plain = dict(data)
    plain["verdict"] = Verdict(plain["verdict"])
    for key in ("ratio", "mean"):
        if plain[key] is not None:
            plain[key] = Interval(**plain[key])
    return Judgement(**plain)
