"""All other resolved arguments: what a baseline keeps of them, and what is listed beside a verdict.

SGLang 0.5.20 resolves 499 arguments. Those that say how this host was set up (ports, paths, seeds), those that the
protocol holds already, and those of features that are off say nothing of a measurement and are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from pytest_r1perf.childenv import is_secret
from pytest_r1perf.sglang import graphs
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.protocol import same
from pytest_r1perf.sglang.told import PREFILL

Scalar: TypeAlias = str | int | float | bool

MAX_LISTED = 12
TEXT_LIMIT = 60

_IN_PROTOCOL = re.compile(
    r"(?:tp|pp|dp|ep|attn_dp)_size\Z|nnodes\Z|device\Z|load_format\Z|dtype\Z|quantization\Z|kv_cache_dtype\Z"
    r"|(?:prefill_|decode_)?attention_backend\Z|moe_runner_backend\Z|moe_a2a_backend\Z|chunked_prefill_size\Z"
    r"|disable_radix_cache\Z|speculative_algorithm\Z|enable_dp_attention\Z|page_size\Z"
    r"|.*allreduce_fusion(?:_backend)?\Z|cuda_graph_|disable_(?:prefill_|decode_)?cuda_graph\Z"
    r"|(?:enable|disable|enforce)_(?:piecewise|breakable)_cuda_graph\Z|piecewise_cuda_graph_"
    r"|enable_(?:deepep|ep|triton_kernel|flashinfer(?:_\w+)?)_moe\Z"
)
_THIS_HOST = re.compile(
    r".*(?:_port|_ports|_path|_dir|_folder|_file|_addr|_ip|_url|_urls|_endpoint|_endpoints|_header|_rank|_prefixes"
    r"|_device|_name)\Z"
    r"|host\Z|port\Z|random_seed\Z|base_gpu_id\Z|gpu_id_step\Z|numa_node\Z|download_dir\Z|weight_version\Z"
    r"|log_|ssl_|grpc_|smg_|http2_|otlp_|trace_|crash_dump|tokenizer_metrics_|uvicorn_|launch_command\Z|_"
)
"""Where it runs and what it writes; a private field (``_..._explicitly_set``) is SGLang's own bookkeeping."""
_FEATURES: tuple[tuple[re.Pattern[str], str | None], ...] = tuple(
    (re.compile(pattern), switch)
    for pattern, switch in (
        (r"speculative_|decoupled_spec_|spec_trace|torch_draft|.*domino", "speculative_algorithm"),
        (r"hicache_|unified_cache_", "enable_hierarchical_cache"),
        (r"(?:max_)?loras?_|max_loras|lora_|record_nolora|experts_shared_outer", "enable_lora"),
        (r"kt_", "kt_weight_path"),
        (r"eplb_|expert_distribution_|expert_balancedness|elastic_ep_|ep_join|init_expert", "enable_eplb"),
        (r"tbo_", "enable_two_batch_overlap"),
        (r"torch_compile_", "enable_torch_compile"),
        (r"offload_|ple_offload", "cpu_offload_gb"),
        (r"dllm_", "dllm_algorithm"),
        (r"prefill_delayer_", "enable_prefill_delayer"),
        (r"dynamic_batch_tokenizer_", "enable_dynamic_batch_tokenizer"),
        (r"priority_|default_priority", "enable_priority_scheduling"),
        (r"ds_", "enable_double_sparsity"),
        (r"sm_group_num", "enable_pdmux"),
        (r"remote_instance_|weight_loader_prefetch|weight_cache_|startup_weight", "weight_loader_prefetch_checkpoints"),
        (r"deepep_|fuseep_", "moe_a2a_backend"),
        # Not for a text model with one latent attention, or for the HTTP server, which the offline mode has not.
        (r"mm_|media_|image_|asr_|encoder_|keep_mm|mamba_|linear_|swa_|c128_|dsv4_|kv_canary|dsa_|nsa_", None),
        (r"disaggregation_|num_reserved_decode|engine_info_|stream_|batch_notify|load_snapshot|sampling_mask", None),
        (r".*_prefill_cp_mode\Z|prefill_cp_mode\Z|dcp_comm|tokenizer_backend|model_config_parser", None),
        (r"watchdog_timeout|decode_log_interval|log_requests|sampling_defaults|flashinfer_mxfp4_", None),
    )
)
"""Arguments of a feature count only where its switch is on; with no switch they never do."""
_RENAMED = {"max_micro_batch_size": "pp_max_micro_batch_size"}  # 0.5.3.post3, no alias
_NOTHING = ("auto", "none", "null", "default", "{}", "[]", "")
_MEASURED = ("max_total_num_tokens",)
_MEASURED_REL = 0.01
"""Computed from the memory that was free at the moment: a smaller change is none (ours; three fresh processes with
SGLang 0.5.11 on one H200 had the same 19,728,350 tokens)."""
_ONE_IS_OFF = ("_size", "_worker_num")


