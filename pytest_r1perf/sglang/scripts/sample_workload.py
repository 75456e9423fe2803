"""Runs inside the SGLang environment: samples workloads of a data set with SGLang's own code, prints their lengths.

Arguments: model path, data set path, and the workloads as JSON: [number of prompts, seed, output length or null,
context length or null] each. Prints one JSON list: for each workload the (input, output) token lengths in their order.
The first is what the process was started for; null stands for another one that could not be sampled. What the benchmark
then reports is checked against this, which was counted before it ran. The engine driver samples with the same code.
"""

import contextlib
import functools
import importlib
import json
import random
import sys
import traceback
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


@functools.lru_cache(maxsize=1)
def tokenizer_of(model: str) -> Any:
    """The model's tokenizer, whose loading takes longer than many a sampling."""
    with contextlib.redirect_stdout(sys.stderr):
        return find(TOKENIZERS, "get_tokenizer")(model)


def sampled(
    model: str, dataset: str, num_prompts: int, seed: int, output_len: "int | None", context_len: "int | None"
) -> "tuple[Any, list[Any]]":
    """The model's tokenizer and the sampled rows; SGLang's own words go to standard error."""
    import numpy

    tokenizer = tokenizer_of(model)
    with contextlib.redirect_stdout(sys.stderr):
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


def main(model: str, dataset: str, workloads: str) -> None:
    """Print the sampled lengths of each workload."""
    found: list[list[list[int]] | None] = []
    for workload in json.loads(workloads):
        try:
            _, rows = sampled(model, dataset, *workload)
            found.append([lengths(row) for row in rows])
        except Exception:
            if not found:
                raise
            traceback.print_exc()
            found.append(None)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
