"""Flags that were asked for against what SGLang resolved, by meaning, whatever the release calls them.

INVALID is what replaces an explicit choice of *what runs*: a backend, a data type, a graph, a cache, a layout. An upper
bound that was not reached (KV tokens, running requests, graph sizes above the running requests) is a REMARK: the
configuration is the one that was asked for, and what came of it (retractions, waiting) is named on its own. So is any
other flag that was adjusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.events import Effect, Event, EventKind
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.graphs import OFF, UNKNOWN
from pytest_r1perf.sglang.protocol import dp_attention_size, same
from pytest_r1perf.sglang.told import DECODE

_K = EventKind
_MUST_HOLD: Mapping[str, EventKind] = {
    "attention_backend": _K.ATTENTION_FALLBACK,
    "prefill_attention_backend": _K.ATTENTION_FALLBACK,
    "decode_attention_backend": _K.ATTENTION_FALLBACK,
    "moe_runner_backend": _K.FLAG_REPLACED,
    "moe_a2a_backend": _K.FLAG_REPLACED,
    "kv_cache_dtype": _K.KV_DTYPE_FALLBACK,
    "dtype": _K.FLAG_REPLACED,
    "quantization": _K.FLAG_REPLACED,
    "load_format": _K.FLAG_REPLACED,
    "schedule_policy": _K.FLAG_REPLACED,
    "speculative_algorithm": _K.FLAG_REPLACED,
    "disable_radix_cache": _K.FLAG_REPLACED,
    "enable_torch_compile": _K.FLAG_REPLACED,
    "page_size": _K.PAGE_SIZE,
    "tp_size": _K.FLAG_REPLACED,
    "pp_size": _K.FLAG_REPLACED,
    "ep_size": _K.FLAG_REPLACED,  # DeepEP sets it to tp_size, whatever was asked: another topology
}
"""Flags with one value that means the same before and after; replacing it is a downgrade."""

_SWITCHES: Mapping[str, tuple[str, EventKind]] = {
    "enable_piecewise_cuda_graph": ("prefill_graph", _K.PREFILL_GRAPH_DISABLED),
    "enforce_piecewise_cuda_graph": ("prefill_graph", _K.PREFILL_GRAPH_DISABLED),
    "enable_breakable_cuda_graph": ("prefill_graph", _K.PREFILL_GRAPH_DISABLED),
    "enable_flashinfer_allreduce_fusion": ("allreduce_fusion", _K.FUSION_DISABLED),
    "disable_cuda_graph": ("decode_graph", _K.FLAG_REPLACED),
    "disable_decode_cuda_graph": ("decode_graph", _K.FLAG_REPLACED),
    "disable_piecewise_cuda_graph": ("prefill_graph", _K.FLAG_REPLACED),
    "disable_prefill_cuda_graph": ("prefill_graph", _K.FLAG_REPLACED),
    "enforce_disable_flashinfer_allreduce_fusion": ("allreduce_fusion", _K.FLAG_REPLACED),
}
"""The key of the protocol that a switch speaks of; ``FLAG_REPLACED`` are those that want it off.

Which kind of prefill graph is not asked: the switch of 0.5.3 to 0.5.9 is a no-op where such graphs became the default
(0.5.10 to 0.5.13), and later releases have another kind.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked for, what the log told, and the resolved arguments with the protocol's values over them."""

    asked: Mapping[str, FlagValue]
    facts: LogFacts
    values: Mapping[str, object]

    @property
    def resolved(self) -> Mapping[str, object]:
        """SGLang's own arguments, under its own names."""
        return self.facts.server_args

    @property
    def cpu(self) -> bool:
        """Whether it ran on a CPU."""
        return self.resolved.get("device") == "cpu"

    @property
    def dp_ranks(self) -> int:
        """Ranks of DP attention, 1 without it."""
        return dp_attention_size(self.resolved)


