"""The data sets, and the places that a run writes to, on this host."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_r1perf.devices import LeaseError, lease_directory
from pytest_r1perf.doctor.check import Check, fail, gib, ok, told, warn
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.platform import Platform, expand

_CHUNK = 1 << 20
_LONGEST_ENTRY = 1 << 26  # characters; a whole conversation of ShareGPT V3 has far fewer

RESULTS_FREE = 2 << 30
"""Ours: a night's logs and records, with NCCL's own lines in them."""

CACHES_FREE = 10 << 30
"""Ours: kernel caches (Triton, inductor, FlashInfer, DeepGEMM) of a few SGLang versions side by side."""


class NotShareGpt(Exception):
    """The file is not in ShareGPT's format; the text says where."""


def dataset_checks(platform: Platform, default: str, n: int, home: Path) -> list[Check]:
    """Every data set of the platform; only the ``default`` one must be there."""
    return [_dataset(platform, name, name == default, n, home) for name in sorted(platform.datasets)]


def _dataset(platform: Platform, dataset: str, needed: bool, n: int, home: Path) -> Check:
    name = f"data set {dataset}"
    complain = fail if needed else warn
    mend = "give its path in the platform's datasets, or make a generated one (`r1perf dataset make`)"
    try:
        path = Path(expand(platform.datasets[dataset], what=f"platform {platform.name!r}: {name}", home=home))
    except R1PerfError as error:
        return complain(*told(name, error, mend))
    usable = 0
    total = 0
    try:
        for entry in conversations(path):
            total += 1
            usable += is_usable(entry)
            if usable >= n:
                return ok(name, f"{path}: {n} usable conversations or more (counted no further)")
    except OSError as error:
        return complain(name, f"{path}: {error.strerror}", mend)
    except NotShareGpt as error:
        return complain(
            name, f"{path}: {error}", "it must be ShareGPT's JSON: a list of conversations with value texts"
        )
    return complain(
        name,
        f"{path}: {usable} usable conversations of {total}, and N = {n} was asked for; SGLang would run fewer "
        f"without a word",
        "give a longer data set, or a smaller --n",
    )


def is_usable(entry: Any) -> bool:
    """Whether SGLang would take it, as far as can be told without a tokenizer: two turns that hold something.

    SGLang drops a conversation of fewer than two turns, and one whose question or answer has fewer than 2 tokens
    (benchmark/datasets/sharegpt.py). A text of one character has one token; longer ones are taken to have two.

    Raises :class:`NotShareGpt` when it is no conversation at all.
    """
    turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) and "value" in turn for turn in turns[:2]):
        raise NotShareGpt("an entry has no 'conversations' with 'value' texts")
    return len(turns) >= 2 and all(isinstance(turn["value"], str) and len(turn["value"]) > 1 for turn in turns[:2])


def conversations(path: Path) -> Iterator[Any]:
    """The entries of a JSON list one by one: ShareGPT V3 has 640 MB, and a few thousand entries are enough to know.

    Raises OSError, and :class:`NotShareGpt` at the place where the file is no JSON list.
    """
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_CHUNK).lstrip("\ufeff \t\r\n")
        if not text.startswith("["):
            raise NotShareGpt("it is no JSON list" if text else "it is empty")
        text, at, number = text[1:], 0, 0
        ended = False
        while True:
            at = _skip(text, at)
            if at >= len(text) and not ended:
                text, at = file.read(_CHUNK), 0
                ended = not text
                continue
            if text[at : at + 1] == "]":
                return
            try:
                entry, at = decoder.raw_decode(text, at)
            except ValueError:
                more = file.read(max(_CHUNK, len(text) - at))
                if not more or len(text) - at > _LONGEST_ENTRY:
                    raise NotShareGpt(f"entry {number} is not complete JSON: was it downloaded to the end?") from None
                text, at = text[at:] + more, 0
                continue
            number += 1
            yield entry


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def disk_checks(out: Path, caches: Path) -> list[Check]:
    """Room for results and logs (``out``) and for kernel caches (the home directory's, or where they were moved)."""
    return [
        _room("results", out, RESULTS_FREE, "--perf-out names another directory"),
        _room("kernel caches", caches, CACHES_FREE, "XDG_CACHE_HOME and the caches' own variables move them"),
    ]


def _room(name: str, folder: Path, needed: int, mend: str) -> Check:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        return fail(name, f"{place}: {error.strerror}", mend)
    text = f"{folder}: {gib(free)} free"
    if not os.access(place, os.W_OK):
        return fail(name, f"{text}, and {place} is not writable for this user", mend)
    if free < needed:
        return warn(name, f"{text}; {gib(needed)} is a wise minimum", f"make room, or {mend}")
    return ok(name, text)


def lease_check(configured: Path | None) -> Check:
    """Whether the lease directory will do; it is made when it is missing, as at a session's start."""
    try:
        return ok("leases", f"{lease_directory(configured)}: on this host and writable")
    except LeaseError as error:
        return fail(*told("leases", error, "name another with --lease-dir and the ini option perf_lease_dir"))


def own_check() -> Check:
    """What we run on."""
    packages = ("pytest-r1perf", "pytest", "pytest-xdist", "nvidia-ml-py")
    found = []
    for package in packages:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {package}")
    return ok("versions", f"Python {sys.version.split()[0]}, {', '.join(found)}")
