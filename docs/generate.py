"""Write docs/reference/ from the code: `python docs/generate.py`; with --check it only says what is stale.

What it writes is committed: it can be read where nothing is built, and a changed option is seen in the review of the
change itself. `tests/test_docs_reference.py` fails while a page is stale.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

import click

from pytest_r1perf import antipatterns, deployment, launchsettings, platform, recipe, topology, workload
from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.ceilings import gpumodel
from pytest_r1perf.cli import cli
from pytest_r1perf.datafile import Section
from pytest_r1perf.marker import ARGUMENTS, perf
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.options import add_options
from pytest_r1perf.verdict import Verdict

DOCS = Path(__file__).parent
EXAMPLE = DOCS / "every-key.yaml"
_MADE = "<!-- Made by docs/generate.py from the code: edit the code, then run `python docs/generate.py`. -->"


def pages() -> dict[str, str]:
    """Every page of the reference: file name to text."""
    return {
        "options.md": _options(),
        "commands.md": _commands(),
        "marker.md": _marker(),
        "metrics.md": _metrics(),
        "verdicts.md": _verdicts(),
        "yaml.md": _yaml(),
    }


def stale(folder: Path = DOCS / "reference") -> list[str]:
    """Names of pages that are not what the code says, those included that it no longer makes."""
    made = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([_MADE, f"# {title}", *(part.strip() for part in parts if part.strip())]) + "\n"


def _cell(text: object) -> str:
    """One cell of a Markdown table: on one line, without an early column; ``` ``x`` ``` of a docstring is `x`."""
    return _prose(str(text)).replace("|", "\\|").replace("\n", " ")


def _prose(text: str) -> str:
    """A docstring as Markdown: roles and double backticks become single ones."""
    text = re.sub(r":(?:class|func|meth|mod):`~?([^`]+)`", r"`\1`", text)
    return text.replace("``", "`")


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(item) for item in line) + " |" for line in lines)


def _code(text: object) -> str:
    return f"`{text}`" if text not in (None, "") else ""


@dataclass
class _Parser:
    """What `add_options` is given in place of pytest's parser; it keeps the order."""

    options: list[tuple[tuple[str, ...], dict[str, Any]]] = field(default_factory=list)
    ini: list[tuple[str, str, str]] = field(default_factory=list)

    def getgroup(self, _name: str, _description: str) -> _Parser:
        return self

    def addoption(self, *names: str, **attributes: Any) -> None:
        self.options.append((names, attributes))

    def addini(self, name: str, text: str, *, type: str, default: object) -> None:
        assert default is None
        self.ini.append((name, type, text))


def _options() -> str:
    parser = _Parser()
    add_options(parser)  # type: ignore[arg-type]
    ini = {name: text for name, _, text in parser.ini}
    rows = []
    for names, given in parser.options:
        twin = str(given.get("dest") or names[0].lstrip("-").replace("-", "_"))
        value = given.get("metavar", "")
        again = "yes" if given.get("action") == "append" else ""
        spelled = ", ".join(_code(f"{name} {value}".strip()) for name in names)
        rows.append([spelled, _code(twin if twin in ini else ""), again, given["help"]])
    return _page(
        "Options of pytest",
        "In `pytest --help` they stand under `r1perf`. An option outranks its twin in the ini file.",
        _table(["option", "ini", "may be repeated", "meaning"], rows),
        "## Keys of the ini file\n\n"
        + _table(
            ["key", "type", "meaning"],
            [[_code(name), kind, text.partition(": ")[2]] for name, kind, text in parser.ini],
        ),
    )


