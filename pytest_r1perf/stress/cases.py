"""The cases of a sweep: batch sizes x input lengths x output lengths, each with its file's name."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_r1perf.errors import R1PerfError

BATCH_SIZES = (1, 4, 8, 16, 32)
INPUT_LENS = (128, 256, 512)
OUTPUT_LENS = (256, 512, 1024, 2048, 4096, 8192)
"""The grid of the guide's script: 90 cases."""

Order = Literal["shuffled", "document"]

_NAME = re.compile(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})-([1-9][0-9]{0,8})")
_LARGEST = 10**9


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """``batch_size`` requests at once, each of ``input_len`` tokens and answered by ``output_len`` tokens."""

    batch_size: int
    input_len: int
    output_len: int

    @property
    def name(self) -> str:
        """As the guide names a case's file, without the ``.jsonl``: ``1-128-256``."""
        return f"{self.batch_size}-{self.input_len}-{self.output_len}"

    @property
    def key(self) -> tuple[int, int, int]:
        """As :attr:`pytest_r1perf.sglang.one_batch.OneBatchResult.case` has it."""
        return self.batch_size, self.input_len, self.output_len

    def __str__(self) -> str:
        return f"batch size {self.batch_size}, input {self.input_len}, output {self.output_len}"


def case_named(name: str) -> Case | None:
    """The case of a file's name without its end; ``None`` where it is no case's."""
    found = _NAME.fullmatch(name)
    return Case(*map(int, found.groups())) if found else None


def grid(batch_sizes: Sequence[int], input_lens: Sequence[int], output_lens: Sequence[int]) -> tuple[Case, ...]:
    """Every combination, in the order of the guide's loops; a value that is given twice counts once.

    Raises :class:`R1PerfError` for a value that is not above 0, and for none at all.
    """
    axes = {"batch size": batch_sizes, "input length": input_lens, "output length": output_lens}
    for what, values in axes.items():
        if not values:
            raise R1PerfError(f"no {what} is given: name one at least")
        for value in values:
            if not 0 < value < _LARGEST:
                raise R1PerfError(f"{what} {value}: must be a whole number above 0 and below 10^9")
    return tuple(Case(*key) for key in itertools.product(*(dict.fromkeys(values) for values in axes.values())))


def in_order(cases: Iterable[Case], order: Order, sweep: str, repeat: int) -> list[Case]:
    """The order in which one repeat measures its cases.

    ``document``: as the guide's loops. ``shuffled``: another order in every repeat, the same again when a killed sweep
    goes on; a host that slowly changes then does not change one batch size against the others. A case's place is its
    own: more cases later leave the order of these as it was.
    """
    ordered = sorted(cases)
    if order == "document":
        return ordered
    return sorted(ordered, key=lambda case: hashlib.sha256(f"{sweep} {repeat} {case.name}".encode()).digest())


def numbers(text: str, option: str) -> tuple[int, ...]:
    """``"1,4,8"`` or ``"1 4 8"``; raises :class:`R1PerfError` that names the option and the part that is no number."""
    parts = text.replace(",", " ").split()
    for part in parts:
        if not re.fullmatch(r"[0-9]{1,9}", part) or int(part) == 0:
            raise R1PerfError(f"{option} {text!r}: {part!r} is no whole number above 0; e.g. {option} 1,4,8")
    if not parts:
        raise R1PerfError(f"{option} is empty; e.g. {option} 1,4,8")
    return tuple(map(int, parts))
