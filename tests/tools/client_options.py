"""Makes tests/recorded/client-options.json from a folder with one SGLang package a release (0.5.9/sglang/...).

    python -m tests.tools.client_options FOLDER

The serving clients' own parsers, without importing SGLang: the statements that build a parser are taken out of the
source and run, with what they name beside argparse. The server's options, which ``bench_one_batch_server`` takes as
well, are left out: tests/recorded/sglang-options.json has them.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import math
import sys
import typing
from pathlib import Path
from typing import Any

from packaging.version import Version

from tests.tools.compact_options import compact

TARGET = Path(__file__).parents[1] / "recorded" / "client-options.json"

SERVING = ("sglang/benchmark/serving.py", "sglang/bench_serving.py")
ONE_BATCH = (
    "sglang/benchmark/one_batch_server.py",
    "sglang/test/bench_one_batch_server_internal.py",
    "sglang/bench_one_batch_server.py",
)
HELPERS = ("LoRAPathAction", "_finite_positive_float", "_goodput_slo", "_DEFAULT_SGLANG_FLUSH_CACHE_TIMEOUT")
IMPORTED = {"GOODPUT_SLO_METRICS": ("ttft", "tpot", "e2el")}  # of benchmark/goodput.py, 0.5.23


class _ParsedError(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


class _Parser(argparse.ArgumentParser):
    def parse_args(self, *_: object, **__: object) -> typing.NoReturn:
        raise _ParsedError(self)


def serving(source: str) -> argparse.ArgumentParser:
    """The parser that bench_serving builds when it is run."""
    tree = ast.parse(source)
    names = _names()
    body: list[ast.stmt] = []
    for node in tree.body:
        named = getattr(node, "name", None) or (
            node.targets[0].id if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) else None
        )
        if named in HELPERS:
            exec(compile(ast.Module([node], []), "helpers", "exec"), names)
        if named == "ASYNC_REQUEST_FUNCS" and isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            names["ASYNC_REQUEST_FUNCS"] = {key.value: None for key in node.value.keys if isinstance(key, ast.Constant)}
        if named == "cli_main" and isinstance(node, ast.FunctionDef):
            body = node.body
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) and not body:
            body = node.body
    try:
        exec(compile(ast.Module(body, []), "parser", "exec"), names)
    except _ParsedError as parsed:
        return parsed.parser
    raise LookupError("no parser")


def one_batch(source: str) -> argparse.ArgumentParser:
    """The parser with bench_one_batch_server's own options."""
    names = _names()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == "BenchArgs":
            exec(compile(ast.Module([node], []), "BenchArgs", "exec"), names)
    parser = argparse.ArgumentParser()
    names["BenchArgs"].add_cli_args(parser)
    return parser


def _names() -> dict[str, Any]:
    made = argparse.Namespace(ArgumentParser=_Parser, Action=argparse.Action, Namespace=argparse.Namespace)
    made.ArgumentTypeError = argparse.ArgumentTypeError
    return {
        **{name: getattr(typing, name) for name in ("Optional", "List", "Tuple", "Dict", "Any")},
        "argparse": made,
        "ArgumentParser": _Parser,
        "dataclasses": dataclasses,
        "math": math,
        **IMPORTED,
    }


def listed(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """As the probe prints it."""
    return [
        {
            "opts": list(action.option_strings),
            "dest": action.dest,
            "default": repr(action.default),
            "choices": None if action.choices is None else [str(choice) for choice in action.choices],
            "nargs": None if action.nargs is None else str(action.nargs),
            "action": type(action).__name__,
            "type": getattr(action.type, "__name__", None),
        }
        for action in parser._actions
        if action.option_strings and action.dest != "help"
    ]


def main() -> None:
    """Write both tables."""
    folders = sorted(Path(sys.argv[1]).iterdir(), key=lambda folder: Version(folder.name))
    tables = {}
    for client, files, build in (("serving", SERVING, serving), ("one_batch", ONE_BATCH, one_batch)):
        dumps = {}
        for folder in folders:
            path = next(folder / name for name in files if (folder / name).exists())
            dumps[folder.name] = listed(build(path.read_text()))
        tables[client] = compact(dumps)
    text = ["{"]
    for client, table in tables.items():
        text.append(f'"{client}": {{"fields": {json.dumps(table["fields"])},')
        text.append(f'"releases": {json.dumps(table["releases"])},')
        for key in ("choices", "options"):
            rows = ",\n".join(json.dumps(row) for row in table[key])
            text.append(f'"{key}": [\n{rows}\n]' + ("," if key == "choices" else ""))
        text.append("}" + ("," if client == "serving" else ""))
    TARGET.write_text("\n".join([*text, "}"]) + "\n")


if __name__ == "__main__":
    main()
