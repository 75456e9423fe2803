"""How SGLang releases are told about CUDA graphs and the fused all-reduce, whose defaults became "on"."""

from __future__ import annotations

from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.translate_nouns import Draft, Rule, as_it_is

_ENABLE = "--enable-piecewise-cuda-graph"
_DISABLE = "--disable-piecewise-cuda-graph"
_ENFORCE = "--enforce-piecewise-cuda-graph"
_PREFILL = "--cuda-graph-backend-prefill"
_ON = ("enable_piecewise_cuda_graph", "enforce_piecewise_cuda_graph")
_FUSION = "--enable-flashinfer-allreduce-fusion"
_FUSION_OFF = "--enforce-disable-flashinfer-allreduce-fusion"
_FUSION_BACKEND = "--flashinfer-allreduce-fusion-backend"


def _piecewise(draft: Draft, flag: str, value: FlagValue) -> None:
    table = draft.table
    if not isinstance(value, bool):
        draft.cannot(flag, value, "it is a switch", "give true or false")
    if value is False:
        _prefill_graph_off(draft, flag)
    elif _PREFILL in table:
        _prefill_graph_on(draft, flag)
    elif table.usable(_ENABLE) is not None:
        draft.emit(flag, _ENABLE)
    elif _DISABLE in table:
        ended = _ends_piecewise(draft)
        but = f", but {ended} turns them off (enforce_piecewise_cuda_graph keeps them)" if ended else ""
        draft.changed(flag, f"prefill graphs are on unasked here{but}", matters=bool(ended))
    else:
        draft.cannot(flag, value, f"it has no option {_ENABLE} (first in 0.5.3.post3) nor another prefill graph")


def _enforce(draft: Draft, flag: str, value: FlagValue) -> None:
    if value is not True:
        draft.dropped(flag, "not enforced is what every release does unasked")
    elif _PREFILL in draft.table:  # choosing the backend skips the rules that turn it off, as this switch did
        _prefill_graph_on(draft, flag)
    elif _ENFORCE in draft.table:
        draft.emit(flag, _ENFORCE)
    else:
        draft.emit(flag, _ENABLE)
        draft.changed(flag, f"said as {_ENABLE}")


def _disable(draft: Draft, flag: str, value: FlagValue) -> None:
    contrary = next((name for name in _ON if draft.flags.get(name) is True), None)
    if value is True and contrary is not None:
        draft.cannot(flag, value, f"{contrary} asks for the opposite", "leave one of the two out")
    elif value is True:
        _prefill_graph_off(draft, flag)
    else:
        draft.dropped(flag, "not disabled: the release's own default holds", matters=True)


def _prefill_graph_off(draft: Draft, flag: str) -> None:
    if _PREFILL in draft.table:
        draft.emit(flag, _PREFILL, "disabled")
        draft.changed(flag, f"said as {_PREFILL} disabled")
    elif draft.table.usable(_DISABLE) is not None:
        draft.emit(flag, _DISABLE)
        draft.changed(flag, f"said as {_DISABLE}")
    else:
        draft.dropped(flag, "prefill graphs are off unless asked for in this release")


def _prefill_graph_on(draft: Draft, flag: str) -> None:
    """From 0.5.14 a backend: torch.compile's pieces until 0.5.21, then only the breakable capture is left."""
    option = draft.table.get(_PREFILL)
    choices = () if option is None else option.choices or ()
    backend = "tc_piecewise" if "tc_piecewise" in choices else "breakable"
    draft.emit(flag, _PREFILL, backend)
    other = ": another capture than the torch.compile one of 0.5.3.post3 to 0.5.21" if backend == "breakable" else ""
    draft.changed(flag, f"said as {_PREFILL} {backend}{other}", matters=bool(other))


def _ends_piecewise(draft: Draft) -> str | None:
    """What among the flags makes 0.5.10 to 0.5.13.post1 turn prefill graphs off without a word."""
    flags = draft.flags
    reasons = {
        "pp_size above 1": draft.size("pp_size") > 1,
        "enable_dp_attention": flags.get("enable_dp_attention") is True and draft.size("dp_size") > 1,
        "enable_torch_compile": flags.get("enable_torch_compile") is True,
        "moe_a2a_backend": flags.get("moe_a2a_backend", "none") != "none",
        "speculative_algorithm": "speculative_algorithm" in flags,
        "moe_runner_backend": flags.get("moe_runner_backend") in ("flashinfer_trtllm", "flashinfer_mxfp4"),
    }
    return next((name for name, holds in reasons.items() if holds), None)


def _no_graphs(draft: Draft, flag: str, value: FlagValue) -> None:
    as_it_is(draft, flag, value)
    asked = set(_ON) & set(draft.flags)
    if value is True and _PREFILL not in draft.table and draft.table.usable(_DISABLE) is not None and not asked:
        draft.emit(flag, _DISABLE)
        draft.changed(flag, f"{_DISABLE} added: here the switch leaves prefill graphs on")


def _fusion(draft: Draft, flag: str, value: FlagValue) -> None:
    if value is True and _FUSION_BACKEND in draft.table:
        draft.emit(flag, _FUSION_BACKEND, "auto")
        draft.changed(flag, f"said as {_FUSION_BACKEND} auto")
    elif value is not False:
        draft.emit(flag, _FUSION, value)
    elif _FUSION_OFF in draft.table:
        draft.emit(flag, _FUSION_OFF)
        draft.changed(flag, f"said as {_FUSION_OFF}")
    else:
        draft.dropped(flag, "on Hopper it is off unless asked for in this release")


GRAPH_RULES: tuple[Rule, ...] = (
    Rule(
        ("enable_piecewise_cuda_graph",),
        _piecewise,
        "opt-in 0.5.3.post3 to 0.5.9; 0.5.10 server_args.py:1078 (on unless a rule turns it off; the switch only "
        "warns); 0.5.14 --cuda-graph-backend-prefill; 0.5.22 cuda_graph_config.py: 'tc_piecewise was removed'",
    ),
    Rule(
        ("enforce_piecewise_cuda_graph",),
        _enforce,
        "0.5.20 arg_groups/cuda_graph_hook.py: an explicit prefill backend skips the rules, "
        "'the contract the removed --enforce-piecewise-cuda-graph used to spell'",
    ),
    Rule(
        ("disable_piecewise_cuda_graph", "disable_prefill_cuda_graph"),
        _disable,
        "0.5.10 to 0.5.19, from 0.5.14 an alias of --cuda-graph-backend-prefill disabled",
    ),
    Rule(
        ("disable_cuda_graph",),
        _no_graphs,
        "0.5.10 model_runner.py:2430, 2468 (decode only); 0.5.20 arg_groups/cuda_graph_hook.py (both phases)",
    ),
    Rule(
        ("enable_flashinfer_allreduce_fusion",),
        _fusion,
        "first in 0.4.9; on by itself for R1 on Hopper from 0.5.10 (server_args.py:2088); deprecated for "
        "--flashinfer-allreduce-fusion-backend=auto in 0.5.14 (0.5.20 arg_groups/serving_hook.py:264)",
    ),
)
