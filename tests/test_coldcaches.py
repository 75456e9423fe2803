"""Empty kernel caches a round: what the process is given, what it leaves, and what is said of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_r1perf.caches import CacheFile, cache_dirs
from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.cell import cell_of
from pytest_r1perf.coldcaches import FOLDER, VARIABLES, EmptyCaches, told
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.roundrun import cannot_be_cold
from pytest_r1perf.sglang.warmups import without_effect
from tests.project import Project, lines_with, verdicts
from tests.test_site import site

ONE = '@perf(topology="tp1", n=50, min_tokps=1, kernel_caches="{}")\ndef test_one(): ...\n'
BOTH = ["TRITON_CACHE_DIR", "SGLANG_DG_CACHE_DIR"]


def seen(project: Project) -> list[dict[str, Any]]:
    """Which caches the fake's processes wrote into, and what they found there."""
    return [json.loads(line) for line in (project.fake / "caches.jsonl").read_text().splitlines()]


def test_every_cold_round_finds_empty_caches_and_leaves_none(r1perf_project: Project) -> None:
    r1perf_project.control({"compile": {"warm-up": BOTH}})
    r1perf_project.write(ONE.format("cold"))
    result = r1perf_project.perf("--perf-update-new")
    assert verdicts(result) == ["BASELINE STORED"]
    assert len(r1perf_project.calls()) == 2  # none was thrown away
    found = seen(r1perf_project)
    assert [line["there"] for line in found] == [[]] * 4
    assert all(Path(line["path"]).is_relative_to(r1perf_project.out) for line in found)
    assert len({line["path"] for line in found}) == 4
    assert not list(r1perf_project.out.rglob(FOLDER))
    assert not (r1perf_project.root / "userhome").exists()
    for line in r1perf_project.samples():
        assert line["cell"] == "cpu/default/sharegpt/n50/offline/kernel_caches=cold"
        assert line["protocol"]["cache_state"] == "fresh process, empty kernel caches"
        (remark,) = [text for text in line["remarks"] if "in cold caches" in text]
        assert remark.startswith("2 new kernel cache files (")
        assert "Triton 1" in remark
        assert "DeepGEMM 1" in remark
    assert lines_with(result, "tp1 default n=50 kernel_caches=cold: round 1: 2 new kernel cache files")
    commands = [path.read_text() for path in r1perf_project.out.rglob("command.txt")]
    assert all(f"{variable}=" in text for text in commands for variable in VARIABLES)


def test_a_warm_cell_keeps_what_was_compiled_and_is_another_cell(r1perf_project: Project) -> None:
    r1perf_project.control({"compile": [{"warm-up": ["TRITON_CACHE_DIR"]}] * 2 + [{}]})
    r1perf_project.write(ONE.format("warm"))
    r1perf_project.perf("--perf-update-new").assert_outcomes(passed=1)
    found = seen(r1perf_project)
    assert [len(line["there"]) for line in found] == [0, 1]
    assert len(r1perf_project.calls()) == 2 + 2  # those two were thrown away
    (cell,) = r1perf_project.stored()["cells"]
    assert cell == "cpu/default/sharegpt/n50/offline"
    r1perf_project.write(ONE.format("cold").replace("min_tokps=1, ", ""))
    assert verdicts(r1perf_project.perf()) == ["NO BASELINE"]


def test_compilation_in_the_window_is_what_a_cold_round_is_for(r1perf_project: Project) -> None:
    r1perf_project.control({"mode": "jit", "compile": {"benchmark": ["TRITON_CACHE_DIR"]}})
    r1perf_project.write(ONE.format("cold"))
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    (remark,) = [text for text in r1perf_project.samples()[0]["remarks"] if "cold caches" in text]
    assert remark.startswith("1 new kernel cache file (Triton 1) in cold caches, ")
    assert "kernels were compiled in the timed window, line " in remark
    r1perf_project.write(ONE.format("warm"))
    warm = r1perf_project.perf()
    warm.assert_outcomes(failed=1)
    assert verdicts(warm) == ["INVALID"]
    assert len(r1perf_project.calls()) == 2 + 3


def test_a_cold_round_that_is_wrong_otherwise_is_invalid(r1perf_project: Project) -> None:
    r1perf_project.control({"mode": "tokens", "compile": {"benchmark": ["TRITON_CACHE_DIR"]}})
    r1perf_project.write(ONE.format("cold"))
    result = r1perf_project.perf()
    assert verdicts(result) == ["INVALID"]
    assert lines_with(result, "total-output-tokens")
    assert not list(r1perf_project.out.rglob(FOLDER))


def test_a_cold_round_that_dies_leaves_no_directories(r1perf_project: Project) -> None:
    r1perf_project.control({"mode": "oom"})
    r1perf_project.write(ONE.format("cold"))
    assert verdicts(r1perf_project.perf()) == ["OOM"]
    assert not list(r1perf_project.out.rglob(FOLDER))


def test_the_two_in_one_test_of_the_lab(r1perf_project: Project) -> None:
    r1perf_project.control({"compile": {"warm-up": ["TRITON_CACHE_DIR"]}})
    r1perf_project.write(
        """
        @perf(topology="tp1", n=50, metric=["total_throughput", "wall_time"])
        def test_both(perf_lab):
            warm, cold = perf_lab.measure(), perf_lab.measure(kernel_caches="cold")
            assert cold.protocol["cache_state"] != warm.protocol["cache_state"]
            for metric in ("total_throughput", "wall_time", "startup_time"):
                assert perf_lab.compare(cold, warm, metric).ratio.estimate > 0
        """
    )
    r1perf_project.perf().assert_outcomes(passed=1)


