"""Stands for nothing: pauses Python's garbage collector while SGLang's slowest modules are imported.

Why: importing SGLang makes about a million objects that live on, and the collector walks them again and again: about
1 of 4 s in the main process, and again in the scheduler and the detokenizer that it waits for. One full collection
after the import brings the collector to the state it would be in anyway, so nothing differs while a benchmark is timed.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from contextlib import contextmanager

LAST = "sglang.srt.entrypoints.engine"  # every benchmark and server imports it, after the rest
SLOW_MODULES = ("sglang", LAST)


@contextmanager
def paused(module: types.ModuleType) -> Iterator[None]:
    """No automatic collection inside; what was made counts as old after it, and after `LAST` as collected once."""
    if not gc.isenabled():  # within another pause, or switched off by the user
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # from the permanent generation to the oldest, without a walk
        if module.__name__ == LAST:
            gc.collect()
        gc.enable()
