"""What ``bench_serving`` measured, as nouns: latencies in ms, the window, and every request where it was told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from pytest_r1perf.errors import R1PerfError, did_you_mean


class ServingFormat(str, Enum):
    """Which releases write such a row; its keys tell."""

    ASKED = "0.4.3: output tokens as asked for, ITL between two chunks"
    COUNTED = "from 0.4.4"


LATENCIES = ("ttft", "tpot", "itl", "e2e_latency")
"""As SGLang's keys have them: ``median_ttft_ms``."""

_WINDOW = "the whole timed window"
_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "total_throughput": f"(input + output tokens) / {_WINDOW}",
        "output_throughput": f"output tokens / {_WINDOW}",
        "input_throughput": f"input tokens / {_WINDOW}",
        "request_throughput": f"requests / {_WINDOW}",
        "total_latency": _WINDOW,
        "goodput": f"requests within every limit / {_WINDOW}",
        "ttft_ms": "from sending to the first token with text",
        "tpot_ms": "(end - first token) / (output tokens - 1)",
        "itl_ms": "between two tokens of a request, a chunk's time spread over its tokens",
        "e2e_latency_ms": "from sending to the end of the answer",
    }
)
BURST_MS = 0.05
"""Two tokens that come closer together than this were waiting (ours): no decode step takes so little."""
_MANY_BURSTS = 0.1
"""Share of such tokens from which on it is worth a remark (ours)."""

