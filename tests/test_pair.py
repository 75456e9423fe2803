"""Two environments in one session: ``--sglang old=... --sglang new=...``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.project import Project, verdicts

ONE = """
    @perf(topology="tp1", n=50, rounds="3:6")
    def test_x(): ...
"""


@pytest.fixture
def project(r1perf_project: Project) -> Project:
    r1perf_project.write(ONE)
    return r1perf_project


def sides(project: Project, *, old: dict[str, Any] | None = None, new: dict[str, Any] | None = None) -> list[str]:
    """Two environments of 0.5.9 and 0.5.20, at the fake's own speed unless said otherwise."""
    first = project.further_environment("was", version="0.5.9", **(old or {}))
    second = project.further_environment("is", version="0.5.20", **(new or {}))
    return ["--sglang", f"old={first}", "--sglang", f"new={second}"]


def order(project: Project) -> list[str | None]:
    """The sides in the order in which they were measured."""
    return [line.get("side") for line in project.records() if line["kind"] == "sample"]


def test_unchanged_passes_in_turn_without_a_baseline(project: Project) -> None:
    result = project.perf(*sides(project), "--perf-tolerance", "0.05")
    result.assert_outcomes(passed=1)
    assert order(project) == ["old", "new", "new", "old", "old", "new"]
    assert not project.baselines.exists()
    result.stdout.fnmatch_lines(["cell * old * ratio*", "tp1 default n=50 *PASS*", "ratio: this run over the old*"])
    result.stdout.fnmatch_lines(["*versions: sglang: 0.5.9 -> 0.5.20*"])


def test_a_slower_new_one_is_regressed_and_says_what_differs(project: Project) -> None:
    both = sides(project, new={"speed": 3600.0})
    result = project.perf(*both, "--perf-tolerance", "0.05")
    result.assert_outcomes(failed=1)
    (verdict,) = [line["result"] for line in project.records() if line["kind"] == "verdict"]
    assert verdict["verdict"] == "REGRESSED"
    assert verdict["judgements"][0]["ratio"]["estimate"] == pytest.approx(0.8, rel=0.01)
    result.stdout.fnmatch_lines(["*changed since the old environment: versions: sglang: 0.5.9 -> 0.5.20*"])
    reproduce = next(line for line in result.outlines if line.strip().startswith("pytest test_perf.py::test_x"))
    assert all(word in reproduce for word in both)


def test_a_faster_new_one_is_improved(project: Project) -> None:
    result = project.perf(*sides(project, new={"speed": 6000.0}), "--perf-tolerance", "0.05")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*IMPROVED*"])


def test_an_environment_with_itself(project: Project) -> None:
    """A/A: one path on both sides is two series, not one that is shared."""
    env = project.further_environment("same")
    result = project.perf("--sglang", f"old={env}", "--sglang", f"new={env}", "--perf-tolerance", "0.05")
    result.assert_outcomes(passed=1)
    assert sorted(filter(None, order(project))) == ["new"] * 3 + ["old"] * 3


@pytest.mark.parametrize("side", ["old", "new"])
def test_a_side_that_breaks_is_named(project: Project, side: str) -> None:
    both = sides(project, **{side: {"mode": ["ok", "oom"]}})
    result = project.perf(*both)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["OOM: tp1 default n=50*", f"  cause: {side}: torch.OutOfMemoryError*", "*/out/*/" + side + "/*"]
    )


