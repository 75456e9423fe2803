"""The serving clients' options (tests/recorded/client-options.json) as tables and as real argparse parsers."""

from __future__ import annotations

import argparse
import ast
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from pytest_r1perf.sglang.clientoptions import Client, ClientKind
from pytest_r1perf.sglang.options import from_probe
from tests.tools import releases

_DATA: dict[str, Any] = json.loads((Path(__file__).parents[1] / "recorded" / "client-options.json").read_text())
_NAMES = {ClientKind.ONE_BATCH: "one_batch", ClientKind.SERVING: "serving"}
_MOVED = {ClientKind.ONE_BATCH: "0.5.14", ClientKind.SERVING: "0.5.15"}

RELEASES: tuple[str, ...] = tuple(_DATA["serving"]["releases"])


def since(first: str, last: str = RELEASES[-1]) -> list[str]:
    """The recorded releases from ``first`` to ``last``, both included."""
    return [release for release in RELEASES if Version(first) <= Version(release) <= Version(last)]


@functools.cache
def own_entries(kind: ClientKind, release: str) -> list[dict[str, Any]]:
    """The client's own options, as the probe prints them."""
    data, found = _DATA[_NAMES[kind]], []
    at = RELEASES.index(release)
    for row in data["options"]:
        entry = dict(zip(data["fields"], row, strict=True))
        if RELEASES.index(entry.pop("first")) <= at <= RELEASES.index(entry.pop("last")):
            if entry["choices"] is not None:
                entry["choices"] = data["choices"][entry["choices"]]
            found.append(entry)
    return found


def entries(kind: ClientKind, release: str) -> list[dict[str, Any]]:
    """All that it takes: bench_one_batch_server takes the server's options as well."""
    return [*(releases.entries(release) if kind is ClientKind.ONE_BATCH else []), *own_entries(kind, release)]


@functools.cache
def client(kind: ClientKind, release: str) -> Client:
    """The client as the code under test sees it."""
    module = kind.value[0] if Version(release) >= Version(_MOVED[kind]) else kind.value[1]
    return Client(kind, module, from_probe(release, entries(kind, release)))


@functools.cache
def _parser(kind: ClientKind, release: str) -> argparse.ArgumentParser:
    made = releases.Parser(prog=f"{_NAMES[kind]}-{release}", add_help=False)
    kinds = {"int": int, "float": float, "_finite_positive_float": float}
    for entry in entries(kind, release):
        action, dest, names = entry["action"], entry["dest"], entry["opts"]
        if action.startswith("Deprecated"):
            continue
        try:
            default = ast.literal_eval(entry["default"])
        except ValueError:
            default = None
        if action == "BooleanOptionalAction":
            made.add_argument(names[0], dest=dest, default=default, action=argparse.BooleanOptionalAction)
        elif entry["nargs"] == "0":
            made.add_argument(*names, dest=dest, default=default, action="store_const", const=not default)
        else:
            type_, nargs = kinds.get(entry["type"], str), entry["nargs"]
            made.add_argument(*names, dest=dest, default=default, nargs=nargs, type=type_, choices=entry["choices"])
    return made


def parse(kind: ClientKind, release: str, argv: Sequence[str]) -> argparse.Namespace:
    """What the release understands of a client's options; :class:`.releases.RefusedError` otherwise."""
    return _parser(kind, release).parse_args(list(argv))
