"""The options of a real release, read from its own parser beforehand and laid beside the fake as ``options.json``."""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path

TYPES = {"int": int, "float": float}


class ServerArgs:
    """Only the parser of the real class."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add every option as the release has it."""
        path = Path(__file__).parents[2] / "options.json"
        for option in json.loads(path.read_text(encoding="utf-8")) if path.exists() else []:
            if option["nargs"] == "0":
                const = {"action": "store_const", "const": True, "default": _literal(option["default"])}
                parser.add_argument(*option["opts"], dest=option["dest"], **const)
                continue
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
