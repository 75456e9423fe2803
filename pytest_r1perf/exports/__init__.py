"""Formats that a document is written in: a format is a file here, named as it is asked for, with a function ``text``.

``text(document)`` gives the whole file; ``refuse_missing()``, where there is one, raises :class:`R1PerfError` for an
extra that is not installed. Nothing else has to be told of a new one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType

from pytest_r1perf.document.model import Document
from pytest_r1perf.errors import R1PerfError, did_you_mean


def formats() -> tuple[str, ...]:
    """Names of all formats, e.g. ``github-action-benchmark``."""
    return tuple(sorted(found.name.replace("_", "-") for found in pkgutil.iter_modules(__path__)))


def writer(name: str) -> Callable[[Document], str]:
    """The function that makes a format's text; :class:`R1PerfError` for a name that is none."""
    found: Callable[[Document], str] = _module(name).text
    return found


def refuse_missing(name: str) -> None:
    """Raises :class:`R1PerfError` where a format needs what is not installed."""
    refuse = getattr(_module(name), "refuse_missing", None)
    if refuse is not None:
        refuse()


def _module(name: str) -> ModuleType:
    known = formats()
    if name not in known:
        raise R1PerfError(f"format {name!r} is not known; {did_you_mean(name, known)}")
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
