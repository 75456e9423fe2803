"""Baselines: stored samples of a cell with their provenance, in ``baselines/<hardware>/<topology>.yaml``.

Written for a person to review in git: one block a cell, in a stable order. A file that is wrong is refused when
it is loaded, never repaired in silence. A remark belongs in ``note:``, since comments don't survive an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pytest_r1perf.datafile import Section, is_finite_number, read_yaml
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.hardware import NamedHardware
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.wholefile import write_whole

VERSION = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """One cell's stored samples: metric name -> one value a round, in the metric's unit."""

    key: str
    samples: Mapping[str, tuple[float, ...]]
    protocol: Mapping[str, object]
    provenance: Mapping[str, object]
    tolerance: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class BaselineFile:
    """All baselines of one topology on one hardware."""

    path: Path
    hardware_name: str
    hardware_count: int
    topology: str
    cells: Mapping[str, Baseline]


class _Dumper(yaml.SafeDumper):
    """Mappings one key a line, lists on one line: a diff then shows what changed."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        """A list on one line."""
        del flow_style
        return super().represent_sequence(tag, sequence, flow_style=True)

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Unicode's own line ends escaped: PyYAML writes them bare and reads them back as spaces."""
        style = '"' if any(mark in data for mark in "\x85\u2028\u2029\ufeff") else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)

    def ignore_aliases(self, data: Any) -> bool:
        """Never an alias: it would be gone after the next load, a diff without a change."""
        del data
        return True


_Dumper.add_representer(str, _Dumper.represent_str)


def path_of(root: Path, hardware_key: str, topology: str) -> Path:
    """Where the file of a topology on a hardware lies."""
    return root / hardware_key / f"{topology}.yaml"


def load(path: Path) -> BaselineFile:
    """Read and check a baseline file.

    Raises :class:`DataError` with file, line and key for a repeated key, an unknown metric, a wrong unit or
    sign, a zero, NaN, an unknown version, or metrics with different numbers of rounds.
    """
    data = read_yaml(path)
    version = data.integer("version")
    if version != VERSION:
        data.fail(f"version {version} is not known; this pytest-r1perf reads version {VERSION}", "version")
    hardware = data.section("hardware")
    file = BaselineFile(
        path=path,
        hardware_name=hardware.text("name"),
        hardware_count=hardware.integer("count"),
        topology=data.text("topology"),
        cells={key: _load_cell(key, section) for key, section in data.section("cells").sections()},
    )
    hardware.done()
    data.done()
    if file.topology != path.stem:
        data.fail(f"is {file.topology!r}, but the file is named {path.name}", "topology")
    return file


def store(
    root: Path, hardware: NamedHardware, topology: str, entries: Mapping[str, Baseline], *, only_missing: bool = False
) -> Path:
    """Put entries into the file of a topology, keeping the others, their notes and tolerances; atomically.

    ``only_missing`` leaves an entry alone that is there by now (another session may have been quicker).

    Raises :class:`R1PerfError` when it can't be written; the old file is then untouched.
    """
    path = path_of(root, hardware.key, topology)
    old = load(path).cells if path.exists() else {}
    if only_missing:
        entries = {key: entry for key, entry in entries.items() if key not in old}
    cells = {**old, **{key: _keeping(old.get(key), entry) for key, entry in entries.items()}}
    document = {
        "version": VERSION,
        "hardware": {"name": hardware.name, "count": hardware.count},
        "topology": topology,
        "cells": {key: _dump_cell(cells[key]) for key in sorted(cells)},
    }
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    _write_atomically(path, text)
    return path


def other_hardware(root: Path, hardware_key: str, topology: str, key: str) -> list[BaselineFile]:
    """Files of other hardware that have this cell."""
    found = []
    for path in sorted(root.glob(f"*/{topology}.yaml")):
        if path.parent.name != hardware_key:
            file = load(path)
            if key in file.cells:
                found.append(file)
    return found


def _keeping(old: Baseline | None, new: Baseline) -> Baseline:
    """A new entry with what a reviewer wrote into the old one."""
    if old is None:
        return new
    tolerance = new.tolerance if old.tolerance is None else old.tolerance
    return replace(new, tolerance=tolerance, note=new.note or old.note)


def _load_cell(key: str, data: Section) -> Baseline:
    samples: dict[str, tuple[float, ...]] = {}
    for name, metric in data.section("metrics").sections():
        if name not in METRICS:
            metric.fail(f"metric {name!r} is not known")
        unit = metric.text("unit")
        if unit != METRICS[name].unit:
            metric.fail(f"is {unit!r}, but {name} is in {METRICS[name].unit}", "unit")
        samples[name] = _samples(metric)
        metric.done()
    if not samples:
        data.fail("has no metrics", "metrics")
    if len({len(values) for values in samples.values()}) > 1:
        data.fail("the metrics have different numbers of samples", "metrics")
    baseline = Baseline(
        key=key,
        samples=samples,
        protocol=data.section("protocol").plain(),
        provenance=data.section("provenance").plain(),
        tolerance=data.number("tolerance", below=1.0) if data.get("tolerance") is not None else None,
        note=data.text("note", ""),
    )
    if not baseline.protocol:
        data.fail("has no protocol", "protocol")
    data.done()
    return baseline


def _samples(metric: Section) -> tuple[float, ...]:
    values = metric.need("samples")
    if not isinstance(values, list) or not values:
        metric.fail("must be a list of numbers, one a round", "samples")
    for value in values:
        if not is_finite_number(value) or value <= 0:
            metric.fail(f"every sample must be a finite number above 0, got {value!r}", "samples")
    return tuple(float(value) for value in values)


def _dump_cell(baseline: Baseline) -> dict[str, Any]:
    return {
        "metrics": {
            name: {"unit": METRICS[name].unit, "samples": [_rounded(value) for value in values]}
            for name, values in baseline.samples.items()
        },
        "tolerance": baseline.tolerance,
        "note": baseline.note,
        "protocol": dict(baseline.protocol),
        "provenance": dict(baseline.provenance),
    }


def _rounded(value: float) -> float:
    """Ten significant digits: readable, far below any noise, and never a zero."""
    return float(f"{value:.10g}")


def _write_atomically(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise R1PerfError(f"baseline {path} cannot be written ({error.strerror or error})") from None
