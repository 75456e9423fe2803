"""How far DeepGEMM's pre-compilation is, which may take longer than a run may.

When SGLang first meets a shape it compiles it for all sizes (0.4.6 to 0.5.23), normally while graphs are captured or in
the warm-up, and shows a progress bar of its own inside the other one. Recorded with 0.5.11 on an H200.
"""

from __future__ import annotations

import re

from pytest_r1perf.sglang.facts import Compiling

_SHAPE = re.compile(r"DeepGEMM JIT Compiling for <(\w{1,60})> (N=\d{1,9}, K=\d{1,9})")
_BAR = re.compile(r"DeepGEMM warmup: [^|]{0,8}\|[^|]{0,200}\| (\d{1,9})/(\d{1,9}) \[")


class CompilingReader:
    """Takes notable lines. ``compiling`` is the shape that is not done yet, None when there is none."""

    def __init__(self) -> None:
        self.compiling: Compiling | None = None
        self._shape = ""

    def feed(self, text: str) -> None:
        """Take one line."""
        if "DeepGEMM" not in text:
            return
        if found := _SHAPE.search(text):
            self._shape = f"{found[1]} {found[2]}"
        if found := _BAR.search(text):
            done, sizes = int(found[1]), int(found[2])
            self.compiling = Compiling(done, sizes, self._shape) if done < sizes else None

    def went_on(self) -> None:
        """The run came to another phase, so whatever was compiled is done."""
        self.compiling = None
