"""What a run's log says, as nouns: phases, decode progress, and the snapshot that `log.py` makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_r1perf.sglang.causes import Cause
    from pytest_r1perf.sglang.events import Event
    from pytest_r1perf.sglang.table import Table


class Phase(IntEnum):
    """How far a run came, in the order of the offline benchmark.

    SHUTDOWN is before RESULT: SGLang ends the engine, then appends the JSON line, then prints the table
    (``benchmark/offline_throughput.py``), so a run that dies in SHUTDOWN has measured and lost it. Versions
    up to 0.5.11 print nothing at the shutdown.
    """

    START = 0
    ARGUMENTS = 1
    LOAD_WEIGHTS = 2
    KV_CACHE = 3
    CUDA_GRAPHS = 4
    READY = 5
    WARMUP = 6
    BENCHMARK = 7
    SHUTDOWN = 8
    RESULT = 9


@dataclass(frozen=True, slots=True)
class PhaseMark:
    """Where a phase was first seen; ``timestamp`` is the log's own text (``2026-11-30 09:35:35``) or None."""

    phase: Phase
    line_no: int
    timestamp: str | None


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """One decode report, summed over the DP ranks (the latest of each); ``gen_throughput`` in tok/s."""

    line_no: int
    timestamp: str | None
    running_reqs: int
    queue_reqs: int
    gen_throughput: float


@dataclass(frozen=True, slots=True)
class Decode:
    """The decode reports of the timed window (of the whole log where there is no ``Benchmark...`` line).

    ``points`` is thinned evenly to at most 512; ``lines`` counts all. ``lines_without_graph`` ran eagerly:
    their batch was larger than the largest captured graph, or there are no graphs.
    """

    latest: DecodePoint | None = None
    points: tuple[DecodePoint, ...] = ()
    lines: int = 0
    lines_without_graph: int = 0


@dataclass(frozen=True, slots=True)
class Compiling:
    """DeepGEMM's pre-compilation of one shape: ``done`` of ``sizes`` are there; ``shape`` is empty if not told."""

    done: int
    sizes: int
    shape: str = ""

    def __str__(self) -> str:
        return f"{self.done} of {self.sizes} sizes" + (f" of {self.shape}" if self.shape else "")


@dataclass(frozen=True, slots=True)
class LogFacts:
    """A snapshot of what the log said so far; every field is bounded, whatever the log's size.

    ``workload_tokens`` is (input, output) of the first ``#Input tokens:`` / ``#Output tokens:`` pair; the
    second pair is the warm-up's. ``load_weight_s`` (0.5.9+) is the slowest rank's, in seconds.
    ``retracted_reqs`` counts requests, ``retractions`` the times it happened; every TP rank logs the same
    retraction, so ranks of one DP group count once. ``jit_in_benchmark`` holds the first compilation lines
    of the timed window. ``attention_backend`` is the one that the log names instead of the argument's,
    ``kv_cache_dtype`` and ``model_dtype`` are torch's names, ``captured`` is the largest size a phase's CUDA
    graphs were captured for (`told`). ``compiling`` is what DeepGEMM was at when the log ended.
    """

    phase: Phase = Phase.START
    phases: tuple[PhaseMark, ...] = ()
    server_args: dict[str, object] = field(default_factory=dict)
    workload_tokens: tuple[int, int] | None = None
    max_total_num_tokens: int | None = None
    chunked_prefill_size: int | None = None
    max_running_requests: int | None = None
    context_len: int | None = None
    load_weight_s: float | None = None
    attention_backend: str | None = None
    kv_cache_dtype: str | None = None
    model_dtype: str | None = None
    captured: dict[str, int] = field(default_factory=dict)
    retracted_reqs: int = 0
    retractions: int = 0
    decode: Decode = Decode()
    jit_in_benchmark: tuple[Event, ...] = ()
    compiling: Compiling | None = None
    events: tuple[Event, ...] = ()
    causes: tuple[Cause, ...] = ()
    table: Table | None = None
    tail: tuple[str, ...] = ()
    lines: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: ``requests_done`` of N, ``fraction`` 0 to 1, ``gen_throughput`` in tok/s."""

    phase: Phase
    requests_done: int
    fraction: float
    gen_throughput: float | None
