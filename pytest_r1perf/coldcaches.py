"""Cold kernel caches: empty directories for one round, which every compiler is sent to by its own variable.

    with EmptyCaches(folder, ranks=(0,)) as empty:
        env |= empty.variables(rank=0)            # given to the process
        ...

What a first run pays (Triton, DeepGEMM, torch.compile, the CUDA driver's own compiler) is measured so, round by
round, beside a cell whose caches stay warm.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_r1perf.caches import CacheFile, sentence

CACHE_STATE = "fresh process, empty kernel caches"
"""The protocol's ``cache_state`` of a cold cell."""

FOLDER = "kernel-caches"
"""The directory with a round's own caches, in the folder that its process works in."""

VARIABLES: Mapping[str, str] = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "DG_CACHE_DIR": "deep_gemm",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "SGL_DG_CACHE_DIR": "deep_gemm",
    "SGLANG_DG_CACHE_DIR": "deep_gemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_JIT_CACHE_DIR": "sglang/jit",
    "SGLANG_CUTE_AOT_CACHE_DIR": "sglang/cute_aot",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "CUDA_CACHE_PATH": "nv",
}
"""The variable that moves each cache, and the directory under the round's own; sources as for ``caches.cache_dirs``.

All are set whatever the release: one that it does not know moves nothing. ``DG_CACHE_DIR`` is DeepGEMM's name before
``DG_JIT_CACHE_DIR`` (SGLang 0.4.6 sets it).
"""


@dataclass
class EmptyCaches:
    """While the block lasts, empty directories in the folder that each of ``ranks`` works in; none: nothing is done.

    ``left``: afterwards, a sentence for each that could not be removed (files of a container's root, say). Raises
    :class:`OSError` where they can't be made.
    """

    folder: Path
    ranks: Sequence[int]
    left: list[str] = field(default_factory=list)

    def __enter__(self) -> EmptyCaches:
        """Make them."""
        for base in map(self._base, self.ranks):
            for name in set(VARIABLES.values()):
                (base / name).mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove them, whatever happened."""
        for base in map(self._base, self.ranks):
            shutil.rmtree(base, ignore_errors=True)
            if base.exists():
                self.left.append(f"the round's own kernel caches could not be removed: remove {base}")

    def variables(self, rank: int) -> dict[str, str]:
        """What sends the compilers of a rank there."""
        if rank not in self.ranks:
            return {}
        return {variable: str(self._base(rank) / name) for variable, name in VARIABLES.items()}

    def has(self, path: Path) -> bool:
        """Whether a directory is one of them."""
        return any(path.is_relative_to(self._base(rank)) for rank in self.ranks)

    def _base(self, rank: int) -> Path:
        """In the rank's working directory: a container sees no other folder of this host that it may write to."""
        return (self.folder / f"rank-{rank}" if rank else self.folder).absolute() / FOLDER


def named_in(env: Mapping[str, str]) -> str | None:
    """The first variable of ``env`` that names a kernel cache."""
    return next((name for name in env if name in VARIABLES), None)


def told(files: Sequence[CacheFile], inside: Sequence[CacheFile], own: Path) -> str:
    """What a cold process compiled: ``files`` that it wrote, ``inside`` those in the timed window.

    ``own`` is the folder that the round's own directories are in: what was written elsewhere was not cold.
    """
    root = os.path.realpath(own) + os.sep
    elsewhere = [file for file in files if not file.path.startswith(root)]
    if not files:
        return "cold kernel caches: this process compiled nothing"
    text = sentence(files, f"in cold caches, {len(inside)} of them during the timed window")
    if elsewhere:
        counts = ", ".join(f"{name} {count}" for name, count in Counter(f.compiler for f in elsewhere).most_common())
        text += f"; {len(elsewhere)} outside of the round's own directories ({counts}), which were not empty"
    return text
