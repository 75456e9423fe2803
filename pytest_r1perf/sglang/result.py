"""Read the JSON line that ``bench_offline_throughput --result-filename`` appends.

The file is opened for appending and the line has no run id, version or time in it, so a stale line looks
like a new one: give each process a fresh path. Nothing is repaired here; a line that is not exactly what
SGLang writes is reported with the name of the check that it failed.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from pytest_r1perf.sglang.table import Table

__all__ = ["METRICS", "Check", "OfflineResult", "ResultLine", "Table", "read_result_lines"]

_COUNTS = ("successful_requests", "total_input_tokens", "total_output_tokens")
_RATES = ("total_latency", "request_throughput", "input_throughput", "output_throughput", "total_throughput")
METRICS = (*_COUNTS, *_RATES)


@dataclass(frozen=True, slots=True)
class Check:
    """A check that failed: its name, and one sentence with the values on both sides."""

    name: str
    sentence: str


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """One result as SGLang wrote it; ``total_latency`` in s, ``request_throughput`` in req/s, others tok/s.

    ``successful_requests`` is the number of requests sent and never a count of successes;
    ``total_input_tokens`` is the data set's count; only ``total_output_tokens`` comes from the engine.
    ``last_gen_throughput`` is DP rank 0's last decode report: None in 0.4.3.post2, which has no such key,
    and -1 or 0 where the rank never reported, so it is no measurement. ``extra`` keeps the keys that are not
    known here.
    """

    backend: str
    successful_requests: int
    total_latency: float
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    input_throughput: float
    output_throughput: float
    total_throughput: float
    last_gen_throughput: float | None = None
    extra: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResultLine:
    """Line ``number`` (from 1) of a result file: a result, or the checks that it failed."""

    number: int
    result: OfflineResult | None
    failed: tuple[Check, ...]


def read_result_lines(path: Path) -> list[ResultLine]:
    """All lines of the result file at ``path``; none when there is no such file. Blank lines are passed over.

    Raises OSError when the file is there and cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            cut = number == data.count(b"\n") + 1
            lines.append(_read_line(number, line, cut))
    return lines


class _RefusedError(Exception):
    """A line is not what SGLang writes; carries the check."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.check = Check(name, sentence)


def _read_line(number: int, line: bytes, cut: bool) -> ResultLine:
    where = f"result line {number}"
    try:
        if cut:  # SGLang writes the line and its end at once
            raise _RefusedError("truncated-line", f"{where} has no line end after {len(line)} bytes: it was cut off")
        return ResultLine(number, _result(_load(line, where), where), ())
    except _RefusedError as refused:
        return ResultLine(number, None, (refused.check,))


def _load(line: bytes, where: str) -> dict[str, object]:
    def constant(name: str) -> NoReturn:
        raise _RefusedError("not-finite", f"{where} holds {name}; every value must be a finite number")

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in items]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise _RefusedError("duplicate-key", f"{where} has the key {twice[0]!r} more than once")
        return dict(items)

    try:
        loaded = json.loads(line.decode("utf-8"), parse_constant=constant, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise _RefusedError("not-json", f"{where} is not JSON ({str(error)[:120]}): {line[:60]!r}") from None
    if not isinstance(loaded, dict):
        raise _RefusedError("not-object", f"{where} is a {type(loaded).__name__}, not an object: {line[:60]!r}")
    return loaded


def _result(loaded: dict[str, object], where: str) -> OfflineResult:
    missing = [key for key in ("backend", *METRICS) if key not in loaded]
    if missing:
        raise _RefusedError("missing-key", f"{where} has no {', '.join(missing)}")
    backend = loaded["backend"]
    if not isinstance(backend, str):
        raise _RefusedError("wrong-type", f"{where}: backend is {backend!r}, a {type(backend).__name__}, not a str")
    counts = {key: _count(loaded[key], key, where) for key in _COUNTS}
    rates = {key: _rate(loaded[key], key, where) for key in _RATES}
    last = loaded.get("last_gen_throughput")
    extra = {k: v for k, v in loaded.items() if k not in ("backend", "last_gen_throughput", *METRICS)}
    for key, value in extra.items():
        if isinstance(value, float):
            _rate(value, key, where)
    return OfflineResult(
        backend=backend,
        successful_requests=counts["successful_requests"],
        total_input_tokens=counts["total_input_tokens"],
        total_output_tokens=counts["total_output_tokens"],
        last_gen_throughput=None if last is None else _rate(last, "last_gen_throughput", where),
        extra=extra,
        **rates,
    )


def _count(value: object, key: str, where: str) -> int:
    # A bool is an int to Python and never one to SGLang.
    if isinstance(value, bool) or not isinstance(value, int):
        raise _RefusedError("wrong-type", f"{where}: {key} is {value!r}, a {type(value).__name__}, not an int")
    return value


def _rate(value: object, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _RefusedError("wrong-type", f"{where}: {key} is {value!r}, a {type(value).__name__}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):  # 1e999 is JSON, and infinite
        raise _RefusedError("not-finite", f"{where}: {key} is {number}; every value must be a finite number")
    return number
