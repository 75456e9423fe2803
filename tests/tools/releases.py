"""The options of 41 SGLang releases (tests/recorded/sglang-options.json) as tables and as real argparse parsers."""

from __future__ import annotations

import argparse
import ast
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from packaging.version import Version

from pytest_r1perf.sglang.options import OptionTable, from_probe

_DATA: dict[str, Any] = json.loads((Path(__file__).parents[1] / "recorded" / "sglang-options.json").read_text())
RELEASES: tuple[str, ...] = tuple(_DATA["releases"])


def releases(first: str, last: str = RELEASES[-1]) -> list[str]:
    """The recorded releases from ``first`` to ``last``, both included."""
    return [release for release in RELEASES if Version(first) <= Version(release) <= Version(last)]


@functools.cache
def entries(release: str) -> list[dict[str, Any]]:
    """What the probe prints in this release."""
    at = RELEASES.index(release)
    found = []
    for row in _DATA["options"]:
        entry = dict(zip(_DATA["fields"], row, strict=True))
        if RELEASES.index(entry.pop("first")) <= at <= RELEASES.index(entry.pop("last")):
            if entry["choices"] is not None:
                entry["choices"] = _DATA["choices"][entry["choices"]]
            found.append(entry)
    return found


@functools.cache
def table(release: str) -> OptionTable:
    """The release's options as the code under test sees them."""
    return from_probe(release, entries(release))


class RefusedError(Exception):
    """The parser refused the command line."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RefusedError(message)


class _Inert(argparse.Action):
    """SGLang's DeprecatedAction: ValueError in 0.5.3, elsewhere a warning and no effect. No command line may use it."""

    def __call__(self, *_: object) -> None:
        raise RefusedError(f"{self.option_strings[0]} is deprecated and does nothing")


@functools.cache
def parser(release: str) -> Parser:
    """A parser with the release's options, abbreviations allowed as SGLang's own has them."""
    made = Parser(prog=f"sglang-{release}", add_help=False)
    kinds = {"int": int, "float": float}
    for entry in entries(release):
        action, dest = entry["action"], entry["dest"]
        try:
            default = ast.literal_eval(entry["default"])
        except ValueError:
            default = None
        names = entry["opts"]
        if action == "DeprecatedAction":
            made.add_argument(*names, dest=dest, nargs=0, action=_Inert)
        elif action == "BooleanOptionalAction":
            made.add_argument(names[0], dest=dest, default=default, action=argparse.BooleanOptionalAction)
        elif action == "DeprecatedStoreConstAction":
            made.add_argument(*names, dest=dest, default=argparse.SUPPRESS, action="store_const", const=names[0])
        elif entry["nargs"] == "0":
            made.add_argument(*names, dest=dest, default=default, action="store_true")
        else:
            default = argparse.SUPPRESS if action == "DeprecatedAliasStoreAction" else default
            nargs, kind = entry["nargs"], kinds.get(entry["type"], str)
            # Recorded as texts; the real parser compares what ``type`` made of a word.
            choices = [kind(choice) for choice in entry["choices"]] if entry["choices"] else None
            made.add_argument(*names, dest=dest, default=default, nargs=nargs, type=kind, choices=choices)
    return made


def parse(release: str, argv: Sequence[str]) -> argparse.Namespace:
    """What the release understands of a command line; :class:`RefusedError` otherwise."""
    return parser(release).parse_args(list(argv))
