"""Kernel caches on disk: where they are, what a process wrote into them, and whether that was in the timed window.

    dirs = cache_dirs(env, Path.home())
    before = snapshot(dirs)
    ...                                         # the process; the window began and ended at time.time() so and so
    files = written(before, snapshot(dirs))
    inside = in_window(files, begin, end)
    decision = cold(files, inside, already_discarded)

SGLang's log shows compilation only sometimes; the files that a compiler leaves behind it always does. What is seen is
this host's, and everybody's: another process that compiles into the same directories meanwhile counts as ours.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

MOST_FILES = 500_000
"""Files of a snapshot at most; looking at 100,000 took 1.4 s on two busy cores (docs/warm-up.md)."""

MOST_DISCARDED = 2
"""Processes of a cell that may be thrown away as warm-up.

sglang PR #4858, the same benchmark five times in a row on 8 GPUs: 1187, 7653, 10996, 11174, 11266 tok/s. The first
two were cold, the third was not.
"""

TICK_S = 0.01
"""How far a stamp of ext4, XFS or tmpfs may lag behind ``time.time()``: one timer tick, 10 ms at most (CONFIG_HZ)."""

_DEEP_GEMM = ("SGL_DG_CACHE_DIR", "SGLANG_DG_CACHE_DIR", "DG_JIT_CACHE_DIR", "DG_CACHE_DIR")

_GRAINS_NS = (2_000_000_000, 1_000_000_000)
"""Stamps of coarser file systems: whole even seconds (FAT), whole seconds (ext3, old NFS servers)."""


@dataclass(frozen=True, slots=True)
class CacheDir:
    """A directory that ``compiler`` keeps kernels in; it need not be there."""

    compiler: str
    path: Path


@dataclass(frozen=True, slots=True)
class CacheFile:
    """A file of a cache; ``mtime_ns`` is the file system's stamp of the last write (wall clock, since 1970)."""

    compiler: str
    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of all caches by path: (compiler, size, mtime_ns, inode).

    ``taken`` (seconds since 1970) is when it began. ``whole`` is False where there were more than could be kept.
    """

    taken: float
    files: Mapping[str, tuple[str, int, int, int]]
    whole: bool = True


def cache_dirs(env: Mapping[str, str], home: Path) -> tuple[CacheDir, ...]:
    """Where processes with this environment keep compiled kernels.

    All places of all releases at once: a directory that isn't used is empty, or doesn't change. Names were read in
    triton 3.7.1 (``knobs.py``), torch 2.13 (``cache_dir_utils.py``), DeepGEMM (README and its cache's default before
    it), FlashInfer (``jit/env.py``, which appends ``.cache/flashinfer`` to its base), tvm-ffi 0.1.11
    (``cpp/extension.py``) and SGLang: DeepGEMM's is overridden by ``SGL_DG_CACHE_DIR`` (0.4.6.post5 to 0.5.3.post3)
    or ``SGLANG_DG_CACHE_DIR`` (from 0.5.5.post3), by default ``~/.cache/deep_gemm``, and ``SGLANG_CACHE_DIR`` (from
    0.5.3.post3) holds torch.compile's; 0.5.20 moves all of them under it (``environ.py``). Its FlashInfer autotune
    results there are choices, not kernels, and are left out.
    """

    def given(*names: str) -> Iterator[Path]:
        for name in names:
            # DeepGEMM's is a list; it writes into the first, and what lies in the others is only read.
            value = env.get(name, "").partition(":")[0]
            if value:
                yield home / value[2:] if value.startswith("~/") else Path(value)

    def one(default: Path, *names: str) -> Path:
        return next(given(*names), default)

    sglang = one(home / ".cache/sglang", "SGLANG_CACHE_DIR")
    user = env.get("LOGNAME") or env.get("USER") or home.name
    temporary = one(Path("/tmp"), "TMPDIR", "TEMP", "TMP")
    found = [
        ("Triton", one(one(home, "TRITON_HOME") / ".triton/cache", "TRITON_CACHE_DIR")),
        ("Triton", sglang / "triton"),
        ("Inductor", one(temporary / f"torchinductor_{_sanitized(user)}", "TORCHINDUCTOR_CACHE_DIR")),
        ("Inductor", sglang / "inductor"),
        ("Inductor", sglang / "torch_compile_cache"),
        *(("DeepGEMM", path) for path in given(*_DEEP_GEMM)),
        *(("DeepGEMM", home / name) for name in (".deep_gemm", ".dj", ".cache/deep_gemm")),
        ("DeepGEMM", sglang / "deep_gemm"),
        ("FlashInfer", one(home, "FLASHINFER_WORKSPACE_BASE") / ".cache/flashinfer"),
        ("FlashInfer", sglang / ".cache/flashinfer"),
        ("tvm-ffi", one(home / ".cache/tvm-ffi", "TVM_FFI_CACHE_DIR")),
        ("SGLang", one(sglang / "jit", "SGLANG_JIT_CACHE_DIR")),
        ("SGLang", home / ".cache/sglang/jit"),
        ("SGLang", one(sglang / "cute_aot", "SGLANG_CUTE_AOT_CACHE_DIR")),
        ("torch extensions", one(one(home / ".cache", "XDG_CACHE_HOME") / "torch_extensions", "TORCH_EXTENSIONS_DIR")),
        ("CUDA driver", one(home / ".nv/ComputeCache", "CUDA_CACHE_PATH")),
        ("CUDA driver", sglang / "nv"),
    ]
    return tuple({path: CacheDir(compiler, path) for compiler, path in reversed(found)}.values())[::-1]


def snapshot(dirs: Iterable[CacheDir], *, most: int = MOST_FILES) -> Snapshot:
    """All files of the caches; links to directories are not followed, so each file is looked at once.

    Raises nothing: what vanished meanwhile, or can't be read, is not there.
    """
    taken = time.time()
    files: dict[str, tuple[str, int, int, int]] = {}
    # The deepest first: a cache inside another is the inner compiler's.
    roots = sorted({os.path.realpath(one.path): one.compiler for one in dirs}.items(), key=lambda item: -len(item[0]))
    for root, compiler in roots:
        for path, status in _files(root):
            if path in files:
                continue
            if len(files) >= most:
                return Snapshot(taken, files, whole=False)
            files[path] = (compiler, status.st_size, status.st_mtime_ns, status.st_ino)
    return Snapshot(taken, files)


def written(before: Snapshot, after: Snapshot) -> tuple[CacheFile, ...]:
    """Files that were written between two snapshots, the earliest first.

    New ones, those of another size, and those that were replaced (compilers write beside and rename, so the inode is
    another). A new stamp alone is a touch. Lock files, logs and empty files are no kernels. Where a snapshot is not
    whole only what was stamped since the first one counts, for the rest may have been left out of it.
    """
    since = 0 if before.whole else int((before.taken - TICK_S) * 1e9)
    changed = [
        CacheFile(compiler, path, size, mtime_ns)
        for path, (compiler, size, mtime_ns, inode) in after.files.items()
        if size and mtime_ns >= since and not _beside(path) and _is_new(before.files.get(path), size, inode)
    ]
    return tuple(sorted(changed, key=lambda file: (file.mtime_ns, file.path)))


def in_window(files: Sequence[CacheFile], begin: float, end: float) -> tuple[CacheFile, ...]:
    """Those that were last written in a timed window, ``begin`` to ``end`` in seconds since 1970.

    A stamp is never later than the write and earlier by less than the file system's grain. The grain is read off the
    stamps: where all of them are whole seconds (or whole even ones) it is that, else a timer tick (``TICK_S``). So a
    file counts from ``begin`` less the grain on. With whole seconds that takes in some of what was written in the
    second before the window; SGLang's benchmark sleeps 0.5 s there. A kernel that was begun before the window and
    finished in it counts: it took the processor away.
    """
    grain = _grain(files)
    return tuple(file for file in files if begin - grain < file.mtime_ns / 1e9 <= end)


def per_window(files: Sequence[CacheFile], windows: Sequence[tuple[float, float]]) -> tuple[str | None, ...]:
    """For each timed window of an engine the sentence that marks it, or ``None`` where nothing was written."""
    inside = [in_window(files, begin, end) for begin, end in windows]
    return tuple(sentence(found, "during the timed window") if found else None for found in inside)


def sentence(files: Sequence[CacheFile], when: str) -> str:
    """E.g. ``3 new kernel cache files (Triton 2, DeepGEMM 1) during the timed window``."""
    counts = Counter(file.compiler for file in files).most_common()
    what = "1 new kernel cache file" if len(files) == 1 else f"{len(files)} new kernel cache files"
    named = ", ".join(f"{compiler} {count}" for compiler, count in counts)
    return f"{what} ({named}) {when}" if files else f"{what} {when}"


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a process of its own wrote into kernel caches; ``discarded``: how many were thrown away before it.

    ``begin`` is when its timed window did (seconds since 1970), ``None`` where that was not seen.
    """

    files: tuple[CacheFile, ...] = ()
    begin: float | None = None
    discarded: int = 0

    def inside(self, seconds: float) -> tuple[CacheFile, ...]:
        """Those of a window of so many seconds; none where its begin was not seen."""
        return in_window(self.files, self.begin, self.begin + seconds) if self.begin is not None else ()

    def judged(self, seconds: float) -> Decision:
        """:func:`cold` for a window of so many seconds."""
        return cold(self.files, self.inside(seconds), self.discarded)


