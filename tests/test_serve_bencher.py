"""A stress sweep with servers of our own, on the fake SGLang: what is told, when, and what the next run finds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.serve.bencher import OwnServer
from pytest_r1perf.stress.cases import Case
from pytest_r1perf.stress.manifest import Asked
from pytest_r1perf.stress.run import run_sweep
from tests.serves import BATCH, FakeServing, cell, serve_mode

CASES = (Case(1, 16, 8), Case(2, 16, 8), Case(4, 16, 8))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServing:
    monkeypatch.setenv("R1PERF_HOME", str(tmp_path / "home"))
    return FakeServing(tmp_path)


def own(fake: FakeServing, **flags: int) -> OwnServer:
    return OwnServer(serve_mode(fake.bench), cell(fake.bench, **BATCH, flags=flags))


def measured(fake: FakeServing) -> list[str]:
    return [client["cell"] for client in fake.clients]


def test_a_sweep_is_one_server_a_repeat(fake: FakeServing, tmp_path: Path) -> None:
    bencher = own(fake)
    ended = run_sweep(tmp_path / "sweep", Asked(CASES, 2, "document"), bencher, bencher.identify, print)
    assert (ended.new, ended.missing, ended.skipped, ended.why) == (6, 0, 0, None)
    assert len(fake.servers) == 3, "one to see who it is, and one a repeat"
    assert measured(fake)[1:4] == ["b1-16-8", "b2-16-8", "b4-16-8"]
    rows = [json.loads(line) for line in (tmp_path / "sweep" / "2-16-8.jsonl").read_text().splitlines()]
    assert [row["r1perf"]["repeat"] for row in rows] == [1, 2]
    assert rows[0]["r1perf"]["server"] != rows[1]["r1perf"]["server"], "another start"
    assert not any("hunter2" in path.read_text(errors="replace") for path in tmp_path.glob("sweep/**/*.json*"))
    fake.nothing_left()


def test_a_case_is_told_while_the_next_one_is_measured(fake: FakeServing) -> None:
    heard: list[tuple[str, int]] = []

    def done(case: Case, rows: Sequence[Mapping[str, object]]) -> None:
        heard.append((case.name, len(fake.clients)))
        assert len(rows) == 1

    # The last of them waits until the ones before it were heard of, or is ended by its limit.
    fake.control(b4_16_8={"mode": "hang"})
    bencher = own(fake)
    bencher.template = cell(fake.bench, **BATCH, timeout_s=6)
    bencher.identify()
    why = bencher.measure(CASES, done)
    assert [name for name, _ in heard] == ["1-16-8", "2-16-8"]
    assert heard[0][1] < 4
    assert why is not None
    assert "1 of 3 cases failed: 4-16-8: HANG" in why
    fake.nothing_left()


def test_a_case_that_breaks_the_server_costs_only_itself(fake: FakeServing, tmp_path: Path) -> None:
    fake.control(b2_16_8={"mode": ["die", "ok"]})
    bencher = own(fake)
    asked = Asked(CASES, 1, "document")
    ended = run_sweep(tmp_path / "sweep", asked, bencher, bencher.identify, print)
    assert (ended.new, ended.missing) == (2, 1)
    assert ended.why is not None
    assert "2-16-8: OOM" in ended.why
    assert len(fake.servers) == 1 + 2
    again = own(fake)
    ended = run_sweep(tmp_path / "sweep", asked, again, again.identify, print)
    assert (ended.new, ended.kept, ended.missing, ended.why) == (1, 2, 0, None)
    assert measured(fake).count("b1-16-8") == 1, "what is there is not measured again"


def test_a_case_that_always_fails_does_not_keep_the_next_repeat_back(fake: FakeServing, tmp_path: Path) -> None:
    fake.control(b2_16_8={"mode": "die"})
    bencher = own(fake)
    ended = run_sweep(tmp_path / "sweep", Asked(CASES, 2, "document"), bencher, bencher.identify, print)
    assert (ended.new, ended.missing) == (4, 2)
    assert ended.why is not None
    assert ended.why.startswith("repeat 1: 1 of 3 cases failed: 2-16-8: ")
    assert "; repeat 2: 1 of 3 cases failed: 2-16-8: " in ended.why


@pytest.mark.parametrize("warm_up", [True, False])
def test_the_clients_own_batch_before_the_timed_one(fake: FakeServing, warm_up: bool) -> None:
    bencher = OwnServer(serve_mode(fake.bench), cell(fake.bench, **BATCH), warm_up)
    assert bencher.measure(CASES[:1], lambda case, rows: None) is None
    assert [("--skip-warmup" in client["argv"]) for client in fake.clients] == [not warm_up]


def test_a_case_above_max_running_requests_is_skipped_for_good(fake: FakeServing, tmp_path: Path) -> None:
    bencher = own(fake, max_running_requests=3)
    ended = run_sweep(tmp_path / "sweep", Asked(CASES, 1, "document"), bencher, bencher.identify, print)
    assert (ended.new, ended.skipped, ended.missing, ended.why) == (2, 1, 0, None)
    (row,) = map(json.loads, (tmp_path / "sweep" / "4-16-8.jsonl").read_text().splitlines())
    assert row["skipped"].startswith("max running requests limit: batch_size=4 > ")


def test_a_server_that_never_comes_up_is_one_sentence(fake: FakeServing) -> None:
    fake.control({"mode": "oom"})
    with pytest.raises(R1PerfError, match=r"^OOM: .*CUDA out of memory"):
        own(fake).identify()


def test_what_never_came_to_a_run_names_no_log(fake: FakeServing) -> None:
    (fake.root / "data.json").write_text("[]")
    with pytest.raises(R1PerfError, match=r"^CONFIG: data set \S+/data\.json is empty or no list: [^()]*$"):
        own(fake).identify()


def test_the_server_is_another_one_in_the_second_repeat(fake: FakeServing, tmp_path: Path) -> None:
    """Its rows are not told: they would stand in a sweep of another server. That is said, not passed over."""
    fake.control({"info": [{}, {}, {"chunked_prefill_size": 17}]})
    bencher = own(fake)
    ended = run_sweep(tmp_path / "sweep", Asked(CASES, 2, "document"), bencher, bencher.identify, print)
    assert (ended.new, ended.missing) == (3, 3)
    assert ended.why is not None
    assert ended.why.startswith("the server of this repeat is another one (chunked_prefill_size ")
    assert ended.why.endswith("17 here): nothing of it is kept")


def test_it_gives_up_where_no_case_is_measured(fake: FakeServing) -> None:
    fake.control(
        {"mode": ["ok"]},
        b1_16_8={"mode": "die"},
        b2_16_8={"mode": "die"},
        b4_16_8={"mode": "die"},
        b8_16_8={"mode": "die"},
    )
    bencher = own(fake)
    bencher.identify()
    why = bencher.measure((*CASES, Case(8, 16, 8)), lambda case, rows: None)
    assert why is not None
    assert why.startswith("3 servers one after another measured nothing, the last: 4-16-8: OOM")
    assert measured(fake)[1:] == ["b1-16-8", "b2-16-8", "b4-16-8"]
