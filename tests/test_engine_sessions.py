"""Engine mode through pytest: tests that share an engine, in one process, in xdist workers, in two environments."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.processes import wait_until
from tests.project import Project, verdicts

SUITE = """
    @perf(topology="tp1", n=50, mode="engine")
    def test_a(): ...

    @perf(topology="tp1", n=50, mode="engine", flags={"max_running_requests": 9})
    def test_other_engine(): ...

    @perf(topology="tp1", n=60, mode="engine")
    def test_b(): ...

    def test_plain(): ...

    @perf(topology="tp1", n=70, mode="engine")
    def test_c(): ...
"""


@pytest.fixture
def project(r1perf_project: Project) -> Project:
    # Without a common first word no prompt finds another's in the cache.
    rows = [[f"p{number} " + "word " * (9 + number % 7), "word " * (20 + number % 5)] for number in range(120)]
    talks = [[{"from": "human", "value": human}, {"from": "gpt", "value": gpt}] for human, gpt in rows]
    r1perf_project.dataset.write_text(
        json.dumps([{"id": str(n), "conversations": talk} for n, talk in enumerate(talks)])
    )
    r1perf_project.platform(engine={"windows": 2, "source": "test"}, tolerance={"value": 0.05})
    r1perf_project.write(SUITE)
    return r1perf_project


def engines(project: Project, fake: Path | None = None) -> int:
    path = (fake or project.fake) / "engines.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def windows(project: Project) -> Counter[str]:
    lines = (project.fake / "windows.jsonl").read_text().splitlines()
    return Counter(json.loads(line)["cell"] for line in lines)


def test_tests_share_engines_and_a_round_is_an_engine(project: Project) -> None:
    project.perf("--perf-update-new", "--perf-rounds", "3").assert_outcomes(passed=4, deselected=1)
    assert engines(project) == 3 + 3  # three rounds of the shared one, three of the other
    assert windows(project)["n60"] == 3 * (1 + 2)
    samples = project.samples()
    assert Counter(sample["cell"] for sample in samples) == Counter(dict.fromkeys({s["cell"] for s in samples}, 3))
    assert {len(sample["windows"]) for sample in samples} == {2}
    assert {sample["discarded"] for sample in samples} == {1}
    by_test = {sample["nodeid"]: sample["cell"] for sample in samples}
    assert by_test["test_perf.py::test_c"].endswith("/n70/engine")
    result = project.perf("--perf-rounds", "2:4")
    result.assert_outcomes(passed=4, deselected=1)
    assert engines(project) == 6 + 2 + 2  # unchanged cells are decided at the first look


def test_tests_of_one_engine_run_one_after_another(project: Project) -> None:
    result = project.run("-m", "perf or not perf", "-v", "--perf-update-new")
    names = [line.split("::")[1].split()[0] for line in result.outlines if line.startswith("test_perf.py::")]
    assert names == ["test_a", "test_b", "test_c", "test_other_engine", "test_plain"]


def test_a_cell_that_breaks_the_engine_fails_alone(project: Project) -> None:
    project.control(n60={"mode": "die"})
    result = project.perf("--perf-update-new", "--perf-rounds", "2")
    assert sorted(verdicts(result)) == ["BASELINE STORED"] * 3 + ["CRASH"]
    result.assert_outcomes(passed=3, failed=1, deselected=1)
    project.nothing_left_soon()


def test_a_regression_in_one_of_the_cells(project: Project) -> None:
    project.perf("--perf-update-new", "--perf-rounds", "3").assert_outcomes(passed=4, deselected=1)
    project.control(n60={"speed": 3000.0})
    result = project.perf("--perf-rounds", "3:5")
    result.assert_outcomes(passed=3, failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*REGRESSED: tp1 default n=60*"])


def test_workers_get_whole_groups(project: Project) -> None:
    result = project.perf_subprocess("-n", "2", "--perf-update-new", "--perf-rounds", "2")
    result.assert_outcomes(passed=4)
    assert engines(project) == 2 + 2
    assert "@engine-" not in (project.out / next(project.out.iterdir()).name / "samples-gw0.jsonl").read_text()


def test_an_engine_a_side_in_turn(project: Project) -> None:
    old = project.further_environment("was", version="0.5.9")
    new = project.further_environment("is")
    both = ["--sglang", f"old={old}", "--sglang", f"new={new}", "--perf-rounds", "2:4"]
    result = project.perf(*both, "-k", "test_a or test_b or test_c")
    result.assert_outcomes(passed=3, deselected=2)
    # Two rounds, and one engine a side for the greedy answers.
    assert (engines(project, project.root / "was-fake"), engines(project, project.root / "is-fake")) == (3, 3)
    assert Counter(sample["side"] for sample in project.samples()) == {"old": 6, "new": 6}


def test_a_killed_session_goes_on_with_what_is_missing(project: Project) -> None:
    project.control(n70={"mode": ["ok", "ok", "ok", "hang", "ok"]})
    args = ("--perf-update-new", "--perf-rounds", "2", "-k", "test_a or test_b or test_c")
    with project.started(*args) as process:
        wait_until(lambda: engines(project) == 2 and windows(project)["n70"] == 4, "the second engine's window of n70")
        process.kill()
        process.wait()
    project.nothing_left_soon()
    known = Counter(sample["cell"].split("/")[3] for sample in project.samples())
    assert known == {"n50": 1, "n60": 1, "n70": 1}  # those of the second engine die with it: it was not over
    result = project.perf(*args, "--perf-resume")
    result.assert_outcomes(passed=3, deselected=2)
    assert engines(project) == 3
    assert Counter(sample["round"] for sample in project.samples()) == {1: 3, 2: 3}


def test_windows_of_another_warmth_are_not_compared(project: Project) -> None:
    project.perf("--perf-update-new", "--perf-rounds", "2", "-k", "test_a").assert_outcomes(passed=1, deselected=4)
    result = project.perf("--perf-rounds", "2", "-k", "test_a", "--perf-windows", "1", "--perf-discard", "0")
    result.assert_outcomes(skipped=1, deselected=4)
    result.stdout.fnmatch_lines(["*INCOMPARABLE*windows: 2 -> 1*discard: 1 -> 0*"])


def test_rounds_that_siblings_measured_by_two_protocols_are_invalid(project: Project) -> None:
    settings = json.loads(project.control_file.read_text())
    settings["engine"] = {"resolved": [{}, {"page_size": 64}]}
    project.control_file.write_text(json.dumps(settings))
    result = project.perf("--perf-update-new", "--perf-rounds", "2", "-k", "test_a or test_b")
    result.assert_outcomes(failed=2, deselected=3)
    assert verdicts(result) == ["INVALID", "INVALID"]


def test_a_test_that_will_be_skipped_is_not_measured_for(project: Project) -> None:
    project.write(
        """
        @perf(topology="tp1", n=50, mode="engine")
        def test_a(): ...

        @pytest.mark.skip(reason="takes the engine down")
        @perf(topology="tp1", n=60, mode="engine")
        def test_b(): ...
        """
    )
    project.perf("--perf-update-new", "--perf-rounds", "2").assert_outcomes(passed=1, skipped=1)
    assert set(windows(project)) == {"n50"}


def test_perf_lab_measures_in_the_markers_mode(project: Project) -> None:
    project.write(
        """
        @perf(topology="tp1", n=50, mode="engine", rounds="2:2")
        def test_lab(perf_lab):
            low, high = perf_lab.measure(), perf_lab.measure(n=60)
            assert perf_lab.compare(low, high).ratio.estimate > 0
        """
    )
    project.perf().assert_outcomes(passed=1)
    assert engines(project) == 4
    assert project.calls() == []


def test_a_plan_has_the_drivers_command(project: Project) -> None:
    result = project.perf("--perf-plan", "-k", "test_a")
    result.stdout.fnmatch_lines(["*engine_driver.py*", "*one engine a round, shared with all tests*"])
    assert engines(project) == 0
