"""Runs inside the SGLang environment: samples a workload with SGLang's own code and prints its lengths.

Arguments: model path, data set path, number of prompts, seed, output length or "-", context length or "-".
Prints one JSON object: the (input, output) token lengths in their order. What the benchmark then reports is
checked against this, which was counted before it ran. The engine driver samples with the same functions.
"""

import contextlib
import importlib
import json
import random
import sys
from typing import Any

# Where the sampler is: 0.5.15 moved it (sglang 0.5.20 benchmark/datasets/sharegpt.py; before, bench_serving.py).
SAMPLERS = ("sglang.benchmark.datasets.sharegpt", "sglang.bench_serving")
TOKENIZERS = ("sglang.benchmark.utils", "sglang.bench_serving")


def find(modules: tuple[str, ...], name: str) -> Any:
    """The function of that name in the first module that has it."""
    for module in modules:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), name)
    raise SystemExit(f"this SGLang has no {name} in {' or '.join(modules)}")


def lengths(row: Any) -> list[int]:
    """(input tokens, output tokens) of a sampled row: a tuple up to 0.4.x, an object later."""
    if isinstance(row, tuple):
        return [int(row[1]), int(row[2])]
    return [int(row.prompt_len), int(row.output_len)]


def sampled(
    model: str, dataset: str, num_prompts: int, seed: int, output_len: "int | None", context_len: "int | None"
) -> "tuple[Any, list[Any]]":
    """The model's tokenizer and the sampled rows; SGLang's own words go to standard error."""
    import numpy

    with contextlib.redirect_stdout(sys.stderr):
        tokenizer = find(TOKENIZERS, "get_tokenizer")(model)
        sample = find(SAMPLERS, "sample_sharegpt_requests")
        random.seed(seed)
        numpy.random.seed(seed)
        rows = sample(
            dataset_path=dataset,
            num_requests=num_prompts,
            tokenizer=tokenizer,
            fixed_output_len=output_len,
            context_len=context_len,
        )
    return tokenizer, rows


def main(model: str, dataset: str, num_prompts: str, seed: str, output_len: str, context_len: str) -> None:
    """Print the sampled lengths."""
    options = [None if text == "-" else int(text) for text in (output_len, context_len)]
    _, rows = sampled(model, dataset, int(num_prompts), int(seed), *options)
    print(json.dumps([lengths(row) for row in rows]))


if __name__ == "__main__":
    main(*sys.argv[1:])
