"""Stands for ``triton``, the GPU kernel language.

Why: SGLang's modules declare Triton kernels when they are imported, on every device. On a CPU none is launched,
and the real package is about 0.6 GB.

A declaration (`@triton.jit`, `@triton.autotune(...)`, `triton.Config(...)`, `tl.constexpr(...)`) is not a use, and it
happens at import: it gives back a stand-in for the kernel. Launching that kernel, and calling anything else, raises
NotImplementedError with its name. One such call is made: SGLang asks ``triton.runtime.driver`` for its device, and
takes the refusal as the answer that there is none ("Triton is not supported on current platform, roll back to CPU").
"""

from __future__ import annotations

import types
from typing import Any

from .absent import Absent, AbsentModule

# SGLang 0.5.20 adds a hook to triton.knobs when it starts serving, or goes without if it cannot be imported.
LACKS = frozenset({"triton.knobs"})

VERSION = "0.0.0"  # torch compares it when it looks for Triton's features; it has none


def _declare(function: Any = None, **_: object) -> Any:
    """``@jit`` and ``@jit(...)``."""
    if function is None:
        return _declare
    name = getattr(function, "__qualname__", "") or repr(function)
    return Absent(f"Triton kernel {getattr(function, '__module__', '?')}.{name}")


def _decorator(*_args: object, **_options: object) -> Any:
    """``@autotune(...)`` and ``@heuristics(...)``."""
    return lambda kernel: kernel


class Constant:
    """``tl.constexpr`` as an annotation, and as a wrapper of a module's constant."""

    def __init__(self, value: object = None) -> None:
        self.value = value


class Config:
    """``triton.Config``: written beside kernels, and derived from by torch; what it holds is never used."""

    def __init__(self, *args: object, **options: object) -> None:
        pass


_DECLARATIONS: dict[str, dict[str, object]] = {
    "triton": {
        "__version__": VERSION,
        "jit": _declare,
        "autotune": _decorator,
        "heuristics": _decorator,
        "Config": Config,
    },
    "triton.language": {"constexpr": Constant},
}


class _TritonModule(AbsentModule):
    def __getattr__(self, name: str) -> Any:
        if f"{self.__name__}.{name}" in LACKS:
            raise AttributeError(f"module {self.__name__!r} (a stand-in) has no attribute {name!r}")
        return super().__getattr__(name)


def make(fullname: str) -> types.ModuleType:
    """The stand-in for ``triton`` or one of its submodules."""
    module = _TritonModule(fullname)
    vars(module).update(_DECLARATIONS.get(fullname, {}))
    return module
