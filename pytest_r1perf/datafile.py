"""Reading the project's YAML: strict, and every complaint carries file, line and key.

PyYAML keeps the last of two equal keys and drops the line numbers; both hide mistakes in hand-written
files, so this reads the node tree instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from pytest_r1perf.errors import DataError, did_you_mean

_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Section:
    """A mapping of a YAML file that knows where it stands and which keys were read.

    Read values with the typed getters, then call :meth:`done`: a key that nobody asked for is refused.
    """

    file: Path
    line: int
    path: tuple[str, ...]
    values: dict[str, Any]
    places: dict[str, tuple[Path, int]]
    _read: set[str] = field(default_factory=set)

    def fail(self, message: str, key: str | None = None) -> NoReturn:
        """Raise :class:`DataError` with this section's file, the key's line, and ``message``."""
        file, line = self._place(key)
        where = ".".join((*self.path, key) if key else self.path)
        raise DataError(f"{file}:{line}: {where or 'file'}: {message}")

    def _place(self, key: str | None) -> tuple[Path, int]:
        """The file and line of a key, or of the section for a key that isn't there."""
        here = (self.file, self.line)
        return here if key is None else self.places.get(key, here)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def get(self, key: str, default: Any = None) -> Any:
        """The raw value, marked as read."""
        self._read.add(key)
        return self.values.get(key, default)

    def need(self, key: str) -> Any:
        """The raw value; refused when it is missing."""
        if key not in self.values:
            self.fail(f"key {key!r} is missing")
        return self.get(key)

    def text(self, key: str, default: str | None = None) -> str:
        """A non-empty string."""
        value = self.need(key) if default is None else self.get(key, default)
        if not isinstance(value, str) or (not value.strip() and default is None):
            self.fail(f"must be a non-empty text, got {value!r}", key)
        return value

    def optional_text(self, key: str) -> str | None:
        """A string or nothing."""
        return self.text(key) if self.values.get(key) is not None else None

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """A whole number of at least ``minimum``."""
        value = self.need(key) if default is None else self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            self.fail(f"must be a whole number of at least {minimum}, got {value!r}", key)
        return value

    def number(self, key: str, default: float | None = None, *, above: float = 0.0, below: float = math.inf) -> float:
        """A finite number with ``above < value < below``."""
        value = self.need(key) if default is None else self.get(key, default)
        if not is_finite_number(value):
            self.fail(f"must be a number, got {value!r}", key)
        if not above < value < below:
            top = f" and below {below:g}" if math.isfinite(below) else ""
            self.fail(f"must be above {above:g}{top}, got {value!r}", key)
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            self.fail(f"must be true or false, got {value!r}", key)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of non-empty strings (an empty one when it is missing)."""
        values = self.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
            self.fail(f"must be a list of non-empty texts, got {values!r}", key)
        return tuple(values)

    def section(self, key: str) -> Section:
        """A nested mapping (an empty one when it is missing)."""
        value = self.get(key)
        if value is None:
            return Section(*self._place(key), (*self.path, key), {}, {})
        if not isinstance(value, Section):
            self.fail(f"must be a mapping, got {value!r}", key)
        return value

    def sections(self) -> Iterator[tuple[str, Section]]:
        """Every entry, each of which must be a mapping."""
        for key in self.values:
            yield key, self.section(key)

    def plain(self) -> dict[str, Any]:
        """This mapping and those in it as plain dictionaries, all keys marked as read."""
        self._read.update(self.values)
        return {key: _plain(value) for key, value in self.values.items()}

    def done(self) -> None:
        """Refuse a key that was never read."""
        for key in self.values:
            if key not in self._read:
                self.fail(f"key is not known; {did_you_mean(key, self._read)}", key)


def merged(base: Section, over: Section) -> Section:
    """``base`` with the keys of ``over`` in their place; complaints name the file and line that has the key."""
    values = {**base.values, **over.values}
    for key, value in over.values.items():
        if isinstance(value, Section) and isinstance(base.values.get(key), Section):
            values[key] = merged(base.values[key], value)
    return Section(over.file, over.line, over.path, values, {**base.places, **over.places})


def is_finite_number(value: object) -> bool:
    """Whether it is an int or a float (not true or false) that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def read_yaml(path: Path) -> Section:
    """The top mapping of a YAML file.

    Raises :class:`DataError` when it can't be read, isn't YAML, isn't a mapping, or repeats a key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}:1: file: cannot be read ({error})") from None
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> Section:
    """:func:`read_yaml` of a text; ``path`` is only named in complaints."""
    try:
        loader = _Loader(text)
    except (UnicodeError, yaml.YAMLError) as error:
        raise DataError(f"{path}:1: file: not valid YAML ({error})") from None
    try:
        node = loader.get_single_node()
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return Section(path, 1, (), {}, {})
        if not isinstance(node, yaml.MappingNode):
            raise DataError(f"{path}:{node.start_mark.line + 1}: file: must be a mapping")
        return _Reader(loader, path).section(node, (), 0)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise DataError(f"{path}:{line}: file: not valid YAML ({problem})") from None
    finally:
        loader.dispose()


_MOST_NODES = 100_000
"""Far beyond any file of ours; aliases of aliases reach it in a few lines."""
_DEEPEST = 50


class _Reader:
    """From the nodes of one file to sections."""

    def __init__(self, loader: Any, file: Path) -> None:
        self._loader = loader
        self._file = file
        self._nodes = 0

    def section(self, node: yaml.MappingNode, path: tuple[str, ...], depth: int) -> Section:
        values: dict[str, Any] = {}
        places: dict[str, tuple[Path, int]] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key in values:
                self._fail(key_node, (*path, key), f"key stands twice (first in line {places[key][1]})")
            places[key] = (self._file, key_node.start_mark.line + 1)
            values[key] = self._value(value_node, (*path, key), depth + 1)
        return Section(self._file, node.start_mark.line + 1, path, values, places)

    def _key(self, node: yaml.Node, path: tuple[str, ...]) -> str:
        """The key as it is written: ``on`` is no truth value and ``010`` no number here."""
        if not isinstance(node, yaml.ScalarNode) or not node.value.strip():
            self._fail(node, path, "a key must be a text")
        if node.tag == "tag:yaml.org,2002:merge":
            self._fail(node, path, "merge keys (<<) are not read; write 'extends: NAME' in the entry instead")
        return str(node.value)

    def _value(self, node: yaml.Node, path: tuple[str, ...], depth: int) -> Any:
        self._nodes += 1
        if depth > _DEEPEST or self._nodes > _MOST_NODES:
            self._fail(node, path, "is nested too deeply or repeats itself by aliases")
        if isinstance(node, yaml.MappingNode):
            return self.section(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, path, depth + 1) for item in node.value]
        try:
            return self._loader.construct_object(node, deep=True)
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:  # 2026-13-45, !!bool x
            self._fail(node, path, f"is no valid value ({error})")

    def _fail(self, node: yaml.Node, path: tuple[str, ...], message: str) -> NoReturn:
        raise DataError(f"{self._file}:{node.start_mark.line + 1}: {'.'.join(path) or 'file'}: {message}")


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.plain()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
