"""Rounds of ``mode="serve"`` on the fake SGLang: servers and clients are real processes, and so is what breaks them."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_r1perf.caches import CacheDir
from pytest_r1perf.measurement import Problem, Sample
from pytest_r1perf.site import free_port
from pytest_r1perf.verdict import Verdict
from tests.serves import BATCH, FakeServing, cell, serve_mode

# A fake's window takes its tokens over its speed, times 1, 1.002, 0.998, ... in turn.
JITTER = (0.0, 0.002, -0.002, 0.001, -0.001)
SMALLER = {**BATCH, "batch_size": 2}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServing:
    monkeypatch.setenv("R1PERF_HOME", str(tmp_path / "home"))
    return FakeServing(tmp_path)


def problem(outcome: Sample | Problem) -> Problem:
    assert isinstance(outcome, Problem), outcome
    return outcome


def sample(outcome: Sample | Problem) -> Sample:
    assert isinstance(outcome, Sample), outcome
    return outcome


# -- what a round is -----------------------------------------------------------------------------------------


def test_a_batch_is_averaged_over_windows_and_the_first_is_thrown_away(fake: FakeServing) -> None:
    fake.control(b4_128_16={"speed": [1, 1000.0, 4000.0]})
    measurement, outcome = fake.round(BATCH, windows=2, discard=1)
    found = sample(outcome)
    first, second = 1000.0 * (1 + JITTER[1]), 4000.0 * (1 + JITTER[2])
    tokens = 4 * (128 + 16)
    # The client rounds times to 0.1 ms and rates to 0.01.
    assert [window["total_throughput"] for window in found.windows] == pytest.approx([first, second], rel=1e-3)
    assert found.metrics["total_throughput"] == pytest.approx(math.sqrt(first * second), rel=1e-3)
    assert found.metrics["total_latency"] == pytest.approx(tokens / math.sqrt(first * second), rel=1e-3)
    assert found.metrics["output_throughput"] == pytest.approx(found.metrics["total_throughput"] * 16 / 144, rel=1e-3)
    assert found.metrics["decode_throughput"] == pytest.approx(found.metrics["output_throughput"] / 0.75, rel=1e-3)
    assert found.metrics["request_throughput"] == pytest.approx(4 / found.metrics["total_latency"], rel=1e-3)
    assert found.metrics["tokps_per_gpu"] == found.metrics["total_throughput"]
    assert "ttft_ms" not in found.metrics
    assert found.discarded == 1
    assert measurement.workload is not None
    assert (measurement.workload.total_input_tokens, measurement.workload.total_output_tokens) == (512, 64)
    assert measurement.protocol["mode"] == "serve"
    assert str(measurement.protocol["metric_definition"]).startswith("bench_one_batch_server: ")
    assert measurement.protocol["load"] == "one-batch in=128 out=16"
    assert measurement.resolved["device"] == "cpu"
    fake.nothing_left()


def test_traffic_has_latencies_and_goodput(fake: FakeServing) -> None:
    """60 requests of 20 + 30 tokens at 1000 tok/s are 3 s: the first token after 300 ms, the last after 2700 ms."""
    fake.control(n60={"speed": 1000.0})
    own = {"n": 60, "request_rate": 50, "max_concurrency": 60, "slo": {"ttft_ms": 400, "e2e_latency_ms": 2900}}
    measurement, outcome = fake.round(own, windows=1, discard=0)
    metrics = sample(outcome).metrics
    assert metrics["total_latency"] == pytest.approx(3.0)
    assert metrics["ttft_ms"] == metrics["p99_ttft_ms"] == pytest.approx(300)
    assert metrics["tpot_ms"] == metrics["p99_tpot_ms"] == pytest.approx(2400 / 29)
    assert metrics["itl_ms"] == metrics["p99_itl_ms"] == pytest.approx(2400 / 29)
    assert metrics["e2e_latency_ms"] == pytest.approx(2700)
    assert metrics["goodput"] == metrics["request_throughput"] == pytest.approx(20)
    assert "decode_throughput" not in metrics
    assert measurement.protocol["load"] == "rate=50 concurrency=60 slo-ttft_ms=400 slo-e2e_latency_ms=2900"
    argv = fake.clients[0]["argv"]
    assert argv[argv.index("--request-rate") + 1] == "50.0"


def test_every_window_finds_a_flushed_cache(fake: FakeServing) -> None:
    _, outcome = fake.round({"n": 6}, windows=2, discard=2)
    assert sample(outcome).discarded == 2
    assert [client["flushes"] for client in fake.clients] == [1, 2, 3, 4]
    assert len({tuple(map(str, client["argv"][:-1])) for client in fake.clients}) == 1
    assert all(client["proxy"] == "127.0.0.1" for client in fake.clients)


def test_cells_of_one_server_share_it_and_are_kept(fake: FakeServing) -> None:
    measurement, outcome = fake.round(BATCH, SMALLER, {"n": 10})
    assert sample(outcome).round == 1
    assert len(fake.servers) == 1
    assert [client["cell"] for client in fake.clients] == ["b4-128-16"] * 3 + ["b2-128-16"] * 3 + ["n10"] * 3
    kept = fake.kept()
    assert [sample(one).discarded for one in kept.values()] == [1, 1]
    told = {one.cell.label: one for one, _, _ in fake.bench.kept}
    assert [str(one.protocol["metric_definition"]).partition(":")[0] for one in told.values()] == [
        "bench_one_batch_server",
        "bench_serving",
    ]
    # All the process's time belongs to one of them.
    assert all(sample(outcome).wall_s > sample(one).wall_s > 0 for one in kept.values())
    assert measurement.command[2].count("sglang.benchmark.one_batch_server") == 1, "written down alone"


def test_a_cell_with_other_server_arguments_does_not_share(fake: FakeServing) -> None:
    fake.round(BATCH, {**SMALLER, "flags": {"max_running_requests": 8}})
    assert [client["cell"] for client in fake.clients] == ["b4-128-16"] * 3
    assert fake.kept() == {}


def test_the_log_is_each_cells_own(fake: FakeServing) -> None:
    fake.control(n10={"mode": ["ok", "ok", "retract"]})
    _, outcome = fake.round({"n": 10}, {"n": 12})
    assert any("3 requests were retracted" in remark for remark in sample(outcome).remarks)
    (other,) = fake.kept().values()
    assert not any("retracted" in remark for remark in sample(other).remarks)


def test_progress_is_shown_by_cell(fake: FakeServing) -> None:
    fake.round({"n": 10}, BATCH)
    assert {key.split("/")[3] for key, _, _ in fake.bench.shown} <= {"n10", "n4"}


def test_nothing_secret_is_written_down(fake: FakeServing) -> None:
    """A server's own account of itself has its API key; SGLang's client keeps it in its row, we nowhere."""
    fake.round({"n": 6}, BATCH)
    assert "hunter2" not in fake.said()


# -- servers -------------------------------------------------------------------------------------------------


def test_a_server_that_dies_at_its_start(fake: FakeServing) -> None:
    fake.control({"mode": "oom"})
    _, outcome = fake.round(BATCH)
    found = problem(outcome)
    assert found.verdict is Verdict.OOM
    assert "CUDA out of memory" in found.cause
    assert fake.clients == []
    fake.nothing_left()


def test_a_server_that_refuses_its_arguments(fake: FakeServing) -> None:
    fake.control({"mode": "argparse"})
    _, outcome = fake.round(BATCH)
    assert problem(outcome).verdict is Verdict.CONFIG
    assert "unrecognized arguments" in problem(outcome).cause


@pytest.mark.parametrize("mode", ["foreign-sglang", "foreign-other", "foreign-late"])
def test_another_server_on_the_port(fake: FakeServing, mode: str) -> None:
    """SGLang logs "fired up and ready to roll" all the same: the other one answered."""
    fake.control({"mode": mode})
    _, outcome = fake.round(BATCH)
    found = problem(outcome)
    assert found.verdict is Verdict.INFRA
    assert f"another server answers on port {fake.servers[0]['port']} of this host" in found.cause
    assert ("somebody-elses" in found.cause) is (mode == "foreign-sglang")
    assert fake.clients == []
    assert "ready to roll" in Path(found.log).read_text()
    fake.nothing_left()


def test_a_server_that_is_there_before_ours(fake: FakeServing) -> None:
    """It is noticed at once, although ours takes its time."""
    first = FakeServing(_below(fake.root, "other"))
    first.control({"mode": "hang"})
    python = fake.bench.environment.python
    port = free_port()
    argv = [python, "-m", "sglang.launch_server", "--model-path", "m", "--port", str(port), "--served-model-name", "x"]
    with subprocess.Popen([*argv, "--host", "127.0.0.1"], stdout=subprocess.PIPE, text=True) as there:
        try:
            assert there.stdout is not None
            while "ready to roll" not in there.stdout.readline():
                assert there.poll() is None
            _, outcome = first.round(BATCH, port=port)
        finally:
            there.kill()
    found = problem(outcome)
    assert found.verdict is Verdict.INFRA
    assert f"another server answers on port {port} of this host (one that calls itself 'x'), and ours is" in found.cause
    assert first.clients == []


def _below(root: Path, name: str) -> Path:
    (root / name).mkdir()
    return root / name


def test_a_server_that_is_up_and_generates_nothing(fake: FakeServing) -> None:
    """It says that it is ready, and answers every question but the one that counts."""
    fake.control({"mode": "mute"})
    _, outcome = fake.round({**BATCH, "timeout_s": 2})
    found = problem(outcome)
    assert found.verdict is Verdict.HANG
    assert fake.clients == []
    fake.nothing_left()


def test_a_server_that_hangs_at_its_start(fake: FakeServing) -> None:
    fake.control({"mode": "hang"})
    _, outcome = fake.round({**BATCH, "timeout_s": 2})
    assert problem(outcome).verdict is Verdict.HANG
    fake.nothing_left()


def test_a_server_that_dies_in_mid_run(fake: FakeServing) -> None:
    """What was over before counts, the cell that it died in has the log's cause, and the others get another server."""
    fake.control(b2_128_16={"mode": ["ok", "die"]})
    _, outcome = fake.round(BATCH, SMALLER, {"n": 10})
    assert sample(outcome).round == 1
    broken, last = fake.kept().values()
    assert problem(broken).verdict is Verdict.OOM
    assert "CUDA out of memory" in problem(broken).cause
    assert sample(last).round == 1
    assert len(fake.servers) == 2
    fake.nothing_left()


