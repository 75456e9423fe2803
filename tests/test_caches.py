"""Kernel caches: real processes write into real directories, and what they wrote is told from what they touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.caches import (
    Action,
    CacheDir,
    CacheFile,
    Kernels,
    cache_dirs,
    cold,
    in_window,
    per_window,
    sentence,
    snapshot,
    written,
)
from pytest_r1perf.gpu.judge import Watched
from pytest_r1perf.measurement import Discarded, Problem, Sample
from pytest_r1perf.sglang.events import Event, EventKind
from pytest_r1perf.verdict import Verdict
from tests.rounds import finished

ROOT_READS_ALL = os.geteuid() == 0


def dirs(home: Path, **env: str) -> tuple[CacheDir, ...]:
    return cache_dirs({"USER": "me", "TMPDIR": str(home / "tmp"), **env}, home)


def run(code: str, *arguments: object) -> None:
    """A compiler of another process."""
    prelude = "import os, sys, pathlib; path = pathlib.Path(sys.argv[1])\n"
    subprocess.run([sys.executable, "-c", prelude + code, *map(str, arguments)], check=True)


WRITE = (
    "path.parent.mkdir(parents=True, exist_ok=True)\n"
    "scratch = path.with_name('tmp.pid_1'); scratch.write_bytes(b'x' * int(sys.argv[2])); os.replace(scratch, path)"
)


def names(files: Sequence[CacheFile]) -> list[str]:
    return sorted(Path(file.path).name for file in files)


def file(compiler: str = "Triton", mtime: float = 0.0, name: str = "a") -> CacheFile:
    return CacheFile(compiler, name, 1, round(mtime * 1e9))


# --- where they are


def test_the_defaults_of_all_compilers(tmp_path: Path) -> None:
    found = {str(one.path.relative_to(tmp_path)): one.compiler for one in dirs(tmp_path)}
    for path, compiler in {
        ".triton/cache": "Triton",
        "tmp/torchinductor_me": "Inductor",
        ".cache/sglang/torch_compile_cache": "Inductor",
        ".cache/deep_gemm": "DeepGEMM",
        ".deep_gemm": "DeepGEMM",
        ".cache/sglang/deep_gemm": "DeepGEMM",
        ".cache/flashinfer": "FlashInfer",
        ".cache/sglang/.cache/flashinfer": "FlashInfer",
        ".cache/tvm-ffi": "tvm-ffi",
        ".cache/sglang/jit": "SGLang",
        ".cache/torch_extensions": "torch extensions",
        ".nv/ComputeCache": "CUDA driver",
    }.items():
        assert found[path] == compiler
    assert len(found) == len(dirs(tmp_path))


@pytest.mark.parametrize(
    ("variable", "below", "compiler"),
    [
        ("TRITON_CACHE_DIR", "", "Triton"),
        ("TRITON_HOME", ".triton/cache", "Triton"),
        ("TORCHINDUCTOR_CACHE_DIR", "", "Inductor"),
        ("SGL_DG_CACHE_DIR", "", "DeepGEMM"),
        ("SGLANG_DG_CACHE_DIR", "", "DeepGEMM"),
        ("DG_JIT_CACHE_DIR", "", "DeepGEMM"),
        ("FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer", "FlashInfer"),
        ("TVM_FFI_CACHE_DIR", "", "tvm-ffi"),
        ("SGLANG_CACHE_DIR", "triton", "Triton"),
        ("SGLANG_CACHE_DIR", "deep_gemm", "DeepGEMM"),
        ("SGLANG_JIT_CACHE_DIR", "", "SGLang"),
        ("CUDA_CACHE_PATH", "", "CUDA driver"),
    ],
)
def test_a_variable_moves_a_cache(tmp_path: Path, variable: str, below: str, compiler: str) -> None:
    other = tmp_path / "other"
    before = snapshot(dirs(tmp_path, **{variable: str(other)}))
    run(WRITE, other / below / "hash" / "kernel.cubin", 10)
    files = written(before, snapshot(dirs(tmp_path, **{variable: str(other)})))
    assert [(one.compiler, one.size) for one in files] == [(compiler, 10)]
    assert written(snapshot(dirs(tmp_path)), snapshot(dirs(tmp_path))) == ()


def test_a_home_sign_and_a_list_of_directories(tmp_path: Path) -> None:
    found = dirs(tmp_path, TRITON_CACHE_DIR="~/mine", DG_JIT_CACHE_DIR=f"{tmp_path}/first:{tmp_path}/second")
    assert CacheDir("Triton", tmp_path / "mine") in found
    assert CacheDir("DeepGEMM", tmp_path / "first") in found
    assert not any(one.path.name == "second" for one in found)


# --- what was written


def test_new_changed_and_replaced_files_count(tmp_path: Path) -> None:
    cache = tmp_path / ".triton/cache"
    for name in ("same", "grown", "replaced"):
        run(WRITE, cache / "k" / name, 10)
    before = snapshot(dirs(tmp_path))
    run(WRITE, cache / "k" / "grown", 11)
    run(WRITE, cache / "k" / "replaced", 10)
    run(WRITE, cache / "k2" / "new", 10)
    after = snapshot(dirs(tmp_path))
    assert names(written(before, after)) == ["grown", "new", "replaced"]
    assert written(after, after) == ()
    assert written(after, before) != ()  # the comparison has a direction: what is gone is not new


def test_touching_reading_and_locking_are_no_compilation(tmp_path: Path) -> None:
    cache = tmp_path / ".cache/deep_gemm"
    run(WRITE, cache / "kernel" / "kernel.cubin", 10)
    before = snapshot(dirs(tmp_path))
    run("os.utime(path); path.read_bytes()", cache / "kernel" / "kernel.cubin")
    for beside in (
        "locks/gemm_n1.lock",
        "locks/pid",
        "a/lock",
        "a.lock",
        "flashinfer_jit.log",
        "op/.ninja_log",
        "x.best_config",
    ):
        run(WRITE, cache / beside, 10)
    run(WRITE, cache / "empty", 0)
    run(WRITE, tmp_path / ".nv/ComputeCache/index", 10)
    assert written(before, snapshot(dirs(tmp_path))) == ()


def test_a_vanished_directory_and_one_that_cannot_be_read_are_no_error(tmp_path: Path) -> None:
    secret, file_ = tmp_path / ".triton/cache/secret", tmp_path / ".cache/tvm-ffi"
    run(WRITE, secret / "kernel", 10)
    run(WRITE, file_, 10)  # a file where a directory is looked for
    before = snapshot(dirs(tmp_path))
    secret.chmod(0)
    try:
        after = snapshot(dirs(tmp_path))
        assert written(before, after) == ()
        if not ROOT_READS_ALL:
            assert not any("secret" in path for path in after.files)
    finally:
        secret.chmod(0o755)
    (secret / "kernel").unlink()
    secret.rmdir()
    assert written(before, snapshot(dirs(tmp_path))) == ()


def test_files_that_come_and_go_while_looking_are_no_error(tmp_path: Path) -> None:
    cache = tmp_path / ".triton/cache"
    cache.mkdir(parents=True)
    code = (
        "import shutil, time\n"
        "path.joinpath('ready').write_bytes(b'x')\n"
        "end = time.monotonic() + 20\n"
        "while time.monotonic() < end and not path.joinpath('stop').exists():\n"
        "    for name in range(20):\n"
        "        folder = path / str(name); folder.mkdir(); (folder / 'k').write_bytes(b'x')\n"
        "    for name in range(20):\n"
        "        shutil.rmtree(path / str(name))\n"
    )
    busy = subprocess.Popen(
        [sys.executable, "-c", "import sys, pathlib; path = pathlib.Path(sys.argv[1])\n" + code, cache]
    )
    try:
        while not (cache / "ready").exists():
            assert busy.poll() is None
            time.sleep(0.01)
        for _ in range(200):
            assert str(cache / "ready") in snapshot(dirs(tmp_path)).files
    finally:
        (cache / "stop").touch()
        assert busy.wait() == 0


def test_links_are_not_followed_into_loops_and_a_linked_cache_is_found(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    run(WRITE, scratch / "k" / "kernel", 10)
    (scratch / "loop").symlink_to(scratch)
    (tmp_path / ".triton").mkdir()
    (tmp_path / ".triton/cache").symlink_to(scratch)
    assert names(written(snapshot([]), snapshot(dirs(tmp_path)))) == ["kernel"]


def test_a_cache_in_another_is_the_inner_compilers_and_counted_once(tmp_path: Path) -> None:
    outer = tmp_path / "inductor"
    env = {"TORCHINDUCTOR_CACHE_DIR": str(outer), "TRITON_CACHE_DIR": str(outer / "triton")}
    run(WRITE, outer / "triton/0/k.cubin", 10)
    run(WRITE, outer / "fx/graph", 10)
    files = written(snapshot([]), snapshot(dirs(tmp_path, **env)))
    assert sorted((one.compiler, Path(one.path).name) for one in files) == [
        ("Inductor", "graph"),
        ("Triton", "k.cubin"),
    ]


def test_of_too_many_files_only_those_stamped_since_count(tmp_path: Path) -> None:
    """What a cut snapshot left out is not new when the next one happens to hold it."""
    cache = tmp_path / ".triton/cache"
    for number in range(30):
        path = cache / str(number) / "old"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
        os.utime(path, (1e9, 1e9))
    before = snapshot(dirs(tmp_path), most=10)
    assert (len(before.files), before.whole) == (10, False)
    run(WRITE, cache / "new", 10)
    assert names(written(before, snapshot(dirs(tmp_path)))) == ["new"]


# --- when


def test_a_process_that_writes_in_the_window_and_one_that_writes_before_it(tmp_path: Path) -> None:
    cache = tmp_path / ".triton/cache"
    before = snapshot(dirs(tmp_path))
    run(WRITE, cache / "early", 10)
    time.sleep(0.05)
    begin = time.time()
    run(WRITE, cache / "inside", 10)
    end = time.time()
    time.sleep(0.05)
    run(WRITE, cache / "late", 10)
    files = written(before, snapshot(dirs(tmp_path)))
    assert names(files) == ["early", "inside", "late"]
    assert names(in_window(files, begin, end)) == ["inside"]


def test_a_tick_before_the_window_is_the_kernels_clock() -> None:
    stamps = [file(mtime=at) for at in (99.9801, 99.9951, 100.5, 110.0, 110.0001)]
    assert [one.mtime_ns / 1e9 for one in in_window(stamps, 100.0, 110.0)] == [99.9951, 100.5, 110.0]


def test_whole_seconds_are_a_coarse_file_system() -> None:
    """There the stamp of what was written at 100.7 is 100, and the window may have begun at 100.4."""
    assert len(in_window([file(mtime=100)], 100.4, 110.2)) == 1
    assert len(in_window([file(mtime=98)], 99.4, 110.2)) == 1  # whole even seconds
    assert in_window([file(mtime=99), file(mtime=103)], 100.4, 110.2) == (file(mtime=103),)
    assert in_window([file(mtime=100), file(mtime=103.25)], 100.4, 110.2) == (file(mtime=103.25),)


@given(st.floats(1e9, 2e9), st.floats(0.001, 100), st.sampled_from([0.001, 0.01, 1.0, 2.0]), st.floats(0, 1))
def test_what_was_written_inside_is_found_whatever_the_grain(
    begin: float, length: float, grain: float, part: float
) -> None:
    at = begin + part * length
    stamp = int(at / grain) * round(grain * 1e9)
    assert in_window([CacheFile("Triton", "a", 1, stamp)], begin, begin + length)


def test_each_window_of_an_engine_is_marked_for_itself() -> None:
    files = [file("Triton", 10.5), file("DeepGEMM", 10.6), file("Triton", 25.5)]
    assert per_window(files, [(0, 9), (10, 20), (30, 40)]) == (
        None,
        "2 new kernel cache files (Triton 1, DeepGEMM 1) during the timed window",
        None,
    )


def test_the_sentence_counts_by_compiler() -> None:
    files = [file("Triton"), file("DeepGEMM"), file("Triton")]
    when = "during the timed window"
    assert sentence(files, when) == "3 new kernel cache files (Triton 2, DeepGEMM 1) during the timed window"
    assert sentence(files[:1], when) == "1 new kernel cache file (Triton 1) during the timed window"


# --- what follows


@pytest.mark.parametrize(
    ("wrote", "inside", "discarded", "action"),
    [
        (0, 0, 0, Action.KEEP),
        (0, 0, 2, Action.KEEP),
        (3, 0, 0, Action.DISCARD),
        (3, 1, 0, Action.DISCARD),
        (3, 1, 1, Action.DISCARD),
        (3, 0, 2, Action.REMARK),
        (3, 1, 2, Action.INVALID),
        (3, 1, 5, Action.INVALID),
    ],
)
def test_two_cold_processes_are_thrown_away_and_a_third_is_not_excused(
    wrote: int, inside: int, discarded: int, action: Action
) -> None:
    files = [file() for _ in range(wrote)]
    decision = cold(files, files[:inside], discarded)
    assert decision.action is action
    assert bool(decision.sentence) == (action is not Action.KEEP)
    if action is Action.INVALID:
        assert "1 new kernel cache file (Triton 1) during the timed window" in decision.sentence
        assert f"{discarded} processes" in decision.sentence
    if action is Action.REMARK:
        assert decision.sentence == "3 new kernel cache files (Triton 3) outside the timed window"


def test_a_cold_process_then_a_warm_one(tmp_path: Path) -> None:
    """Two real processes with one cache: the first compiles, the second finds all and only reads."""
    code = (
        "path.mkdir(parents=True, exist_ok=True)\n"
        "for name in ('a', 'b'):\n"
        "    kernel = path / name\n"
        "    with open(path / 'lock', 'w') as lock: lock.write(str(os.getpid()))\n"
        "    kernel.read_bytes() if kernel.exists() else kernel.write_bytes(b'kernel')\n"
    )
    discarded, actions = 0, []
    for _ in range(3):
        before, begin = snapshot(dirs(tmp_path)), time.time()
        run(code, tmp_path / ".cache/sglang/triton")
        files = written(before, snapshot(dirs(tmp_path)))
        decision = cold(files, in_window(files, begin, time.time()), discarded)
        discarded += decision.action is Action.DISCARD
        actions.append(decision.action)
    assert actions == [Action.DISCARD, Action.KEEP, Action.KEEP]


# --- the round

WINDOW = 1000.0
INSIDE, OUTSIDE = (file(mtime=1001.25),), (file(mtime=990.25),)
LOGGED = (Event(EventKind.JIT, "Entering DeepGEMM JIT Pre-Compile session.", 7),)


def round_of(folder: Path, files: tuple[CacheFile, ...], discarded: int, logged: tuple[Event, ...] = ()) -> object:
    """A good result of a window of 2 s from `WINDOW` on."""
    return finished(folder, seconds=2.0, kernels=Kernels(files, WINDOW, discarded), compiled=logged)


@pytest.mark.parametrize("logged", [(), LOGGED], ids=["unseen", "logged"])
@pytest.mark.parametrize("files", [INSIDE, OUTSIDE], ids=["inside", "outside"])
def test_a_cold_round_is_thrown_away_with_its_number(
    tmp_path: Path, files: tuple[CacheFile, ...], logged: tuple[Event, ...]
) -> None:
    judged = round_of(tmp_path / "round", files, 1, logged)
    assert isinstance(judged, Discarded)
    assert judged.metrics["total_throughput"] == pytest.approx(3913.5)
    assert "1 new kernel cache file (Triton 1)" in judged.reason


def test_a_third_cold_round_is_invalid_or_carries_a_remark(tmp_path: Path) -> None:
    inside = round_of(tmp_path / "inside", INSIDE, 2)
    assert isinstance(inside, Problem)
    assert inside.verdict is Verdict.INVALID
    assert inside.cause.startswith("kernel-caches: 1 new kernel cache file (Triton 1) during the timed window, after 2")
    outside = round_of(tmp_path / "outside", OUTSIDE, 2)
    assert isinstance(outside, Sample)
    assert "1 new kernel cache file (Triton 1) outside the timed window" in outside.remarks
    late = round_of(tmp_path / "late", (file(mtime=1002.5),), 2)
    assert isinstance(late, Sample)  # at the end of the engine: the window was over


def test_a_warm_round_counts_and_one_that_only_logs_compilation_does_not(tmp_path: Path) -> None:
    assert isinstance(round_of(tmp_path / "warm", (), 0), Sample)
    logged = round_of(tmp_path / "logged", (), 0, LOGGED)
    assert isinstance(logged, Problem)
    assert "compilation" in logged.cause


def test_a_cold_round_that_is_wrong_otherwise_is_a_problem_at_once(tmp_path: Path) -> None:
    judged = finished(
        tmp_path / "round",
        kernels=Kernels(INSIDE, WINDOW, 0),
        gpus=lambda seconds: Watched(throttled=("GPU-3 was slowed down",)),
    )
    assert isinstance(judged, Problem)
    assert "throttled" in judged.cause


def test_where_the_window_was_not_seen_nothing_is_inside_it(tmp_path: Path) -> None:
    judged = finished(tmp_path / "round", kernels=Kernels(INSIDE, None, 2))
    assert isinstance(judged, Sample)