def test_an_environment_without_sglang_is_named_before_anything_runs(project: Project) -> None:
    empty = project.further_environment("empty", version=None)
    result = project.perf("--sglang", f"old={project.environment}", "--sglang", f"new={empty}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "empty" in result.stderr.str()
    assert project.calls() == []


@pytest.mark.parametrize(
    "given",
    [
        ("old=A",),
        ("new=A",),
        ("old=A", "B"),
        ("A", "B"),
        ("old=A", "old=B"),
        ("old=A", "new="),
        ("old=A", "new=B", "C"),
    ],
)
def test_one_environment_or_two_named_ones(project: Project, given: tuple[str, ...]) -> None:
    result = project.perf(*(word for one in given for word in ("--sglang", one)))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--sglang old=PATH --sglang new=PATH" in result.stderr.str()


def test_storing_is_refused(project: Project) -> None:
    result = project.perf(*sides(project), "--perf-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "stores no baseline" in result.stderr.str()


def test_different_backends_are_incomparable_unless_defaults_are_compared(project: Project) -> None:
    both = sides(project, new={"resolved": {"attention_backend": "intel_amx"}})
    result = project.perf(*both)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*INCOMPARABLE*attention_backend: torch_native -> intel_amx*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result = project.perf(*both, "--perf-sglang-defaults", "--perf-tolerance", "0.05")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*attention_backend: torch_native -> intel_amx*"])


def test_a_killed_session_goes_on_with_both_sides(project: Project) -> None:
    both = sides(project, new={"mode": ["ok", "wait-benchmark"]})
    with project.started(*both, "--perf-tolerance", "0.05") as process:
        project.reached("benchmark", calls=2, fake=project.root / "is-fake")
        process.kill()
        process.wait()
    control = project.root / "is-fake" / "control.json"
    control.write_text(json.dumps({"default": {}, "cells": {}}))
    before = order(project)
    assert before == ["old", "new"]
    result = project.perf(*both, "--perf-resume", "--perf-tolerance", "0.05")
    result.assert_outcomes(passed=1)
    assert sorted(filter(None, order(project))) == ["new"] * 3 + ["old"] * 3
    assert Path(project.out).exists()


def test_the_suite_is_regressed_where_no_cell_is(project: Project) -> None:
    """Three cells at 0.93 with a tolerance of 5 % and a spread of some 2 %: together it is sure, each alone is not."""
    project.write(
        """
        @pytest.mark.parametrize("n", [50, 60, 70])
        @perf(topology="tp1", rounds="4:4")
        def test_x(): ...
        """
    )
    project.platform(error_rate={"per_night": 0.05, "suite_size": 3, "source": "test"})
    result = project.perf(*sides(project, new={"speed": 4190.0, "jitter": 9}), "--perf-tolerance", "0.05")
    suite = next(line for line in result.outlines if line.startswith("over the suite (3 cells)"))
    assert suite.endswith("REGRESSED as a whole (tolerance 5.0 %)")
    verdicts = [line["result"]["verdict"] for line in project.records() if line["kind"] == "verdict"]
    assert verdicts == ["UNDECIDED"] * 3
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_an_unchanged_suite_is_not_regressed(project: Project) -> None:
    project.write(
        """
        @pytest.mark.parametrize("n", [50, 60])
        @perf(topology="tp1")
        def test_x(): ...
        """
    )
    result = project.perf(*sides(project), "--perf-tolerance", "0.05")
    result.assert_outcomes(passed=2)
    suite = next(line for line in result.outlines if line.startswith("over the suite (2 cells)"))
    assert "REGRESSED" not in suite
    assert result.ret == pytest.ExitCode.OK


def test_the_same_answers_are_told(project: Project) -> None:
    result = project.perf(*sides(project), "--perf-tolerance", "0.05")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*greedy answers: SAME: *", "*new against old: 16 of 16 answers equal*"])


def test_a_speed_up_that_changes_the_answers_is_none(project: Project) -> None:
    both = sides(project, new={"speed": 6000.0, "greedy": {"from": 5}})
    result = project.perf(*both, "--perf-tolerance", "0.05")
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["OUTPUTS CHANGED"]
    result.stdout.fnmatch_lines(["OUTPUTS CHANGED: tp1 default n=50*", "*0 of 16 answers equal*"])


def test_a_regression_stays_one_when_the_answers_change_too(project: Project) -> None:
    both = sides(project, new={"speed": 3000.0, "greedy": {"from": 5}})
    result = project.perf(*both, "--perf-tolerance", "0.05")
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["REGRESSED"]
    result.stdout.fnmatch_lines(["*greedy answers: OUTPUTS CHANGED*"])


def test_answers_that_cannot_be_had_are_no_agreement(project: Project) -> None:
    result = project.perf(*sides(project, new={"greedy": {"mode": "die"}}), "--perf-tolerance", "0.05")
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["CRASH"]
    result.stdout.fnmatch_lines(["*cause: new: greedy answers: *"])


def test_answers_are_asked_for_once_for_each_set_of_arguments(project: Project) -> None:
    project.write(
        """
        @pytest.mark.parametrize("n", [50, 60])
        @perf(topology="tp1")
        def test_x(): ...

        @perf(topology="tp1", n=50, flags={"max_running_requests": 9})
        def test_y(): ...
        """
    )
    project.perf(*sides(project), "--perf-tolerance", "0.05").assert_outcomes(passed=3)
    engines = (project.root / "is-fake" / "engines.jsonl").read_text().splitlines()
    assert len(engines) == 2


def test_answers_can_be_left_unasked(project: Project) -> None:
    result = project.perf(*sides(project, new={"greedy": {"from": 5}}), "--perf-no-outputs", "--perf-tolerance", "0.05")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*greedy answers: not asked for (--perf-no-outputs)"])
    assert not (project.root / "is-fake" / "engines.jsonl").exists()


def test_a_floor_needs_no_comparison(project: Project) -> None:
    project.write('@perf(topology="tp1", n=50, min_tokps=22000)\ndef test_x(): ...\n')
    result = project.perf(*sides(project, new={"resolved": {"attention_backend": "intel_amx"}}))
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["REGRESSED"]
    assert "ratio" not in next(line for line in result.outlines if "floor 22,000" in line)


def test_a_quarantined_cell_is_not_in_the_suites_ratio(project: Project) -> None:
    project.write(
        """
        @perf(topology="tp1", n=50, quarantine_until="2099-01-01")
        def test_slow(): ...

        @perf(topology="tp1", n=60)
        def test_x(): ...

        @perf(topology="tp1", n=70)
        def test_y(): ...
        """
    )
    both = sides(project)
    control = project.root / "is-fake" / "control.json"
    control.write_text(json.dumps({"cells": {"n50": {"speed": 1000.0}}}))
    result = project.perf(*both, "--perf-tolerance", "0.05", "--perf-no-outputs")
    result.assert_outcomes(passed=2, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    assert any(line.startswith("over the suite (2 cells)") for line in result.outlines)
    assert project.records()[-1]["exitstatus"] == 0


def test_what_measures_one_side_only_says_so_and_decides_nothing(project: Project) -> None:
    project.write(
        """
        @perf(topology="tp1", n=50, rounds="2:2")
        def test_lab(perf_lab):
            perf_lab.measure()
        """
    )
    result = project.perf(*sides(project))
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*only the new environment was measured*", "nothing was decided*"])
    assert project.records()[-1]["exitstatus"] == 1
