"""A generated file in ShareGPT's format, with stated length statistics, for hosts that have no ShareGPT.

    >>> make_dataset(Path("sharegpt-like.json"), num_conversations=2000)  # doctest: +SKIP
    DatasetStatistics(num_conversations=2000, mean_input_tokens=90.1, ...)

Lengths are log-normal and counted in tokens of the tiny model's tokenizer; a real model's tokenizer makes about 0.7
times as many of the same text, because the words are common English ones.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.rig.tokenizer import train
from pytest_r1perf.rig.words import WORDS

SEED = 2025

# Means of 50 prompts that two CPU cores answer in 2 to 3 s.
CPU_MEAN_INPUT_TOKENS = 90.0
CPU_MEAN_OUTPUT_TOKENS = 66.0

# ShareGPT V3 as others measured it: vLLM with DeepSeek-R1-0528, 1000 prompts: 219.2 in, 200.8 out (gpustack);
# SGLang bench_serving, 1000 prompts: 224.4 in, 190.6 out (sgl-project/sglang PR #2881).
SHAREGPT_MEAN_INPUT_TOKENS = 220.0
SHAREGPT_MEAN_OUTPUT_TOKENS = 200.0

MIN_TOKENS = 2  # SGLang drops a conversation whose prompt or answer has fewer (datasets/sharegpt.py)


@dataclass(frozen=True, slots=True)
class DatasetStatistics:
    """What a generated file holds; lengths in tokens of the tiny model's tokenizer."""

    num_conversations: int
    mean_input_tokens: float
    median_input_tokens: float
    max_input_tokens: int
    mean_output_tokens: float
    median_output_tokens: float
    max_output_tokens: int

    def __str__(self) -> str:
        return (
            f"{self.num_conversations} conversations, tokens in: mean {self.mean_input_tokens:.1f}, "
            f"median {self.median_input_tokens:g}, max {self.max_input_tokens}; out: mean "
            f"{self.mean_output_tokens:.1f}, median {self.median_output_tokens:g}, max {self.max_output_tokens}"
        )


def make_dataset(
    path: Path,
    *,
    num_conversations: int = 2000,
    mean_input_tokens: float = CPU_MEAN_INPUT_TOKENS,
    mean_output_tokens: float = CPU_MEAN_OUTPUT_TOKENS,
    sigma: float = 0.6,
    max_tokens: int = 1024,
    seed: int = SEED,
) -> DatasetStatistics:
    """Write two-turn conversations to ``path``, the same bytes for the same arguments, and return what they hold.

    Lengths are log-normal with the given means and the given ``sigma`` of the logarithm (so the median is the mean
    times exp(-sigma^2 / 2): 0.84 of it for 0.6), cut at `MIN_TOKENS` and ``max_tokens``, which shifts the means a
    little: the returned statistics are of the file.

    Raises:
        R1PerfError: an argument is out of its range.
    """
    for name, value, least in (
        ("num_conversations", num_conversations, 1),
        ("mean_input_tokens", mean_input_tokens, MIN_TOKENS),
        ("mean_output_tokens", mean_output_tokens, MIN_TOKENS),
        ("max_tokens", max_tokens, MIN_TOKENS),
        ("sigma", sigma, 0),
    ):
        if not value >= least:
            raise R1PerfError(f"{name} is {value}, but a data set needs at least {least}: give a larger one")
    # Only random(), whose sequence for a seed Python guarantees, is drawn from.
    draw = random.Random(seed).random
    write = _Writer(draw)

    def length(mean: float) -> int:
        normal = statistics.NormalDist().inv_cdf(max(draw(), 1e-12))
        tokens = mean * math.exp(sigma * normal - sigma * sigma / 2)
        return min(max(round(tokens), MIN_TOKENS), max_tokens)

    lengths = [(length(mean_input_tokens), length(mean_output_tokens)) for _ in range(num_conversations)]
    conversations = [
        {
            "id": f"r1perf-{number}",
            "conversations": [
                {"from": "human", "value": write.text(tokens_in)},
                {"from": "gpt", "value": write.text(tokens_out)},
            ],
        }
        for number, (tokens_in, tokens_out) in enumerate(lengths)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(conversations, indent=0) + "\n", encoding="utf-8")
    inputs, outputs = zip(*lengths, strict=True)
    return DatasetStatistics(
        num_conversations,
        statistics.fmean(inputs),
        statistics.median(inputs),
        max(inputs),
        statistics.fmean(outputs),
        statistics.median(outputs),
        max(outputs),
    )


class _Writer:
    """Makes texts of an exact number of tokens, the n-th of `WORDS` drawn with weight 1/n."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        count = train().count
        self._tokens = {word: count(" " + word) for word in WORDS}
        self._cumulative = list(itertools.accumulate(1 / rank for rank in range(1, len(WORDS) + 1)))
        # Words of one token, for the end of a text; and of one token without a space before, for its start.
        self._short = [word for word in WORDS if self._tokens[word] == 1]
        self._first = [word for word in map(str.capitalize, WORDS) if count(word) == 1]

    def text(self, num_tokens: int) -> str:
        words = [self._first[int(self._draw() * len(self._first))]]
        left = num_tokens - 1
        while left > 0:
            word = WORDS[bisect.bisect(self._cumulative, self._draw() * self._cumulative[-1])]
            if self._tokens[word] > left:
                word = self._short[int(self._draw() * len(self._short))]
            words.append(word)
            left -= self._tokens[word]
        return " ".join(words)