def test_a_client_that_hangs_is_ended_with_its_server(fake: FakeServing) -> None:
    fake.control(n10={"mode": ["ok", "hang"]})
    _, outcome = fake.round({"n": 10, "timeout_s": 3})
    found = problem(outcome)
    assert found.verdict is Verdict.HANG
    fake.nothing_left()


def test_a_client_that_fails_spoils_its_own_cell_only(fake: FakeServing) -> None:
    fake.control(b4_128_16={"mode": "error"})
    _, outcome = fake.round(SMALLER, BATCH, {"n": 10})
    assert sample(outcome).round == 1
    failed, other = fake.kept().values()
    assert problem(failed).verdict is Verdict.CRASH
    assert "the client ended with exit code 1: RuntimeError: Request has failed." in problem(failed).cause
    assert sample(other).round == 1
    assert len(fake.servers) == 1
    assert "the prompt is too long" in next(fake.bench.folder.rglob("clients.txt")).read_text()


def test_a_server_that_does_not_answer_after_a_failed_client(fake: FakeServing) -> None:
    fake.control(b4_128_16={"mode": "deaf"})
    _, outcome = fake.round(SMALLER, BATCH, {"n": 10})
    assert sample(outcome).round == 1
    failed, other = fake.kept().values()
    assert problem(failed).verdict is Verdict.CRASH
    assert sample(other).round == 1
    assert len(fake.servers) == 2


