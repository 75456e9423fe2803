"""Did SGLang do what it was asked? A flag that it silently replaced makes the number another one's."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.events import EventKind
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.result import Check

_MUST_HOLD = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "moe_runner_backend",
    "moe_a2a_backend",
    "kv_cache_dtype",
    "dtype",
    "quantization",
    "load_format",
    "schedule_policy",
    "speculative_algorithm",
    "disable_radix_cache",
    "enable_torch_compile",
)
"""Flags whose replacement is a downgrade. Others are adjusted in the normal course (chunk size under DP attention,
graph sizes, running requests): their resolved values are in the record."""


def silently_downgraded(asked: Mapping[str, FlagValue], facts: LogFacts) -> tuple[Check, ...]:
    """One failed check for every flag that was asked for and resolved to something else.

    ``auto`` asks for nothing. The FP4 KV cache falls back after the arguments are logged (SGLang 0.5.5.post3 to
    0.5.12), so its warning counts, too.
    """
    resolved = facts.server_args
    checks = [
        Check("silent-downgrade", f"{name} was asked for as {asked[name]!r}, and SGLang resolved {resolved[name]!r}")
        for name in _MUST_HOLD
        if name in asked and name in resolved and asked[name] != "auto" and asked[name] != resolved[name]
    ]
    if "kv_cache_dtype" in asked and any(
        event.kind is EventKind.KV_DTYPE and "falls back" in event.text for event in facts.events
    ):
        checks.append(Check("silent-downgrade", f"kv_cache_dtype {asked['kv_cache_dtype']!r} fell back to auto"))
    return tuple(checks)
