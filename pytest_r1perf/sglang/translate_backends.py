"""Values that SGLang releases name differently: kernels, KV cache types, load balancing, speculation."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.translate_nouns import Draft, Rule, as_it_is, option_of


@dataclass(frozen=True, slots=True)
class SameValue:
    """Names of one thing, newest first."""

    flags: tuple[str, ...]
    names: tuple[str, ...]
    source: str


_ATTENTION = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")

SAME_VALUES: tuple[SameValue, ...] = (
    SameValue(_ATTENTION, ("dsa", "nsa"), "0.5.20 arg_groups/choices.py: nsa is a 'Deprecated alias for \"dsa\"'"),
    SameValue(_ATTENTION, ("dsv4", "compressed"), "0.5.14 server_args.py:188: 'Deprecated alias for \"dsv4\"'"),
    SameValue(
        ("kv_cache_dtype",),
        ("fp4_mx_block16", "fp4_e2m1"),
        "one recipe: blocks of 16 with one exponent (kvfp4_tensor.py of 0.5.4.post3, 0.5.14 and 0.5.16); 0.5.16 "
        "still parses fp4_e2m1, then stops with 'Use --kv-cache-dtype=fp4_mx_block16'. nvfp4 is another recipe",
    ),
)

SPECULATIVE = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "FROZEN_KV_MTP", "DSPARK", "UNO")
"""SGLang's own algorithms, for releases whose parser takes any text (from 0.5.12; speculative/spec_info.py of 0.5.14,
0.5.16, 0.5.20 and 0.5.22, all of which ignore case)."""

_RUNNER = "--moe-runner-backend"
_OLD_RUNNERS = {
    "flashinfer_cutlass": "--enable-flashinfer-cutlass-moe",
    "flashinfer_trtllm": "--enable-flashinfer-trtllm-moe",
}


def _same_value(draft: Draft, flag: str, value: FlagValue) -> None:
    option = draft.table.get(option_of(flag))
    choices = () if option is None else option.choices or ()
    for row in SAME_VALUES:
        if flag in row.flags and value in row.names:
            name = next((name for name in row.names if name in choices), value)
            draft.emit(flag, option_of(flag), name)
            if name != value:
                draft.changed(flag, f"{value} is {name} in this release")
            return
    as_it_is(draft, flag, value)


def _kv_cache_dtype(draft: Draft, flag: str, value: FlagValue) -> None:
    option = draft.table.get(option_of(flag))
    if value in ("bf16", "bfloat16") and option is not None and value not in (option.choices or (value,)):
        if draft.flags.get("dtype") != "bfloat16":
            draft.cannot(
                flag,
                value,
                "its KV cache has the model's own type or FP8",
                "give dtype bfloat16 as well: auto is it then",
            )
        draft.emit(flag, option_of(flag), "auto")
        draft.changed(flag, "said as auto, which is the type of the model: bfloat16")
        return
    _same_value(draft, flag, value)


def _moe_runner(draft: Draft, flag: str, value: FlagValue) -> None:
    option = draft.table.get(_RUNNER)
    if value == "cutlass" and (option is None or value not in (option.choices or ())):
        with_variable = not draft.table.before("0.4.9.post6")
        draft.cannot(
            flag,
            value,
            "CUTLASS is no choice of its MoE kernels (first in 0.5.3.post3)",
            "leave it out and give the variable SGLANG_CUTLASS_MOE=1" if with_variable else "",
        )
    if option is not None:
        as_it_is(draft, flag, value)
        if value == "cutlass" and draft.table.before("0.5.4.post3"):
            draft.dropped(
                flag,
                "accepted, but FP8 experts ask the variable SGLANG_CUTLASS_MOE=1 instead in this release",
                matters=draft.env.get("SGLANG_CUTLASS_MOE") not in ("1", "true"),
            )
    elif value == "auto":
        draft.dropped(flag, "SGLang's own choice is what this release does unasked")
    elif draft.table.usable(_OLD_RUNNERS.get(str(value), "")) is not None:
        draft.emit(flag, _OLD_RUNNERS[str(value)])
        draft.changed(flag, f"said as {_OLD_RUNNERS[str(value)]}")
    else:
        draft.cannot(flag, value, f"it has no option {_RUNNER} (first in 0.5.1) and chooses by itself")


def _old_runner(draft: Draft, flag: str, value: FlagValue) -> None:
    if draft.table.usable(option_of(flag)) is not None or _RUNNER not in draft.table:
        as_it_is(draft, flag, value)
    elif value is True:
        name = next(runner for runner, switch in _OLD_RUNNERS.items() if switch == option_of(flag))
        draft.emit(flag, _RUNNER, name)
        draft.changed(flag, f"said as {_RUNNER} {name}")
    else:
        draft.dropped(flag, f"the switch is gone and {_RUNNER} says it")


_BALANCE_NEW = {"shortest_queue": "total_requests", "minimum_tokens": "total_tokens"}
_BALANCE_OLD = {new: old for old, new in _BALANCE_NEW.items()}


def _load_balance(draft: Draft, flag: str, value: FlagValue) -> None:
    name = str(value)
    option = draft.table.get(option_of(flag))
    choices = () if option is None else option.choices or ()
    if name == "auto" and name not in choices:
        name = "round_robin"
    elif name not in choices:
        name = next((other for other in (_BALANCE_NEW.get(name), _BALANCE_OLD.get(name)) if other in choices), name)
    if name == "shortest_queue" and draft.table.before("0.5.3"):
        draft.cannot(flag, value, "its shortest_queue is not implemented", "give round_robin")
    if name == "minimum_tokens" and not draft.table.before("0.5.3"):
        draft.cannot(flag, value, "its minimum_tokens falls back to round_robin", "give round_robin or shortest_queue")
    draft.emit(flag, option_of(flag), name)
    if name != value:
        # auto is round_robin outside a prefill server; the counting behind the others was rewritten with their names.
        draft.changed(flag, f"{value} is {name} in this release", matters=name != "round_robin")


def _speculative(draft: Draft, flag: str, value: FlagValue) -> None:
    option = draft.table.get(option_of(flag))
    if option is not None and option.choices is None and str(value).upper() not in SPECULATIVE:
        draft.cannot(flag, value, f"it knows {', '.join(SPECULATIVE)}", "correct the name")
    as_it_is(draft, flag, value)


def _warmups(draft: Draft, flag: str, value: FlagValue) -> None:
    as_it_is(draft, flag, value)
    draft.dropped(flag, "only launch_server runs warm-ups: without effect on the offline benchmark")


BACKEND_RULES: tuple[Rule, ...] = (
    Rule(_ATTENTION, _same_value, "SAME_VALUES"),
    Rule(("kv_cache_dtype",), _kv_cache_dtype, "SAME_VALUES; bf16 and bfloat16 are choices from 0.5.4.post3"),
    Rule(
        ("moe_runner_backend",),
        _moe_runner,
        "first in 0.5.1, cutlass a choice from 0.5.3.post3; 0.5.3.post3 fp8.py:529 still asks SGLANG_CUTLASS_MOE, "
        "0.5.4.post3 fp8.py:537 the option",
    ),
    Rule(
        ("enable_flashinfer_cutlass_moe", "enable_flashinfer_trtllm_moe"),
        _old_runner,
        "0.5.1 server_args.py:325: 'Please set `--moe-runner-backend` ... instead'; refused from 0.5.3",
    ),
    Rule(
        ("load_balance_method",),
        _load_balance,
        "data_parallel_controller.py: shortest_queue raises NotImplementedError up to 0.5.1, counts requests in 0.5.3; "
        "minimum_tokens warns and does round_robin from 0.5.3; 0.5.9: total_requests, total_tokens; auto: 0.5.8",
    ),
    Rule(("speculative_algorithm",), _speculative, "choices up to 0.5.11; SPECULATIVE"),
    Rule(
        ("warmups",),
        _warmups,
        "first in 0.4.4.post4; 0.4.4.post4 and 0.5.20 entrypoints/http_server.py: execute_warmups",
    ),
)
