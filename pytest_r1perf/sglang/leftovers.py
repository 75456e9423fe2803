"""What SGLang itself leaves behind on a node when all its processes are gone."""

from __future__ import annotations

import time
from pathlib import Path

from pytest_r1perf.launch.launcher import Closer

_SCRIPT = Path(__file__).parent / "scripts" / "sweep_segments.py"

_SKEW_S = 60.0
"""How far another node's clock may be behind ours; the doctor compares them."""


def segment_closer(python: str) -> Closer:
    """Removes the shared memory that a run which starts now leaves in /dev/shm: nobody else does before a reboot."""
    return Closer((python, "-I", "-c", _SCRIPT.read_text(encoding="utf-8"), f"{time.time() - _SKEW_S:.0f}"))
