"""A platform's ``noise:`` into a user's YAML file, every other byte of which stays as it is.

The new lines are put where the old ones stood; nothing is written out anew from parsed data. (Round-trip writers, tried
with ruamel.yaml 0.19, change indentation, spaces and folded lines, and a comment above the next entry ends up above a
new key.) What comes out is read again before it counts: all other data must be equal, and the catalog must load.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pytest_r1perf.datafile import parse_yaml
from pytest_r1perf.errors import DataError, R1PerfError
from pytest_r1perf.platform import Noise

LEAST_CV = 0.0001
"""Stands for a component of 0: platforms take numbers above 0, and its square is nothing beside any other."""


def lines_of(noise: Noise) -> list[str]:
    """The YAML of a platform's ``noise:``, its keys without indentation; three significant digits."""
    values: dict[str, object] = {
        "run_cv": _cv(noise.run_cv),
        "runs": noise.runs,
        "session_cv": _cv(noise.session_cv),
        "sessions": noise.sessions,
    }
    if noise.sample_cv is not None:
        values |= {"sample_cv": _cv(noise.sample_cv), "samples": noise.samples, "discard": noise.discard}
    if noise.host_cv is not None:
        values |= {"host_cv": _cv(noise.host_cv), "hosts": noise.hosts}
    # JSON's strings are YAML's, whatever is in them.
    return [
        *(f"{key}: {value}" for key, value in values.items()),
        f"source: {json.dumps(noise.source, ensure_ascii=False)}",
    ]


def own_noise(path: Path, platform: str) -> dict[str, Any]:
    """What this file itself says of a platform's noise; empty where it says nothing. Raises :class:`DataError`."""
    if not path.exists():
        return {}
    platforms = parse_yaml(_read(path), path).plain().get("platforms")
    entry = platforms.get(platform) if isinstance(platforms, dict) else None
    noise = entry.get("noise") if isinstance(entry, dict) else None
    return noise if isinstance(noise, dict) else {}


def store_noise(
    path: Path, platform: str, noise: Noise, *, before: Sequence[Path] = (), after: Sequence[Path] = ()
) -> None:
    """Write a platform's noise into ``path``, atomically; a file that isn't there is made.

    ``before`` and ``after`` are the data files that are read before and after it: all of them together must still load.
    Raises :class:`R1PerfError` where the file can't be edited or would then be refused; it is untouched then.
    """
    from pytest_r1perf.catalog import load_catalog

    path = path.resolve()  # a link stays one
    text = _read(path) if path.exists() else ""
    edited = with_noise(text, path, platform, lines_of(noise))
    handle, name = -1, ""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".yaml")
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(edited)
            file.flush()
            os.fsync(file.fileno())
        try:
            load_catalog([*before, Path(name), *after])
        except DataError as error:
            raise R1PerfError(f"nothing is written: {str(error).replace(name, str(path))}") from None
        if path.exists():
            shutil.copymode(path, name)
        else:
            umask = os.umask(0)
            os.umask(umask)
            Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except OSError as error:
        raise R1PerfError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        with contextlib.suppress(OSError):
            if name:
                Path(name).unlink()


def with_noise(text: str, path: Path, platform: str, lines: Sequence[str]) -> str:
    """``text`` with these lines as the platform's ``noise:``; raises :class:`R1PerfError` where that can't be done."""
    before = parse_yaml(text, path).plain()
    place = _find(text, platform)
    if place is None:
        raise R1PerfError(_by_hand(path, platform, lines, "it is written in a way that cannot be added to"))
    old = _split(text)
    newline = "\r\n" if old and old[0].endswith("\r\n") else "\n"
    kept = old[: place.first]
    if kept and not kept[-1].endswith(("\n", "\r")):
        kept[-1] += newline
    fresh = [" " * place.indent + line + newline for line in _block(place.missing, platform, lines)]
    edited = "".join([*kept, *fresh, *old[place.after :]])
    _check(edited, before, path, platform, lines)
    return edited


@dataclass(frozen=True, slots=True)
class _Place:
    """The lines ``first`` to before ``after`` give way to new ones, indented by ``indent``.

    ``missing`` is how many of the keys ``platforms``, NAME and ``noise``, from the last one, have to be made.
    """

    first: int
    after: int
    indent: int
    missing: int


