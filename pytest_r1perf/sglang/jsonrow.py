"""One JSON object of a client's result file, read key by key; what is not as SGLang writes it is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn


class RowRefused(Exception):
    """A row is not a measurement; ``name`` is the check that it failed, the text says what of it."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name


def refuse(name: str, sentence: str) -> NoReturn:
    """Raise :class:`RowRefused`; the sentence goes on after ``result line 3:``."""
    raise RowRefused(name, sentence)


def written(path: Path) -> bytes:
    """What a client wrote, nothing where there is no such file; OSError where it is there and can't be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def load(line: bytes) -> dict[str, object]:
    """The object; a key that is there twice is refused, since one of both values would be lost."""
    try:
        loaded = json.loads(line.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        refuse("not-json", f"is not JSON ({str(error)[:120]})")
    if not isinstance(loaded, dict):
        refuse("not-object", f"is a {type(loaded).__name__}, not an object")
    return loaded


def count(row: Mapping[str, object], key: str, *, least: int = 0) -> int:
    """A whole number of at least ``least``."""
    value = needed(row, key)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        refuse("wrong-type", f"{key} is {value!r}, not a whole number of at least {least}")
    return value


def number(row: Mapping[str, object], key: str) -> float:
    """A finite number."""
    return finite(needed(row, key), key)


def finite(value: object, what: str) -> float:
    """``value`` as a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse("wrong-type", f"{what} is {value!r}, not a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        refuse("not-finite", f"{what} is {found}")
    return found


def needed(row: Mapping[str, object], key: str) -> object:
    """The value of a key that every such row has."""
    if key not in row:
        refuse("missing-key", f"has no {key}")
    return row[key]


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        refuse("duplicate-key", f"has the key {next(key for key in keys if keys.count(key) > 1)!r} more than once")
    return found
