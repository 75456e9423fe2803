"""Read ``bench_one_batch_server``'s JSON lines of every release into one definition, and write the oldest of them.

What SGLang calls ``output_throughput`` changed: output tokens / latency in 0.4.3, / (latency - time to first token)
from 0.4.6.post5 on. Here it is output tokens / latency, recomputed from the raw fields; the row's own numbers are only
checked, each by the rule of the releases that write such a row, and a row that contradicts itself is refused.

The format with seven keys is 0.4.3's, and that of the private-deployment guide ("Test Data").
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.sglang.jsonrow import RowRefused, count, load, number, refuse, written
from pytest_r1perf.sglang.result import Check

_LATENCY_STEP = 1e-4
_RATE_STEP = 1e-2
"""SGLang rounds seconds to 4 decimals and rates to 2 (bench_one_batch_server.py of 0.4.3.post2 to 0.5.20)."""


class RowFormat(str, Enum):
    """Which releases write such a row; its keys tell."""

    WHOLE = "0.4.3 to 0.4.6: answers not streamed, prompts of random token ids"
    STREAMED = "0.4.6.post5 to 0.5.5.post3"
    LAST_TTFT = "0.5.6 to 0.5.19"
    COUNTED = "from 0.5.20"


_SAME = 1e-9
"""How far a recomputed rate may be from the same rate: floating point, not rounding."""

_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "total_throughput": "(input + output tokens) / latency of the batch",
        "input_throughput": "input tokens / latency of the batch",
        "request_throughput": "requests / latency of the batch",
        "total_latency": "from sending the batch to its last token",
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
    ``run_name`` is the client's ``--run-name``.
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
    run_name: str = "default"

    @property
    def metrics(self) -> Mapping[str, float]:
        """By our metrics' names: tok/s, req/s, s and ms; ``decode_throughput`` only where the row knows the time."""
        found = {
            "total_throughput": self.overall_throughput,
            "output_throughput": self.output_throughput,
            "input_throughput": self.overall_throughput - self.output_throughput,
            "request_throughput": self.batch_size / self.latency_s,
            "total_latency": self.latency_s,
        }
        if self.decode_throughput is not None:
            found["decode_throughput"] = self.decode_throughput
        return MappingProxyType(found)

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
    return [read_one_batch_line(at, line) for at, line in lines_of(written(path))]


def lines_of(text: bytes) -> list[tuple[int, bytes]]:
    """A result file's lines with their numbers, from 1; blank ones are passed over.

    A file with one object over several lines, as the guide prints it, is one line here.
    """
    if spread_out(text):
        return [(1, text)]
    return [(at, line) for at, line in enumerate(text.split(b"\n"), start=1) if line.strip()]


def spread_out(text: bytes) -> bool:
    """Whether a file is one object over several lines."""
    return text.lstrip().startswith((b"{\n", b"{\r\n"))


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


def differs_from_guide(result: OneBatchResult) -> tuple[Check, ...]:
    """A check for each of the guide's two formulas that a result does not keep, after recomputing from the raw fields.

    "Output Throughput: batch_size * output_len / latency; Overall Throughput: batch_size * (input_len + output_len) /
    latency" (private-deployment guide, "Test Data"). A batch that stopped early, or one of replayed texts, keeps
    neither: its tokens are not those of its lengths.
    """
    checks = []
    for name, value, tokens, how in (
        ("output_throughput", result.output_throughput, result.output_len, "output_len"),
        (
            "overall_throughput",
            result.overall_throughput,
            result.input_len + result.output_len,
            "(input_len + output_len)",
        ),
    ):
        guide = result.batch_size * tokens / result.latency_s
        if not math.isclose(value, guide, rel_tol=_SAME):
            checks.append(
                Check("guide-formula", f"{name} is {value:.2f}, and batch_size * {how} / latency is {guide:.2f}")
            )
    return tuple(checks)


def below_its_own_times(result: OneBatchResult, given: float) -> Check | None:
    """Whether the ``output_throughput`` that a row from 0.5.20 on gives is too low for its own tokens and times.

    Such a row may leave tokens out, those before the last first one, so the reader lets it; but it does so only where
    texts are replayed or end-of-text is heeded. For a batch of given lengths, both ways are the same to a rounding.
    """
    if result.format is not RowFormat.COUNTED or result.last_ttft_s in (None, result.latency_s):
        return None
    seconds = result.latency_s - (result.last_ttft_s or 0.0)
    if _agrees(given, result.total_output_tokens, seconds, 2 * _LATENCY_STEP):
        return None
    least = _slowest(result.total_output_tokens, seconds, 2 * _LATENCY_STEP)
    return Check(
        "contradiction",
        f"output_throughput is {given}, and output tokens / (latency - last_ttft) is {least:.2f} at least",
    )


