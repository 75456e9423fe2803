"""Formats that a document is written in: a format is a file here, named as it is asked for, with a function ``text``.

``text(document)`` gives the whole file; the first line of the module's docstring is what ``--help`` and errors say of
it. Nothing else has to be told of a new one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from pytest_r1perf.document.model import Document
from pytest_r1perf.errors import R1PerfError, did_you_mean


def formats() -> tuple[str, ...]:
    """Names of all formats, e.g. ``github-action-benchmark``."""
    return tuple(sorted(found.name.replace("_", "-") for found in pkgutil.iter_modules(__path__)))


def writer(name: str) -> Callable[[Document], str]:
    """The function that makes a format's text; :class:`R1PerfError` for a name that is none."""
    known = formats()
    if name not in known:
        raise R1PerfError(f"format {name!r} is not known; {did_you_mean(name, known)}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    found: Callable[[Document], str] = module.text
    return found
