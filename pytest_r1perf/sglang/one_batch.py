"""Read ``bench_one_batch_server``'s JSON lines of every release into one definition.

What SGLang calls ``output_throughput`` changed: output tokens / latency in 0.4.3, / (latency - time to first token)
from 0.4.6.post5 on. Here it is output tokens / latency, recomputed from the raw fields; the row's own numbers are only
checked, each by the rule of the releases that write such a row, and a row that contradicts itself is refused.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from pytest_r1perf.sglang.result import Check

_LATENCY_STEP = 1e-4
_RATE_STEP = 1e-2
"""SGLang rounds seconds to 4 decimals and rates to 2 (bench_one_batch_server.py of 0.4.3.post2 to 0.5.20)."""


class RowFormat(str, Enum):
    """Which releases write such a row; its keys tell."""

    WHOLE = "0.4.3: answers not streamed, prompts of random token ids"
    STREAMED = "0.4.6.post5 to 0.5.5.post3"
    LAST_TTFT = "0.5.6 to 0.5.19"
    COUNTED = "from 0.5.20"


_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "output_throughput": "output tokens / latency of the batch",
        "overall_throughput": "(input + output tokens) / latency of the batch",
        "decode_throughput": "output tokens / (latency of the batch - time until its last first token)",
    }
)


@dataclass(frozen=True, slots=True)
class OneBatchResult:
    """One batch: ``latency_s`` and ``last_ttft_s`` in s, rates in tok/s.

    ``total_output_tokens`` was counted from 0.5.20 on; before, it is batch_size * output_len (end-of-text was always
    ignored). ``decode_throughput``, ``last_ttft_s`` and ``early_stopped`` are None where the row has no such thing.
    """

    batch_size: int
    input_len: int
    output_len: int
    latency_s: float
    total_output_tokens: int
    output_throughput: float
    overall_throughput: float
    decode_throughput: float | None
    last_ttft_s: float | None
    early_stopped: int | None
    format: RowFormat

    @property
    def case(self) -> tuple[int, int, int]:
        """Batch size, input length and output length: what was asked for."""
        return self.batch_size, self.input_len, self.output_len

    def definition(self, metric: str) -> str:
        """What a metric is, for the protocol: values with different texts are not comparable.

        A batch whose answers were not streamed, of random token ids, is no other release's batch.
        """
        answers = "whole answers, random token ids" if self.format is RowFormat.WHOLE else "streamed answers"
        return f"bench_one_batch_server: {_MEANINGS[metric]}; {answers}"


@dataclass(frozen=True, slots=True)
class OneBatchLine:
    """Line ``number`` (from 1): a result, or the check that it failed."""

    number: int
    result: OneBatchResult | None
    failed: Check | None


def read_one_batch_lines(path: Path) -> list[OneBatchLine]:
    """All lines of a result file; none when there is no such file. Blank lines are passed over.

    The file is appended to: give each process a fresh path. Raises OSError when it is there and can't be read.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    return [_line(number, line) for number, line in enumerate(text.split(b"\n"), start=1) if line.strip()]


def not_as_asked(results: Iterable[OneBatchResult], asked: Iterable[tuple[int, int, int]]) -> tuple[Check, ...]:
    """One check for every case that was asked for and has not exactly one row, or came unasked.

    SGLang skips a case that doesn't fit its KV cache or its running requests, and ends with 0 (from 0.5.6 on).
    """
    rows, wanted = Counter(result.case for result in results), Counter(asked)
    checks = []
    for case in sorted(rows.keys() | wanted.keys()):
        if rows[case] != wanted[case]:
            name = "batch size {}, input {}, output {}".format(*case)
            why = "; SGLang skips a case that does not fit its memory" if rows[case] < wanted[case] else ""
            checks.append(Check("one-batch-rows", f"{name}: {rows[case]} rows, {wanted[case]} asked for{why}"))
    return tuple(checks)


class _RefusedError(Exception):
    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name


def _refuse(name: str, sentence: str) -> NoReturn:
    raise _RefusedError(name, sentence)


def _line(number: int, line: bytes) -> OneBatchLine:
    try:
        return OneBatchLine(number, _result(_load(line)), None)
    except _RefusedError as refused:
        return OneBatchLine(number, None, Check(refused.name, f"result line {number}: {refused}"))


def _load(line: bytes) -> dict[str, object]:
    try:
        loaded = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        _refuse("not-json", f"is not JSON ({str(error)[:120]})")
    if not isinstance(loaded, dict):
        _refuse("not-object", f"is a {type(loaded).__name__}, not an object")
    return loaded


