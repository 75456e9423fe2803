"""The protocol: the closed list of keys that must match before two numbers may be compared (design section 2).

Most of it is read from what SGLang resolved, not from what was asked. Other differences (versions, environment,
command line) are listed beside a verdict and bar nothing; all resolved arguments are in the record.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_r1perf.cell import Cell
from pytest_r1perf.workload import SampledWorkload

RESOLVED_KEYS = (
    "device",
    "load_format",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "moe_runner_backend",
    "moe_a2a_backend",
    "disable_cuda_graph",
    "cuda_graph_max_bs",
    "chunked_prefill_size",
    "disable_radix_cache",
    "speculative_algorithm",
    "enable_dp_attention",
    "page_size",
)
"""Read from SGLang's resolved arguments under its own names; a key that a release lacks is left out."""

_PHASE_BACKENDS = ("prefill_attention_backend", "decode_attention_backend")
"""Where these are None, attention_backend serves: the same whether a release fills them in or not."""

METRIC_DEFINITION = "bench_offline_throughput: tokens / total_latency"


def protocol_of(
    cell: Cell, workload: SampledWorkload, resolved: Mapping[str, object], model_digest: str
) -> dict[str, object]:
    """The protocol of one run, in a stable order, values that YAML can hold."""
    topology = cell.topology
    protocol: dict[str, object] = {
        "tp_size": topology.tp_size,
        "pp_size": topology.pp_size,
        "dp_size": topology.dp_size,
        "ep_size": topology.ep_size,
        "nnodes": topology.nnodes,
        "mode": cell.mode,
        "metric_definition": METRIC_DEFINITION,
        "cache_state": "fresh process",
        "model_config": model_digest,
        "workload": workload.digest,
        "num_prompts": workload.num_prompts,
    }
    for key in RESOLVED_KEYS:
        if key in resolved:
            value = resolved[key]
            if value is None and key in _PHASE_BACKENDS:
                value = resolved.get("attention_backend")
            protocol[key] = value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
    return protocol