def resolved_of(facts: LogFacts) -> dict[str, object]:
    """The resolved arguments of a run by its log, and the capacity that the scheduler made of them.

    KV tokens and running requests are under the names that ``/server_info`` has for them. Empty when the log has no
    arguments.
    """
    resolved = dict(facts.server_args)
    if not resolved:
        return {}
    capacity = {
        "max_total_num_tokens": facts.max_total_num_tokens,
        "effective_max_running_requests_per_dp": facts.max_running_requests,
    }
    return {**resolved, **{name: value for name, value in capacity.items() if value is not None}}


def storable(resolved: Mapping[str, object]) -> dict[str, Scalar]:
    """What a baseline keeps: short values that are set, of features that are on, in alphabetical order.

    Names are today's. Storing what is stored already changes nothing.
    """
    kept: dict[str, Scalar] = {}
    for name, value in {**resolved, **_prefill_sizes(resolved)}.items():
        name = _RENAMED.get(name, name)
        plain = _scalar(value)
        if plain is not None and not _left_out(name, plain, resolved):
            kept[name] = plain
    return dict(sorted(kept.items()))


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """What else SGLang resolved differently, each a short line; at most `MAX_LISTED` values and two lists of names.

    ``old`` and ``new`` are whole resolved arguments or what `storable` kept of them. What only one side has set is
    given in one line a side: a new release brings many.
    """
    before, now = storable(old), storable(new)
    changed = [
        f"{name}: {before[name]} -> {now[name]}"
        for name in before
        if name in now and not _alike(name, before[name], now[name])
    ]
    lines = [*changed[:MAX_LISTED], *_more(len(changed) - MAX_LISTED)]
    for what, here, there in (("set only before", before, now), ("set only now", now, before)):
        names = [f"{name}={here[name]}" for name in here if name not in there]
        if names:
            lines.append(f"{what}: {', '.join([*names[:MAX_LISTED], *_more(len(names) - MAX_LISTED)])}")
    return lines


def _more(count: int) -> Iterator[str]:
    if count > 0:
        yield f"... and {count} more"


def _alike(name: str, old: Scalar, new: Scalar) -> bool:
    if name in _MEASURED and isinstance(old, (int, float)) and isinstance(new, (int, float)):
        return math.isclose(old, new, rel_tol=_MEASURED_REL)
    return old == new


def _scalar(value: object) -> Scalar | None:
    """A value worth a line: set, and plain. None for all else."""
    value = same(value) if not isinstance(value, (list, tuple, Mapping, set)) else None
    if value is None or value is False or value == 0 or (isinstance(value, str) and value.lower() in _NOTHING):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value if len(value) <= TEXT_LIMIT else f"{value[: TEXT_LIMIT - 1]}…"
    return value if isinstance(value, (bool, int, float)) else None


def _left_out(name: str, value: Scalar, resolved: Mapping[str, object]) -> bool:
    if name.endswith(_ONE_IS_OFF) and value == 1:
        return True
    if is_secret(name) or _IN_PROTOCOL.match(name) or _THIS_HOST.match(name):
        return True
    for pattern, switch in _FEATURES:
        if pattern.match(name):
            if switch is not None and switch not in resolved and _IN_PROTOCOL.match(switch):
                return False  # what was stored: the switch is in the protocol, and it was on
            return switch is None or _scalar(resolved.get(switch)) is None
    return False


def _prefill_sizes(resolved: Mapping[str, object]) -> dict[str, object]:
    """The prefill graphs' sizes, of either era, where there are such graphs: the protocol has only their kind."""
    if graphs.prefill_graph(resolved, LogFacts()) in (graphs.OFF, graphs.UNKNOWN):
        return {}
    return {
        "prefill_graph_max_tokens": graphs.phase_value(resolved, PREFILL, "max_bs")
        or resolved.get("piecewise_cuda_graph_max_tokens"),
        "prefill_graph_compiler": graphs.phase_value(resolved, PREFILL, "tc_compiler")
        or resolved.get("piecewise_cuda_graph_compiler"),
    }