def test_somebody_elses_server_in_place_of_ours_in_mid_run(fake: FakeServing) -> None:
    fake.control({"mode": "renamed"})
    _, outcome = fake.round(BATCH, windows=1, discard=0)
    assert problem(outcome).verdict is Verdict.CRASH
    assert "another server answers on port" in problem(outcome).cause


def test_a_server_that_does_not_end(fake: FakeServing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_r1perf.late.LINGER_S", 1.0)
    fake.control({"mode": "stubborn"})
    _, outcome = fake.round(BATCH, windows=1, discard=0)
    assert any("the server did not exit within 1 s of its end and was ended" in one for one in sample(outcome).remarks)
    fake.nothing_left()


def test_older_servers_have_the_older_address(fake: FakeServing) -> None:
    fake.control({"mode": "old"})
    _, outcome = fake.round(BATCH, windows=1, discard=0)
    assert sample(outcome).round == 1


def test_a_server_that_confirms_no_flush_is_asked_twice(fake: FakeServing) -> None:
    """Up to 0.4.4 it answers in any case; what is done then is not known."""
    fake.control({"info": {"version": "0.4.4.post1"}})
    fake.round(BATCH, windows=1, discard=1)
    assert [client["flushes"] for client in fake.clients] == [2, 4]


def test_a_server_without_flush(fake: FakeServing) -> None:
    fake.control({"mode": "no-flush"})
    measurement, outcome = fake.round(BATCH, windows=1, discard=0)
    assert any("has no /flush_cache" in remark for remark in sample(outcome).remarks)
    assert measurement.protocol["cache_state"] == "not flushed between windows"


def test_a_server_of_another_release(fake: FakeServing) -> None:
    fake.control({"info": {"version": "0.5.9"}})
    _, outcome = fake.round(BATCH)
    assert problem(outcome).verdict is Verdict.INVALID
    assert "the server says it is SGLang 0.5.9; the environment has 0.5.20" in problem(outcome).cause


# -- rows ----------------------------------------------------------------------------------------------------


def test_a_batch_above_max_running_requests_is_skipped_by_the_client(fake: FakeServing) -> None:
    """SGLang's client says so in one line, writes no row, and ends with 0."""
    _, outcome = fake.round({**BATCH, "flags": {"max_running_requests": 2}}, windows=2, discard=1)
    found = problem(outcome)
    assert found.verdict is Verdict.CONFIG
    assert found.cause == (
        "SGLang's client skipped the case: Skip benchmark batch_size=4 > skip_max_running_requests_threshold=2 due to "
        "max running requests limit."
    )
    assert len(fake.clients) == 1, "the other windows would be skipped as well"


def test_an_older_client_that_measures_it_all_the_same(fake: FakeServing) -> None:
    """Up to 0.5.5 nothing is skipped: the batch is served in parts, and the row looks like any other."""
    fake.control({"info": {"max_running_requests": 3, "internal_states": [{"x": 1}]}})
    path = fake.root / "env/site/sglang/benchmark/one_batch_server.py"
    path.write_text(path.read_text().replace('["effective_max_running_requests_per_dp"]', '.get("y", 64)'))
    _, outcome = fake.round(BATCH)
    assert problem(outcome).verdict is Verdict.INVALID
    assert "a batch of 4 is not served as one: the server runs 3 requests at once" in problem(outcome).cause


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("missing", "one-row: window 1: the client wrote 0 rows"),
        ("duplicate", "one-row: window 1: the client wrote 2 rows"),
        ("truncated", "window 1: result line 1"),
        ("garbage", "window 1: result line 1"),
        ("foreign-row", "foreign-row: window 1: the row is of run 'another'"),
        ("other-case", "batch"),
        ("few-tokens", "early-stop: window 1: 1 of 4 answers stopped early"),
        ("stale", "foreign-row: window 1: row-"),
        ("jit", "compilation: kernels were compiled in the timed window"),
    ],
)
def test_a_batchs_row_that_is_none(fake: FakeServing, mode: str, said: str) -> None:
    fake.control(b4_128_16={"mode": ["ok", mode]})
    _, outcome = fake.round(BATCH, windows=1, discard=1)
    found = problem(outcome)
    assert found.verdict is Verdict.INVALID
    assert said in found.cause


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("missing", "one-row: window 1: the client wrote 0 rows"),
        ("duplicate", "one-row: window 1: the client wrote 2 rows"),
        ("truncated", "window 1: result line 1"),
        ("fewer", "completed is 9; 10 was asked for"),
        ("few-tokens", "total_output_tokens is 299; 300 was asked for"),
        ("foreign-row", "served_model_name is somebody-elses"),
    ],
)
def test_traffics_row_that_is_none(fake: FakeServing, mode: str, said: str) -> None:
    fake.control(n10={"mode": ["ok", mode]})
    _, outcome = fake.round({"n": 10}, windows=1, discard=1)
    found = problem(outcome)
    assert found.verdict is Verdict.INVALID
    assert said in found.cause


