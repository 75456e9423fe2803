"""Which CUDA graphs a run used, in words that mean the same in every release.

Decode graphs were one flag with a size up to 0.5.13.post1, prefill graphs three flags of opposite senses; from
0.5.14 one record, ``cuda_graph_config``, has a backend and sizes for each phase.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_r1perf.sglang.events import EventKind
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.server_args import parse_record
from pytest_r1perf.sglang.told import DECODE, PREFILL

OFF = "off"
UNKNOWN = "unknown"
"""A release or a log that was cut does not tell: it equals nothing but another ``unknown``."""

FULL = "full"
TC_PIECEWISE = "tc_piecewise"
"""Pieces compiled by torch: "piecewise" up to 0.5.13.post1, the same under this name from 0.5.14."""
BREAKABLE = "breakable"


def decode_graph(resolved: Mapping[str, object], facts: LogFacts) -> str:
    """``off``, ``full``, or another backend of 0.5.14+ by its name; ``unknown`` when nothing tells.

    On a CPU nothing is captured without torch.compile, whatever the arguments say (model_runner.py of 0.5.9,
    cuda_graph_setup.py of 0.5.20).
    """
    if resolved.get("device") == "cpu":
        return FULL if resolved.get("enable_torch_compile") is True else OFF
    if DECODE not in facts.captured and _said(facts, EventKind.DECODE_GRAPH_DISABLED, "Cuda graph is disabled"):
        return OFF
    backend = _phase(resolved, DECODE).get("backend")
    if backend is not None:
        return _backend(backend)
    if resolved.get("disable_cuda_graph") is True or resolved.get("disable_decode_cuda_graph") is True:
        return OFF
    if resolved.get("cuda_graph_backend_decode") is not None:
        return _backend(resolved["cuda_graph_backend_decode"])
    legacy = "disable_cuda_graph" in resolved and "cuda_graph_config" not in resolved
    return FULL if legacy or DECODE in facts.captured else UNKNOWN


def decode_graph_max_bs(resolved: Mapping[str, object], facts: LogFacts) -> int | str | None:
    """The largest batch that has a decode graph, in requests; None where there are no graphs.

    The arguments' own number where they have one (a batch above the running requests is not captured, and that
    depends on the KV capacity); 0.4.6 to 0.5.2 leave it to the model runner, whose log tells.
    """
    if decode_graph(resolved, facts) == OFF:
        return None
    phase = _phase(resolved, DECODE)
    for sizes, largest in (
        (phase.get("bs"), phase.get("max_bs")),
        (resolved.get("cuda_graph_bs"), resolved.get("cuda_graph_max_bs")),
        (resolved.get("cuda_graph_bs_decode"), resolved.get("cuda_graph_max_bs_decode")),
    ):
        numbers = [size for size in sizes if isinstance(size, int)] if isinstance(sizes, (list, tuple)) else []
        if numbers:
            return max(numbers)
        if isinstance(largest, int):
            return largest
    return facts.captured.get(DECODE, UNKNOWN)


def prefill_graph(resolved: Mapping[str, object], facts: LogFacts) -> str:
    """``off``, ``tc_piecewise``, ``breakable`` or another backend by its name; ``unknown`` when nothing tells.

    Off by default up to 0.5.9, torch's pieces from 0.5.10, breakable from 0.5.15. What the model runner turns off
    is in the log only. The flags of 0.5.11 to 0.5.13 for breakable graphs are aliases of the prefill backend in
    0.5.14, hence their place here.
    """
    if resolved.get("device") == "cpu":
        return OFF
    if PREFILL not in facts.captured and _said(facts, EventKind.PREFILL_GRAPH_DISABLED, "Disable p"):
        return OFF
    backend = _phase(resolved, PREFILL).get("backend")
    if backend is not None:
        return _backend(backend)
    if "cuda_graph_config" in resolved:
        if resolved.get("disable_cuda_graph") is True or resolved.get("disable_prefill_cuda_graph") is True:
            return OFF
        if resolved.get("cuda_graph_backend_prefill") is not None:
            return _backend(resolved["cuda_graph_backend_prefill"])
        return UNKNOWN
    if resolved.get("enable_breakable_cuda_graph") is True:
        return BREAKABLE
    if "disable_piecewise_cuda_graph" in resolved:  # before the other: 0.5.10 to 0.5.13 accept and ignore that
        return OFF if resolved["disable_piecewise_cuda_graph"] is True else TC_PIECEWISE
    if "enable_piecewise_cuda_graph" in resolved:
        return TC_PIECEWISE if resolved["enable_piecewise_cuda_graph"] is True else OFF
    return OFF if "disable_cuda_graph" in resolved else UNKNOWN  # no release before 0.5.3 had any


def phase_value(resolved: Mapping[str, object], phase: str, name: str) -> object:
    """One value of a phase (``decode`` or ``prefill``) of ``cuda_graph_config``; None in releases without it."""
    return _phase(resolved, phase).get(name)


def _phase(resolved: Mapping[str, object], name: str) -> Mapping[str, object]:
    config = resolved.get("cuda_graph_config")
    if isinstance(config, str):
        config = parse_record(config)
    phase = config.get(name) if isinstance(config, Mapping) else None
    return phase if isinstance(phase, Mapping) else {}


def _backend(value: object) -> str:
    """A backend's name out of its text or its enum's repr, ``<Backend.FULL: 'full'>``."""
    name = str(value).rstrip(">").rpartition(":")[2].rpartition(".")[2].strip(" '\"").lower()
    return OFF if name in ("disabled", "none") else name


def _said(facts: LogFacts, kind: EventKind, text: str) -> bool:
    return any(event.kind is kind and text in event.text for event in facts.events)