def _walk(command: click.Command, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _walk(command.commands[name], (*names, name))
    else:
        yield names, command


def _commands() -> str:
    parts = []
    for names, command in _walk(cli, ("r1perf",)):
        options = [item for item in command.params if isinstance(item, click.Option)]
        words = [_usage(item) for item in command.params if isinstance(item, click.Argument)]
        usage = " ".join([*names, *(["[OPTIONS]"] if options else []), *words])
        text = inspect.cleandoc(command.help or "").replace("\b\n", "")
        rows = [[_spelled(item), _default(item), item.help or ""] for item in options if not item.hidden]
        table = _table(["option", "default", "meaning"], rows) if rows else ""
        # The text is as `--help` prints it, in a block of its own: its layout is the command's.
        parts += [f"## {' '.join(names)}", f"```text\n{usage}\n\n{text}\n```", table]
    return _page("Commands of r1perf", "`r1perf COMMAND --help` prints the same.", *parts)


def _usage(item: click.Argument) -> str:
    name = item.metavar or item.human_readable_name
    name += "..." if item.nargs == -1 and not name.endswith("...") else ""
    return name if item.required else f"[{name}]"


def _spelled(item: click.Option) -> str:
    if item.is_flag:
        value = ""
    elif isinstance(item.type, click.Choice):
        value = "|".join(map(str, item.type.choices))
    else:
        value = item.metavar or item.type.name.upper()
    names = [*item.opts, *item.secondary_opts]
    again = ", may be repeated" if item.multiple else ""
    needed = ", needed" if item.required else ""
    return ", ".join(_code(f"{name} {value}".strip()) for name in names) + again + needed


def _default(item: click.Option) -> str:
    value = item.default
    if value is None or item.is_flag or item.required or callable(value) or type(value).__name__ == "Sentinel":
        return ""
    return _code(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value)


def _marker() -> str:
    signature = inspect.signature(perf, eval_str=False)
    rows = []
    for name in ARGUMENTS:
        item = signature.parameters[name]
        default = "" if item.default is inspect.Parameter.empty else _code(repr(item.default))
        rows.append([_code(name), _code(item.annotation), default or "needed"])
    text = inspect.cleandoc(perf.__doc__ or "")
    example, rest = re.search(r"::\n\n(.*?)\n\n(.*)", text, re.S).groups()  # type: ignore[union-attr]
    return _page(
        "The marker's arguments",
        "A parametrized argument of the same name overrides the marker's.",
        _table(["argument", "type", "default"], rows),
        f"```python\n{inspect.cleandoc(example)}\n```",
        _prose(rest),
    )


_NEEDS = {
    "": "every mode",
    "process": "offline",
    "batch": "serve, one batch",
    "traffic": "serve, traffic",
    "slo": "serve, traffic with an `slo`",
}


def _metrics() -> str:
    rows = [
        [_code(item.name), item.unit, "more" if item.better > 0 else "less", item.meaning, _NEEDS[item.needs]]
        for item in METRICS.values()
    ]
    return _page("Metrics", _table(["name", "unit", "better", "what is divided by what", "measured in"], rows))


def _verdicts() -> str:
    rows = []
    for item in Verdict:
        outcome = "fails" if item.fails else "decides" if item.decided else "fails under `--perf-gate`, else skipped"
        rows.append([item.value, _code(f"Verdict.{item.name}"), outcome])
    return _page(
        "Verdicts by name",
        "What each means and what to do next: [verdicts.md](../verdicts.md).",
        _table(["verdict", "in code", "the test"], rows),
    )


_GETTERS = {
    "text": "text",
    "optional_text": "text",
    "integer": "whole number",
    "number": "number",
    "flag": "true or false",
    "texts": "list of texts",
    "section": "mapping",
}
_KINDS: Mapping[str, Sequence[tuple[str, Any]]] = {
    "topologies": [("", topology.Topology)],
    "platforms": [
        ("", platform.Platform),
        ("noise", platform.Noise),
        ("error_rate", platform.ErrorRate),
        ("deployment", deployment.Deployment),
        ("launch", launchsettings.LaunchSettings),
        ("launch.container", launchsettings.ContainerSettings),
    ],
    "recipes": [("", recipe.Recipe), ("published", recipe.Published)],
    "workloads": [("", workload.Workload)],
    "antipatterns": [("", antipatterns.Rule)],
    "gpus": [("", gpumodel.GpuModel)],
}
UNITS = {
    "timeout_s.value": "s",
    "tolerance.value": "fraction",
    "detect.value": "fraction",
    "ceilings.NAME.value": "the metric's",
    "published.value": "the metric's",
    "min_conclusive_n.value": "prompts",
    "published.n": "prompts",
    "rounds.min": "processes",
    "rounds.max": "processes",
    "error_rate.per_night": "probability",
    "error_rate.missed": "probability",
    "error_rate.suite_size": "cells",
    "noise.run_cv": "fraction",
    "noise.session_cv": "fraction",
    "noise.sample_cv": "fraction",
    "noise.host_cv": "fraction",
    "noise.runs": "processes",
    "noise.sessions": "sessions",
    "noise.samples": "windows",
    "noise.discard": "windows",
    "noise.hosts": "hosts",
    "engine.windows": "windows",
    "outputs.min_share": "fraction",
    "launch.dist_port": "port",
    "sharegpt_output_len": "tokens",
    "sharegpt_context_len": "tokens",
    "seed": "-",
    "impact": "fraction",
    "memory_mib.value": "MiB",
    "hbm_tb_per_s.value": "TB/s",
    "l2_mb.value": "MB",
    "tflops.bf16.value": "TFLOP/s",
    "tflops.fp8.value": "TFLOP/s",
    "nodes": "nodes",
    "nnodes": "nodes",
    "gpus_per_node": "GPUs",
    "tp_size": "ranks",
    "pp_size": "stages",
    "dp_size": "replicas",
    "ep_size": "ranks",
}
"""The unit of every number, by its key; a number without one fails a test."""
_NAMED = {"datasets", "ceilings", "protocol", "default_recipes"}
"""Mappings whose keys are the user's own names."""
_FREE = {"flags", "env"}
"""Mappings whose keys are SGLang's."""
_ANY = "any"


@dataclass
class Key:
    """A key that a reader asked for: its type, and what it is when it is not given."""

    kind: str
    default: str
    optional: bool


def keys(example: Path = EXAMPLE) -> dict[str, dict[str, Key]]:
    """Every key of a user's YAML by kind of entry, as the readers ask for it while they read the example.

    ``text``, ``number`` and so on are watched, so that types and defaults are the code's own.
    """
    found: dict[str, dict[str, Key]] = {kind: {} for kind in _KINDS}

    def saw(section: Section, key: str, kind: str, default: object, *, optional: bool) -> None:
        kind_of_entry, *rest = [*section.path, key]
        if len(rest) < 2 or section.file != example or _FREE & set(rest[1:-1]):
            return
        names = ["NAME" if place and rest[place] in _NAMED else part for place, part in enumerate(rest[1:])]
        path = ".".join(names)
        known = found[kind_of_entry].get(path)
        if known is None or (known.kind in ("mapping", _ANY) and kind != _ANY):
            found[kind_of_entry][path] = Key(kind, "" if default is None else str(default), optional)

    with _watched(saw):
        load_catalog([example])
    return found


@contextmanager
def _watched(saw: Callable[..., None]) -> Iterator[None]:
    """While it lasts, every typed getter of :class:`Section` tells what it is asked for."""
    original = {name: getattr(Section, name) for name in (*_GETTERS, "need", "get", "__contains__")}
    needed: set[tuple[object, ...]] = set()
    tested: set[tuple[object, ...]] = set()
    inside = [0]

    def getter(name: str) -> Callable[..., Any]:
        def call(self: Section, key: str, *args: Any, **kwargs: Any) -> Any:
            if not inside[0]:
                where = (*self.path, key)
                default = args[0] if args else kwargs.get("default")
                must = default is None and name in ("text", "integer", "number") and where not in tested
                default = "false" if name == "flag" and default is None else default
                saw(self, key, _GETTERS[name], default, optional=not must and where not in needed)
            inside[0] += 1
            try:
                return original[name](self, key, *args, **kwargs)
            finally:
                inside[0] -= 1

        return call

    def marking(name: str, marks: set[tuple[object, ...]]) -> Callable[..., Any]:
        def call(self: Section, key: str, *args: Any) -> Any:
            if not inside[0]:
                marks.add((*self.path, key))
                if name != "__contains__" and key in self.values:
                    saw(self, key, _ANY, None, optional=name != "need")
            inside[0] += 1
            try:
                return original[name](self, key, *args)
            finally:
                inside[0] -= 1

        return call

    try:
        for name in _GETTERS:
            setattr(Section, name, getter(name))
        Section.need = marking("need", needed)  # type: ignore[method-assign]
        Section.get = marking("get", tested)  # type: ignore[method-assign]
        Section.__contains__ = marking("__contains__", tested)  # type: ignore[method-assign]
        yield
    finally:
        for name, method in original.items():
            setattr(Section, name, method)


def _yaml() -> str:
    parts = []
    for kind, found in keys().items():
        rows = [
            [_code(path), key.kind, UNITS.get(path, "") if "number" in key.kind else "", _when_absent(kind, path, key)]
            for path, key in found.items()
            if key.kind != "mapping" or not any(other.startswith(f"{path}.") for other in found)
        ]
        parts += [f"## {kind}", _table(["key", "type", "unit", "default"], rows)]
        for path, noun in _KINDS[kind]:
            where = _code(path) + ": " if path else ""
            parts.append(where + _prose(inspect.cleandoc(noun.__doc__ or "")))
    return _page(
        "Keys of r1perf.yaml",
        "Where the files lie and how they are laid over each other: [data-files.md](../data-files.md). `NAME` is a "
        "name of yours, and every entry may begin with `extends: NAME`. `needed` is asked of an entry that overrides "
        "no other. The last key of `{value, source}` says where a number is from. All of them once, to copy from: "
        "[every-key.yaml](../every-key.yaml).",
        *parts,
    )


def _when_absent(kind: str, path: str, key: Key) -> str:
    """``needed``, or what the reader or else the noun itself has for it."""
    if not key.optional:
        return "needed"
    section, _, name = path.rpartition(".")
    noun = dict(_KINDS[kind]).get(section)
    of_noun = noun.__dataclass_fields__[name].default if noun and name in noun.__dataclass_fields__ else None
    default = key.default or ("" if of_noun in (None, MISSING, "", ()) else of_noun)
    return _code(str(default).lower() if isinstance(default, bool) else default)


def main(arguments: Sequence[str]) -> int:
    """Write the pages; with ``--check`` exit with 1 where one is stale."""
    old = stale()
    if "--check" in arguments:
        for name in old:
            print(f"docs/reference/{name} is stale: run `python docs/generate.py`", file=sys.stderr)
        return 1 if old else 0
    folder = DOCS / "reference"
    folder.mkdir(exist_ok=True)
    made = pages()
    for name in old:
        if name in made:
            (folder / name).write_text(made[name], encoding="utf-8")
        else:
            (folder / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
