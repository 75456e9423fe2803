"""A file with one JSON value that saves seconds: read if it is well, written if it can be."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def entry(folder: Path, *key: object) -> Path:
    """The file for a key (anything that JSON takes)."""
    return folder / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]}.json"


def read(path: Path) -> Any:
    """The value, or ``None`` when there is none or the file is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write(path: Path, value: object) -> None:
    """Best effort: a cache that can't be written costs seconds, not a verdict."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(value, file)
        Path(name).replace(path)
    except OSError:
        return
