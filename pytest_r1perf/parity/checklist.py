"""The checklist as data: what each item looks at, and the guide's loads and memory fractions (data/parity.yaml)."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.datafile import Section, read_yaml

_FILE = Path(__file__).parents[1] / "data" / "parity.yaml"
COMPARISON = "comparison"


@dataclass(frozen=True, slots=True)
class Entry:
    """One item: the guide's own sentence, and the keys that it is about.

    ``protocol`` are keys of a measurement's protocol, ``where_given`` further ones that only some ways of measuring
    have. ``resolved`` are arguments that SGLang resolved, ``where_resolved`` further ones that count where both
    records have any. ``variables`` is a pattern of environment variables (``None``: the item is about none).
    """

    name: str
    says: str
    protocol: tuple[str, ...] = ()
    where_given: tuple[str, ...] = ()
    resolved: tuple[str, ...] = ()
    where_resolved: tuple[str, ...] = ()
    variables: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class Checklist:
    """The six items by name in the guide's order, its loads and its memory fractions by topology."""

    entries: Mapping[str, Entry]
    comparison_loads: tuple[int, ...]
    peak_loads: Mapping[str, tuple[int, ...]]
    memory_fractions: Mapping[str, float]


@functools.cache
def load_checklist(path: Path = _FILE) -> Checklist:
    """The checklist of a YAML file. Raises :class:`DataError` with file, line and key."""
    data = read_yaml(path)
    entries = {name: _entry(name, section) for name, section in data.section("items").sections()}
    loads = {name: _loads(section) for name, section in data.section("loads").sections()}
    fractions = {}
    for topology, section in data.section("memory_fractions").sections():
        fractions[topology] = section.number("value", below=1.0)
        section.text("source")
        section.done()
    data.done()
    return Checklist(entries, loads.pop(COMPARISON, ()), loads, fractions)


def _entry(name: str, data: Section) -> Entry:
    pattern = data.optional_text("variables")
    try:
        variables = re.compile(pattern) if pattern is not None else None
    except re.error as error:
        data.fail(f"is no pattern ({error})", "variables")
    entry = Entry(
        name=name,
        says=data.text("says"),
        protocol=data.texts("protocol"),
        where_given=data.texts("where_given"),
        resolved=data.texts("resolved"),
        where_resolved=data.texts("where_resolved"),
        variables=variables,
    )
    data.done()
    return entry


def _loads(data: Section) -> tuple[int, ...]:
    values = data.need("n")
    if not isinstance(values, list) or not all(isinstance(value, int) and value > 0 for value in values):
        data.fail(f"must be a list of numbers of prompts, got {values!r}", "n")
    data.text("source")
    data.done()
    return tuple(values)
