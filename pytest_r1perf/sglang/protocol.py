"""The protocol: the closed list of keys that must match before two numbers may be compared (design section 2).

Most of it is read from what SGLang resolved, not from what was asked, and in words that mean the same in every
release from 0.4.3 to 0.5.23: a version bump is comparable, and a real difference is not. Other differences (versions,
environment, command line, other arguments) are listed beside a verdict and bar nothing (`resolved`).

The fused all-reduce is in the list though no document names it there: like the attention backend and the prefill
graphs it is a choice of kernels that SGLang makes by itself (on H200s at tp 8 from 0.5.10), and that a gate pins.
Memory fraction, schedule policy and running requests are not: they are tuning, and a recipe's name stands for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_r1perf.cell import Cell
from pytest_r1perf.sglang import graphs
from pytest_r1perf.sglang.events import EventKind
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.graphs import OFF, UNKNOWN
from pytest_r1perf.workload import SampledWorkload

METRIC_DEFINITION = "bench_offline_throughput: tokens / total_latency"
NOT_RECORDED = "not recorded"

_ENUM = re.compile(r"<\w+\.(\w+)(?:: '([^']*)'|: [^>]*)?>\Z|[A-Z]\w*\.([A-Z_]+)\Z")
_SAME = {
    "bf16": "bfloat16",
    "half": "float16",
    "float": "float32",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8_e5m2fnuz": "fp8_e5m2",
    "float4_e2m1fn_x2": "fp4_e2m1",
    "nsa": "dsa",  # renamed with the model's attention, 0.5.13
}
_UNQUANTIZED = ("bfloat16", "float16", "float32")
_LEGACY_RUNNERS = {
    "enable_flashinfer_cutlass_moe": "flashinfer_cutlass",
    "enable_flashinfer_moe": "flashinfer_cutlass",
    "enable_flashinfer_trtllm_moe": "flashinfer_trtllm",
    "enable_flashinfer_mxfp4_moe": "flashinfer_mxfp4",
    "enable_flashinfer_cutedsl_moe": "flashinfer_cutedsl",
    "enable_triton_kernel_moe": "triton_kernel",
}
"""Switches of 0.4.8 to 0.5.3, before and beside ``moe_runner_backend`` (0.5.1)."""
_OLD_GRAPH_KEYS = ("disable_cuda_graph", "cuda_graph_max_bs")


def protocol_of(
    cell: Cell,
    workload: SampledWorkload,
    resolved: Mapping[str, object],
    model_digest: str,
    facts: LogFacts | None = None,
    *,
    hosts: int = 1,
) -> dict[str, object]:
    """The protocol of one run, in a stable order, values that YAML can hold.

    ``hosts``: on how many machines the nodes are (two ranks of one host talk over loopback).

    ``facts`` is what the run's log told: without it, what a release keeps out of its arguments is ``unknown``.
    """
    topology = cell.topology
    return {
        "tp_size": topology.tp_size,
        "pp_size": topology.pp_size,
        "dp_size": topology.dp_size,
        "ep_size": topology.ep_size,
        "nnodes": topology.nnodes,
        **({"hosts": hosts} if topology.nnodes > 1 else {}),
        "mode": cell.mode,
        "metric_definition": METRIC_DEFINITION,
        "cache_state": "fresh process",
        "model_config": model_digest,
        "workload": workload.digest,
        "num_prompts": workload.num_prompts,
        **effective(resolved, facts or LogFacts()),
    }


def effective(resolved: Mapping[str, object], facts: LogFacts) -> dict[str, object]:
    """The part of the protocol that SGLang decides, under names and values that no release changes.

    ``dtype`` and ``quantization`` stay as resolved: ``auto`` and None are the checkpoint's, which ``model_config``
    identifies. ``moe_runner_backend: auto`` is SGLang's choice at run time; no release logs it.
    """
    attention = same(facts.attention_backend or resolved.get("attention_backend") or UNKNOWN)
    return {
        "device": same(resolved.get("device", UNKNOWN)),
        "load_format": same(resolved.get("load_format", UNKNOWN)),
        "dtype": same(resolved.get("dtype", UNKNOWN)),
        "quantization": same(resolved.get("quantization")),
        "kv_cache_dtype": _kv_cache_dtype(resolved, facts),
        "attention_backend": attention,
        "prefill_attention_backend": same(resolved.get("prefill_attention_backend") or attention),
        "decode_attention_backend": same(resolved.get("decode_attention_backend") or attention),
        "moe_runner_backend": _moe_runner_backend(resolved),
        "moe_a2a_backend": _moe_a2a_backend(resolved),
        "decode_graph": graphs.decode_graph(resolved, facts),
        "decode_graph_max_bs": graphs.decode_graph_max_bs(resolved, facts),
        "prefill_graph": graphs.prefill_graph(resolved, facts),
        "chunked_prefill_size": chunk(resolved, facts),
        "disable_radix_cache": resolved.get("disable_radix_cache", UNKNOWN),
        "speculative_algorithm": _speculative(resolved.get("speculative_algorithm")),
        "enable_dp_attention": dp_attention_size(resolved) > 1,
        "page_size": resolved.get("page_size") or 1,  # no such argument before 0.4.4: pages of one token
        "allreduce_fusion": allreduce_fusion(resolved, facts),
    }


def differences(stored: Mapping[str, object], measured: Mapping[str, object]) -> tuple[str, ...]:
    """``"key: old -> new"`` for every key that differs; a baseline of an older file has its names mapped.

    A key that only one side has is a difference (``not recorded``): nothing shows that they are the same.
    """
    old = _under_todays_names(stored, measured)
    return tuple(
        f"{key}: {old.get(key, NOT_RECORDED)} -> {measured.get(key, NOT_RECORDED)}"
        for key in (*old, *(key for key in measured if key not in old))
        if old.get(key, NOT_RECORDED) != measured.get(key, NOT_RECORDED)
    )


def same(value: object) -> object:
    """A value by the one spelling that all releases share: enums by their value, ``bf16`` as ``bfloat16``."""
    if isinstance(value, str):
        found = _ENUM.match(value)
        if found:
            value = found[2] or (found[1] or found[3]).lower()
        return _SAME.get(value, value)
    return value if isinstance(value, (int, float, bool, type(None))) else str(value)


def chunk(resolved: Mapping[str, object], facts: LogFacts) -> int | str:
    """The scheduler's own chunk size in tokens, ``off``, or ``unknown``.

    The capacity line of the log is the scheduler's; the arguments serve where it is missing.
    """
    if "chunked_prefill_size" not in resolved and facts.chunked_prefill_size is None:
        return UNKNOWN
    logged = facts.chunked_prefill_size
    value = resolved.get("chunked_prefill_size") if logged is None else logged
    return value if isinstance(value, int) and value > 0 else OFF


def dp_attention_size(resolved: Mapping[str, object]) -> int:
    """How many DP ranks share the attention, 1 where DP attention is off.

    0.5.22 rewrites ``--dp-size N --enable-dp-attention`` to ``attn_dp_size=N, dp_size=1``.
    """
    size = resolved.get("attn_dp_size")
    if isinstance(size, int) and size > 1:
        return size
    size = resolved.get("dp_size")
    return size if resolved.get("enable_dp_attention") is True and isinstance(size, int) else 1


def allreduce_fusion(resolved: Mapping[str, object], facts: LogFacts) -> str:
    """``off``, ``flashinfer``, another backend of FlashInfer by its name, or ``aiter``.

    From 0.5.14 a backend stands for the switch, which reads False even where it was given (serving_hook.py of
    0.5.20); ``auto`` is trtllm on Hopper, the only one before. One GPU has nothing to reduce.
    """
    if resolved.get("tp_size") == 1 or any(event.kind is EventKind.FUSION_DISABLED for event in facts.events):
        return OFF
    backend = resolved.get("flashinfer_allreduce_fusion_backend")
    if backend is not None:
        name = str(same(backend))
        return "flashinfer" if name in ("auto", "trtllm") else f"flashinfer {name}"
    if resolved.get("enable_flashinfer_allreduce_fusion") is True:
        return "flashinfer"
    return "aiter" if resolved.get("enable_aiter_allreduce_fusion") is True else OFF


def _kv_cache_dtype(resolved: Mapping[str, object], facts: LogFacts) -> object:
    """What the pool holds. Before 0.5.3 nothing tells what ``auto`` is, and it is always the model's dtype."""
    asked = same(resolved.get("kv_cache_dtype", UNKNOWN))
    told = same(facts.kv_cache_dtype or facts.model_dtype)
    if asked == "auto":
        return asked if told is None else told
    # A block-scaled format is logged as bytes; a pool that holds plain numbers instead has fallen back.
    return told if told in _UNQUANTIZED and facts.kv_cache_dtype is not None else asked


