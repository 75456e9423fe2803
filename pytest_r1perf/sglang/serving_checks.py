"""Does a row of ``bench_serving`` contradict itself? Each rule follows from the client's own formulas.

Its numbers are not rounded, so what must be equal is equal to a millionth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from pytest_r1perf.sglang.jsonrow import number, refuse
from pytest_r1perf.sglang.serving_result import LATENCIES, Distribution, Request, ServingResult

_SAME = 1e-6


def check(row: Mapping[str, object], result: ServingResult, gaps: Sequence[float]) -> None:
    """Raises :class:`RowRefused` for the first rule that does not hold; ``gaps`` are all ITLs in ms, where known."""
    _rates(row, result)
    for name in LATENCIES:
        spread: Distribution | None = getattr(result, f"{name}_ms")
        if spread is not None:
            _ordered(name, spread)
    _nested(result)
    _in_flight(result)
    _tokens(row, result)
    if result.requests is not None:
        _as_the_requests(result, result.requests, gaps)


def above_zero(what: str, value: float) -> None:
    """A zero is what SGLang writes for "nothing measured", and -1 for "not known"."""
    if value <= 0:
        refuse("not-positive", f"{what} is {value}")


def quantile(values: Sequence[float], share: float) -> float:
    """By linear interpolation between the two nearest, as numpy's ``percentile``."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (at - low)


def _rates(row: Mapping[str, object], result: ServingResult) -> None:
    """Each rate that the row has is its amount / the window; the rates used here are computed anew from both."""
    for key, amount in (
        ("request_throughput", result.completed),
        ("input_throughput", result.total_input_tokens),
        ("output_throughput", result.total_output_tokens),
        ("total_throughput", result.total_input_tokens + result.total_output_tokens),
    ):
        if key == "total_throughput" and key not in row:
            continue  # first in 0.5.4
        given = number(row, key)
        if not math.isclose(given, amount / result.duration_s, rel_tol=_SAME):
            refuse(
                "contradiction",
                f"{key} is {given}, and {amount} / {result.duration_s} s is {amount / result.duration_s}",
            )


def _ordered(name: str, spread: Distribution) -> None:
    for what in ("mean", "median", "p99"):
        above_zero(f"{what}_{name}_ms", getattr(spread, what))
    if spread.std < 0:
        refuse("not-positive", f"std_{name}_ms is {spread.std}")
    rising = [(key, getattr(spread, key)) for key in ("median", "p90", "p95", "p99")]
    known = [(key, value) for key, value in rising if value is not None]
    for (lower, low), (upper, high) in itertools.pairwise(known):
        if not _at_most(low, high):
            refuse("contradiction", f"{upper}_{name}_ms {high} is below {lower}_{name}_ms {low}")
    if not _at_most(abs(spread.mean - spread.median), spread.std, slack=_SAME * spread.mean):
        # holds for any numbers whatever
        refuse(
            "contradiction",
            f"mean_{name}_ms {spread.mean} and median_{name}_ms {spread.median} are further apart than "
            f"std_{name}_ms {spread.std}",
        )


def _nested(result: ServingResult) -> None:
    """Of every request: its first token comes within it, and it lies within the window."""
    for what in ("mean", "median", "p99"):
        first, whole = getattr(result.ttft_ms, what), getattr(result.e2e_latency_ms, what)
        if not _at_most(first, whole):
            refuse("contradiction", f"{what}_ttft_ms {first} is above {what}_e2e_latency_ms {whole}")
        if not _at_most(whole, result.duration_s * 1000):
            refuse("contradiction", f"{what}_e2e_latency_ms {whole} is above the duration {result.duration_s} s")


def _in_flight(result: ServingResult) -> None:
    mean = result.completed * result.e2e_latency_ms.mean / 1000 / result.duration_s
    if not math.isclose(result.concurrency, mean, rel_tol=_SAME):
        refuse(
            "contradiction", f"concurrency is {result.concurrency}, and the requests' latencies / duration are {mean}"
        )
    if result.max_concurrency and not _at_most(mean, result.max_concurrency):
        refuse("contradiction", f"concurrency {mean} is above max_concurrency {result.max_concurrency}")


def _tokens(row: Mapping[str, object], result: ServingResult) -> None:
    if result.total_output_tokens < result.completed:
        refuse("contradiction", f"{result.total_output_tokens} output tokens of {result.completed} requests")
    if "total_input_text_tokens" in row and "total_input_vision_tokens" in row:
        parts = number(row, "total_input_text_tokens") + number(row, "total_input_vision_tokens")
        if parts != result.total_input_tokens:
            refuse("contradiction", f"total_input_tokens is {result.total_input_tokens}, and its parts are {parts:.0f}")


def _as_the_requests(result: ServingResult, requests: Sequence[Request], gaps: Sequence[float]) -> None:
    """The row's totals are those of its requests."""
    unseen = sum(request.ttft_ms == 0 for request in requests)
    if unseen:
        refuse(
            "no-first-token",
            f"{unseen} of {len(requests)} requests were never answered by a text: refused, e.g. for their length, and "
            f"counted as completed with all their tokens",
        )
    tokens = sum(request.output_tokens for request in requests)
    if tokens != result.total_output_tokens:
        refuse("contradiction", f"total_output_tokens is {result.total_output_tokens}, and its requests have {tokens}")
    _same_as("ttft", result.ttft_ms, [request.ttft_ms for request in requests])
    if result.itl_ms is not None and gaps:
        _same_as("itl", result.itl_ms, gaps)
    _not_below("e2e_latency", result.e2e_latency_ms, (request.e2e_latency_ms for request in requests))
    if result.tpot_ms is not None:
        each = (request.tpot_ms for request in requests)
        _not_below("tpot", result.tpot_ms, (value for value in each if value is not None))


def _same_as(name: str, spread: Distribution, values: Sequence[float]) -> None:
    for what, own in (
        ("mean", math.fsum(values) / len(values)),
        ("median", quantile(values, 0.5)),
        ("p99", quantile(values, 0.99)),
    ):
        given = getattr(spread, what)
        if not math.isclose(given, own, rel_tol=_SAME):
            refuse("contradiction", f"{what}_{name}_ms is {given}, and that of its requests is {own}")


def _not_below(name: str, spread: Distribution, values: Iterable[float]) -> None:
    """A request's own end is its last token; SGLang's is the answer's end mark after it."""
    known = list(values)
    for what, own in (("mean", math.fsum(known) / len(known)), ("median", quantile(known, 0.5))):
        given = getattr(spread, what)
        if not _at_most(own, given):
            refuse("contradiction", f"{what}_{name}_ms is {given}, and that of its requests is at least {own}")


def _at_most(low: float, high: float, slack: float = 0.0) -> bool:
    return low <= high * (1 + _SAME) + slack