def replaced_flags(run: Run) -> Iterator[Event]:
    """One event for every flag that was asked for and is not what ran; ``auto`` asks for nothing."""
    for name, value in run.asked.items():
        if value == "auto":
            continue
        if name in _CHECKS:
            yield from _CHECKS[name](run, name, value)
        elif name in _MUST_HOLD:
            if name in run.values and not _holds(name, value, run.values[name]):
                yield _replaced(_MUST_HOLD[name], name, value, run.values[name])
        elif name in _SWITCHES:
            yield from _switch(run, name, value)
        elif name in run.resolved and not _alike(value, run.resolved[name]):
            yield _replaced(_K.FLAG_REPLACED, name, value, run.resolved[name], effect=Effect.REMARK)


def _switch(run: Run, name: str, value: FlagValue) -> Iterator[Event]:
    key, kind = _SWITCHES[name]
    actual = run.values[key]
    wants_off = kind is _K.FLAG_REPLACED
    if value is False and not wants_off:  # "enable: false" asks for off, where a release has it on unasked
        wants_off, kind = True, _K.FLAG_REPLACED
    elif value is not True:
        return
    if actual == UNKNOWN or (actual == OFF) is wants_off:
        return
    if key == "allreduce_fusion" and run.resolved.get("tp_size") == 1:
        return  # one GPU has nothing to reduce
    # A CPU has no CUDA graphs, whoever asks: nobody takes its number for one with them.
    effect = Effect.REMARK if run.cpu and key != "allreduce_fusion" else Effect.INVALID
    yield _replaced(kind, name, value, actual, key, effect)


def _graph_backend(run: Run, name: str, value: FlagValue) -> Iterator[Event]:
    key = f"{name.rpartition('_')[2]}_graph"
    kind = _K.DECODE_GRAPH_DISABLED if key == "decode_graph" else _K.PREFILL_GRAPH_DISABLED
    if run.values[key] not in (UNKNOWN, OFF if value == "disabled" else value):
        yield _replaced(kind, name, value, run.values[key], key, Effect.REMARK if run.cpu else Effect.INVALID)


def _decode_sizes(run: Run, name: str, value: FlagValue) -> Iterator[Event]:
    """Sizes ask for graphs; a largest graph below the size asked for leaves the largest batches without."""
    if run.values["decode_graph"] == OFF:
        effect = Effect.REMARK if run.cpu else Effect.INVALID
        yield _replaced(_K.DECODE_GRAPH_DISABLED, name, value, OFF, "decode_graph", effect)
        return
    sizes = (run.facts.captured.get(DECODE), run.values["decode_graph_max_bs"])
    largest = min((size for size in sizes if isinstance(size, int)), default=None)
    if isinstance(value, int) and largest is not None and largest < value:
        yield Event(_K.GRAPH_CAPPED, f"{name} was asked for as {value}, and the largest decode graph is {largest}", 0)


