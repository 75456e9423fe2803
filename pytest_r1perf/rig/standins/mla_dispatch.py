"""Stands for a missing line of SGLang: which MLA method the ``torch_native`` attention backend uses.

Why: SGLang keeps a registry backend -> method for DeepSeek's attention. ``torch_native``, which is what a CPU without
AMX gets, has no entry and falls to Triton's, whose prefill takes an MHA path that ``torch_native`` does not have: with
ordinary head dimensions it stops ("Expected size ... but got"). Registering SGLang's own absorbed-MLA dispatch makes
it run, and right: in float32 its greedy tokens equal those of transformers' DeepseekV3ForCausalLM
(tests/rig/test_rig.py). Nothing here computes: SGLang's function does.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager

BACKEND = "torch_native"

# The registry's module from SGLang 0.5.8.post1 on, and before.
REGISTRY_MODULES = (
    "sglang.srt.models.deepseek_common.attention_backend_handler",
    "sglang.srt.models.deepseek_v2",
)


@contextmanager
def registered(module: types.ModuleType) -> Iterator[None]:
    """The registry gets its entry once ``module`` is executed."""
    yield
    register(module)


def register(module: types.ModuleType) -> None:
    """Register ``_dispatch_mla_subtype`` for ``torch_native``, unless SGLang has learned to do it."""
    registry = getattr(module, "AttentionBackendRegistry", None)
    dispatch = getattr(module, "_dispatch_mla_subtype", None)
    if registry is None or dispatch is None:  # a later deepseek_v2 only imports the registry
        return
    if BACKEND not in registry._handlers:
        registry.register(BACKEND, dispatch)
