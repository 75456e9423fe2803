"""Looks at a model's folder and a data set before a run, on the host that has them.

Standard library only, Python 3.8+: other hosts get this file as it is and run it as a script (model path, data
set path), which prints the same as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Dict, Optional  # noqa: UP035 (Python 3.8)

_TOKENIZER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model")


def inspect(model: str, dataset: str) -> Dict[str, Any]:  # noqa: UP006
    """``dataset_digest``, ``tokenizer_digest``, ``config`` (of the model), ``config_digest``; or ``problem``.

    The problem is one sentence: a model that is no folder or has no config.json, a data set that is missing,
    empty or not in ShareGPT's format. SGLang itself would start an engine before it looks.
    """
    folder = Path(model)
    if not folder.is_dir():
        return _problem(
            f"model {model} is not a folder on this host: give the platform's model_path "
            f"(for the cpu platform: `r1perf model make`)"
        )
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError:
        return _problem(f"model {model} has no config.json: it is not a model's folder")
    except ValueError:
        return _problem(f"model {model} has a config.json that is not JSON")
    try:
        raw = Path(dataset).read_bytes()
    except OSError as error:
        return _problem(
            f"data set {dataset} cannot be read ({error.strerror}): give the platform's dataset path, "
            f"or make one with `r1perf dataset make`"
        )
    wrong = _format_problem(raw)
    if wrong is not None:
        return _problem(f"data set {dataset} {wrong}: it must be in ShareGPT's format")
    return {
        "dataset_digest": hashlib.sha256(raw).hexdigest(),
        "tokenizer_digest": _tokenizer_digest(folder),
        "config": config,
        "config_digest": _config_digest(config),
        "problem": None,
    }


def _problem(text: str) -> Dict[str, Any]:  # noqa: UP006
    return {"problem": text}


def _format_problem(raw: bytes) -> Optional[str]:  # noqa: UP045
    try:
        rows: Any = json.loads(raw)
    except ValueError:
        return "is not JSON"
    if not isinstance(rows, list) or not rows:
        return "is empty or no list"
    for number, row in enumerate(rows):
        turns = row.get("conversations", row.get("conversation")) if isinstance(row, dict) else None
        if not isinstance(turns, list) or not all(isinstance(turn, dict) and "value" in turn for turn in turns[:2]):
            return f"is wrong: entry {number} has no 'conversations' with 'value' texts"
    return None


def _tokenizer_digest(model: Path) -> str:
    digest = hashlib.sha256()
    for name in _TOKENIZER_FILES:
        if (model / name).is_file():
            digest.update(name.encode() + (model / name).read_bytes())
    return digest.hexdigest()


def _config_digest(config: Any) -> str:
    """Identifies the architecture, whatever folder it lies in."""
    if isinstance(config, dict):
        config = {key: value for key, value in config.items() if key != "_name_or_path"}
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


if __name__ == "__main__":
    print(json.dumps(inspect(*sys.argv[1:])))
