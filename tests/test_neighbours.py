"""Beside other plugins: xdist, rerunfailures, timeout, randomly, cov, and pytest's own ways of being run."""

from __future__ import annotations

import os
import signal
import xml.etree.ElementTree as ElementTree

import pytest

from tests.processes import wait_until
from tests.project import Project, lines_with, verdicts

MIXED = """
@perf(topology="tp1", n=50)
def test_same(): ...

@perf(topology="tp1", n=60)
def test_slower(): ...

@perf(topology="tp1", n=70)
def test_new(): ...

@perf(topology="tp1", n=80, flags={"max_running_requests": 8})
def test_antipattern(): ...

@perf(topology="tp1", n=90, min_tokps=100)
def test_crash(): ...
"""


@pytest.fixture
def mixed(r1perf_project: Project) -> Project:
    """Five cells whose verdicts are PASS, REGRESSED, NO BASELINE, XFAIL and CRASH."""
    r1perf_project.write(MIXED)
    r1perf_project.perf("-k", "same or slower", "--perf-update-new").assert_outcomes(passed=2, deselected=3)
    r1perf_project.control({}, n60={"speed": 2250}, n90={"mode": "sigquit"})
    r1perf_project.slow_cell("n80", speed=2250)
    return r1perf_project


VERDICTS = ["CRASH", "NO BASELINE", "PASS", "REGRESSED", "XFAIL"]


@pytest.mark.parametrize("args", [["-n0"], ["-n2"], ["-n2", "--dist", "loadgroup"]])
def test_same_verdicts_and_one_table_with_and_without_xdist(mixed: Project, args: list[str]) -> None:
    result = mixed.perf_subprocess("-rsfxX", *args)
    result.assert_outcomes(passed=1, failed=2, skipped=1, xfailed=1)
    assert result.ret == 1
    assert sorted(verdicts(result)) == VERDICTS
    assert str(result.stdout).count("performance (r1perf)") == 1
    assert lines_with(result, "pytest test_perf.py::test_slower --perf --perf-platform cpu")
    assert lines_with(result, "SKIPPED [1] test_perf.py:")
    assert len(mixed.calls()) == 4 + 2 + 2 + 2 + 4 + 1
    assert {line["kind"] for line in mixed.records()} == {"start", "sample", "problem", "verdict", "end"}


def test_one_table_under_xdist_when_it_stops_at_the_first_failure(mixed: Project) -> None:
    result = mixed.perf_subprocess("-n2", "-x", "-k", "slower or new")
    assert result.ret in (1, 2)
    assert "REGRESSED" in verdicts(result)


def test_update_under_xdist(r1perf_project: Project) -> None:
    r1perf_project.write(MIXED)
    result = r1perf_project.perf_subprocess("-n2", "-k", "same or slower or new", "--perf-update-new")
    result.assert_outcomes(passed=3)
    assert sorted(r1perf_project.stored()["cells"]) == [f"cpu/default/sharegpt/n{n}/offline" for n in (50, 60, 70)]


def test_a_killed_workers_lease_is_taken_over(r1perf_project: Project) -> None:
    r1perf_project.write("""
        import os, time
        from pathlib import Path

        @perf(topology="tp1", n=50, min_tokps=100)
        def test_a(): ...

        @perf(topology="tp1", n=60, min_tokps=100)
        def test_b(): ...

        @perf(topology="tp1", n=70, min_tokps=100)
        def test_c(): ...
        """)
    r1perf_project.control({}, n50={"mode": "hang-benchmark"}, n60={"mode": "slow"})
    with r1perf_project.started("-n2") as process:
        wait_until(lambda: r1perf_project.calls("n50"), "the start of the run that hangs")
        r1perf_project.reached("benchmark", calls=len(r1perf_project.calls()))
        (bench,) = {call["pid"] for call in r1perf_project.calls("n50")}
        os.kill(_owner(bench), signal.SIGKILL)
        text, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "1 failed, 2 passed" in text
    assert "crashed while running 'test_perf.py::test_a'" in text
    assert text.count(" PASS\n") == 2
    assert len(r1perf_project.calls("n50")) == 1
    r1perf_project.nothing_left_soon()


def _owner(pid: int) -> int:
    """The pid of the process that launched a run, from the run's mark."""
    with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
        (mark,) = [item for item in file.read().split(b"\0") if item.startswith(b"R1PERF_RUN_ID=")]
    return int(mark.split(b"-")[2])


def test_ctrl_c_under_xdist_prints_the_table_and_leaves_nothing(mixed: Project) -> None:
    mixed.control({}, n70={"mode": "hang-benchmark"})
    before = len(mixed.calls())
    with mixed.started("-n2", "-k", "same or new") as process:
        wait_until(lambda: mixed.calls("n70"), "the start of the run that hangs")
        mixed.reached("benchmark", calls=before + 1)
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=120)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "performance (r1perf)" in text
    mixed.nothing_left_soon()


# -- rerunfailures -----------------------------------------------------------------------------------------