def test_what_spoils_a_discarded_window_only_is_nobodys(fake: FakeServing) -> None:
    fake.control(b4_128_16={"mode": ["few-tokens", "ok"]})
    _, outcome = fake.round(BATCH, windows=2, discard=1)
    assert sample(outcome).discarded == 1


def test_no_goodput_at_all(fake: FakeServing) -> None:
    fake.control(n10={"speed": 100.0})
    _, outcome = fake.round({"n": 10, "slo": {"ttft_ms": 1}}, windows=1, discard=0)
    assert problem(outcome).verdict is Verdict.INVALID
    assert "no request kept every limit of the slo" in problem(outcome).cause


def test_kernels_compiled_while_a_window_was_timed(fake: FakeServing) -> None:
    fake.bench.caches = (CacheDir("Triton", fake.folder / "kernels"),)
    fake.control(b4_128_16={"mode": ["ok", "compile"], "speed": 200.0})
    _, outcome = fake.round(BATCH, windows=1, discard=1)
    assert problem(outcome).verdict is Verdict.INVALID
    said = "kernel-caches: window 1: 1 new kernel cache file (Triton 1) during the timed window"
    assert said in problem(outcome).cause


# -- more than one node, other hosts, mistakes ---------------------------------------------------------------


def test_through_our_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another host: the driver comes as text, and rows and reports are fetched."""
    monkeypatch.setenv("R1PERF_HOME", str(tmp_path / "home"))
    fake = FakeServing(tmp_path, remote=True)
    _, outcome = fake.round(BATCH, {"n": 10, "slo": {"ttft_ms": 1e6}})
    assert sample(outcome).windows
    (other,) = fake.kept().values()
    assert sample(other).metrics["goodput"] > 0
    assert (Path(sample(outcome).log).parent / "clients.txt").exists()
    fake.nothing_left()


def test_a_release_that_has_no_such_client(fake: FakeServing) -> None:
    (fake.root / "env/site/sglang/benchmark/one_batch_server.py").unlink()
    made = FakeServing(_below(fake.root, "other"))
    (made.root / "env/site/sglang/benchmark/one_batch_server.py").unlink()
    mode = serve_mode(made.bench)
    found = mode.prepare(cell(made.bench, **BATCH)).problem
    assert found is not None
    assert found.verdict is Verdict.CONFIG
    assert "cannot be run" in found.cause or "has no bench_one_batch_server in it" in found.cause


def test_the_plan_that_the_driver_gets(fake: FakeServing) -> None:
    mode = serve_mode(fake.bench)
    command = mode.prepare(cell(fake.bench, **BATCH)).command
    plan: dict[str, Any] = json.loads(command[2])
    assert command[1] == "serve_driver.py"
    assert plan["server"][1:5] == ["-m", "sglang.launch_server", "--model-path", str(fake.root / "model")]
    (planned,) = plan["cells"]
    assert planned["argv"][1:3] == ["-m", "sglang.benchmark.one_batch_server"]
    assert "@URL@" in planned["argv"]
    assert (planned["windows"], planned["discard"]) == (2, 1)
