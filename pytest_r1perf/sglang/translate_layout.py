"""How SGLang releases are told the parallel layout: tensor, pipeline, data and expert parallelism."""

from __future__ import annotations

from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.translate_nouns import Draft, Rule, as_it_is, option_of

_EP = "--ep-size"
_EP_MOE = "--enable-ep-moe"
_DEEPEP_MOE = "--enable-deepep-moe"
_A2A = "--moe-a2a-backend"
_DP = "--dp-size"
_DP_ATTENTION = "--enable-dp-attention"
_ATTN_DP = "--attn-dp-size"


def _pp_size(draft: Draft, flag: str, value: FlagValue) -> None:
    if option_of(flag) not in draft.table and draft.size(flag) == 1:
        draft.dropped(flag, "this release has no pipeline parallelism: 1 is all it does")
        return
    as_it_is(draft, flag, value)


def _dp_size(draft: Draft, flag: str, value: FlagValue) -> None:
    if draft.flags.get("enable_dp_attention") is True and _ATTN_DP in draft.table:
        draft.emit(flag, _ATTN_DP, value)
        return
    as_it_is(draft, flag, value)


def _dp_attention(draft: Draft, flag: str, value: FlagValue) -> None:
    tp, dp = draft.size("tp_size"), draft.size("dp_size")
    if value is not True:
        as_it_is(draft, flag, value)
        return
    if dp == 1:
        _dp_attention_alone(draft, flag)
        return
    if draft.table.before("0.4.4.post4") and dp != tp:
        draft.cannot(flag, value, f"it sets dp_size to tp_size ({tp}) by itself and {dp} was asked for", "give dp_size")
    if _ATTN_DP in draft.table:
        draft.changed(flag, f"said as {_ATTN_DP} {dp}; the resolved dp_size is 1")
    else:
        draft.emit(flag, _DP_ATTENTION)
    if draft.table.before("0.5.19"):
        draft.changed(
            flag,
            "up to 0.5.18 the offline benchmark divides chunked_prefill_size by dp_size twice, from 0.5.19 once",
            matters=True,
        )


def _dp_attention_alone(draft: Draft, flag: str) -> None:
    if draft.table.before("0.5.2"):
        draft.cannot(
            flag,
            True,
            "releases before 0.5.2 stop on it with dp_size 1, or take dp_size = tp_size",
            "give a dp_size above 1, or leave it out",
        )
    if _ATTN_DP not in draft.table:
        draft.emit(flag, _DP_ATTENTION)
    draft.dropped(flag, "SGLang ignores it with dp_size 1: this is plain tensor parallelism", matters=True)


def _attn_dp_size(draft: Draft, flag: str, value: FlagValue) -> None:
    if option_of(flag) in draft.table:
        as_it_is(draft, flag, value)
    elif draft.size(flag) == 1:
        draft.dropped(flag, "1 is plain attention, which this release does unasked")
    elif draft.size("dp_size") > 1:
        draft.cannot(flag, value, "replicas and attention data parallelism go together in no release", "give one")
    else:
        draft.emit(flag, _DP, value)
        draft.emit(flag, _DP_ATTENTION)
        draft.changed(flag, f"said as {_DP} {value} {_DP_ATTENTION}")


def _ep_size(draft: Draft, flag: str, value: FlagValue) -> None:
    ep, tp = draft.size(flag), draft.size("tp_size")
    if ep > 1 and ep != tp:
        if _wants_deepep(draft):
            draft.cannot(flag, value, f"with DeepEP it sets ep_size to tp_size ({tp})", f"give ep_size {tp}")
        if _needs_ep_switch(draft):
            draft.cannot(flag, value, f"it knows experts over all of tp_size ({tp}) or none", f"give ep_size {tp}")
    as_it_is(draft, flag, value)
    if ep > 1 and _needs_ep_switch(draft) and not _wants_deepep(draft):
        draft.emit(flag, _EP_MOE)
        draft.changed(flag, f"{_EP_MOE} added: without it this release ignores {_EP}")


def _needs_ep_switch(draft: Draft) -> bool:
    """Releases that choose the expert-parallel layer by a switch of its own: those without an all-to-all option."""
    return draft.table.usable(_EP_MOE) is not None and _A2A not in draft.table


def _wants_deepep(draft: Draft) -> bool:
    return draft.flags.get("moe_a2a_backend") == "deepep" or draft.flags.get("enable_deepep_moe") is True


def _ep_moe(draft: Draft, flag: str, value: FlagValue) -> None:
    if draft.table.usable(_EP_MOE) is not None:
        as_it_is(draft, flag, value)
    elif value is True:
        tp = draft.size("tp_size")
        draft.emit(flag, _EP, tp)
        draft.changed(flag, f"said as {_EP} {tp}")
    else:
        draft.dropped(flag, f"the switch is gone and {_EP} says it")


def _deepep_moe(draft: Draft, flag: str, value: FlagValue) -> None:
    if draft.table.usable(_DEEPEP_MOE) is not None or (value is True and _A2A not in draft.table):
        as_it_is(draft, flag, value)
    elif value is True:
        draft.emit(flag, _A2A, "deepep")
        draft.changed(flag, f"said as {_A2A} deepep")
    else:
        draft.dropped(flag, f"this release has no such switch: {_A2A} says it, or it has no DeepEP")


def _a2a(draft: Draft, flag: str, value: FlagValue) -> None:
    option = draft.table.get(_A2A)
    if value == "none" and (option is None or "none" not in (option.choices or ("none",))):
        draft.dropped(flag, "no all-to-all backend is what this release does unasked")
    elif option is None and value == "deepep" and draft.table.usable(_DEEPEP_MOE) is not None:
        draft.emit(flag, _DEEPEP_MOE)
        draft.changed(flag, f"said as {_DEEPEP_MOE}")
    else:
        as_it_is(draft, flag, value)


LAYOUT_RULES: tuple[Rule, ...] = (
    Rule(("pp_size",), _pp_size, "first in 0.4.6.post5 (0.4.6 has no such option)"),
    Rule(
        ("dp_size",), _dp_size, "0.5.22: --dp-size with --enable-dp-attention is rewritten to attn_dp_size, dp_size 1"
    ),
    Rule(
        ("enable_dp_attention",),
        _dp_attention,
        "0.4.3.post2 server_args.py:254 (dp_size = tp_size), 0.4.4.post4:298 to 0.5.1:535 (assert dp_size > 1), "
        "0.5.3:951 (off with dp_size 1), 0.5.22 arg_groups/parallel_hook.py; twice resolved: Engine(**asdict(...)) "
        "up to 0.5.18",
    ),
    Rule(("attn_dp_size",), _attn_dp_size, "first in 0.5.22"),
    Rule(
        ("ep_size",),
        _ep_size,
        "0.4.9.post6 ep_moe/layer.py get_moe_impl_class asks enable_ep_moe, 0.4.10.post2 the size of the group; "
        "server_args.py of both: EP and DeepEP set ep_size = tp_size",
    ),
    Rule(("enable_ep_moe",), _ep_moe, "0.5.3: 'Please set `--ep-size` to the same value as `--tp-size` instead'"),
    Rule(("enable_deepep_moe",), _deepep_moe, "0.4.10.post2 server_args.py:291: moe_a2a_backend = 'deepep'"),
    Rule(("moe_a2a_backend",), _a2a, "first in 0.4.10.post2 (choice deepep only), 'none' from 0.5.1"),
)