class Action(Enum):
    """What becomes of a process's number."""

    KEEP = "keep"
    REMARK = "remark"
    DISCARD = "discard"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a round, and the sentence that says why (empty for KEEP)."""

    action: Action
    sentence: str = ""


def cold(
    files: Sequence[CacheFile], inside: Sequence[CacheFile], already_discarded: int, *, most: int = MOST_DISCARDED
) -> Decision:
    """Whether a process of its own (``offline``) was cold: ``files`` it wrote, ``inside`` those in the timed window.

    A process that wrote any is thrown away as warm-up, ``most`` times a cell. One that writes after that is INVALID
    if it wrote inside the window, else it counts with a remark.
    """
    if not files:
        return Decision(Action.KEEP)
    where = "during the timed window" if inside else "outside the timed window"
    found = sentence(inside or files, where)
    if already_discarded < most:
        return Decision(Action.DISCARD, f"{found}: this process warmed the caches, the next one is measured")
    if inside:
        again = "1 process" if already_discarded == 1 else f"{already_discarded} processes"
        return Decision(
            Action.INVALID,
            f"{found}, after {again} had been thrown away as warm-up: is a cache directory emptied between runs, "
            f"or not writable, or does another job compile into it?",
        )
    return Decision(Action.REMARK, found)


def _files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    pending = [root]
    while pending:
        try:
            entries = os.scandir(pending.pop())
        except OSError:
            continue
        with entries:
            for entry in _safely(entries):
                try:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry.path, entry.stat(follow_symlinks=False)
                except OSError:
                    continue


def _safely(entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
    """The entries up to an error of the directory itself (a network file system that went away)."""
    while True:
        try:
            yield next(entries)
        except (StopIteration, OSError):
            return


def _is_new(before: tuple[str, int, int, int] | None, size: int, inode: int) -> bool:
    return before is None or before[1] != size or before[3] != inode


_BESIDE = re.compile(r"(?:.*\.(?:lock|lck|log|pid|best_config)|lock|index|\.ninja_log|\.ninja_deps)\Z")
"""What lies beside kernels and changes without a compilation: locks (torch's own is called ``lock``), ninja's and
FlashInfer's logs, the driver's index of its cache, Inductor's choices (one was written by a third process that compiled
nothing; docs/warm-up.md)."""


def _beside(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return _BESIDE.match(name) is not None or folder.rpartition("/")[2] == "locks"


def _grain(files: Sequence[CacheFile]) -> float:
    for grain in _GRAINS_NS:
        if files and all(file.mtime_ns % grain == 0 for file in files):
            return grain / 1e9
    return TICK_S


def _sanitized(user: str) -> str:
    return re.sub(r'[\\/:*?"<>|]', "_", user)
