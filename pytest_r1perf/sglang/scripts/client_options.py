"""Runs inside the SGLang environment: prints the options of one serving client. Standard library only, Python 3.8+.

    client_options.py stamp|options MODULE

A client builds its parser where it is run, so it is run up to the point where it would parse, which is answered by its
parser. Nothing is parsed, sent or started. ``stamp`` only looks at the module's file.
"""

import argparse
import importlib.metadata as metadata
import json
import runpy
import sys
from typing import Any


class _Found(BaseException):
    """Not an Exception: no client may catch it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def stamp(module: str) -> "list[int]":
    """Size and time of the module's file: a checkout changes without changing its version."""
    path = metadata.distribution("sglang").locate_file(module.replace(".", "/") + ".py")
    try:
        status = path.stat()  # type: ignore[attr-defined]
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def options(module: str) -> "list[dict[str, Any]]":
    """Every option as the client's own parser has it, as probe.py prints the server's."""

    def found(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> Any:
        raise _Found(parser)

    argparse.ArgumentParser.parse_args = found  # type: ignore[method-assign,assignment]
    argparse.ArgumentParser.parse_known_args = found  # type: ignore[method-assign,assignment]
    sys.argv = [module]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except _Found as got:
        return [
            {
                "opts": list(action.option_strings),
                "dest": action.dest,
                "default": repr(action.default),
                "choices": None if action.choices is None else [str(choice) for choice in action.choices],
                "nargs": None if action.nargs is None else str(action.nargs),
                "action": type(action).__name__,
                "type": getattr(action.type, "__name__", None) if action.type is not None else None,
            }
            for action in got.parser._actions
            if action.option_strings and action.dest != "help"
        ]
    raise LookupError("it ended without parsing a command line")


def main(arguments: "list[str]") -> None:
    """Print one JSON object as the last line of standard output."""
    what, module = arguments
    answer: dict[str, Any] = {"stamp": stamp(module)}
    if what == "options":
        try:
            answer["options"] = options(module)
        except Exception as error:  # whatever a broken installation raises, down to a missing library
            answer["error"] = "{}: {}".format(type(error).__name__, error)  # noqa: UP032
        except SystemExit as error:
            answer["error"] = "it ended by itself with {!r}".format(error.code)  # noqa: UP032
    print(json.dumps(answer))


main(sys.argv[1:])