def _chunk(run: Run, name: str, value: FlagValue) -> Iterator[Event]:
    """Two rules change a chunk in the normal course, and all else replaces it.

    DP attention divides it by its ranks (0.4.3: by two), and the offline benchmark up to 0.5.18 resolves its arguments
    twice, so that it is divided twice: another configuration than a server's, but the same in every such run.
    """
    chunk, ranks = run.values[name], run.dp_ranks
    wanted: object = value if isinstance(value, int) and value > 0 else OFF
    if chunk in (wanted, UNKNOWN):
        return
    if isinstance(wanted, int) and isinstance(chunk, int) and ranks > 1:
        change = f"made the chunk of {wanted} tokens one of {chunk}"
        if chunk in (wanted // ranks, wanted // 2):
            yield Event(_K.DP_CHUNK, f"DP attention {change}", 0)
            return
        if chunk in (wanted // ranks // ranks, wanted // 4):
            yield Event(_K.DP_TWICE, f"the arguments were resolved twice, and DP attention {change}", 0)
            return
    kind = _K.CHUNKED_PREFILL_DISABLED if chunk == OFF else _K.CHUNK_CHANGED
    yield _replaced(kind, name, value, chunk)


def _fusion_backend(run: Run, name: str, value: FlagValue) -> Iterator[Event]:
    if run.values["allreduce_fusion"] == OFF and run.resolved.get("tp_size") != 1:
        yield _replaced(_K.FUSION_DISABLED, name, value, OFF, "allreduce_fusion")


def _dp_attention(run: Run, name: str, value: FlagValue) -> Iterator[Event]:
    if value is True and run.dp_ranks == 1:
        # With dp 1 it is dropped without a word from 0.5.2 on: an advisory anti-pattern, so no reason to fail.
        dp_size = run.asked.get("dp_size", 1)
        effect = Effect.INVALID if isinstance(dp_size, int) and dp_size > 1 else Effect.REMARK
        yield _replaced(_K.FLAG_REPLACED, name, value, False, effect=effect)


def _dp_size(run: Run, name: str, value: FlagValue) -> Iterator[Event]:
    if value not in (run.resolved.get(name, value), run.dp_ranks):
        yield _replaced(_K.FLAG_REPLACED, name, value, run.resolved[name])


def _running(run: Run, name: str, value: FlagValue) -> Iterator[Event]:
    """An upper bound that the KV cache was too small for; up to 0.5.13 nothing else says it."""
    able = run.facts.max_running_requests
    if isinstance(value, int) and able is not None and able < value // run.dp_ranks:
        each = f" ({value // run.dp_ranks} for each of {run.dp_ranks} DP ranks)" if run.dp_ranks > 1 else ""
        yield Event(_K.RUNNING_CAPPED, f"{name} was asked for as {value}{each}, and {able} can run", 0)


def _tokens(run: Run, name: str, value: FlagValue) -> Iterator[Event]:
    """An upper bound as well; whole pages only."""
    able, page = run.facts.max_total_num_tokens, run.values["page_size"]
    if isinstance(value, int) and able is not None and able <= value - (page if isinstance(page, int) else 1):
        yield Event(_K.KV_CAPPED, f"{name} was asked for as {value}, and the KV cache has room for {able}", 0)


_CHECKS: Mapping[str, Callable[[Run, str, FlagValue], Iterator[Event]]] = {
    "cuda_graph_backend_decode": _graph_backend,
    "cuda_graph_backend_prefill": _graph_backend,
    "cuda_graph_max_bs": _decode_sizes,
    "cuda_graph_max_bs_decode": _decode_sizes,
    "cuda_graph_bs": _decode_sizes,
    "cuda_graph_bs_decode": _decode_sizes,
    "chunked_prefill_size": _chunk,
    "flashinfer_allreduce_fusion_backend": _fusion_backend,
    "enable_dp_attention": _dp_attention,
    "dp_size": _dp_size,
    "max_running_requests": _running,
    "max_total_tokens": _tokens,
}


def _replaced(
    kind: EventKind, name: str, value: object, resolved: object, key: str = "", effect: Effect = Effect.INVALID
) -> Event:
    got = f"{key} {resolved!r}" if key else repr(resolved)
    return Event(kind, f"{name} was asked for as {value!r}, and SGLang resolved {got}", 0, effect=effect)


def _holds(name: str, asked: object, resolved: object) -> bool:
    if name == "speculative_algorithm":
        asked = {"NEXTN": "EAGLE"}.get(str(asked).upper(), str(asked).upper())
    return resolved == UNKNOWN or _alike(asked, resolved)


def _alike(asked: object, resolved: object) -> bool:
    """Equal by meaning; a text that stands for a number or a list is not compared (``8k``, ``1 2 4``)."""
    asked = same(asked)
    if isinstance(resolved, (list, tuple, dict)):
        return True
    resolved = same(resolved)
    if isinstance(asked, str) and isinstance(resolved, (int, float)) and not isinstance(resolved, bool):
        return True
    return asked == resolved