def guide_row(result: OneBatchResult) -> dict[str, object]:
    """The guide's seven keys, in its order; both rates by its formulas, rounded as SGLang 0.4.3 rounds.

    Read again it is taken for 0.4.3's, since seven keys say no more: keep the row it came from as well. Raises
    :class:`R1PerfError` where the guide's formulas do not hold.
    """
    broken = differs_from_guide(result)
    if broken:
        raise R1PerfError(
            f"batch size {result.batch_size}, input {result.input_len}, output {result.output_len} cannot be written "
            f"in the guide's format: {broken[0].sentence}"
        )
    latency = round(result.latency_s, 4)
    if latency <= 0:
        raise R1PerfError(f"latency {result.latency_s} s cannot be written in the guide's format: it has 4 decimals")
    return {
        "run_name": result.run_name,
        "batch_size": result.batch_size,
        "input_len": result.input_len,
        "output_len": result.output_len,
        "latency": latency,
        "output_throughput": round(result.batch_size * result.output_len / latency, 2),
        "overall_throughput": round(result.batch_size * (result.input_len + result.output_len) / latency, 2),
    }


def read_one_batch_line(at: int, line: bytes) -> OneBatchLine:
    """Line ``at`` of a result file."""
    try:
        return OneBatchLine(at, _result(load(line)), None)
    except RowRefused as refused:
        return OneBatchLine(at, None, Check(refused.name, f"result line {at}: {refused}"))


def _result(row: Mapping[str, object]) -> OneBatchResult:
    batch, inputs, outputs = (count(row, key, least=1) for key in ("batch_size", "input_len", "output_len"))
    latency = number(row, "latency")
    if latency <= 0:
        refuse("not-positive", f"latency is {latency}")
    format_ = _format(row)
    tokens, early = batch * outputs, None
    if format_ is RowFormat.COUNTED:
        tokens = count(row, "total_output_tokens")
        early = None if row.get("num_early_stopped") is None else count(row, "num_early_stopped")
        _check_counts(tokens, batch * outputs, early, batch)
    ttft = number(row, "last_ttft") if format_ in (RowFormat.LAST_TTFT, RowFormat.COUNTED) else None
    if ttft is not None and not 0 <= ttft <= latency:
        refuse("contradiction", f"last_ttft {ttft} is not within the latency {latency}")
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
        run_name=str(row.get("run_name", "default")),
    )


def _format(row: Mapping[str, object]) -> RowFormat:
    if row.get("total_output_tokens") is not None:
        return RowFormat.COUNTED
    if "last_ttft" in row:
        return RowFormat.LAST_TTFT
    return RowFormat.STREAMED if "last_gen_throughput" in row else RowFormat.WHOLE


def _check_counts(tokens: int, asked: int, early: int | None, batch: int) -> None:
    if tokens > asked:
        refuse("contradiction", f"{tokens} output tokens, {asked} asked for")
    if early is not None and early > batch:
        refuse("contradiction", f"{early} requests stopped early, {batch} sent")
    if early and tokens == asked:
        refuse("contradiction", f"{early} requests stopped early, yet all {asked} output tokens are there")


def _check_output_rate(
    row: Mapping[str, object], format_: RowFormat, tokens: int, latency: float, ttft: float | None
) -> None:
    given = number(row, "output_throughput")
    if format_ is RowFormat.WHOLE:
        _agree("output_throughput", given, tokens, latency, _LATENCY_STEP, "batch_size * output_len / latency")
    elif ttft is None:  # divided by a time that the row leaves out
        if given < _slowest(tokens, latency, _LATENCY_STEP):
            refuse("contradiction", f"output_throughput {given} is below {tokens} tokens / latency {latency}")
    elif format_ is RowFormat.LAST_TTFT:
        how = "batch_size * output_len / (latency - last_ttft)"
        _agree("output_throughput", given, tokens, latency - ttft, 2 * _LATENCY_STEP, how)
    elif given > _fastest(
        tokens, latency - ttft, 2 * _LATENCY_STEP
    ):  # below: tokens before the last first one left out
        refuse("contradiction", f"output_throughput {given} is above {tokens} tokens / ({latency} - {ttft})")


def _overall(row: Mapping[str, object], format_: RowFormat, inputs: int, tokens: int, latency: float) -> float:
    """(input + output tokens) / latency. From 0.5.20 on a replayed text has its own length, so only the row knows."""
    given = number(row, "overall_throughput")
    if format_ is RowFormat.COUNTED and not _agrees(given, inputs + tokens, latency, _LATENCY_STEP):
        if given < _slowest(tokens, latency, _LATENCY_STEP):
            refuse("contradiction", f"overall_throughput {given} is below {tokens} output tokens / latency {latency}")
        return given
    how = "batch_size * (input_len + output_len) / latency"
    _agree("overall_throughput", given, inputs + tokens, latency, _LATENCY_STEP, how)
    return (inputs + tokens) / latency


def _agree(key: str, given: float, tokens: int, seconds: float, step: float, how: str) -> None:
    if not _agrees(given, tokens, seconds, step):
        shown = f"{tokens / seconds:.2f}" if seconds > 0 else "endless"
        refuse("contradiction", f"{key} is {given}, and {how} is {shown}")


def _agrees(given: float, tokens: int, seconds: float, step: float) -> bool:
    return _slowest(tokens, seconds, step) <= given <= _fastest(tokens, seconds, step)


def _slowest(tokens: int, seconds: float, step: float) -> float:
    """The lowest rate that a rounded time allows, rounded itself; ``step`` is the sum of the times' last places."""
    return tokens / (seconds + step / 2) - 0.51 * _RATE_STEP


def _fastest(tokens: int, seconds: float, step: float) -> float:
    least = seconds - step / 2
    return tokens / least + 0.51 * _RATE_STEP if least > 0 else math.inf
