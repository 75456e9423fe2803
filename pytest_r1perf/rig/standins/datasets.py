"""Stands for Hugging Face ``datasets``.

Why: SGLang's benchmark imports it for data sets it would download. The rig reads a local ShareGPT-format file, and
the real package brings pyarrow and pandas (about 0.3 GB).
"""

from __future__ import annotations

from .absent import AbsentModule

make = AbsentModule
