"""Rounds of ``mode="engine"`` on the fake SGLang: every engine is a real process, and so is what breaks it."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_r1perf.caches import CacheDir
from pytest_r1perf.late import Late
from pytest_r1perf.launch.process import Poll
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.sglang.enginelog import EngineLog
from pytest_r1perf.sglang.facts import Phase
from pytest_r1perf.verdict import Verdict
from tests.engines import Bench, bench
from tests.processes import wait_until
from tests.project import Project, make_environment, verdicts

# A fake's window takes its tokens over its speed, times 1, 1.002, 0.998, ... in turn.
JITTER = (0.0, 0.002, -0.002, 0.001, -0.001)


class Fake:
    """A folder with a fake SGLang, and what it is told."""

    def __init__(self, root: Path, *, remote: bool = False) -> None:
        self.root = root
        self.folder = root / "fake"
        self.folder.mkdir()
        self.control_file = self.folder / "control.json"
        self.control()
        python = make_environment(root / "env", control=self.control_file) / "bin" / "python"
        model = root / "model"
        model.mkdir()
        (model / "config.json").write_text('{"architectures": ["DeepseekV3ForCausalLM"]}')
        (model / "tokenizer.json").write_text("{}")
        rows = [[f"p{number} " + "word " * (9 + number % 7), "word " * (20 + number % 5)] for number in range(80)]
        talks = [[{"from": "human", "value": human}, {"from": "gpt", "value": gpt}] for human, gpt in rows]
        dataset = root / "data.json"
        dataset.write_text(json.dumps([{"id": str(n), "conversations": talk} for n, talk in enumerate(talks)]))
        cpu = {"model_path": str(model), "datasets": {"sharegpt": str(dataset)}, "sglang": str(python)}
        (root / "r1perf.yaml").write_text(yaml.safe_dump({"platforms": {"cpu": cpu}}))
        self.bench: Bench = bench(root, python, root / "r1perf.yaml", remote=remote)

    def control(self, engine: Mapping[str, Any] | None = None, **cells: Mapping[str, Any]) -> None:
        self.control_file.write_text(json.dumps({"cells": cells, "engine": engine or {}}))

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def windows(self) -> list[dict[str, Any]]:
        return self.lines("windows.jsonl")

    @property
    def engines(self) -> list[dict[str, Any]]:
        return self.lines("engines.jsonl")

    def round(self, n: int, *siblings: int, **settings: Any) -> tuple[Measurement, Sample | Problem]:
        mode = self.bench.engine([self.bench.cell(other) for other in siblings], **settings)
        return mode.round(mode.prepare(self.bench.cell(n)), 1)

    def kept(self) -> dict[str, Sample | Problem]:
        return {nodeid: outcome for _, outcome, nodeid in self.bench.kept}

    def nothing_left(self) -> None:
        for entry in Path("/proc").iterdir():
            try:
                environ = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0] if environ else "Z"
            except OSError:
                continue
            ours = b"R1PERF_RUN_ID=" in environ and os.fsencode(self.control_file) in environ
            assert not ours or state == "Z", entry.name


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setenv("R1PERF_HOME", str(tmp_path / "home"))
    return Fake(tmp_path)


def problem(outcome: Sample | Problem) -> Problem:
    assert isinstance(outcome, Problem), outcome
    return outcome


def sample(outcome: Sample | Problem) -> Sample:
    assert isinstance(outcome, Sample), outcome
    return outcome


# -- what a round is -----------------------------------------------------------------------------------------


def test_windows_are_averaged_and_the_first_is_thrown_away(fake: Fake) -> None:
    fake.control(n10={"speed": [1, 1000.0, 4000.0]})
    measurement, outcome = fake.round(10, windows=2, discard=1)
    found = sample(outcome)
    first, second = 1000.0 * (1 + JITTER[1]), 4000.0 * (1 + JITTER[2])
    assert [window["total_throughput"] for window in found.windows] == pytest.approx([first, second], rel=1e-6)
    assert found.metrics["total_throughput"] == pytest.approx(math.sqrt(first * second), rel=1e-6)
    assert found.discarded == 1
    tokens = sum(len(ids) for ids in fake.windows[0]["ids"]) + sum(
        params["max_new_tokens"] for params in fake.windows[0]["params"]
    )
    assert found.metrics["total_latency"] == pytest.approx(tokens / math.sqrt(first * second), rel=1e-6)
    assert found.metrics["request_throughput"] == pytest.approx(10 / found.metrics["total_latency"], rel=1e-6)
    assert found.metrics["tokps_per_gpu"] == found.metrics["total_throughput"]
    assert measurement.resolved["device"] == "cpu"
    assert measurement.protocol["mode"] == "engine"
    assert len(str(measurement.protocol["token_ids"])) == 16
    fake.nothing_left()


def test_every_window_gets_the_same_requests_and_an_empty_cache(fake: Fake) -> None:
    _, outcome = fake.round(6, windows=2, discard=2)
    assert sample(outcome).discarded == 2
    windows = fake.windows
    assert [window["flushes"] for window in windows] == [1, 2, 3, 4]
    assert all(window["ids"] == windows[0]["ids"] for window in windows)
    assert windows[0]["params"][0] == {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}


def test_siblings_share_the_engine_and_are_kept(fake: Fake) -> None:
    _, outcome = fake.round(10, 20, 30)
    assert sample(outcome).round == 1
    assert len(fake.engines) == 1
    assert [window["cell"] for window in fake.windows] == ["n10"] * 3 + ["n20"] * 3 + ["n30"] * 3
    kept = fake.kept()
    assert {nodeid: sample(one).discarded for nodeid, one in kept.items()} == {"test_n20": 1, "test_n30": 1}
    told = {measurement.cell.num_prompts: measurement for measurement, _, _ in fake.bench.kept}
    assert told[20].protocol["token_ids"] != told[30].protocol["token_ids"]
    assert told[20].resolved["device"] == "cpu"
    # All the process's time belongs to one of them.
    assert sample(outcome).wall_s > sample(kept["test_n20"]).wall_s > 0


def test_what_is_written_down_of_a_cell_does_not_depend_on_its_siblings(fake: Fake) -> None:
    alone = fake.bench.engine().prepare(fake.bench.cell(20))
    fake.round(10, 20)
    (shared, _, _) = fake.bench.kept[0]
    assert shared.command == alone.command
    assert shared.command[1] == "engine_driver.py"
    assert [cell["num_prompts"] for cell in json.loads(shared.command[2])["cells"]] == [20]


def test_a_cell_with_other_flags_is_no_sibling(fake: Fake) -> None:
    other = fake.bench.cell(20, max_running_requests=8)
    assert other.engine_key != fake.bench.cell(20).engine_key
    assert fake.bench.cell(10).engine_key == fake.bench.cell(20).engine_key
    mode = fake.bench.engine([other])
    _, outcome = mode.round(mode.prepare(fake.bench.cell(10)), 1)
    sample(outcome)
    assert fake.bench.kept == []


def test_the_exact_ids_of_a_file(fake: Fake) -> None:
    path = fake.root / "ids.json"
    mode = fake.bench.engine()
    measurement = mode.prepare(fake.bench.cell(5))
    mode.round(measurement, 1)
    pairs = [
        [ids, p["max_new_tokens"]] for ids, p in zip(fake.windows[0]["ids"], fake.windows[0]["params"], strict=True)
    ]
    path.write_text(json.dumps(pairs))
    mode = fake.bench.engine(ids=lambda cell: str(path))
    again, outcome_again = mode.round(mode.prepare(fake.bench.cell(5)), 2)
    sample(outcome_again)
    assert fake.windows[-1]["ids"] == fake.windows[0]["ids"]
    pairs[0][0][0] += 1
    path.write_text(json.dumps(pairs))
    changed, outcome_changed = mode.round(mode.prepare(fake.bench.cell(5)), 3)
    sample(outcome_changed)
    assert changed.protocol["token_ids"] != again.protocol["token_ids"]
    # Fewer tokens than the workload has are another workload.
    path.write_text(json.dumps(pairs[1:]))
    _, fewer = mode.round(mode.prepare(fake.bench.cell(5)), 4)
    assert problem(fewer).verdict is Verdict.INVALID
    assert "num-prompts" in problem(fewer).cause


def test_progress_is_shown_of_the_cell_that_is_measured(fake: Fake) -> None:
    fake.control(n20={"mode": ["ok", "hang"]})
    mode = fake.bench.engine([fake.bench.cell(20, timeout_s=4)])
    mode.round(mode.prepare(fake.bench.cell(10)), 3)
    key, number, now = fake.bench.shown[-1]
    assert (key, number, now.phase) == ("cpu/default/sharegpt/n20/engine", 3, Phase.BENCHMARK)


def test_two_nodes_are_refused(fake: Fake) -> None:
    measurement = fake.bench.engine().prepare(fake.bench.cell(10, topology="pp2"))
    assert measurement.problem is not None
    assert measurement.problem.verdict is Verdict.CONFIG
    assert "mode='offline'" in measurement.problem.cause


# -- an engine that answers wrongly --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("text", "answer: the engine gave 2 answers for 10 requests"),
        ("nothing", "answer: the engine gave a NoneType for 10 requests"),
        ("fewer", "answer: the engine gave 9 answers for 10 requests"),
        ("no-counts", "has completion_tokens 'many'"),
        ("few-tokens", "total-output-tokens: window 2: total_output_tokens is 219; the workload says 220"),
        ("abort", "the engine gave up a request: no room for it"),
        ("cached", "the cache was not empty before it"),
        ("jit", "kernels were compiled in the timed window"),
        ("standing", "total_latency is 0.0"),
    ],
)
def test_answers_that_are_no_measurement(fake: Fake, mode: str, said: str) -> None:
    fake.control(n10={"mode": ["ok", "ok", mode, "ok"]})
    _, outcome = fake.round(10, 20, windows=2)
    assert problem(outcome).verdict is Verdict.INVALID
    assert said in problem(outcome).cause
    # The engine goes on, and the next cell has none of it.
    assert len(fake.engines) == 1
    sample(fake.kept()["test_n20"])


def test_a_compilation_while_it_warms_up_is_no_fault(fake: Fake) -> None:
    fake.control(n10={"mode": ["jit", "ok"]})
    _, outcome = fake.round(10)
    sample(outcome)


def test_kernels_that_were_written_in_a_timed_window(fake: Fake) -> None:
    fake.bench.caches = (CacheDir("Triton", fake.folder / "kernels"),)
    fake.control(n10={"mode": ["compile", "ok", "ok"]}, n20={"mode": ["ok", "ok", "compile"]})
    _, outcome = fake.round(10, 20, 30)
    sample(outcome)  # its own was the window that is thrown away
    spoilt = problem(fake.kept()["test_n20"])
    assert spoilt.verdict is Verdict.INVALID
    assert spoilt.cause == "kernel-caches: window 2: 1 new kernel cache file (Triton 1) during the timed window"
    sample(fake.kept()["test_n30"])


def test_retractions_are_a_remark_of_their_own_cell(fake: Fake) -> None:
    fake.control(n20={"mode": ["ok", "retract", "ok"]})
    _, outcome = fake.round(10, 20, 30)
    assert not any("retracted" in remark for remark in sample(outcome).remarks)
    assert not any("retracted" in remark for remark in sample(fake.kept()["test_n30"]).remarks)
    (remark,) = [one for one in sample(fake.kept()["test_n20"]).remarks if "retracted" in one]
    assert "3 requests were retracted" in remark


def test_a_workload_that_does_not_fit(fake: Fake) -> None:
    fake.control()
    cells = [fake.bench.cell(n, max_total_tokens=34) for n in (10, 1)]
    mode = fake.bench.engine(cells[1:])
    _, outcome = mode.round(mode.prepare(cells[0]), 1)
    assert problem(outcome).verdict is Verdict.CONFIG
    assert "has 38 tokens, and this engine has room for 34" in problem(outcome).cause
    assert "\n" not in problem(outcome).cause
    sample(fake.kept()["test_n1"])


# -- an engine that breaks -----------------------------------------------------------------------------------


def test_a_failed_cell_and_the_next_one_is_fine(fake: Fake) -> None:
    fake.control(n10={"mode": "error"})
    _, outcome = fake.round(10, 20)
    assert problem(outcome).verdict is Verdict.CRASH
    assert "does not like this request" in problem(outcome).cause
    assert len(fake.engines) == 1
    sample(fake.kept()["test_n20"])


@pytest.mark.parametrize(
    ("mode", "verdict", "said"),
    [
        ("die", Verdict.CRASH, "SIGKILL"),
        ("oom", Verdict.OOM, "CUDA out of memory"),
        ("exit", Verdict.CRASH, "exit code 0"),
        ("wedge", Verdict.CRASH, "does not like this request"),
    ],
)
def test_a_sibling_that_breaks_the_engine(fake: Fake, mode: str, verdict: Verdict, said: str) -> None:
    fake.control(n20={"mode": ["ok", "ok", mode]})
    _, outcome = fake.round(10, 20, 30)
    sample(outcome)
    kept = fake.kept()
    assert problem(kept["test_n20"]).verdict is verdict
    assert said in problem(kept["test_n20"]).cause
    assert sample(kept["test_n30"]).round == 1
    assert len(fake.engines) == 2
    assert [window["cell"] for window in fake.windows[-3:]] == ["n30"] * 3
    fake.nothing_left()


@pytest.mark.parametrize("mode", ["die", "oom", "exit", "wedge"])
def test_the_own_cell_breaks_the_engine(fake: Fake, mode: str) -> None:
    """No window of it counts, and its siblings are left to their own turn."""
    fake.control(n10={"mode": ["ok", "ok", mode]})
    _, outcome = fake.round(10, 20)
    assert problem(outcome).verdict in (Verdict.CRASH, Verdict.OOM)
    assert fake.bench.kept == []
    assert len(fake.engines) == 1
    fake.nothing_left()


def test_a_window_without_an_end(fake: Fake) -> None:
    fake.control(n20={"mode": ["ok", "hang"]})
    slow = fake.bench.cell(20, timeout_s=6)
    mode = fake.bench.engine([slow, fake.bench.cell(30)])
    _, outcome = mode.round(mode.prepare(fake.bench.cell(10)), 1)
    sample(outcome)
    kept = fake.kept()
    assert problem(kept["test_n20"]).verdict is Verdict.HANG
    assert "BENCHMARK" in problem(kept["test_n20"]).cause
    sample(kept["test_n30"])
    fake.nothing_left()


def test_limits_of_time_are_each_cells_own() -> None:
    log = EngineLog()
    late = Late(log, {"a": 0.05, "b": 60.0, "c": 60.0}, "a", 0.0)
    assert late() is Poll.GO_ON
    time.sleep(0.1)
    log.feed(b"r1perf-engine: cell a\nr1perf-engine: over a\n")
    assert late() is Poll.GO_ON  # between two cells nothing is late yet, however long the first one took
    log.feed(b"r1perf-engine: cell b\n")
    assert late() is Poll.GO_ON
    assert late.said is None


def test_the_first_cells_limit_holds_from_the_start_on() -> None:
    log = EngineLog()
    late = Late(log, {"a": 0.05}, "a", 0.0)
    assert late() is Poll.GO_ON
    time.sleep(0.1)
    log.feed(b"r1perf-engine: cell a\n")
    assert late() is Poll.END
    assert late.said == "a cell had no end within 0.05 s"


def test_an_engine_that_never_comes_up(fake: Fake) -> None:
    fake.control(engine={"mode": "hang"})
    mode = fake.bench.engine([fake.bench.cell(20)])
    _, outcome = mode.round(mode.prepare(fake.bench.cell(10, timeout_s=3)), 1)
    assert problem(outcome).verdict is Verdict.HANG
    assert fake.bench.kept == []
    fake.nothing_left()


def test_out_of_memory_at_the_start(fake: Fake) -> None:
    fake.control(engine={"mode": "oom"})
    _, outcome = fake.round(10, 20)
    assert problem(outcome).verdict is Verdict.OOM
    assert fake.bench.kept == []


def test_no_second_engine_after_a_sibling(fake: Fake) -> None:
    """What was measured stands; those that were not reached have their own turn, and are not blamed."""
    fake.control(engine={"mode": ["ok", "oom"]}, n20={"mode": "die"})
    _, outcome = fake.round(10, 20, 30, 40)
    sample(outcome)
    assert list(fake.kept()) == ["test_n20"]
    assert problem(fake.kept()["test_n20"]).verdict is Verdict.CRASH
    assert len(fake.engines) == 2


def test_a_teardown_that_fails_is_a_remark(fake: Fake) -> None:
    fake.control(engine={"mode": "teardown-kill"})
    _, outcome = fake.round(10)
    assert "teardown failed (rc -9)" in sample(outcome).remarks


def test_an_engine_that_does_not_exit(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything was measured by then: the number stands, and the process is ended."""
    monkeypatch.setattr("pytest_r1perf.late.LINGER_S", 1.0)
    fake.control(engine={"mode": "late-end"})
    _, outcome = fake.round(10, 20)
    assert "the engine did not exit within 1 s of its end and was ended" in sample(outcome).remarks
    sample(fake.kept()["test_n20"])
    fake.nothing_left()


