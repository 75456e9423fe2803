"""Stands for ``sgl_kernel``, SGLang's compiled kernels.

Why: there is no CPU wheel of it, and SGLang imports names from it and from its submodules (``kvcacheio``,
``flash_mla``, ``scalar_type``, ``quantization``, ...) at module level, whatever the device. On a CPU without AMX
SGLang runs its ``torch_native`` paths and none of these names is called.
"""

from __future__ import annotations

from .absent import AbsentModule

make = AbsentModule
