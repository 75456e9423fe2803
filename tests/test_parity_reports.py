"""Where parity is told: as a note of a session, and under ``r1perf compare``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_r1perf.cli import cli
from tests.histories import sample, write_session
from tests.project import Project

TEST = """
@perf(topology="tp1", n=50)
def test_a(): ...
"""
STACK = "scheduling and backend stack broken: max_running_requests=not set -> max_running_requests=16"


@pytest.fixture
def stored(r1perf_project: Project) -> Project:
    """One cell with its baseline."""
    r1perf_project.write(TEST)
    r1perf_project.perf("--perf-update-new").assert_outcomes(passed=1)
    return r1perf_project


def test_a_session_like_its_baseline_says_nothing(stored: Project) -> None:
    result = stored.perf()
    result.assert_outcomes(passed=1)
    assert "parity" not in result.stdout.str()


def test_a_session_beside_its_baseline_names_what_is_broken(stored: Project) -> None:
    stored.platform(flags={"device": "cpu", "load_format": "dummy", "max_running_requests": 16})
    result = stored.perf()
    result.assert_outcomes(passed=1)
    assert f"parity with the baseline: 5 of 6 held, 1 broken; {STACK}" in result.stdout.str()


def test_a_baseline_that_records_too_little_is_named(stored: Project) -> None:
    text = stored.baseline_file().read_text()
    head, _, tail = text.partition("      resolved:\n")
    kept = [line for line in tail.splitlines() if not line.startswith("        ")]
    stored.baseline_file().write_text(head + "\n".join(kept) + "\n")
    result = stored.perf()
    result.assert_outcomes(passed=1)
    missing = "memory fraction, scheduling and backend stack"
    assert f"parity with the baseline: 4 of 6 held, 2 not known; not recorded: {missing}" in result.stdout.str()


@pytest.mark.parametrize("resolved", [{}, {"max_running_requests": 16}])
def test_two_environments_of_one_session(r1perf_project: Project, resolved: dict[str, int]) -> None:
    """The new one resolves another cap by itself: no key of the protocol, so the two are compared, and it is said."""
    r1perf_project.write(TEST)
    sides = [
        f"old={r1perf_project.further_environment('older')}",
        f"new={r1perf_project.further_environment('newer', resolved=resolved)}",
    ]
    result = r1perf_project.perf("--sglang", sides[0], "--sglang", sides[1], "--perf-no-outputs")
    result.assert_outcomes(passed=1)
    assert (f"parity: 5 of 6 held, 1 broken; {STACK}" in result.stdout.str()) is bool(resolved)
    assert ("parity" in result.stdout.str()) is bool(resolved)


def test_under_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a = write_session(tmp_path, "a", [sample(number, 20000.0 + number) for number in (1, 2, 3)]).parent
    changed = {"env": {"OMP_NUM_THREADS": "1", "NCCL_ALGO": "Tree"}}
    b = write_session(tmp_path, "b", [sample(number, 20001.0 + number, **changed) for number in (1, 2, 3)]).parent
    said = CliRunner().invoke(cli, ["compare", str(a), str(b)])
    assert said.exit_code == 0, said.output
    flat = " ".join(said.stdout.split())
    assert "parity, by the guide's checklist tp8 tp8-champion n=5000: parity: " in flat
    assert "scheduling and backend stack broken: NCCL_ALGO=not set -> NCCL_ALGO=Tree" in flat
    plain = json.loads(CliRunner().invoke(cli, ["compare", str(a), str(b), "--json"]).stdout)
    (one,) = plain["parity"]
    assert [item["name"] for item in one["items"] if item["state"] == "broken"] == [
        "memory fraction",  # 0.85, where the guide has 0.87 for tp8
        "scheduling and backend stack",
    ]


def test_the_commands_are_there() -> None:
    said = CliRunner().invoke(cli, ["--help"]).output
    for command in ("check-parity", "recommend", "claims"):
        assert f"\n  {command} " in said