def test_the_driver_killed_in_mid_window(fake: Fake) -> None:
    fake.control(n10={"mode": ["ok", "ok", "hang"]})

    def kill() -> None:
        wait_until(lambda: len(fake.windows) == 3, "the third window")
        os.kill(fake.windows[-1]["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    _, outcome = fake.round(10, 20)
    killer.join()
    assert problem(outcome).verdict is Verdict.CRASH
    assert "SIGKILL" in problem(outcome).cause
    assert fake.bench.kept == []
    fake.nothing_left()


def test_the_log_of_the_driver_is_where_the_problem_says(fake: Fake) -> None:
    fake.control(n10={"mode": "die"})
    _, outcome = fake.round(10)
    assert "r1perf-engine: window" in Path(problem(outcome).log).read_text()
    assert "engine_driver.py" in (Path(problem(outcome).log).parent / "command.txt").read_text()


def test_on_another_host_the_driver_comes_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R1PERF_HOME", str(tmp_path / "home"))
    fake = Fake(tmp_path, remote=True)
    fake.control(n10={"speed": [1, 1000.0]}, n20={"mode": ["ok", "die"]}, n40={"mode": "hang"})
    siblings = [fake.bench.cell(20), fake.bench.cell(30), fake.bench.cell(40, timeout_s=4)]
    mode = fake.bench.engine(siblings, windows=1)
    measurement, outcome = mode.round(mode.prepare(fake.bench.cell(10)), 1)
    assert sample(outcome).metrics["total_throughput"] == pytest.approx(1000.0 * (1 + JITTER[1]), rel=1e-6)
    assert measurement.command[1] == "engine_driver.py"
    kept = fake.kept()
    assert problem(kept["test_n20"]).verdict is Verdict.CRASH
    sample(kept["test_n30"])
    assert problem(kept["test_n40"]).verdict is Verdict.HANG
    assert len(fake.engines) == 2
    fake.nothing_left()


# -- through pytest ------------------------------------------------------------------------------------------


def test_tests_of_one_engine_share_it(r1perf_project: Project) -> None:
    r1perf_project.write(
        """
        @perf(topology="tp1", n=10, mode="engine", min_tokps=1)
        def test_first(perf_result):
            assert [len(sample.windows) for sample in perf_result.samples] == [3, 3]

        @perf(topology="tp1", n=30, mode="engine", min_tokps=1)
        def test_second(): ...

        @perf(topology="tp1", n=30, mode="engine", min_tokps=1, flags={"max_running_requests": 8})
        def test_of_another_engine(antipatterns): ...
        """
    )
    result = r1perf_project.perf()
    assert verdicts(result)[:2] == ["PASS", "PASS"], result.outlines
    engines = (r1perf_project.fake / "engines.jsonl").read_text().splitlines()
    samples = r1perf_project.samples()
    shared = {sample["log"] for sample in samples if "max_running_requests" not in sample["cell"]}
    assert len(shared) == 2  # two rounds of two cells
    assert len(engines) == len({sample["log"] for sample in samples})
    assert {sample["cell"].split("/")[4] for sample in samples} == {"engine"}
    r1perf_project.nothing_left()
