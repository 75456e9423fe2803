"""Read ``bench_serving``'s JSON lines of every release into one definition.

TTFT, TPOT and E2E latency mean the same from 0.4.3 to 0.5.23, in ms. ITL does not: 0.4.3 takes the time between two
chunks of an answer, however many tokens they hold; later releases spread it over the tokens. 0.4.3 also takes the
tokens that it asked for as those that came. Goodput is computed here, from the numbers of the single requests, which
``--output-details`` gives from 0.4.6.post5 on. A row that contradicts itself is refused.

The client counts a request that the server refused (too long for its context) as completed, with the tokens that were
asked for, and ends with 0 (seen with 0.5.9 and 0.5.20; by its source from 0.4.9.post6 on, where a chunk without a text
is passed over): only the single requests show it, by a first token that never came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_r1perf.sglang import serving_checks
from pytest_r1perf.sglang.jsonrow import RowRefused, count, finite, load, needed, number, refuse, written
from pytest_r1perf.sglang.result import Check
from pytest_r1perf.sglang.serving_result import BURST_MS, Distribution, Request, ServingFormat, ServingResult

if TYPE_CHECKING:
    from pytest_r1perf.load import Traffic
    from pytest_r1perf.workload import SampledWorkload

_DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "errors")


@dataclass(frozen=True, slots=True)
class ServingLine:
    """Line ``number`` (from 1): a result, or the check that it failed."""

    number: int
    result: ServingResult | None
    failed: Check | None


def read_serving_lines(path: Path) -> list[ServingLine]:
    """All lines of a result file; none when there is no such file. Blank lines are passed over.

    The file is appended to: give each process a fresh path. Raises OSError when it is there and can't be read.
    """
    return [_line(at, line) for at, line in enumerate(written(path).split(b"\n"), start=1) if line.strip()]


def not_as_asked(
    result: ServingResult,
    traffic: Traffic,
    *,
    n: int,
    workload: SampledWorkload | None = None,
    served_model_name: str | None = None,
) -> tuple[Check, ...]:
    """One check for everything that is not what was asked for.

    The client ends with 0 when requests fail, and sends fewer than ``n`` where the data set is too short. With a
    ``workload`` that was counted beforehand its tokens must be there to the last one: end-of-text is ignored.
    """
    wanted: list[tuple[str, object, object]] = [("completed", result.completed, n)]
    if result.requests is not None:
        wanted.append(("requests", len(result.requests), n))
    if workload is not None:
        wanted.append(("total_input_tokens", result.total_input_tokens, workload.total_input_tokens))
        wanted.append(("total_output_tokens", result.total_output_tokens, workload.total_output_tokens))
    wanted.append(("request_rate", result.request_rate, traffic.request_rate))
    wanted.append(("max_concurrency", result.max_concurrency, traffic.max_concurrency))
    if served_model_name is not None and result.served_model_name is not None:
        wanted.append(("served_model_name", result.served_model_name, served_model_name))
    return tuple(
        Check("serving-" + key.replace("_", "-"), f"{key} is {value}; {asked} was asked for")
        for key, value, asked in wanted
        if value != asked
    )


def _line(at: int, line: bytes) -> ServingLine:
    try:
        return ServingLine(at, _result(load(line)), None)
    except RowRefused as refused:
        return ServingLine(at, None, Check(refused.name, f"result line {at}: {refused}"))


def _result(row: Mapping[str, object]) -> ServingResult:
    completed = count(row, "completed")
    requests, gaps = _requests(row, completed)
    if completed == 0:
        refuse("requests-failed", "completed is 0: every request failed")
    duration = number(row, "duration")
    serving_checks.above_zero("duration", duration)
    inputs, outputs = (count(row, f"total_{side}_tokens", least=1) for side in ("input", "output"))
    told = row.get("server_info")
    result = ServingResult(
        format=ServingFormat.COUNTED if "p95_itl_ms" in row else ServingFormat.ASKED,
        completed=completed,
        duration_s=duration,
        total_input_tokens=inputs,
        total_output_tokens=outputs,
        retokenized_output_tokens=_optional_count(row, "total_output_tokens_retokenized"),
        ttft_ms=_distribution(row, "ttft"),
        tpot_ms=_distribution(row, "tpot") if outputs > completed else None,
        itl_ms=_distribution(row, "itl") if outputs > completed else None,
        e2e_latency_ms=_distribution(row, "e2e_latency"),
        concurrency=number(row, "concurrency"),
        request_rate=_request_rate(row),
        max_concurrency=_optional_count(row, "max_concurrency"),
        dataset_name=None if row.get("dataset_name") is None else str(row["dataset_name"]),
        accept_length=None if row.get("accept_length") is None else number(row, "accept_length"),
        requests=requests,
        burst_share=sum(gap < BURST_MS for gap in gaps) / len(gaps) if gaps else None,
        server_info=told if isinstance(told, Mapping) else None,
    )
    serving_checks.check(row, result, gaps)
    return result


def _distribution(row: Mapping[str, object], name: str) -> Distribution:
    return Distribution(
        mean=number(row, f"mean_{name}_ms"),
        median=number(row, f"median_{name}_ms"),
        p99=number(row, f"p99_{name}_ms"),
        std=number(row, f"std_{name}_ms"),
        p90=number(row, f"p90_{name}_ms") if f"p90_{name}_ms" in row else None,
        p95=number(row, f"p95_{name}_ms") if f"p95_{name}_ms" in row else None,
    )


def _request_rate(row: Mapping[str, object]) -> float | None:
    """Python's own JSON has Infinity, and so has the row for "all at once"."""
    value = needed(row, "request_rate")
    if value == math.inf:
        return None
    if isinstance(value, str):
        refuse("wrong-type", f"request_rate is {value!r}: a trace was replayed, at no rate")
    rate = finite(value, "request_rate")
    serving_checks.above_zero("request_rate", rate)
    return rate


