"""Rules on memory: what cannot fit, what has to queue, and the two flags that move together."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_r1perf.memory import GIB, fits
from pytest_r1perf.preflight.finding import CheckRule, Finding, Severity, Situation

_ESTIMATE = "estimate from the model's config.json (pytest_r1perf.memory)"
_GRAPH_FLAGS = ("cuda_graph_max_bs", "cuda_graph_max_bs_decode")
_SWEET_SPOTS = {(8, 1): 0.87, (16, 1): 0.87, (8, 2): 0.83}
"""(tp, pp) -> mem_fraction_static on H200. Best-practice guide: "0.87 for TP8, 0.83 for PP2 peak profile";
playbook C runs TP16 at 0.87."""


def fraction_in_range(now: Situation) -> Iterator[Finding]:
    """``mem_fraction_static`` is a fraction of what is free: all of it leaves nothing for activations."""
    fraction = now.number("mem_fraction_static")
    if fraction is not None and not 0 < fraction < 1:
        text = f"mem_fraction_static must be between 0 and 1, got {fraction:g}: 0.8 to 0.9 is usual"
        source = "SGLang, profile_max_num_token: KV gets what is free less (1 - fraction) of what was"
        yield Finding("mem-fraction-out-of-range", Severity.REFUSE, text, source)


def weights_fit(now: Situation) -> Iterator[Finding]:
    """Weights must leave room for KV within the static share; whole copies of pure DP most of all."""
    memory, topology = now.memory, now.cell.topology
    if memory is None or memory.free_for_kv > 0 or next(fraction_in_range(now), None) is not None:
        return
    whole = topology.dp_size > 1 and not topology.enable_dp_attention
    what = f"each of the {topology.dp_size} whole copies of the model" if whole else "the model"
    ranks = topology.tp_size * topology.pp_size
    text = (
        f"{what} needs {_gib(memory.weights_bytes_per_gpu)} of weights on each of {ranks} GPUs, and "
        f"mem_fraction_static {memory.mem_fraction_static:g} gives weights and KV cache {_gib(memory.static_bytes)} "
        f"of {_gib(memory.gpu_bytes)}: shard over more GPUs (tp, pp){', not into copies' if whole else ''}"
    )
    source = f"{_ESTIMATE}; optimisation notes, what didn't work: 'R1 does not fit twice in 80 GB x 8'"
    yield Finding("weights-do-not-fit", Severity.REFUSE, text, source)


def requests_fit(now: Situation) -> Iterator[Finding]:
    """The longest request must fit into an empty KV pool; that the others queue is normal."""
    pool = _pool(now)
    if pool is None or now.load is None or (now.memory is not None and now.memory.free_for_kv <= 0):
        return
    max_tokens, pools = pool
    fit = fits(max_tokens, pools, now.load)
    if not fit.longest_fits:
        known = now.load.longest is not None
        length = f"longest request has {now.load.longest:,}" if known else f"mean request has {now.load.mean:,.0f}"
        text = (
            f"the KV cache holds {max_tokens:,} tokens and the {length}, which SGLang would cut short or refuse: "
            f"raise max_total_tokens or mem_fraction_static, shard more, or take a workload of shorter requests"
        )
        yield Finding(
            "kv-below-longest-request", Severity.REFUSE, text, f"{_ESTIMATE}; SGLang, tp_worker.py: max_req_len"
        )
    elif not fit.all_at_once:
        text = (
            f"about {fit.at_once:,} of {fit.requests:,} requests fit into the KV cache at once and the others queue: "
            f"normal for throughput, but what changes the cache's size changes the batch"
        )
        yield Finding("requests-queue", Severity.NOTE, text, _ESTIMATE)


def fraction_off_sweet_spot(now: Situation) -> Iterator[Finding]:
    """``mem_fraction_static`` away from the value that was best for the layout, on the guide's own GPU."""
    topology, fraction = now.cell.topology, now.number("mem_fraction_static")
    best = _SWEET_SPOTS.get((topology.tp_size, topology.pp_size))
    other = topology.dp_size > 1 or topology.ep_size > 1 or now.cell.platform.accelerator != "NVIDIA H200"
    if fraction is None or not 0 < fraction < 1 or best is None or other or abs(fraction - best) < 0.005:
        return
    text = (
        f"mem_fraction_static {fraction:g} is off {best:g}, the sweet spot of {topology.name!r} on H200: "
        f"take {best:g}, or sweep around it and say so"
    )
    source = "best-practice guide: 'Keep mem-fraction-static aligned with topology (0.87 for TP8, 0.83 for PP2)'"
    yield Finding("mem-fraction-off-sweet-spot", Severity.WARN, text, source)


def memory_pair(now: Situation) -> Iterator[Finding]:
    """A marker that moves one of the two memory flags and leaves the recipe's value of the other.

    A graph size without any ``mem_fraction_static`` is the anti-pattern ``memory-pair-moved-alone``.
    """
    moved, flags = now.cell.extra_flags, now.cell.flags
    graph = next((name for name in _GRAPH_FLAGS if name in flags), None)
    fraction = "mem_fraction_static" in moved
    if graph is None or "mem_fraction_static" not in flags or fraction == (graph in moved):
        return
    alone, kept = ("mem_fraction_static", graph) if fraction else (graph, "mem_fraction_static")
    text = (
        f"the test moves {alone} to {flags[alone]} and keeps {kept}={flags[kept]} of the recipe: they share the "
        f"memory, so state both or sweep both"
    )
    source = (
        "optimisation notes, memory tuning: 'if you tune them independently you will either OOM or leave throughput'"
    )
    yield Finding("memory-pair-half-moved", Severity.WARN, text, source)


def _pool(now: Situation) -> tuple[int, int] | None:
    """(tokens of one KV pool, pools): estimated, or without an estimate the limit that is given."""
    if now.memory is not None:
        return now.memory.max_tokens, now.memory.pools
    limit = now.number("max_total_tokens")
    return (int(limit), now.cell.topology.dp_size) if limit is not None else None


def _gib(value: int) -> str:
    return f"{value / GIB:,.1f} GiB"


MEMORY_RULES: tuple[CheckRule, ...] = (
    fraction_in_range,
    weights_fit,
    requests_fit,
    fraction_off_sweet_spot,
    memory_pair,
)