def test_reruns_do_not_retry_perf_tests(mixed: Project) -> None:
    mixed.write(MIXED + "\nTRIES = []\ndef test_flaky():\n    TRIES.append(1)\n    assert len(TRIES) > 2\n")
    result = mixed.perf("--reruns", "2", "-k", "slower or crash")
    result.assert_outcomes(failed=2, deselected=4)
    assert "rerun" not in str(result.stdout).splitlines()[-1]
    assert len(mixed.calls("n60")) == 2 + 2
    assert len(mixed.calls("n90")) == 1
    ordinary = mixed.run("--reruns", "2", "-k", "flaky")
    assert lines_with(ordinary, "1 passed")
    assert lines_with(ordinary, "2 rerun")


def test_a_flaky_mark_does_not_retry_a_perf_test_either(mixed: Project) -> None:
    mixed.write(
        MIXED.replace('@perf(topology="tp1", n=60)', '@pytest.mark.flaky(reruns=3)\n@perf(topology="tp1", n=60)')
    )
    mixed.perf("-k", "slower").assert_outcomes(failed=1, deselected=4)
    assert len(mixed.calls("n60")) == 2 + 2


# -- timeout -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_pytest_timeout_leaves_nothing_running(r1perf_project: Project, method: str) -> None:
    r1perf_project.write("""
        @pytest.mark.timeout(2)
        @perf(topology="tp1", n=50, min_tokps=100)
        def test_x(): ...

        @perf(topology="tp1", n=60, min_tokps=100)
        def test_y(): ...
        """)
    r1perf_project.control({}, n50={"mode": "hang-benchmark"})
    result = r1perf_project.perf_subprocess("--timeout-method", method)
    assert result.ret == 1
    r1perf_project.nothing_left_soon()
    assert len(r1perf_project.calls("n50")) == 1
    if method == "signal":  # the other one ends pytest itself
        result.assert_outcomes(failed=1, passed=1)
        assert lines_with(result, "Timeout (>2.0s)")
        assert verdicts(result) == ["PASS"]


# -- randomly, cov -----------------------------------------------------------------------------------------


def test_randomly_changes_the_order_and_no_verdict(mixed: Project) -> None:
    result = mixed.pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "randomly", "-p", "no:hypothesispytest", "--perf"
    )
    result.assert_outcomes(passed=1, failed=2, skipped=1, xfailed=1)
    assert sorted(verdicts(result)) == VERDICTS


def test_coverage_does_not_trace_the_benchmark(mixed: Project) -> None:
    (mixed.root / ".coveragerc").write_text("[run]\npatch = subprocess\n")
    result = mixed.perf_subprocess("--cov=.", "-k", "same")
    result.assert_outcomes(passed=1)
    assert verdicts(result) == ["PASS"]
    assert len(mixed.calls()) == 6
    for call in mixed.calls():
        assert [name for name in call["env"] if name.startswith(("COV", "PYTEST"))] == []
    assert lines_with(result, "test_perf.py")


# -- pytest's own options ----------------------------------------------------------------------------------


def test_exit_first_prints_the_table(mixed: Project) -> None:
    result = mixed.perf("-x")
    result.assert_outcomes(passed=1, failed=1)
    assert verdicts(result) == ["REGRESSED", "PASS"]  # failures first
    assert mixed.calls("n70") == []


def test_last_failed_measures_only_those(mixed: Project) -> None:
    cached = ("-p", "no:randomly", "-p", "no:hypothesispytest", "--perf")
    mixed.pytester.runpytest_inprocess(*cached)
    before = len(mixed.calls())
    result = mixed.pytester.runpytest_inprocess(*cached, "--lf", "-k", "slower or same")
    result.assert_outcomes(failed=1)
    assert len(mixed.calls()) == before + 2
    plain = mixed.pytester.runpytest_inprocess(*cached[:-1], "--lf")
    assert len(mixed.calls()) == before + 2
    assert plain.ret in (0, pytest.ExitCode.NO_TESTS_COLLECTED)


def test_without_a_terminal(mixed: Project) -> None:
    result = mixed.perf("-p", "no:terminal", "--perf-update-new", "-k", "same or new")
    assert result.ret == 0
    assert str(result.stdout) == ""
    assert len(mixed.stored()["cells"]) == 3


def test_quiet_still_has_the_table(mixed: Project) -> None:
    for args in (["-q"], ["-qq"]):
        assert verdicts(mixed.perf(*args, "-k", "same")) == ["PASS"]


def test_without_capture_and_verbose(mixed: Project) -> None:
    result = mixed.perf("-s", "-v", "-k", "same")
    result.assert_outcomes(passed=1, deselected=4)
    assert verdicts(result) == ["PASS"]


def test_junit_under_xdist_counts_failures_and_no_errors(mixed: Project) -> None:
    mixed.perf_subprocess("-n2", "--junitxml=junit.xml")
    suite = ElementTree.parse(mixed.root / "junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == (
        "5",
        "2",
        "0",
        "2",
    )
    found = {
        case.get("name"): {item.get("name"): item.get("value") for item in case.iter("property")}
        for case in suite.iter("testcase")
    }
    assert found["test_slower"]["r1perf_verdict"] == "REGRESSED"
    assert found["test_antipattern"]["r1perf_verdict"] == "XFAIL"
    assert found["test_crash"]["r1perf_verdict"] == "CRASH"
