"""Reading records back: what counts, what is kept apart, what is told, and that nothing makes it raise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_r1perf.history.nights import Night, read_history
from tests.histories import CELL, HARDWARE, START, sample, verdict, write_session

A = "20260901.023000.aaaa"


def one(nights: tuple[Night, ...]) -> Night:
    assert len(nights) == 1
    return nights[0]


def test_a_session_is_a_night_of_its_cell(tmp_path: Path) -> None:
    write_session(tmp_path, A, [sample(1, 20000.0), sample(2, 20400.0), verdict("PASS")])
    history = read_history([tmp_path])
    night = one(history.nights)
    assert history.problems == ()
    assert (night.session, night.cell, night.topology, night.hardware) == (A, CELL, "tp8", HARDWARE)
    assert (night.platform, night.host, night.side, night.verdict) == ("h200x8", "gpu3", None, "PASS")
    assert night.versions == {"sglang": "0.5.9", "torch": "2.9.1"}
    assert night.values("total_throughput") == (20000.0, 20400.0)
    assert night.values("ttft_ms") == ()
    assert night.time == START
    # As a baseline would keep it: no seed, nothing that the protocol holds already.
    assert night.resolved == {"schedule_policy": "fcfs", "mem_fraction_static": 0.85}


@pytest.mark.parametrize("what", ["output directory", "folder", "file", "all three"])
def test_every_kind_of_path_gives_the_same_once(tmp_path: Path, what: str) -> None:
    file = write_session(tmp_path, A, [sample(1), sample(2)])
    paths = {"output directory": [tmp_path], "folder": [file.parent], "file": [file]}
    given_paths = paths.get(what, [tmp_path, file.parent, file])
    history = read_history(given_paths)
    assert len(one(history.nights).rounds) == 2
    assert history.problems == ()


def test_an_older_line_has_defaults(tmp_path: Path) -> None:
    old = sample(1)
    for key in ("platform", "host", "command", "resolved"):
        del old[key]
    write_session(tmp_path, A, [old])
    night = one(read_history([tmp_path]).nights)
    assert (night.platform, night.host, night.resolved, night.verdict) == ("h200x8", "", {}, None)
    assert night.rounds[0].windows == ()


def test_the_hosts_of_several_nodes_and_their_settings(tmp_path: Path) -> None:
    host = {"hostname": "gpu3", "kernel": "6.8", "gpu driver": "580.82", "hostname 1": "gpu4", "kernel 1": "6.8"}
    write_session(tmp_path, A, [sample(1, host=host)])
    night = one(read_history([tmp_path]).nights)
    assert night.host == "gpu3, gpu4"
    assert night.settings == {"kernel": "6.8", "gpu driver": "580.82", "kernel 1": "6.8"}


def test_windows_are_kept_in_order(tmp_path: Path) -> None:
    windows = [{"total_throughput": 20100.0}, {"total_throughput": 19900.0}]
    write_session(tmp_path, A, [sample(1, windows=windows, discarded=1)])
    assert list(one(read_history([tmp_path]).nights).rounds[0].windows) == windows


def test_several_writers_of_one_session_are_one_night(tmp_path: Path) -> None:
    write_session(tmp_path, A, [sample(2, 20200.0)], writer="gw0")
    write_session(tmp_path, A, [sample(1, 20100.0), sample(3, 20300.0)], writer="gw1")
    write_session(tmp_path, A, [verdict("UNDECIDED")])
    history = read_history([tmp_path])
    night = one(history.nights)
    assert night.values("total_throughput") == (20100.0, 20200.0, 20300.0)
    assert night.verdict == "UNDECIDED"
    assert night.resolved  # round 1 is in the second file
    assert history.problems == ()


def test_a_killed_session_and_its_truncated_line(tmp_path: Path) -> None:
    path = write_session(tmp_path, A, [sample(1)], ended=False)
    with path.open("a") as file:
        file.write(json.dumps(sample(2))[:200])
    history = read_history([tmp_path])
    assert [one.number for one in one(history.nights).rounds] == [1]
    (problem,) = history.problems
    assert problem == f"{path}:3: cut short, since its writer was killed: left out"


def test_a_resumed_session_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = write_session(tmp_path, A, [sample(1)], ended=False)
    with path.open("a") as file:
        file.write(json.dumps(sample(2))[:200] + "\n")
        file.write(json.dumps({"format": 1, "kind": "start", "session": A, "owner": "x"}) + "\n")
        file.write(json.dumps(sample(2, 20500.0)) + "\n")
    history = read_history([tmp_path])
    assert one(history.nights).values("total_throughput") == (20000.0, 20500.0)
    assert len(history.problems) == 1
    assert "is no record" in history.problems[0]


def test_of_duplicate_lines_the_first_counts(tmp_path: Path) -> None:
    write_session(tmp_path, A, [sample(1, 20000.0), sample(1, 21000.0), sample(2, 20400.0)], writer="gw0")
    write_session(tmp_path, A, [sample(2, 22000.0)], writer="gw1")
    history = read_history([tmp_path])
    assert one(history.nights).values("total_throughput") == (20000.0, 20400.0)
    assert len(history.problems) == 2
    assert all(f"{CELL} in session {A}" in problem and "the first counts" in problem for problem in history.problems)


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": "b"},
        {"workload": "b"},
        {"versions": {"sglang": "0.5.20", "torch": "2.9.1"}},
        {"env": {"OMP_NUM_THREADS": "2"}},
        {"command": ["/elsewhere/bin/python"]},
        {"protocol": {"tp_size": 8, "mode": "offline", "kv_cache_dtype": "fp8_e5m2"}},
        {"hardware": "8x-nvidia-h100"},
        {"host": {"hostname": "gpu4"}},
        {"host": {"hostname": "gpu3", "gpu driver": "580.82"}},
        {"side": "old"},
    ],
    ids=str,
)
def test_what_is_not_the_same_is_never_pooled(tmp_path: Path, other: dict[str, Any]) -> None:
    write_session(tmp_path, A, [sample(1, 20000.0), sample(1, 19000.0, **other)])
    history = read_history([tmp_path])
    assert sorted(night.values("total_throughput") for night in history.nights) == [(19000.0,), (20000.0,)]
    assert history.problems == ()


def test_the_verdict_of_a_comparison_is_the_new_sides(tmp_path: Path) -> None:
    lines = [sample(1, side="old"), sample(1, side="new"), verdict("REGRESSED"), verdict("PASS", key="other")]
    write_session(tmp_path, A, lines)
    assert {night.side: night.verdict for night in read_history([tmp_path]).nights} == {"old": None, "new": "REGRESSED"}


def test_a_newer_format_is_refused_for_its_file_alone(tmp_path: Path) -> None:
    write_session(tmp_path, A, [sample(1)])
    newer = write_session(tmp_path, "20260902.023000.bbbb", [sample(1), sample(2, format=2), sample(3, format=2)])
    history = read_history([tmp_path])
    assert one(history.nights).session == A
    (problem,) = history.problems
    assert problem.startswith(f"{newer}: left out as a whole: written by a newer pytest-r1perf (format 2")


def test_unknown_kinds_and_unknown_keys(tmp_path: Path) -> None:
    known: list[dict[str, Any]] = [
        {"format": 1, "kind": "discarded", "round": 1, "reason": "it filled the kernel caches"},
        sample(1, something_new=[1, 2]),
    ]
    write_session(tmp_path, A, [*known, *[{"format": 1, "kind": "weather"}] * 3])
    history = read_history([tmp_path])
    assert len(one(history.nights).rounds) == 1
    (problem,) = history.problems
    assert "3 lines" in problem
    assert "kind that is not known" in problem


@pytest.mark.parametrize(
    "wrong",
    [
        {"metrics": {"total_throughput": -1}},
        {"metrics": {"total_throughput": 0}},
        {"metrics": {"total_throughput": float("nan")}},
        {"metrics": {"total_throughput": True}},
        {"metrics": {}},
        {"metrics": [1]},
        {"windows": [{"total_throughput": float("inf")}]},
        {"time": "yesterday"},
        {"time": "0001-01-01T00:00:00+10:00"},
        {"time": None},
        {"round": "1"},
        {"round": True},
        {"cell": ""},
        {"wall_s": "long"},
    ],
    ids=str,
)
def test_a_sample_that_is_no_measurement_is_left_out_and_told(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = write_session(tmp_path, A, [sample(1), sample(2, **wrong)])
    history = read_history([tmp_path])
    assert [one.number for one in one(history.nights).rounds] == [1]
    (problem,) = history.problems
    assert problem.startswith(f"{path}:3: a sample without")


def test_what_broke_is_kept_beside_the_nights(tmp_path: Path) -> None:
    broke = {**sample(1), "kind": "problem", "verdict": "OOM", "cause": "CUDA out of memory", "hint": ""}
    write_session(tmp_path, A, [sample(1), broke])
    history = read_history([tmp_path])
    (what,) = history.broken
    assert (what.session, what.cell, what.verdict, what.cause) == (A, CELL, "OOM", "CUDA out of memory")
    assert len(one(history.nights).rounds) == 1


def test_paths_that_give_nothing_are_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    history = read_history([tmp_path / "empty", tmp_path / "absent", Path("nul\0")])
    assert history.nights == ()
    assert len(history.problems) == 3
    assert "has no records" in history.problems[0]
    assert "No such file" in history.problems[1]


def test_a_line_without_an_end_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_r1perf.history.file.LONGEST_LINE", 5000)
    path = write_session(tmp_path, A, [sample(1), sample(2, log="x" * 20000), sample(3)])
    history = read_history([tmp_path])
    assert [one.number for one in one(history.nights).rounds] == [1, 3]
    assert history.problems == (f"{path}:3: is no record: left out",)


def test_a_hundred_thousand_lines(tmp_path: Path) -> None:
    """1,000 sessions of 20 cells with 5 rounds; every value comes back to its place."""
    lines = [
        json.dumps(sample(number, 1.0, cell=f"h200x8/r/w/n{cell}/offline", metrics={"total_throughput": "VALUE"}))
        for cell in range(20)
        for number in range(1, 6)
    ]
    for session in range(1000):
        texts = [line.replace('"VALUE"', str(1000 * (at // 5 + 1) + session)) for at, line in enumerate(lines)]
        folder = tmp_path / f"2026.{session:04}"
        folder.mkdir()
        (folder / "samples-main.jsonl").write_text("\n".join(texts) + "\n")
    history = read_history([tmp_path])
    assert history.problems == ()
    assert len(history.nights) == 20000
    last = next(n for n in history.nights if n.session == "2026.0999" and n.cell.endswith("n19/offline"))
    assert last.values("total_throughput") == (20999.0,) * 5
    # What repeats is held once, however long the history.
    assert len({id(night.protocol) for night in history.nights}) == 1
    assert len({id(night.versions) for night in history.nights}) == 1


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(content=st.binary(max_size=400))
def test_arbitrary_bytes_never_raise(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "samples-main.jsonl"
    path.write_bytes(json.dumps(sample(1)).encode() + b"\n" + content)
    nights = read_history([path]).nights
    assert len(nights) == 1  # the good line before the bytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=400)
@given(data=st.data())
def test_arbitrary_values_in_a_line_never_raise(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["sample", "verdict", "problem", "start"]))
    whole = {
        "sample": sample(1, windows=[], side=None),
        "verdict": verdict("PASS"),
        "problem": {**sample(1), "kind": "problem", "verdict": "OOM", "cause": "", "hint": "", "log": ""},
        "start": {"format": 1, "kind": "start", "session": A},
    }[kind]
    line = {**whole, data.draw(st.sampled_from(sorted(whole))): data.draw(_json)}
    path = tmp_path / "samples-main.jsonl"
    path.write_text("\n".join(json.dumps(item) for item in (line, sample(1), verdict("PASS"))))
    history = read_history([path])
    assert len(history.nights) + len(history.problems) > 0


def test_json_that_nests_too_deep_is_left_out(tmp_path: Path) -> None:
    path = write_session(tmp_path, A, [sample(1)])
    deep = json.dumps(sample(2, env="DEEP")).replace('"DEEP"', "[" * 100000 + "]" * 100000)
    path.write_text(path.read_text() + deep + "\n")
    history = read_history([path])
    assert [one.number for one in one(history.nights).rounds] == [1]
    assert len(history.problems) == 1
