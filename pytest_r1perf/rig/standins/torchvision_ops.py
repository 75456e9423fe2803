"""Stands for the operators ``torchvision::nms`` and ``torchvision::qnms``.

Why: the torchvision of the package index is a CUDA build. Beside a CPU build of torch its compiled library cannot be
loaded, and torchvision's own Python then stops at import because it describes operators that nobody defined. Here
their schemas are defined; without an implementation, torch raises NotImplementedError, with the name, when one is
called. (SGLang imports torchvision for image models; no language model calls it.)
"""

from __future__ import annotations

import importlib
import importlib.machinery
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# From torchvision 0.28.0, torchvision/csrc/ops/nms.cpp and quantized/cpu/qnms_kernel.cpp.
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_libraries: list[Any] = []  # a definition lives as long as its library object


@contextmanager
def defined(module: types.ModuleType) -> Iterator[None]:  # noqa: ARG001
    """The operators are there while torchvision is executed, and after."""
    define()
    yield


def define() -> None:
    """Define the operators, unless torchvision's own library can be loaded and defines them."""
    torch: Any = importlib.import_module("torch")
    if _libraries or _own_library_loads(torch):
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    _libraries.append(library)


def _own_library_loads(torch: Any) -> bool:
    spec = importlib.machinery.PathFinder.find_spec("torchvision")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for compiled in sorted(Path(folder).glob("_C*.so")):
            try:
                torch.ops.load_library(str(compiled))
            except OSError:
                continue
            return True
    return False
