"""A byte-level BPE tokenizer in plain Python: trained on `WORDS`, written as Hugging Face's ``tokenizer.json``.

It is small enough to train in a second without the ``tokenizers`` library, so the model can be made before the rig is
installed, and a data set's lengths can be counted in tokens. tests/rig checks it against the real library.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from dataclasses import dataclass

from pytest_r1perf.rig.words import WORDS

VOCAB_SIZE = 1024
BOS, EOS, PAD = "<bos>", "<eos>", "<pad>"
SPECIAL = (BOS, EOS, PAD)  # ids 0, 1, 2

# The pieces that the byte-level pre-tokenizer (GPT-2's expression) makes of generated text, which has only ASCII
# letters, single spaces, full stops and line ends.
_PIECES = re.compile(r" ?[A-Za-z]+| ?[^\sA-Za-z]+|\s+(?!\S)|\s+")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Merges in rank order; token ids are `SPECIAL`, the 256 bytes, then one a merge."""

    merges: tuple[tuple[str, str], ...]

    def vocabulary(self) -> dict[str, int]:
        """Token -> id."""
        tokens = [*SPECIAL, *_alphabet().values(), *(left + right for left, right in self.merges)]
        return {token: number for number, token in enumerate(tokens)}

    def count(self, text: str) -> int:
        """How many tokens ``text`` has (no BOS), for text made of `WORDS`."""
        return sum(len(_merged(piece, self.merges)) for piece in _PIECES.findall(text))

    def as_json(self) -> dict[str, object]:
        """The content of ``tokenizer.json``."""
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": number,
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for number, token in enumerate(SPECIAL)
            ],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
            "post_processor": None,
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": self.vocabulary(),
                "merges": [list(pair) for pair in self.merges],
            },
        }


@functools.cache
def train(vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Learn merges from `WORDS`, the n-th weighted 1/n (Zipf), with a space before nine times in ten.

    Ties go to the pair that sorts first, so every Python gives the same result.
    """
    weights: dict[tuple[str, ...], int] = {}
    for rank, word in enumerate(WORDS, start=1):
        weights[_symbols(" " + word)] = 9_000_000 // rank
        weights[_symbols(word.capitalize())] = 1_000_000 // rank
    merges: list[tuple[str, str]] = []
    while len(merges) < vocab_size - len(SPECIAL) - 256:
        pairs: Counter[tuple[str, str]] = Counter()
        for symbols, weight in weights.items():
            for pair in itertools.pairwise(symbols):
                pairs[pair] += weight
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        weights = {_merge(symbols, best): weight for symbols, weight in weights.items()}
    return Tokenizer(tuple(merges))


@functools.cache
def _alphabet() -> dict[int, str]:
    """GPT-2's byte -> printable character table."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    table = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return dict(sorted(table.items()))


def _symbols(text: str) -> tuple[str, ...]:
    return tuple(_alphabet()[byte] for byte in text.encode())


def _merge(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged: list[str] = []
    at = 0
    while at < len(symbols):
        if symbols[at : at + 2] == pair:
            merged.append(pair[0] + pair[1])
            at += 2
        else:
            merged.append(symbols[at])
            at += 1
    return tuple(merged)


@functools.cache
def _merged(piece: str, merges: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    ranks = _ranks(merges)
    symbols = _symbols(piece)
    while len(symbols) > 1:
        pair = min(itertools.pairwise(symbols), key=lambda pair: ranks.get(pair, len(ranks)))
        if pair not in ranks:
            break
        symbols = _merge(symbols, pair)
    return symbols


@functools.cache
def _ranks(merges: tuple[tuple[str, str], ...]) -> dict[tuple[str, str], int]:
    return {pair: rank for rank, pair in enumerate(merges)}
