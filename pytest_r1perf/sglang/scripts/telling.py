"""How a driver speaks: lines for the parent, lines in the log, and errors as a sentence quotes them.

Standard library only. The drivers travel as one file each, so ``sglang/onefile.py`` puts this text into both.
"""

import json
import os
from pathlib import Path
from typing import Any


class Said(Exception):
    """An error whose text is a sentence of ours: it is quoted without the name of its class."""


class CellFailed(Said):
    """This cell can't be measured, and what serves it may well go on; ``reason`` is a word that the parent knows."""

    def __init__(self, reason: str, error: str) -> None:
        super().__init__(error)
        self.reason = reason


def tell(results: Path, kind: str, **fields: Any) -> None:
    """Append a line; it is on its way to the disk before anything else happens."""
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": kind, **fields}) + "\n")


def note(mark: str, *words: object) -> None:
    """A line in the log, in one piece: other processes write there, too."""
    os.write(1, (" ".join([mark, *map(str, words)]) + "\n").encode())


def one_line(error: BaseException) -> str:
    """As a sentence quotes it."""
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if isinstance(error, Said) else f"{type(error).__name__}: {text}")[:500]
