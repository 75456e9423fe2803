"""``r1perf bisect`` with real pytest processes over fake SGLang environments of different speeds."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pytest_r1perf.bisect import state as states
from pytest_r1perf.bisect.command import bisect_command
from pytest_r1perf.bisect.environments import CpuRigs, Templated, Unavailable
from pytest_r1perf.bisect.evidence import read_look
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.verdict import Verdict
from tests.processes import wait_until
from tests.project import QUIET, Project, make_environment
from tests.test_compare import CELL, FAST, SLOW, lines_of, write

NODE = "test_perf.py::test_x"
QUIETLY = ("--", *QUIET)
VERSIONS = ("0.5.11", "0.5.12", "0.5.13", "0.5.14", "0.5.15")


def quiet(message: str, *, nl: bool = True) -> None:
    """Show nothing."""


class Releases:
    """A project with one environment a release; each has its own speed, and counts its own runs."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.versions: tuple[str, ...] = VERSIONS
        self.root = project.root
        self.template = str(self.root / "releases" / "sglang-{version}")
        self.state = self.root / ".r1perf" / "bisect.json"
        project.write("@perf(topology='tp1', n=50)\ndef test_x():\n    pass\n")
        project.platform(tolerance={"value": 0.05})

    def control_file(self, version: str) -> Path:
        return self.root / "fakes" / version / "control.json"

    def set(self, version: str, **settings: Any) -> None:
        """What a release's benchmark does."""
        path = self.control_file(version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"default": settings, "cells": {}}))

    def make(self, version: str, **settings: Any) -> Path:
        self.set(version, **settings)
        folder = Path(self.template.replace("{version}", version))
        return make_environment(folder, control=self.control_file(version), version=version)

    def history(self, *versions: str, **speeds: float) -> None:
        """All of these (`VERSIONS`); ``v13=4000`` is the speed of 0.5.13 and of those after it."""
        self.versions = versions or VERSIONS
        speed = 4500.0
        for version in self.versions:
            speed = speeds.get(f"v{version.rpartition('.')[2]}", speed)
            self.make(version, speed=speed)

    def runs(self, version: str) -> int:
        path = self.control_file(version).with_name("calls.jsonl")
        return len(path.read_text().splitlines()) if path.exists() else 0

    def arguments(self, *more: str, rounds: str = "3:3") -> list[str]:
        return [
            NODE, "--good", self.versions[0], "--bad", self.versions[-1], "--versions", ",".join(self.versions),
            "--env-template", self.template, "--rounds", rounds, *more, *QUIETLY,
        ]  # fmt: skip

    def bisect(self, *more: str, rounds: str = "3:3") -> Result:
        return self.invoke(self.arguments(*more, rounds=rounds))

    def invoke(self, arguments: list[str]) -> Result:
        result = CliRunner().invoke(bisect_command, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def log(self) -> list[tuple[str, str]]:
        return [(outcome.candidate, outcome.answer.value) for outcome in states.load(self.state).log]


@pytest.fixture
def releases(r1perf_project: Project, monkeypatch: pytest.MonkeyPatch) -> Releases:
    monkeypatch.chdir(r1perf_project.root)
    return Releases(r1perf_project)


def test_the_first_slow_release_is_found_with_both_ratios_and_what_changed(releases: Releases) -> None:
    releases.history(v13=4000.0)
    result = releases.bisect()
    assert result.exit_code == 0
    assert releases.log() == [("0.5.15", "bad"), ("0.5.13", "bad"), ("0.5.12", "good")]
    assert "first bad: 0.5.13 (0.5.12 good: ratio 1.00" in result.output
    assert "0.5.13: ratio 0.889" in result.output
    assert "versions: sglang: 0.5.12 -> 0.5.13" in result.output
    assert releases.runs("0.5.14") == 0
    assert releases.runs("0.5.13") == 3
    assert releases.runs("0.5.11") == 9  # the good one beside each of the others
    releases.project.nothing_left()


def test_a_bad_end_that_is_not_worse_is_said_so(releases: Releases) -> None:
    releases.history()
    result = releases.bisect()
    assert result.exit_code == 3
    assert "0.5.15 is not worse than 0.5.11" in result.output
    assert releases.log() == [("0.5.15", "good")]


def test_what_cannot_start_is_skipped_and_named(releases: Releases) -> None:
    """0.5.13 runs out of memory, of 0.5.12 there is no environment, 0.5.14 holds another release."""
    releases.history(v12=4000.0)
    releases.set("0.5.13", mode="oom")
    for name in ("0.5.12", "0.5.14"):
        folder = Path(releases.template.replace("{version}", name))
        folder.rename(folder.with_name(f"moved-{name}"))
    make_environment(
        Path(releases.template.replace("{version}", "0.5.14")), control=releases.control_file("0.5.14"), version="0.5.9"
    )
    result = releases.bisect()
    assert result.exit_code == 0
    assert "first bad: one of 0.5.12, 0.5.13, 0.5.14, 0.5.15" in result.output
    assert "0.5.13: skipped: OOM" in result.output
    assert "0.5.12: skipped: --sglang" in result.output
    assert "0.5.14: skipped:" in result.output
    assert "holds SGLang 0.5.9, not 0.5.14" in result.output


def test_an_undecided_step_gets_more_rounds_which_are_pooled(releases: Releases) -> None:
    """The middle one's rounds are far apart at first; its bound is met when all of them count."""
    releases.history("0.5.11", "0.5.13", "0.5.15", v15=4000.0)
    releases.set("0.5.13", speed=[4900.0, 4100.0, 4500.0, *[4500.0] * 50])
    result = releases.bisect(rounds="3:12")
    assert result.exit_code == 0
    asked = [answer for version, answer in releases.log() if version == "0.5.13"]
    assert asked[0] == "undecided"
    assert asked[-1] == "good"
    assert "first bad: 0.5.15" in result.output
    rounds = [outcome.rounds for outcome in states.load(releases.state).log if outcome.candidate == "0.5.13"]
    assert rounds == [3, 6, 12][: len(rounds)]
    assert releases.runs("0.5.13") == rounds[-1]  # none was thrown away, none measured twice


def test_half_of_the_drop_is_the_bound_between_the_ends(releases: Releases) -> None:
    """A release that lost 8 % is good where the bad end lost 30 %: more than the platform's 5 % all the same."""
    releases.history("0.5.11", "0.5.13", "0.5.15", v13=4140.0, v15=3150.0)
    assert "first bad: 0.5.15" in releases.bisect("--tolerance", "half").output
    assert "first bad: 0.5.13" in releases.bisect("--state", "other.json").output


def test_environments_in_order_instead_of_releases(releases: Releases) -> None:
    releases.history("0.5.11", "0.5.14", v14=4000.0)
    places = [releases.template.replace("{version}", version) for version in releases.versions]
    options = [word for place in places for word in ("--env", place)]
    result = releases.invoke([NODE, *options, "--rounds", "3:3", *QUIETLY])
    assert f"first bad: {places[1]}" in result.output
    assert {path.name for path in (releases.root / "releases").iterdir()} == {"sglang-0.5.11", "sglang-0.5.14"}


def test_environments_are_made_when_they_are_needed(releases: Releases) -> None:
    releases.history("0.5.11", "0.5.13", "0.5.15", v15=4000.0)
    folder = releases.root / "releases"
    folder.rename(releases.root / "shelf")
    make = f"ln -s {releases.root}/shelf/sglang-{{version}} {{path}}"
    (releases.root / "shelf" / "sglang-0.5.13").rename(releases.root / "shelf" / "gone")
    result = releases.bisect("--make", make)
    assert "first bad: one of 0.5.13, 0.5.15" in result.output
    made = {path.name for path in folder.iterdir() if path.exists() and not path.name.startswith(".")}
    assert made == {"sglang-0.5.11", "sglang-0.5.15"}
    assert "0.5.13: skipped" in result.output


def test_an_environment_that_was_half_made_is_made_again(tmp_path: Path) -> None:
    script = tmp_path / "make.sh"
    script.write_text('mkdir -p "$2"; echo "$1" >> "$2/made"; test -e "$2/../go"\n')
    template = str(tmp_path / "envs" / "{version}")
    environments = Templated(template, f"sh {script} {{version}} {{path}}", tmp_path / "logs", quiet)
    with pytest.raises(Unavailable, match="ended with status 1"):
        environments.of("0.5.12")
    (tmp_path / "envs" / "go").touch()
    place = Path(environments.of("0.5.12"))
    assert place == tmp_path / "envs" / "0.5.12"
    assert environments.of("0.5.12") == str(place)
    assert (place / "made").read_text().split() == ["0.5.12", "0.5.12"]  # not a third time


def test_what_makes_nothing_or_is_no_command_is_unavailable(tmp_path: Path) -> None:
    template = str(tmp_path / "{version}")
    with pytest.raises(Unavailable, match="made no"):
        Templated(template, "true", tmp_path / "logs", quiet).of("0.5.12")
    with pytest.raises(Unavailable, match="cannot be run"):
        Templated(template, str(tmp_path / "nothing {path}"), tmp_path / "logs", quiet).of("0.5.13")


def test_a_release_without_pins_has_no_rig(r1perf_project: Project) -> None:  # noqa: ARG001
    with pytest.raises(Unavailable, match="has no CPU rig"):
        CpuRigs(quiet).of("0.5.12")


def start(releases: Releases, *more: str) -> subprocess.Popen[str]:
    code = "from pytest_r1perf.bisect.command import bisect_command; bisect_command()"
    words = [sys.executable, "-c", code, *releases.arguments(*more)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_bisect_goes_on_in_the_middle_of_a_step(releases: Releases, number: signal.Signals) -> None:
    """Killed in the middle one's second round: its first is used, and what was answered is not asked again."""
    releases.history("0.5.11", "0.5.13", "0.5.15", v13=4000.0)
    releases.set("0.5.13", speed=4000.0, mode=["ok", "wait-load", "ok"])
    process = start(releases)
    try:
        wait_until(lambda: releases.runs("0.5.13") == 2, "the second round of the middle release", 120)
        os.kill(process.pid, number)
        process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert releases.log() == [("0.5.15", "bad")]
    releases.set("0.5.13", speed=4000.0)
    result = releases.bisect("--resume")
    assert releases.log() == [("0.5.15", "bad"), ("0.5.13", "bad")]
    assert "first bad: 0.5.13" in result.output
    assert releases.runs("0.5.15") == 3
    assert releases.runs("0.5.13") == 4  # the one that was killed, and three that count
    releases.project.nothing_left_soon()


def test_a_state_is_neither_overwritten_nor_mixed_up(releases: Releases) -> None:
    releases.history("0.5.11", "0.5.15", v15=4000.0)
    releases.bisect()
    before = releases.state.read_text()
    with pytest.raises(R1PerfError, match="--resume"):
        releases.bisect()
    with pytest.raises(R1PerfError, match=r"bad: 0\.5\.15 -> 0\.5\.14"):
        releases.invoke([word.replace("0.5.15", "0.5.14") for word in releases.arguments("--resume")])
    assert releases.state.read_text() == before
    ran = releases.runs("0.5.11")
    assert "first bad: 0.5.15" in releases.bisect("--resume").output  # a finished one says it again
    assert releases.runs("0.5.11") == ran


def test_a_good_end_that_breaks_stops_and_is_measured_again_when_mended(releases: Releases) -> None:
    releases.history("0.5.11", "0.5.15", v15=4000.0)
    releases.set("0.5.11", mode="oom")
    with pytest.raises(R1PerfError, match="the good end broke") as stopped:
        releases.bisect()
    assert "OOM" in str(stopped.value)
    assert releases.log() == []
    releases.set("0.5.11", speed=4500.0)
    assert "first bad: 0.5.15" in releases.bisect("--resume").output


def test_the_good_end_against_itself_when_asked(releases: Releases) -> None:
    releases.history("0.5.11", "0.5.15", v15=4000.0)
    assert "first bad: 0.5.15" in releases.bisect("--check-good").output
    assert releases.log() == [("0.5.11", "good"), ("0.5.15", "bad")]
    assert releases.runs("0.5.11") == 6 + 3


def test_a_test_that_is_not_there_is_a_mistake_not_a_skipped_release(releases: Releases) -> None:
    releases.history(v13=4000.0)
    arguments = ["test_perf.py::test_typo", *releases.arguments()[1:]]
    with pytest.raises(R1PerfError, match="test_typo"):
        releases.invoke(arguments)
    assert releases.log() == []


@pytest.mark.parametrize("cause", ["old: greedy answers: the engine broke", "new: greedy answers: the engine broke"])
def test_a_look_whose_answers_could_not_be_compared_keeps_its_rounds(tmp_path: Path, cause: str) -> None:
    said = {"kind": "verdict", "result": {"key": CELL, "topology": "tp1", "verdict": "CRASH", "cause": cause}}
    session = write(tmp_path / "s", lines_of(FAST, side="old"), lines_of(SLOW, side="new"), [said])
    look = read_look(session)
    assert look.fault is None
    assert look.old is not None
    assert look.new is not None
    assert look.old.samples["total_throughput"] == FAST
    assert look.new.samples["total_throughput"] == SLOW


def test_a_look_without_one_side_says_which_broke(tmp_path: Path) -> None:
    """A mistake that came before any round has no line of its own: the verdict tells it."""

    def said(cause: str) -> dict[str, Any]:
        return {"kind": "verdict", "result": {"key": CELL, "topology": "tp1", "verdict": "CONFIG", "cause": cause}}

    look = read_look(write(tmp_path / "new", lines_of(FAST, side="old"), [said("new: no such flag")]))
    assert look.fault == (Verdict.CONFIG, "new: no such flag")
    with pytest.raises(R1PerfError, match="the good end broke"):
        read_look(write(tmp_path / "old", [said("old: no such flag")]))


def test_a_test_of_several_cells_is_refused(releases: Releases) -> None:
    releases.history(v13=4000.0)
    releases.project.write("@perf(topology='tp1')\n@pytest.mark.parametrize('n', [50, 60])\ndef test_x(n):\n    pass\n")
    with pytest.raises(R1PerfError, match="2 cells"):
        releases.bisect()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--good", "0.5.9"], "--good and --bad are needed"),
        (["--good", "0.5.9", "--bad", "0.5.9"], "nothing between"),
        (["--good", "0.5.12", "--bad", "0.5.9"], "not older"),
        (["--env", "a"], "two or more"),
        (["--env", "a", "--env", "b", "--versions", "1,2"], "leave out"),
        (["--env", "a", "--env", "b", "--good", "c"], "none of the --env"),
        (["--good", "0.5.9", "--bad", "0.5.12", "--rounds", "1:4"], "two or more|2 or more"),
        (["--good", "0.5.9", "--bad", "0.5.12", "--rounds", "many"], "--rounds"),
        (["--good", "0.5.9", "--bad", "0.5.12", "--tolerance", "2"], "--tolerance"),
        (["--good", "0.5.9", "--bad", "0.5.12", "--platform", "h200x8"], "--env-template"),
        (["--good", "0.5.9", "--bad", "0.5.12", "--platform", "h2oo"], "not known"),
        (["--good", "0.5.9", "--bad", "0.5.12", "--env-template", "/opt/sglang"], "no {version}"),
        (["--good", "0.5.9", "--bad", "0.5.12", "--metric", "speed"], "not known"),
        (["--good", "0.5.9", "--bad", "0.5.12", "--resume"], "nothing to resume"),
    ],
)
def test_mistakes_are_refused_before_anything_is_measured(releases: Releases, options: list[str], says: str) -> None:
    with pytest.raises(R1PerfError, match=says) as refused:
        releases.invoke([NODE, *options])
    assert "\n" not in str(refused.value)
    assert not releases.state.exists()


def test_two_at_once_on_one_state_are_refused(releases: Releases) -> None:
    from filelock import FileLock

    releases.state.parent.mkdir()
    with FileLock(f"{releases.state}.lock"), pytest.raises(R1PerfError, match="another bisect"):
        releases.bisect()


def test_the_help_shows_how_to_begin() -> None:
    result = CliRunner().invoke(bisect_command, ["--help"])
    assert result.exit_code == 0
    assert shlex.split(result.output.split("Example:")[1])[:3] == [
        "r1perf",
        "bisect",
        "perf_tests/test_tp8.py::test_tp8_champion",
    ]