_BY_TOKENS = ("total_throughput", "output_throughput", "tpot_ms", "goodput")
"""What 0.4.3 computes from the tokens that it asked for."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of the requests, or of all gaps between tokens; in ms. ``p90`` and ``p95`` are None in releases without them."""

    mean: float
    median: float
    p99: float
    std: float
    p90: float | None = None
    p95: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One answered request; ``decode_ms`` is from its first token to its last, the sum of its gaps."""

    input_tokens: int
    output_tokens: int
    ttft_ms: float
    decode_ms: float

    @property
    def e2e_latency_ms(self) -> float:
        """Until its last token; SGLang's own also has the answer's end mark, which comes at once after it."""
        return self.ttft_ms + self.decode_ms

    @property
    def tpot_ms(self) -> float | None:
        """(last token - first token) / (output tokens - 1); None for one token."""
        return self.decode_ms / (self.output_tokens - 1) if self.output_tokens > 1 else None


_LIMITS: Mapping[str, Callable[[Request], float | None]] = MappingProxyType(
    {
        "ttft_ms": lambda request: request.ttft_ms,
        "tpot_ms": lambda request: request.tpot_ms,
        "e2e_latency_ms": lambda request: request.e2e_latency_ms,
    }
)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests within all limits: ``per_s`` in req/s of the window, ``share`` of those sent, and each limit's share."""

    per_s: float
    share: float
    by_limit: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class ServingResult:
    """One run of the client: ``completed`` of the requests that it sent, all of them, in ``duration_s``.

    Token counts are the client's of the prompts and the engine's of the answers; ``retokenized_output_tokens`` is the
    client's count of the answers' texts, for the eye only. ``tpot_ms`` and ``itl_ms`` are None where every answer was
    one token. ``request_rate`` None: all at once; ``max_concurrency`` None: no limit. ``concurrency`` is the mean
    number in flight. ``requests`` is None where the row has no single requests; with them ``burst_share`` is the part
    of the tokens that were read at once with the one before.
    """

    format: ServingFormat
    completed: int
    duration_s: float
    total_input_tokens: int
    total_output_tokens: int
    retokenized_output_tokens: int | None
    ttft_ms: Distribution
    tpot_ms: Distribution | None
    itl_ms: Distribution | None
    e2e_latency_ms: Distribution
    concurrency: float
    request_rate: float | None
    max_concurrency: int | None
    dataset_name: str | None = None
    accept_length: float | None = None
    requests: tuple[Request, ...] | None = None
    burst_share: float | None = None
    server_info: Mapping[str, object] | None = field(default=None, repr=False, hash=False)

    @property
    def served_model_name(self) -> str | None:
        """The name that the server gave itself; None in rows without the server's own account (before 0.5.4)."""
        name = (self.server_info or {}).get("served_model_name")
        return name if isinstance(name, str) else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the row cannot say of itself, one sentence each, without a full stop."""
        found = []
        if self.requests is None:
            found.append(
                "bench_serving counts a request that the server refused as answered, with all of its tokens, and this "
                "row has no single requests to tell"
            )
        if self.burst_share is not None and self.burst_share > _MANY_BURSTS:
            found.append(
                f"{self.burst_share:.0%} of the tokens were read at once with the one before: the client or its host "
                f"was too busy to keep up, so latencies are not the server's alone"
            )
        return tuple(found)

    @property
    def why_no_goodput(self) -> str | None:
        """Why there is none, without a full stop; None where there is."""
        if self.requests is not None:
            return None
        return "the row has no numbers of single requests (--output-details, first in 0.4.6.post5)"

    def goodput(self, slo: Iterable[tuple[str, float]]) -> Goodput:
        """By limits in ms a request: ``ttft_ms``, ``tpot_ms``, ``e2e_latency_ms``; a limit is kept when it is met.

        An answer of one token has no TPOT and keeps that limit. Raises :class:`R1PerfError` for another limit, and
        where the row has no single requests.
        """
        if self.requests is None:
            raise R1PerfError(f"goodput cannot be computed: {self.why_no_goodput}")
        kept = {name: [_keeps(request, name, limit) for request in self.requests] for name, limit in slo}
        good = sum(map(all, zip(*kept.values(), strict=True))) if kept else self.completed
        shares = tuple((name, sum(each) / len(each)) for name, each in kept.items())
        return Goodput(good / self.duration_s, good / len(self.requests), shares)

    def metrics(self, slo: Sequence[tuple[str, float]] = ()) -> Mapping[str, float]:
        """By our metrics' names: recomputed from the raw fields; tok/s, req/s, s and ms.

        A plain latency is the median, as in ``ttft_ms``; ``mean_`` and ``p99_`` go before it. ``goodput`` is there
        with limits, where the row has single requests.
        """
        tokens = self.total_input_tokens + self.total_output_tokens
        found = {
            "total_throughput": tokens / self.duration_s,
            "output_throughput": self.total_output_tokens / self.duration_s,
            "input_throughput": self.total_input_tokens / self.duration_s,
            "request_throughput": self.completed / self.duration_s,
            "total_latency": self.duration_s,
        }
        for name in LATENCIES:
            spread: Distribution | None = getattr(self, f"{name}_ms")
            if spread is not None:
                found |= {f"{name}_ms": spread.median, f"mean_{name}_ms": spread.mean, f"p99_{name}_ms": spread.p99}
        if slo and self.requests is not None:
            found["goodput"] = self.goodput(slo).per_s
        return MappingProxyType(found)

    def definition(self, metric: str) -> str:
        """What a metric is, for the protocol: values with different texts are not comparable."""
        of, _, latency = metric.partition("_")
        known = metric if metric in _MEANINGS else latency
        how = f"{_MEANINGS[known]}{f', {of}' if known != metric else ', median' if metric.endswith('_ms') else ''}"
        if self.format is ServingFormat.ASKED:
            if known == "itl_ms":
                how = how.replace(_MEANINGS["itl_ms"], "between two chunks of an answer")
            elif known in _BY_TOKENS:
                how += "; output tokens as asked for, not counted"
        return f"bench_serving: {how}"


def _keeps(request: Request, name: str, limit: float) -> bool:
    try:
        value = _LIMITS[name](request)
    except KeyError:
        raise R1PerfError(f"slo[{name!r}] is not known; {did_you_mean(name, _LIMITS)}") from None
    return value is None or value <= limit