def _block(missing: int, platform: str, lines: Sequence[str]) -> list[str]:
    plain = re.fullmatch(r"[A-Za-z_][\w.-]*", platform, re.ASCII)
    names = ["platforms", platform if plain else json.dumps(platform, ensure_ascii=False), "noise"][3 - missing :]
    heads = ["  " * depth + f"{name}:" for depth, name in enumerate(names)]
    return [*heads, *("  " * missing + line for line in lines)]


def _find(text: str, platform: str) -> _Place | None:
    """Where the noise goes: over the old one, or behind the last line of the deepest mapping that is there.

    ``None`` for what is no block mapping of its own: braces, an alias.
    """
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    end = len(_split(text))
    if node is None or _is_null(node):
        return _Place(end, end, 0, 3)
    key_line = -1
    for missing, name in ((2, "platforms"), (1, platform), (0, "noise")):
        if not isinstance(node, yaml.MappingNode) or node.flow_style or not node.value:
            return None
        start = node.value[0][0].start_mark  # the node's own may be its anchor's
        if start.line <= key_line:
            return None
        found = next(((key, value) for key, value in node.value if key.value == name), None)
        if found is None:
            after = _last_line(node, text) + 1
            return _Place(after, after, start.column, missing + 1)
        key, value = found
        if name == "noise" and not missing:
            return _Place(key.start_mark.line, max(key.end_mark.line, _last_line(value, text)) + 1, start.column, 1)
        if _is_null(value):
            return _Place(key.end_mark.line + 1, key.end_mark.line + 1, start.column + 2, missing)
        node, key_line = value, key.start_mark.line
    return None


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _last_line(node: yaml.Node, text: str) -> int:
    """The last line of a node's own content: where PyYAML ends a block are the comments behind it, too.

    The largest of all its parts: the content of an alias stands further up.
    """
    if isinstance(node, yaml.ScalarNode):
        last = int(node.end_mark.line)
        if node.style in ("|", ">") and node.end_mark.index < len(text):
            lines = _split(text)[:last]
            last -= 1
            indent = _indent(lines[min(node.start_mark.line + 1, last)])
            while last > node.start_mark.line and (not lines[last].strip() or _indent(lines[last]) < indent):
                last -= 1
        return last
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.line)
    parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
    return max(_last_line(part, text) for part in parts)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _check(edited: str, before: dict[str, Any], path: Path, platform: str, lines: Sequence[str]) -> None:
    """All other data are as before, and the new ones are there."""
    wanted = yaml.safe_load("\n".join(lines))
    try:
        after = parse_yaml(edited, path).plain()
    except DataError as error:
        raise R1PerfError(_by_hand(path, platform, lines, str(error).partition(": ")[2])) from None
    old, new = _without(before, platform), _without(after, platform)
    if old != new or after["platforms"][platform]["noise"] != wanted:
        raise R1PerfError(_by_hand(path, platform, lines, "other entries would change with it"))


def _without(data: dict[str, Any], platform: str) -> dict[str, Any]:
    """The data less the platform's noise, empty mappings on the way to it left out."""
    platforms = dict(data.get("platforms") or {})
    entry = {key: value for key, value in (platforms.pop(platform, None) or {}).items() if key != "noise"}
    platforms |= {platform: entry} if entry else {}
    rest = {key: value for key, value in data.items() if key != "platforms"}
    return {**rest, "platforms": platforms} if platforms else rest


def _by_hand(path: Path, platform: str, lines: Sequence[str], why: str) -> str:
    block = "\n".join(f"  {line}" for line in _block(3, platform, lines))
    return f"{path}: cannot be edited ({why}); nothing is written: put this into it yourself:\n{block}"


def _cv(value: float) -> str:
    return f"{max(value, LEAST_CV):.3g}"


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}:1: file: cannot be read ({error})") from None


def _split(text: str) -> list[str]:
    """The lines as YAML counts them, with their ends."""
    return re.findall(r"[^\r\n\x85\u2028\u2029]*(?:\r\n|[\r\n\x85\u2028\u2029])|[^\r\n\x85\u2028\u2029]+\Z", text)
