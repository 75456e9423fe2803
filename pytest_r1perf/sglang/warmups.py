"""``--warmups``: what SGLang runs of it, and what it only accepts.

The named warm-ups are run by the HTTP server when it comes up (``entrypoints/http_server.py``, since the flag's first
release, 0.4.4.post4), and by nothing else: the offline benchmark's engine takes the flag and never looks at it. The
server knows those that its own ``warmup.py`` registers; ``compile-deep-gemm`` is registered by the module
``sglang.compile_deep_gemm`` alone (from 0.4.6 on), which a server does not import: it logs that it could not find it.
Read in 0.4.4.post4, 0.4.6, 0.4.6.post5, 0.5.3, 0.5.5.post3, 0.5.9 and 0.5.20.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_r1perf.recipe import FlagValue

FLAG, DEEP_GEMM = "warmups", "compile-deep-gemm"

_INSTEAD = (
    "what DeepGEMM compiles beforehand is set by SGLANG_JIT_DEEPGEMM_PRECOMPILE, or done once by "
    "`python -m sglang.compile_deep_gemm`"
)


def without_effect(flags: Mapping[str, FlagValue], *, server: bool) -> str | None:
    """What to say of a cell with the flag: offline and in an engine nobody runs it, and no server has DeepGEMM's."""
    names = str(flags.get(FLAG) or "")
    if not names or (server and DEEP_GEMM not in names.split(",")):
        return None
    if server:
        return f"--warmups {DEEP_GEMM} is not known to launch_server, which passes over it: {_INSTEAD}"
    return f"--warmups {names} is accepted and not run: only launch_server runs warm-ups; {_INSTEAD}"
