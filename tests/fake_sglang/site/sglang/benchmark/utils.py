"""The tokenizer's place in SGLang: here a word is a token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def get_tokenizer(model_path: str) -> Callable[[str], list[str]]:
    """Split at white space; a model folder without ``tokenizer.json`` fails, as the real one does."""
    if not (Path(model_path) / "tokenizer.json").is_file():
        raise OSError(f"Can't load tokenizer for '{model_path}'.")
    return str.split
