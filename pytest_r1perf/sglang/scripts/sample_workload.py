"""Runs inside the SGLang environment: samples a workload with SGLang's own code and prints its lengths.

Arguments: model path, data set path, number of prompts, seed, output length or "-", context length or "-".
Prints one JSON object: the (input, output) token lengths in their order. What the benchmark then reports is
checked against this, which was counted before it ran.
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


def main(model: str, dataset: str, num_prompts: str, seed: str, output_len: str, context_len: str) -> None:
    """Print the sampled lengths."""
    import numpy

    with contextlib.redirect_stdout(sys.stderr):
        tokenizer = find(TOKENIZERS, "get_tokenizer")(model)
        sample = find(SAMPLERS, "sample_sharegpt_requests")
        random.seed(int(seed))
        numpy.random.seed(int(seed))
        rows = sample(
            dataset_path=dataset,
            num_requests=int(num_prompts),
            tokenizer=tokenizer,
            fixed_output_len=None if output_len == "-" else int(output_len),
            context_len=None if context_len == "-" else int(context_len),
        )
    print(json.dumps([lengths(row) for row in rows]))


main(*sys.argv[1:])
