"""``scripts/nightly.sh`` and ``scripts/bump.sh`` against the fake SGLang: exit statuses, reports, and nothing left."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from pytest_r1perf.document.file import as_json
from pytest_r1perf.document.model import Document
from pytest_r1perf.verdict import Verdict
from tests.project import Project
from tests.test_trouble import night

SCRIPTS = Path(__file__).parents[1] / "scripts"
ONE = '@perf(topology="tp1", n=50, min_tokps={floor})\ndef test_one(): ...\n'


@dataclass(frozen=True)
class Host:
    """A project with a fake SGLang, and the scripts called in it."""

    project: Project
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def reports(self) -> Path:
        return self.project.root / "reports"

    def report(self, name: str) -> str:
        return (self.reports / name).read_text(encoding="utf-8")

    def environment(self, changes: Mapping[str, str]) -> dict[str, str]:
        root = self.project.root
        dropped = ("PYTEST_", "GITHUB_", "R1PERF_", "SGLANG_", "NIGHTLY_")
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(dropped)},
            "R1PERF_HOME": str(root / "home"),
            "R1PERF_PROJECT": str(root),
            "R1PERF_BIN": str(Path(sys.executable).parent),
            "R1PERF_PLATFORM": "cpu",
            "R1PERF_TOPOLOGY": "tp1",
            "R1PERF_TESTS": "test_perf.py",
            "R1PERF_OUT": "out",
            "R1PERF_REPORTS": "reports",
            "R1PERF_LOCK": str(root / "host.lock"),
            "R1PERF_DOCTOR": f"--lease-dir {root / 'leases'} --n 50",
            "NIGHTLY_SGLANG": str(self.project.environment),
            "SGLANG_TEMPLATE": str(root / "sglang-{version}"),
            "SGLANG_MAKE": "false",
            **self.settings,
            **changes,
        }

    def start(self, script: str, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(SCRIPTS / script), *arguments],
            env=self.environment(changes),
            cwd=self.project.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, *arguments: str, **changes: str) -> tuple[int, str]:
        process = self.start(script, *arguments, **changes)
        try:
            output, _ = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, output


@pytest.fixture
def host(r1perf_project: Project) -> Host:
    r1perf_project.control({"speed": [4500]})
    return Host(r1perf_project)


def all_below(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def test_a_green_night(host: Host) -> None:
    host.project.write(ONE.format(floor=10))
    summary, output = host.project.root / "summary.md", host.project.root / "output"
    status, told = host.run("nightly.sh", GITHUB_STEP_SUMMARY=str(summary), GITHUB_OUTPUT=str(output))
    assert status == 0, told
    assert host.report("outcome.txt") == "green: 1 cells: 1 PASS\n"
    assert output.read_text() == "outcome=green\n"
    assert summary.read_text() == host.report("report.md")
    assert json.loads(host.report("report.json"))["exitstatus"] == 0
    assert "<testsuite" in host.report("perf.xml")
    assert told == host.report("output.txt")
    for name in ("doctor.txt", "plan.txt", "trend.txt", "report.html"):
        assert host.report(name), name
    host.project.nothing_left()

    # As the workflow goes on: the artifact, the history's branch, the reports once more with all nights.
    root = host.project.root
    artifact = root / "nights" / "nightly-tp1"
    artifact.mkdir(parents=True)
    host.reports.rename(artifact / "reports")
    host.project.out.rename(artifact / "out")
    (records,) = artifact.glob("out/*/samples-main.jsonl")
    before = root / "history" / "20200101.010000.abcd" / records.name
    before.parent.mkdir(parents=True)
    before.write_bytes(records.read_bytes().replace(records.parent.name.encode(), before.parent.name.encode()))
    later = root / "history" / "20990101.010000.abcd" / records.name  # another layout's session of the same night
    later.parent.mkdir()
    later.write_bytes(records.read_bytes().replace(records.parent.name.encode(), later.parent.name.encode()))
    (artifact / "reports" / "report.md").unlink()
    status, told = host.run("trend.sh", "history", "nights")
    assert status == 0, told
    assert (artifact / "out" / before.parent.name / before.name).exists()
    assert f"session `{records.parent.name}`" in (artifact / "reports" / "report.md").read_text()
    status, told = host.run("tell.sh", "nights")
    assert (status, "nobody is told" in told) == (0, True)


def test_a_host_that_is_not_ready_is_red_and_says_so(host: Host) -> None:
    host.project.write(ONE.format(floor=10))
    host.project.dataset.unlink()
    summary = host.project.root / "summary.md"
    status, told = host.run("nightly.sh", GITHUB_STEP_SUMMARY=str(summary))
    assert status == 3, told
    assert host.report("outcome.txt").startswith("broken: The host is not ready to measure (cpu)")
    assert "No such file or directory" in summary.read_text()
    assert summary.read_text() == host.report("report.md")
    assert host.project.calls() == []


def test_every_process_is_told_to_end_as_systemd_does_it(host: Host) -> None:
    host.project.write(ONE.format(floor=10))
    host.project.control({"mode": ["ok", "hang-warm-up"], "speed": [4500]})
    process = host.start("nightly.sh")
    try:
        host.project.reached("warm-up", calls=2)
        for one in all_below(process.pid):
            one.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 128 + signal.SIGTERM, told
    host.project.nothing_left()
    assert host.report("outcome.txt").startswith("broken: ")
    for name in ("report.json", "report.md", "report.html", "output.txt"):
        assert host.report(name), name
    assert len(host.project.samples()) == 1  # the round that was finished


def test_pytest_that_was_killed_is_reported_from_its_record(host: Host) -> None:
    host.project.write(ONE.format(floor=10))
    host.project.control({"mode": ["ok", "hang-warm-up"], "speed": [4500]})
    process = host.start("bump.sh", "./env", "./env/bin/..", "--", "--perf-no-outputs")
    try:
        host.project.reached("warm-up", calls=2)
        (one,) = (one for one in all_below(process.pid) if one.name() == "pytest" and "--junitxml" in one.cmdline())
        one.kill()
        told, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 5, told
    assert host.report("outcome.txt").endswith("; pytest was killed\n")
    assert json.loads(host.report("report.json"))["exitstatus"] is None
    assert host.report("report.html")
    host.project.nothing_left_soon()


def test_a_status_of_0_that_measured_nothing_is_not_green_nor_told_by_an_old_report(host: Host) -> None:
    host.project.write(ONE.format(floor=10))
    host.reports.mkdir()
    for name in ("report.json", "report.md", "trend.txt"):
        (host.reports / name).write_text("of an earlier night")
    status, told = host.run("nightly.sh", "--collect-only")
    assert status == 5, told
    assert host.report("outcome.txt").startswith("broken: ")
    assert not [path for path in host.reports.iterdir() if "of an earlier night" in path.read_text()]


@pytest.mark.parametrize(
    ("document", "status", "said"),
    [
        (night(Verdict.PASS, exitstatus=0), 0, "green"),
        (night(Verdict.REGRESSED, exitstatus=1, failed=True), 0, "broken"),  # an old file beside a new status
        (night(exitstatus=0), 0, "broken"),
        (night(Verdict.UNDECIDED, exitstatus=1, failed=True), 1, "undecided"),
        (
            replace(night(Verdict.UNDECIDED, exitstatus=1), suite=("new / old 0.9: REGRESSED as a whole",)),
            1,
            "regressed",
        ),
        (night(Verdict.INFRA, exitstatus=1, failed=True), 1, "broken"),
    ],
)
def test_what_kind_of_night_it_was(document: Document, status: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(as_json(document))
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "outcome.py"), str(tmp_path / "report.json"), str(status)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.partition(":")[0] == said


def test_two_never_overlap(host: Host) -> None:
    host.project.write(ONE.format(floor=10))
    with (host.project.root / "host.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, told = host.run("nightly.sh")
        assert (status, host.project.calls()) == (4, []), told
        assert "another run has this host" in told
        assert host.run("bump.sh", "0.5.9", "0.5.20")[0] == 4


def test_what_selects_nothing_or_runs_too_long_is_broken(host: Host) -> None:
    host.project.write("def test_none(): ...\n")
    status, told = host.run("bump.sh", "./env", "./env/bin/..", "--", "--perf-no-outputs")
    assert status == 5, told
    assert host.report("outcome.txt") == "broken: 0 cells: none measured; pytest selected no test\n"
    assert host.report("report.md")
    host.project.write(ONE.format(floor=10))
    host.project.control({"mode": ["hang-warm-up"]})
    status, told = host.run("bump.sh", "./env", "./env/bin/..", "--", "--perf-no-outputs", R1PERF_LIMIT="4s")
    assert status == 5, told
    assert host.report("outcome.txt").endswith("; pytest ran past its limit and was ended\n")
    host.project.nothing_left_soon()


def test_a_bump_that_is_slower_is_red_and_wrong_github_variables_change_nothing(host: Host) -> None:
    host.project.write(ONE.format(floor=10))
    folder = host.project.root / "a-folder"
    folder.mkdir()
    host.project.further_environment("sglang-0.5.9", version="0.5.9", speed=[4500])
    host.project.further_environment("ready", version="0.5.20", speed=[900])
    status, told = host.run(
        "bump.sh",
        "0.5.9",
        "0.5.20",
        "--",
        "--perf-no-outputs",
        SGLANG_MAKE=f"ln -s {host.project.root}/ready {{path}}",
        GITHUB_STEP_SUMMARY=str(folder),
        GITHUB_OUTPUT=str(folder / "no" / "file"),
    )
    assert status == 1, told
    assert host.report("outcome.txt") == "regressed: 1 cells: 1 REGRESSED\n"
    assert f"GITHUB_STEP_SUMMARY is '{folder}', which cannot be written: it is left out" in told
    assert "GITHUB_OUTPUT is " in told
    assert "REGRESSED" in host.report("report.md")
    sides = [environment["side"] for environment in json.loads(host.report("report.json"))["environments"]]
    assert sorted(sides) == ["new", "old"]


def test_a_bump_whose_environment_cannot_be_made_is_broken(host: Host) -> None:
    host.project.write(ONE.format(floor=10))
    status, told = host.run("bump.sh", "0.5.9", SGLANG_PIN=str(host.project.root / "pin"))
    assert status == 2, told
    assert "pin' has no release" in told
    (host.project.root / "pin").write_text("0.5.8\n")
    status, told = host.run("bump.sh", "0.5.9", SGLANG_PIN=str(host.project.root / "pin"))
    assert status == 3, told
    assert "SGLang 0.5.8 has no environment, and none could be made" in host.report("outcome.txt")


@pytest.mark.parametrize(
    ("script", "arguments", "changes", "sentence"),
    [
        ("nightly.sh", (), {"R1PERF_TOPOLOGY": "tp8;reboot"}, "R1PERF_TOPOLOGY is 'tp8;reboot'"),
        ("nightly.sh", (), {"R1PERF_BUDGET": "$(reboot)"}, "R1PERF_BUDGET is '$(reboot)'"),
        ("nightly.sh", (), {"R1PERF_BIN": "/nowhere"}, "there is no r1perf in '/nowhere'"),
        ("nightly.sh", (), {"R1PERF_REPORTS": "/dev/null/here"}, "R1PERF_REPORTS '/dev/null/here' cannot be made"),
        ("nightly.sh", (), {"R1PERF_LOCK": "/dev/null/lock"}, "R1PERF_LOCK '/dev/null/lock' cannot be made"),
        ("bump.sh", ("0.5.20; reboot",), {}, "release is '0.5.20; reboot'"),
        ("bump.sh", ("0.5.20", "0.5.20"), {}, "both sides are 0.5.20"),
        ("bump.sh", (), {}, "give the new release"),
        ("bump.sh", ("0.5.9", "--perf-gate"), {}, "option '--perf-gate' is not known"),
    ],
)
def test_a_mistake_runs_nothing(
    host: Host, script: str, arguments: tuple[str, ...], changes: dict[str, str], sentence: str
) -> None:
    status, told = host.run(script, *arguments, **changes)
    assert status == 2, told
    assert f"{script}: {sentence}" in told
    assert "Traceback" not in told
    assert host.project.calls() == []


def test_help_names_every_variable_that_is_read(host: Host) -> None:
    common = (SCRIPTS / "common.sh").read_text(encoding="utf-8")
    for script in ("nightly.sh", "bump.sh"):
        status, told = host.run(script, "--help")
        assert status == 0
        read = set(re.findall(r"\$\{((?:R1PERF|SGLANG|NIGHTLY)_\w+):?-", common + (SCRIPTS / script).read_text()))
        assert {name for name in read - {"R1PERF_HOME"} if name not in told} == set()
