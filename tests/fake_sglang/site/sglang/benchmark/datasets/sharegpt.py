"""The sampler: the first ``num_requests`` conversations with a prompt and an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class DatasetRow:
    """One sampled request, as SGLang's."""

    prompt: str
    prompt_len: int
    output_len: int


def sample_sharegpt_requests(
    dataset_path: str,
    num_requests: int,
    tokenizer: Callable[[str], list[str]],
    fixed_output_len: int | None = None,
    context_len: int | None = None,
) -> list[DatasetRow]:
    """Lengths in words; the arguments are the real function's."""
    rows: list[DatasetRow] = []
    for entry in json.loads(Path(dataset_path).read_text(encoding="utf-8")):
        turns = entry["conversations"]
        if len(turns) < 2 or len(rows) == num_requests:
            continue
        prompt_len = len(tokenizer(turns[0]["value"]))
        output_len = fixed_output_len or len(tokenizer(turns[1]["value"]))
        if context_len is None or prompt_len + output_len <= context_len:
            rows.append(DatasetRow(turns[0]["value"], prompt_len, output_len))
    return rows
