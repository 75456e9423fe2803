"""``sweep.json``: which sweep a folder belongs to, of which server, and which cases it has."""

from __future__ import annotations

import datetime
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.sglang.server_kind import Server, differences, from_json
from pytest_r1perf.stress.cases import Case, Order, case_named

NAME = "sweep.json"
FORMAT = 1
"""Of ``sweep.json``; a newer one is refused."""

DIGEST = "data set"
"""The condition that tells a data set's bytes. Folders of before 2026-12 lack it, and go on by its name and size."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run asks for. ``conditions``: what of the client changes its numbers (release, dataset, seed)."""

    cases: tuple[Case, ...]
    repeats: int
    order: Order = "shuffled"
    conditions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A sweep: its random id, its server's kind, the starts of that server that it measured, and its cases."""

    sweep: str
    made: str
    server: Server
    starts: tuple[str, ...]
    cases: tuple[Case, ...]
    repeats: int
    order: Order
    conditions: Mapping[str, str]

    def with_start(self, start: str) -> Manifest:
        """With one more start of the server, unless it is known."""
        return self if start in self.starts else replace(self, starts=(*self.starts, start))


def new_manifest(asked: Asked, server: Server) -> Manifest:
    """A sweep that begins now."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return Manifest(
        secrets.token_hex(8), now, server, (), asked.cases, asked.repeats, asked.order, dict(asked.conditions)
    )


def extended(known: Manifest, asked: Asked, server: Server, folder: Path) -> Manifest:
    """The sweep with the cases and repeats that a new run asks for beside its own.

    Raises :class:`R1PerfError` where the server or the client is another one: its numbers would not belong here.
    """
    changed = differences(known.server, server)
    if changed:
        raise R1PerfError(
            f"{folder} holds a sweep of another server ({'; '.join(changed)}): nothing is measured; name a new folder"
        )
    for name in sorted(known.conditions.keys() | asked.conditions.keys()):
        old, new = known.conditions.get(name, "unset"), asked.conditions.get(name, "unset")
        if old != new and (name != DIGEST or name in known.conditions):
            raise R1PerfError(
                f"{folder} holds a sweep with {name} {old}, not {new}: name a new folder, or ask for {old}"
            )
    more = tuple(case for case in asked.cases if case not in set(known.cases))
    return replace(known, cases=(*known.cases, *more), repeats=max(known.repeats, asked.repeats))


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; ``None`` without one. Raises :class:`R1PerfError` where it is damaged or newer."""
    path = folder / NAME
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise R1PerfError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError:
        raise _damaged(path, "is not JSON") from None
    if not isinstance(data, dict):
        raise _damaged(path, "is no object")
    version = data.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise R1PerfError(f"{path}: written by a newer pytest-r1perf (format {version}): update this one")
    try:
        return _manifest(data)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"lacks or garbles {str(error) or 'a key'}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it whole or not at all; raises OSError."""
    data = {
        "format": FORMAT,
        "sweep": manifest.sweep,
        "made": manifest.made,
        "server": manifest.server.as_json(),
        "starts": list(manifest.starts),
        "cases": [case.name for case in manifest.cases],
        "repeats": manifest.repeats,
        "order": manifest.order,
        "conditions": dict(manifest.conditions),
    }
    write_whole(folder / NAME, json.dumps(data, indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader, also after a kill or a power cut, finds the old or the new; raises OSError."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _manifest(data: Mapping[str, Any]) -> Manifest:
    order = data["order"]
    if order not in ("shuffled", "document"):
        raise ValueError("order")
    repeats = data["repeats"]
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise ValueError("repeats")
    if not isinstance(data["server"], dict) or not isinstance(data["conditions"], dict):
        raise TypeError("server or conditions")
    return Manifest(
        sweep=_text(data, "sweep"),
        made=_text(data, "made"),
        server=from_json(data["server"]),
        starts=tuple(map(str, _list(data, "starts"))),
        cases=tuple(map(_case, _list(data, "cases"))),
        repeats=repeats,
        order=order,
        conditions={str(name): str(value) for name, value in data["conditions"].items()},
    )


def _text(data: Mapping[str, Any], key: str) -> str:
    if not isinstance(data[key], str) or not data[key]:
        raise TypeError(key)
    return str(data[key])


def _list(data: Mapping[str, Any], key: str) -> Sequence[Any]:
    if not isinstance(data[key], list):
        raise TypeError(key)
    return list(data[key])


def _case(name: object) -> Case:
    case = case_named(name) if isinstance(name, str) else None
    if case is None:
        raise ValueError(f"the case {name!r}")
    return case


def _damaged(path: Path, what: str) -> R1PerfError:
    return R1PerfError(f"{path}: {what}: restore it, or name a new folder; the result files beside it are untouched")
