"""The options of a real release, read from its own parser beforehand and laid beside the fake as ``options.json``."""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path
from typing import Any

TYPES = {"int": int, "float": float}


class ServerArgs:
    """Only the parser of the real class, and a record of what was given: ``given`` differs from the defaults."""

    def __init__(self, given: dict[str, object], log_level: str) -> None:
        self.given = given
        self.log_level = log_level

    @property
    def load_format(self) -> str:
        """As given."""
        return str(self.given.get("load_format", "auto"))

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> ServerArgs:
        """What a parsed command line gives."""
        parser = argparse.ArgumentParser()
        cls.add_cli_args(parser)
        given = {name: value for name, value in vars(args).items() if value != parser.get_default(name)}
        return cls(given, "info")

    def resolve_once(self) -> None:
        """As from 0.5.19 on: nothing is resolved before."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add every option as the release has it."""
        path = Path(__file__).parents[2] / "options.json"
        for option in json.loads(path.read_text(encoding="utf-8")) if path.exists() else []:
            declare(parser, option)


def declare(parser: argparse.ArgumentParser, option: dict[str, Any]) -> None:
    """Add one option as it was recorded."""
    if option["nargs"] == "0":
        const = {"action": "store_const", "const": True, "default": _literal(option["default"])}
        parser.add_argument(*option["opts"], dest=option["dest"], **const)
        return
    nargs = option["nargs"]
    parser.add_argument(
        *option["opts"],
        dest=option["dest"],
        default=_literal(option["default"]),
        type=TYPES.get(option["type"] or "", str),
        choices=option["choices"],
        nargs=int(nargs) if nargs and nargs.isdigit() else nargs,
    )


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