def _moe_runner_backend(resolved: Mapping[str, object]) -> object:
    value = same(resolved.get("moe_runner_backend", "auto"))
    legacy = next((name for flag, name in _LEGACY_RUNNERS.items() if resolved.get(flag) is True), None)
    return legacy if legacy is not None and value == "auto" else value


def _moe_a2a_backend(resolved: Mapping[str, object]) -> object:
    if resolved.get("enable_deepep_moe") is True:
        return "deepep"
    return same(resolved.get("moe_a2a_backend")) or "none"


def _speculative(value: object) -> object:
    if value is None:
        return None
    name = str(same(value)).upper()
    return None if name == "NONE" else {"NEXTN": "EAGLE"}.get(name, name)


def _under_todays_names(stored: Mapping[str, object], measured: Mapping[str, object]) -> dict[str, object]:
    """A protocol as it is written today, from an older file's, which has the arguments' own names.

    What such a file cannot tell stays out of it. Its ``auto`` KV cache is the model's dtype, which ``model_config``
    and ``dtype`` fix; a quantised one is not taken for it.
    """
    if "decode_graph" in stored or not any(key in stored for key in _OLD_GRAPH_KEYS):
        return dict(stored)
    nothing = LogFacts()
    old = {key: value for key, value in stored.items() if key not in _OLD_GRAPH_KEYS}
    old["moe_runner_backend"] = _moe_runner_backend(stored)
    old["moe_a2a_backend"] = _moe_a2a_backend(stored)
    old["chunked_prefill_size"] = chunk(stored, nothing)
    old["speculative_algorithm"] = _speculative(stored.get("speculative_algorithm"))
    old["page_size"] = stored.get("page_size") or 1
    if old.get("kv_cache_dtype") == "auto" and measured.get("kv_cache_dtype") in _UNQUANTIZED:
        old["kv_cache_dtype"] = measured["kv_cache_dtype"]
    if stored.get("device") == "cpu" or stored.get("disable_cuda_graph") is True or "cuda_graph_max_bs" in stored:
        old["decode_graph"] = graphs.decode_graph(stored, nothing)
        old["decode_graph_max_bs"] = graphs.decode_graph_max_bs(stored, nothing)
    if stored.get("device") == "cpu":
        old["prefill_graph"] = OFF
    if stored.get("tp_size") == 1:
        old["allreduce_fusion"] = OFF
    return old