def _optional_count(row: Mapping[str, object], key: str) -> int | None:
    return None if row.get(key) is None else count(row, key)


def _requests(row: Mapping[str, object], completed: int) -> tuple[tuple[Request, ...] | None, list[float]]:
    """Every request of ``--output-details``, and all gaps between tokens in ms.

    A request that failed refuses the row, with its own words.
    """
    given = {key: row[key] for key in _DETAILS if key in row}
    if not given:
        return None, []
    lists = {key: needed(row, key) for key in _DETAILS}
    for key, value in lists.items():
        if not isinstance(value, list) or len(value) != len(_as_list(lists["errors"])):
            refuse("contradiction", f"{key} does not hold one entry a request")
    errors = _as_list(lists["errors"])
    first = next((error for error in errors if error), None)
    if completed < len(errors) or first is not None:
        words = f"; the first: {_short(first)}" if first is not None else ""
        refuse("requests-failed", f"completed is {completed} of {len(errors)} requests{words}")
    if completed > len(errors):
        refuse("contradiction", f"completed is {completed}, and there are {len(errors)} requests")
    requests, gaps = [], []
    for at in range(len(errors)):
        own = [finite(gap, f"itls of request {at}") * 1000 for gap in _as_list(_as_list(lists["itls"])[at])]
        requests.append(_request(at, {key: _as_list(lists[key])[at] for key in _DETAILS}, own))
        gaps += own
    return tuple(requests), gaps


def _request(at: int, given: Mapping[str, object], gaps: list[float]) -> Request:
    named = {f"{key} of request {at}": value for key, value in given.items()}
    tokens = count(named, f"output_lens of request {at}", least=1)
    first = number(named, f"ttfts of request {at}") * 1000
    if first < 0:
        refuse("not-positive", f"ttfts of request {at} is {first / 1000} s")
    if gaps and min(gaps) < 0:
        refuse("not-positive", f"itls of request {at} has {min(gaps) / 1000} s")
    if len(gaps) >= tokens:
        refuse("contradiction", f"request {at} has {len(gaps)} gaps between {tokens} tokens")
    return Request(count(named, f"input_lens of request {at}", least=1), tokens, first, math.fsum(gaps))


def _as_list(value: object) -> list[object]:
    if not isinstance(value, list):
        refuse("wrong-type", f"{str(value)[:40]!r} is a {type(value).__name__}, not a list")
    return value


def _short(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:200] if lines else ""
