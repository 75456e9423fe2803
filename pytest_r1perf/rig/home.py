"""Where the CPU rig lives on this machine."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_SGLANG_VERSION = "0.5.20"


def home() -> Path:
    """``$R1PERF_HOME``, else ``$XDG_CACHE_HOME/pytest-r1perf``, else ``~/.cache/pytest-r1perf``; may not exist."""
    if own := os.environ.get("R1PERF_HOME"):
        return Path(own).expanduser().absolute()
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache).expanduser().absolute() / "pytest-r1perf"
    return Path.home() / ".cache" / "pytest-r1perf"


def rig_dir(version: str = DEFAULT_SGLANG_VERSION) -> Path:
    """The virtual environment of one SGLang version."""
    return home() / "rig" / f"sglang-{version}"


def model_dir() -> Path:
    """The tiny model of R1's architecture."""
    return home() / "models" / "r1-tiny"


def dataset_path() -> Path:
    """The generated ShareGPT-format file."""
    return home() / "datasets" / "sharegpt-like.json"


def interpreter(directory: Path) -> Path:
    """The Python of the virtual environment in ``directory``."""
    return directory / "bin" / "python"
