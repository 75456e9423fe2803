"""Did SGLang do what it was asked? A flag that it silently replaced makes the number another one's.

Two sources, in this order: what was asked for and what the numbers show, because messages before logging is set up are
lost (INFO up to 0.5.10.post1), and then the log's lines. `asked` says which replaced flag spoils a number (INVALID);
what SGLang decided unasked never does (REMARK).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.asked import Run, replaced_flags
from pytest_r1perf.sglang.events import Effect, Event, EventKind
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.graphs import OFF
from pytest_r1perf.sglang.protocol import effective
from pytest_r1perf.sglang.result import Check
from pytest_r1perf.sglang.told import DECODE

MAX_EVENTS = 24

_K = EventKind
_ON_ITS_OWN: Mapping[str, tuple[EventKind, object, tuple[str, ...], str]] = {
    "decode_graph": (
        _K.DECODE_GRAPH_DISABLED,
        OFF,
        (
            *("disable_cuda_graph", "disable_decode_cuda_graph", "cuda_graph_backend_decode"),
            *("cuda_graph_max_bs", "cuda_graph_bs", "cuda_graph_max_bs_decode", "cuda_graph_bs_decode"),
        ),
        "decode graphs are off",
    ),
    "allreduce_fusion": (
        _K.FUSION_ENABLED,
        "flashinfer",
        ("enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend"),
        "FlashInfer's all-reduce fusion is on",
    ),
    "disable_radix_cache": (_K.RADIX_DISABLED, True, ("disable_radix_cache",), "the radix cache is off"),
    "disable_overlap_schedule": (
        _K.OVERLAP_DISABLED,
        True,
        ("disable_overlap_schedule",),
        "the overlap scheduler is off",
    ),
    "chunked_prefill_size": (_K.CHUNKED_PREFILL_DISABLED, OFF, ("chunked_prefill_size",), "chunked prefill is off"),
}
"""What SGLang may decide unasked: the value that is news, and the flags that ask about it."""
_ASKED_FOR: Mapping[EventKind, tuple[str, ...]] = {
    **{kind: flags for kind, _, flags, _ in _ON_ITS_OWN.values()},
    _K.PREFILL_GRAPH_DISABLED: ("disable_piecewise_cuda_graph", "disable_prefill_cuda_graph", "disable_cuda_graph"),
    _K.FUSION_DISABLED: ("enforce_disable_flashinfer_allreduce_fusion",),
    _K.ALLREDUCE_FALLBACK: ("disable_custom_all_reduce",),
}
"""A line that says what was asked for is no event."""
_NO_EVENT = (_K.JIT, _K.ATTENTION_DEFAULT, _K.KV_DTYPE, _K.RETRACTION)
"""Validity's own check, defaults (the protocol has them), and lines that are counted."""
_NOT_ON_A_CPU = frozenset(
    {_K.DECODE_GRAPH_DISABLED, _K.PREFILL_GRAPH_DISABLED, _K.ATTENTION_FALLBACK}
    | {_K.ALLREDUCE_FALLBACK, _K.OVERLAP_DISABLED}
)
"""A CPU has no CUDA graphs, one backend and no kernels to reduce with: its every run says so."""


def events_of(asked: Mapping[str, FlagValue], facts: LogFacts) -> tuple[Event, ...]:
    """What became of the flags that were asked for, and what SGLang did by itself; INVALID first, at most 24.

    ``asked`` holds logical flags; ``auto`` asks for nothing. A finding from the flags stands for the log's line of
    the same kind, and quotes it. Empty without resolved arguments.
    """
    if not facts.server_args:
        return ()
    run = Run(asked, facts, {**facts.server_args, **effective(facts.server_args, facts)})
    found = [*replaced_flags(run), *_from_facts(run)]
    own = {event.kind for event in found}
    if _K.DP_TWICE in own:
        own.add(_K.DP_CHUNK)
    found = [_quoting(event, facts) for event in found]
    found += [event for event in _from_log(run) if event.kind not in own]
    unique = list({(event.kind, event.text): event for event in found}.values())
    return tuple(sorted(unique, key=lambda event: event.effect is not Effect.INVALID)[:MAX_EVENTS])


def silently_downgraded(asked: Mapping[str, FlagValue], facts: LogFacts) -> tuple[Check, ...]:
    """One failed check for every flag that was asked for and silently replaced: the INVALID ones of `events_of`."""
    return tuple(
        Check("silent-downgrade", event.text) for event in events_of(asked, facts) if event.effect is Effect.INVALID
    )


def _from_facts(run: Run) -> Iterator[Event]:
    """What nobody asked for, by the arguments and the numbers of the log."""
    facts = run.facts
    for key, (kind, news, flags, sentence) in _ON_ITS_OWN.items():
        asked_about = any(flag in run.asked for flag in flags)
        if run.values.get(key) == news and not asked_about and not (run.cpu and kind in _NOT_ON_A_CPU):
            yield Event(kind, f"{sentence}, and nobody asked for that", 0)
    if facts.retracted_reqs:
        text = f"{facts.retracted_reqs} requests were retracted, in {facts.retractions} events: the KV cache was full"
        yield Event(_K.RETRACTION, text, 0, facts.retractions)
    eager, largest = facts.decode.lines_without_graph, facts.captured.get(DECODE)
    if eager and run.values["decode_graph"] != OFF:
        beyond = f" (the largest graph is for {largest} requests)" if largest else ""
        text = f"{eager} of {facts.decode.lines} decode reports in the window are of batches without a CUDA graph"
        yield Event(_K.WITHOUT_GRAPH, text + beyond, 0)
    if "chunked_prefill_size" not in run.asked and any(e.kind is _K.DP_CHUNK and e.count > 1 for e in facts.events):
        yield Event(_K.DP_TWICE, "the arguments were resolved twice, and DP attention divided the chunk twice", 0)


def _from_log(run: Run) -> Iterator[Event]:
    for event in run.facts.events:
        if event.kind in _NO_EVENT or (run.cpu and event.kind in _NOT_ON_A_CPU):
            continue
        if any(run.asked.get(flag) not in (None, False) for flag in _ASKED_FOR.get(event.kind, ())):
            continue
        if event.kind is _K.PREFILL_GRAPH_DISABLED and run.asked.get("enable_piecewise_cuda_graph") is False:
            continue
        if event.kind is _K.FUSION_ENABLED and run.resolved.get("enforce_disable_flashinfer_allreduce_fusion") is True:
            continue  # announced first and then switched off, as it was told (recorded on an H200 with 0.5.11)
        if event.kind is _K.KV_DTYPE_FALLBACK and "kv_cache_dtype" in run.asked:
            # After the arguments were logged (0.5.5.post3 to 0.5.12), and in a log without the dtype line.
            text = f"kv_cache_dtype was asked for as {run.asked['kv_cache_dtype']!r} ({event.text})"
            yield replace(event, text=text, effect=Effect.INVALID)
        else:
            yield event


def _quoting(event: Event, facts: LogFacts) -> Event:
    """The event with the first line of its kind, which may say why."""
    line = next((line for line in facts.events if line.kind is event.kind), None)
    if line is None or event.kind is _K.RETRACTION:
        return event
    return replace(event, text=f"{event.text} ({line.text})", line_no=line.line_no)