def _result(row: Mapping[str, object]) -> OneBatchResult:
    batch, inputs, outputs = (_count(row, key, least=1) for key in ("batch_size", "input_len", "output_len"))
    latency = _number(row, "latency")
    if latency <= 0:
        _refuse("not-positive", f"latency is {latency}")
    format_ = _format(row)
    tokens, early = batch * outputs, None
    if format_ is RowFormat.COUNTED:
        tokens = _count(row, "total_output_tokens")
        early = None if row.get("num_early_stopped") is None else _count(row, "num_early_stopped")
        _check_counts(tokens, batch * outputs, early, batch)
    ttft = _number(row, "last_ttft") if format_ in (RowFormat.LAST_TTFT, RowFormat.COUNTED) else None
    if ttft is not None and not 0 <= ttft <= latency:
        _refuse("contradiction", f"last_ttft {ttft} is not within the latency {latency}")
    _check_output_rate(row, format_, tokens, latency, ttft)
    return OneBatchResult(
        batch_size=batch,
        input_len=inputs,
        output_len=outputs,
        latency_s=latency,
        total_output_tokens=tokens,
        output_throughput=tokens / latency,
        overall_throughput=_overall(row, format_, batch * inputs, tokens, latency),
        decode_throughput=None if ttft is None or ttft == latency else tokens / (latency - ttft),
        last_ttft_s=ttft,
        early_stopped=early,
        format=format_,
    )


def _format(row: Mapping[str, object]) -> RowFormat:
    if row.get("total_output_tokens") is not None:
        return RowFormat.COUNTED
    if "last_ttft" in row:
        return RowFormat.LAST_TTFT
    return RowFormat.STREAMED if "last_gen_throughput" in row else RowFormat.WHOLE


def _check_counts(tokens: int, asked: int, early: int | None, batch: int) -> None:
    if tokens > asked:
        _refuse("contradiction", f"{tokens} output tokens, {asked} asked for")
    if early is not None and early > batch:
        _refuse("contradiction", f"{early} requests stopped early, {batch} sent")
    if early and tokens == asked:
        _refuse("contradiction", f"{early} requests stopped early, yet all {asked} output tokens are there")


def _check_output_rate(
    row: Mapping[str, object], format_: RowFormat, tokens: int, latency: float, ttft: float | None
) -> None:
    given = _number(row, "output_throughput")
    if format_ is RowFormat.WHOLE:
        _agree("output_throughput", given, tokens, latency, _LATENCY_STEP, "batch_size * output_len / latency")
    elif ttft is None:  # divided by a time that the row leaves out
        if given < _slowest(tokens, latency, _LATENCY_STEP):
            _refuse("contradiction", f"output_throughput {given} is below {tokens} tokens / latency {latency}")
    elif format_ is RowFormat.LAST_TTFT:
        how = "batch_size * output_len / (latency - last_ttft)"
        _agree("output_throughput", given, tokens, latency - ttft, 2 * _LATENCY_STEP, how)
    elif given > _fastest(
        tokens, latency - ttft, 2 * _LATENCY_STEP
    ):  # below: tokens before the last first one left out
        _refuse("contradiction", f"output_throughput {given} is above {tokens} tokens / ({latency} - {ttft})")


def _overall(row: Mapping[str, object], format_: RowFormat, inputs: int, tokens: int, latency: float) -> float:
    """(input + output tokens) / latency. From 0.5.20 on a replayed text has its own length, so only the row knows."""
    given = _number(row, "overall_throughput")
    if format_ is RowFormat.COUNTED and not _agrees(given, inputs + tokens, latency, _LATENCY_STEP):
        if given < _slowest(tokens, latency, _LATENCY_STEP):
            _refuse("contradiction", f"overall_throughput {given} is below {tokens} output tokens / latency {latency}")
        return given
    how = "batch_size * (input_len + output_len) / latency"
    _agree("overall_throughput", given, inputs + tokens, latency, _LATENCY_STEP, how)
    return (inputs + tokens) / latency


def _agree(key: str, given: float, tokens: int, seconds: float, step: float, how: str) -> None:
    if not _agrees(given, tokens, seconds, step):
        shown = f"{tokens / seconds:.2f}" if seconds > 0 else "endless"
        _refuse("contradiction", f"{key} is {given}, and {how} is {shown}")


def _agrees(given: float, tokens: int, seconds: float, step: float) -> bool:
    return _slowest(tokens, seconds, step) <= given <= _fastest(tokens, seconds, step)


def _slowest(tokens: int, seconds: float, step: float) -> float:
    """The lowest rate that a rounded time allows, rounded itself; ``step`` is the sum of the times' last places."""
    return tokens / (seconds + step / 2) - 0.51 * _RATE_STEP


def _fastest(tokens: int, seconds: float, step: float) -> float:
    least = seconds - step / 2
    return tokens / least + 0.51 * _RATE_STEP if least > 0 else math.inf


def _count(row: Mapping[str, object], key: str, *, least: int = 0) -> int:
    value = _needed(row, key)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        _refuse("wrong-type", f"{key} is {value!r}, not a whole number of at least {least}")
    return value


def _number(row: Mapping[str, object], key: str) -> float:
    value = _needed(row, key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _refuse("wrong-type", f"{key} is {value!r}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        _refuse("not-finite", f"{key} is {number}")
    return number


def _needed(row: Mapping[str, object], key: str) -> object:
    if key not in row:
        _refuse("missing-key", f"has no {key}")
    return row[key]