def test_a_cache_of_the_markers_own_contradicts_it(r1perf_project: Project) -> None:
    r1perf_project.write(
        '@perf(topology="tp1", n=50, kernel_caches="cold", env={"SGLANG_CACHE_DIR": "/scratch"})\ndef test_one(): ...\n'
    )
    result = r1perf_project.perf()
    assert verdicts(result) == ["CONFIG"]
    assert lines_with(
        result, "env['SGLANG_CACHE_DIR'] names a kernel cache, and kernel_caches='cold' gives every round"
    )
    assert r1perf_project.calls() == []


def test_a_cache_of_the_platform_is_overridden(r1perf_project: Project) -> None:
    elsewhere = r1perf_project.root / "scratch"
    r1perf_project.control({"compile": {"warm-up": ["TRITON_CACHE_DIR"]}})
    r1perf_project.platform(env={"TRITON_CACHE_DIR": str(elsewhere), "SGLANG_USE_CPU_ENGINE": "1"})
    r1perf_project.write(ONE.format("cold"))
    r1perf_project.perf().assert_outcomes(passed=1)
    assert not elsewhere.exists()


def test_other_hosts_are_refused_by_name(tmp_path: Path) -> None:
    catalog = load_catalog()
    far = site(tmp_path, "a", "b")
    cell = cell_of(PerfSpec("pp2", n=50, kernel_caches="cold"), far.platform, catalog)
    assert cannot_be_cold(cell, far) == (
        "kernel_caches='cold' makes and removes directories on this host, and the cell runs on alias0, alias1: run "
        "pytest there, or leave kernel_caches out"
    )
    assert cannot_be_cold(cell, site(tmp_path, "a", "b", remote=False)) is None
    assert cannot_be_cold(cell_of(PerfSpec("pp2", n=50), far.platform, catalog), far) is None


# --- what is compiled beforehand


def test_a_warm_up_that_nobody_runs_is_said_once(r1perf_project: Project) -> None:
    r1perf_project.write(
        '@perf(topology="tp1", n=50, min_tokps=1, flags={"warmups": "compile-deep-gemm"})\ndef test_one(): ...\n'
    )
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    assert len(lines_with(result, "--warmups compile-deep-gemm is accepted and not run")) == 1
    assert "--warmups" in r1perf_project.calls()[0]["argv"]


@pytest.mark.parametrize(
    ("given", "server", "words"),
    [
        ({}, False, None),
        ({"warmups": "voice_chat"}, True, None),
        ({"warmups": "voice_chat,compile-deep-gemm"}, True, "compile-deep-gemm is not known to launch_server"),
        ({"warmups": "voice_chat"}, False, "voice_chat is accepted and not run"),
    ],
)
def test_who_runs_which_warm_up(given: dict[str, str], server: bool, words: str | None) -> None:
    said = without_effect(given, server=server)
    assert (said is None) if words is None else (words in str(said))


# --- the directories


def test_every_variable_that_moves_a_cache_moves_it_here(tmp_path: Path) -> None:
    """Whatever was given before: no cache of any compiler is left where its variable named it."""
    home, theirs = tmp_path / "home", tmp_path / "theirs"
    given = {name: str(theirs / name) for name in (*VARIABLES, "TRITON_HOME", "XDG_CACHE_HOME", "TMPDIR")}
    before = {one.path for one in cache_dirs(given, home)}
    assert sum(path.is_relative_to(theirs) for path in before) >= 10
    with EmptyCaches(tmp_path / "round", (0,)) as empty:
        after = cache_dirs({**given, **empty.variables(0)}, home)
        assert [one.path for one in after if one.path.is_relative_to(theirs)] == []
        compilers = {one.compiler for one in after if empty.has(one.path)}
        assert compilers == {one.compiler for one in cache_dirs({}, home)}
        assert all(Path(path).is_dir() for path in empty.variables(0).values())


def test_the_ranks_of_a_host_have_their_own_and_an_error_removes_them(tmp_path: Path) -> None:
    def interrupted() -> None:
        with empty:
            paths = [Path(empty.variables(rank)["TRITON_CACHE_DIR"]) for rank in (0, 1)]
            assert paths == [tmp_path / FOLDER / "triton", tmp_path / "rank-1" / FOLDER / "triton"]
            (paths[1] / "kernel").write_bytes(b"x")
            raise KeyboardInterrupt

    empty = EmptyCaches(tmp_path, (0, 1))
    assert empty.variables(2) == {}
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.rglob(FOLDER))
    assert empty.left == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root removes everything")
def test_what_cannot_be_removed_is_named(tmp_path: Path) -> None:
    with EmptyCaches(tmp_path, (0,)) as empty:
        locked = Path(empty.variables(0)["TRITON_CACHE_DIR"])
        (locked / "kernel").write_bytes(b"x")
        locked.chmod(0o500)
    assert empty.left == [f"the round's own kernel caches could not be removed: remove {tmp_path / FOLDER}"]
    locked.chmod(0o700)


def test_no_ranks_make_no_directories(tmp_path: Path) -> None:
    with EmptyCaches(tmp_path, ()) as empty:
        assert empty.variables(0) == {}
        assert list(tmp_path.iterdir()) == []


def test_what_was_not_cold_is_named(tmp_path: Path) -> None:
    own = CacheFile("Triton", str(tmp_path / FOLDER / "triton" / "a"), 1, 0)
    other = CacheFile("tvm-ffi", "/home/me/.cache/tvm-ffi/b", 1, 0)
    assert told((), (), tmp_path) == "cold kernel caches: this process compiled nothing"
    text = told((own, own, other), (own,), tmp_path)
    assert text.startswith("3 new kernel cache files (Triton 2, tvm-ffi 1) in cold caches, 1 of them during the timed")
    assert text.endswith("; 1 outside of the round's own directories (tvm-ffi 1), which were not empty")
