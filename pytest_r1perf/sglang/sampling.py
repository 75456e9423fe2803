"""What a workload comes to: SGLang's own sampler, run beforehand in its environment, cached by content."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.workload import SampledWorkload, Workload

_SCRIPT = Path(__file__).parent / "scripts" / "sample_workload.py"
_TOKENIZER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model")


def sample(
    workload: Workload,
    num_prompts: int,
    *,
    environment: SglangEnvironment,
    model_path: str,
    dataset_path: str,
    cache: Path,
    env: Mapping[str, str],
    timeout_s: float = 600,
) -> SampledWorkload:
    """Number of prompts, token totals and digest of the workload.

    Raises :class:`R1PerfError` for a data set that is missing, empty, not in ShareGPT's format, or shorter
    than ``num_prompts``, and for a model folder without a tokenizer.
    """
    _check_model(model_path)
    dataset_digest = _check_dataset(Path(dataset_path))
    key = hashlib.sha256(
        json.dumps(
            [
                dataset_digest,
                _tokenizer_digest(Path(model_path)),
                environment.versions.get("sglang"),
                environment.versions.get("transformers"),
                num_prompts,
                workload.seed,
                workload.sharegpt_output_len,
                workload.sharegpt_context_len,
            ]
        ).encode()
    ).hexdigest()
    entry = cache / f"{key[:32]}.json"
    lengths = _cached(entry)
    if lengths is None:
        lengths = _ask_sglang(workload, num_prompts, environment, model_path, dataset_path, env, timeout_s)
        _remember(entry, lengths)
    if len(lengths) != num_prompts:
        raise R1PerfError(
            f"data set {dataset_path} gives {len(lengths)} usable prompts, and n={num_prompts} asks for more: "
            f"take a longer one, or make one with `r1perf dataset make --num {num_prompts * 2}`"
        )
    return SampledWorkload(
        num_prompts=num_prompts,
        total_input_tokens=sum(pair[0] for pair in lengths),
        total_output_tokens=sum(pair[1] for pair in lengths),
        digest=hashlib.sha256(json.dumps(lengths).encode()).hexdigest()[:16],
    )


def _check_model(model_path: str) -> None:
    folder = Path(model_path)
    if not folder.is_dir():
        raise R1PerfError(
            f"model {model_path} is not a folder on this host: give the platform's model_path "
            f"(for the cpu platform: `r1perf model make`)"
        )
    if not (folder / "config.json").is_file():
        raise R1PerfError(f"model {model_path} has no config.json: it is not a model's folder")


def _check_dataset(path: Path) -> str:
    """The file's digest, after a look at its format; SGLang would start an engine before it looks."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise R1PerfError(
            f"data set {path} cannot be read ({error.strerror}): give the platform's dataset path, "
            f"or make one with `r1perf dataset make`"
        ) from None
    try:
        rows: Any = json.loads(raw)
    except ValueError:
        raise R1PerfError(f"data set {path} is not JSON: it must be in ShareGPT's format") from None
    if not isinstance(rows, list) or not rows:
        raise R1PerfError(f"data set {path} is empty or no list: it must be in ShareGPT's format")
    for number, row in enumerate(rows):
        turns = row.get("conversations", row.get("conversation")) if isinstance(row, dict) else None
        if not isinstance(turns, list) or not all(isinstance(turn, dict) and "value" in turn for turn in turns[:2]):
            raise R1PerfError(
                f"data set {path}: entry {number} has no 'conversations' with 'value' texts: "
                f"it must be in ShareGPT's format"
            )
    return hashlib.sha256(raw).hexdigest()


def _tokenizer_digest(model: Path) -> str:
    digest = hashlib.sha256()
    for name in _TOKENIZER_FILES:
        if (model / name).is_file():
            digest.update(name.encode() + (model / name).read_bytes())
    return digest.hexdigest()


def _ask_sglang(
    workload: Workload,
    num_prompts: int,
    environment: SglangEnvironment,
    model_path: str,
    dataset_path: str,
    env: Mapping[str, str],
    timeout_s: float,
) -> list[list[int]]:
    options = (workload.sharegpt_output_len, workload.sharegpt_context_len)
    argv = [str(environment.python), str(_SCRIPT), model_path, dataset_path, str(num_prompts), str(workload.seed)]
    argv += ["-" if option is None else str(option) for option in options]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout_s, check=False, env=env, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise R1PerfError(f"the workload could not be sampled with {environment.python}: {error}") from None
    try:
        lengths: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
        return lengths
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise R1PerfError(
            f"the workload could not be sampled by sglang {environment.version} with the tokenizer of "
            f"{model_path}: {last[:300]}"
        ) from None


def _cached(entry: Path) -> list[list[int]] | None:
    try:
        lengths = json.loads(entry.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    well_formed = isinstance(lengths, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in lengths)
    return lengths if well_formed else None


def _remember(entry: Path, lengths: list[list[int]]) -> None:
    """Best effort: a cache that can't be written costs seconds, not a verdict."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=entry.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(lengths, file)
        Path(name).replace(entry)
    except OSError:
        return
