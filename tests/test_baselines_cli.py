"""Baselines through the plugin's options: what is written, what is kept, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pytest_r1perf.cli import cli
from tests.hosts import GPUS, tools
from tests.project import Project, lines_with, verdicts

TWO = """
@perf(topology="tp1", n=50)
def test_a(): ...

@perf(topology="tp1", n=60)
def test_b(): ...
"""
A, B = "cpu/default/sharegpt/n50/offline", "cpu/default/sharegpt/n60/offline"


@pytest.fixture
def stored(r1perf_project: Project) -> Project:
    """Two cells, both with a baseline of 4,500 tok/s."""
    r1perf_project.write(TWO)
    r1perf_project.perf("--perf-update-new").assert_outcomes(passed=2)
    return r1perf_project


def samples(project: Project, key: str) -> list[int]:
    values: list[float] = project.stored()["cells"][key]["metrics"]["total_throughput"]["samples"]
    return [round(value) for value in values]


def test_update_new_stores_what_is_missing_and_nothing_else(r1perf_project: Project) -> None:
    r1perf_project.write(TWO)
    first = r1perf_project.perf("-k", "test_a", "--perf-update-new")
    first.assert_outcomes(passed=1, deselected=1)
    assert lines_with(first, str(r1perf_project.baseline_file()))
    r1perf_project.control({"speed": 4600})
    second = r1perf_project.perf("--perf-update-new")
    second.assert_outcomes(passed=2)
    assert verdicts(second) == ["PASS", "BASELINE STORED"]
    assert samples(r1perf_project, A) == [4500, 4509]
    assert samples(r1perf_project, B) == [4600, 4609]


def test_nothing_is_written_without_an_option(stored: Project) -> None:
    before = stored.baseline_file().read_bytes()
    stored.control({"speed": 9000})
    result = stored.perf()
    result.assert_outcomes(passed=2)
    assert stored.baseline_file().read_bytes() == before
    assert lines_with(result, "baselines written") == []
    assert len(list(stored.baselines.rglob("*"))) == 2


def test_update_overwrites_the_selected_cells_only(stored: Project) -> None:
    path = stored.baseline_file()
    text = path.read_text()
    head, tail = text.split(f"  {B}:")
    noted = "tolerance: 0.07\n    note: 'seen on the night of the move'"
    tail = tail.replace("tolerance: null\n    note: ''", noted)
    head = head.replace("tolerance: null\n    note: ''", "tolerance: 0.2\n    note: keep me")
    path.write_text(f"{head}  {B}:{tail}")
    stored.control({"speed": 3000})
    result = stored.perf("-k", "test_a", "--perf-update")
    result.assert_outcomes(passed=1, deselected=1)
    assert verdicts(result) == ["BASELINE STORED"]
    cells = stored.stored()["cells"]
    assert samples(stored, A) == [2994, 3003]
    assert (cells[A]["tolerance"], cells[A]["note"]) == (0.2, "keep me")
    assert samples(stored, B) == [4500, 4509]
    assert (cells[B]["tolerance"], cells[B]["note"]) == (0.07, "seen on the night of the move")
    assert path.stat().st_mode & 0o777 == 0o644
    assert [item.name for item in path.parent.iterdir()] == ["tp1.yaml"]


def test_an_update_measures_every_round_and_never_stores_below_the_floor(r1perf_project: Project) -> None:
    r1perf_project.write('@perf(topology="tp1", n=50, min_tokps=5000)\ndef test_a(): ...')
    result = r1perf_project.perf("--perf-update", "--perf-rounds", "2:3")
    result.assert_outcomes(failed=1)
    assert len(r1perf_project.calls()) == 3
    assert not r1perf_project.baselines.exists()


def test_a_broken_run_stores_nothing(r1perf_project: Project) -> None:
    r1perf_project.write(TWO)
    r1perf_project.control({}, n50={"mode": ["ok", "nan"]})
    r1perf_project.perf("--perf-update-new").assert_outcomes(failed=1, passed=1)
    assert list(r1perf_project.stored()["cells"]) == [B]


def test_a_failing_body_stores_nothing(r1perf_project: Project) -> None:
    r1perf_project.write('@perf(topology="tp1", n=50)\ndef test_a(): assert 1 == 2')
    r1perf_project.perf("--perf-update-new").assert_outcomes(failed=1)
    assert not r1perf_project.baselines.exists()


def test_provenance_says_where_a_baseline_comes_from(stored: Project) -> None:
    provenance: dict[str, Any] = stored.stored()["cells"][A]["provenance"]
    assert provenance["versions"]["sglang"] == "0.5.20"
    assert provenance["rounds"] == 2
    assert provenance["session"] == next(stored.out.iterdir()).name
    assert "--num-prompts 50 --seed 2025" in provenance["command"]
    assert "result" not in provenance["command"]
    assert provenance["env"]["SGLANG_USE_CPU_ENGINE"] == "1"


def test_unused_entries_are_reported_when_everything_was_collected(stored: Project) -> None:
    stored.write('@perf(topology="tp1", n=50)\ndef test_a(): ...')
    result = stored.perf()
    title = result.outlines.index("baseline entries that no test uses")
    assert result.outlines[title + 1] == f"  {stored.baseline_file()}: {B}"
    assert lines_with(stored.perf("test_perf.py"), "no test uses") == []


def test_an_entry_of_an_unselected_test_is_used(stored: Project) -> None:
    assert lines_with(stored.perf("-k", "test_a"), "no test uses") == []
    result = stored.perf_subprocess("-n2", "-k", "test_a")
    result.assert_outcomes(passed=1)
    assert lines_with(result, "no test uses") == []


# -- other hosts: the numbers are theirs -------------------------------------------------------------------------


@pytest.fixture
def login_node(r1perf_project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A host without GPUs, and an ssh to one with two: only what runs through it finds an nvidia-smi that answers."""
    project = r1perf_project
    idle, nobody = project.root / "idle.csv", project.root / "nobody.csv"
    idle.write_text(GPUS.read_text().replace(", 1643, ", ", 4, "))  # else the agent there waits for the memory
    nobody.write_text("")
    far = tools(project.root / "far", gpus=idle, apps=nobody)
    near = project.root / "near"
    near.mkdir()
    through = f'for last; do :; done\nPATH="{far}:$PATH" exec sh -c "$last"\n'
    for name, body in (("ssh", through), ("nvidia-smi", "exit 9\n")):
        (near / name).write_text(f"#!/bin/sh\n{body}")
        (near / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{near}:{os.environ['PATH']}")
    platform = {
        "extends": "cpu",
        "accelerator": "NVIDIA H200",
        "gpus_per_node": 2,
        "model_path": str(project.model),
        "datasets": {"sharegpt": str(project.dataset)},
        "sglang": str(project.environment),
        "rounds": {"min": 2, "max": 2},
        "flags": {"device": "cpu", "load_format": "dummy"},
        "launch": {"by": "ssh", "hosts": ["node1"]},
    }
    (project.root / "r1perf.yaml").write_text(yaml.safe_dump({"platforms": {"far": platform}}))
    project.write(TWO)
    return project


@pytest.mark.parametrize("options", [(), ("-n2",)], ids=["alone", "xdist"])
def test_a_baseline_is_that_of_the_host_it_was_measured_on(login_node: Project, options: tuple[str, ...]) -> None:
    result = login_node.perf_subprocess("--perf-platform", "far", "--perf-update-new", *options)
    result.assert_outcomes(passed=2)
    assert login_node.baseline_file().parent.name == "2x-nvidia-h200"
    assert login_node.stored()["hardware"] == {"name": "NVIDIA H200", "count": 2}
    assert set(login_node.stored()["cells"]) == {A.replace("cpu/", "far/"), B.replace("cpu/", "far/")}
    again = login_node.perf_subprocess("--perf-platform", "far", *options)
    again.assert_outcomes(passed=2)
    assert verdicts(again) == ["PASS", "PASS"]


def test_unused_entries_of_other_hosts_are_those_of_the_hardware_that_was_seen(login_node: Project) -> None:
    login_node.perf_subprocess("--perf-platform", "far", "--perf-update-new").assert_outcomes(passed=2)
    login_node.write('@perf(topology="tp1", n=50)\ndef test_a(): ...')
    result = login_node.perf_subprocess("--perf-platform", "far")
    assert lines_with(result, f"{login_node.baseline_file()}: {B.replace('cpu/', 'far/')}")
    (login_node.root / "near" / "ssh").write_text("#!/bin/sh\nexit 255\n")
    unreachable = login_node.perf_subprocess("--perf-platform", "far")
    unreachable.assert_outcomes(failed=1)
    assert lines_with(unreachable, "no test uses") == []  # whose entries they are cannot be told


Edit = Callable[[str], str]
WRONG: dict[str, tuple[Edit, int, str]] = {
    "version": (lambda text: text.replace("version: 1", "version: 2"), 1, "version: version 2 is not known"),
    "no-version": (lambda text: text.replace("version: 1\n", ""), 1, "file: key 'version' is missing"),
    "unit": (
        lambda text: text.replace("unit: tok/s", "unit: ms", 1),
        10,
        "unit: is 'ms', but total_throughput is in tok/s",
    ),
    "sign": (
        lambda text: text.replace("[4500.0", "[-4500.0", 1),
        11,
        "samples: every sample must be a finite number above 0",
    ),
    "zero": (
        lambda text: text.replace("[4500.0", "[0", 1),
        11,
        "samples: every sample must be a finite number above 0, got 0",
    ),
    "nan": (
        lambda text: text.replace("[4500.0", "[.nan", 1),
        11,
        "samples: every sample must be a finite number above 0",
    ),
    "text": (
        lambda text: text.replace("[4500.0", "[fast", 1),
        11,
        "samples: every sample must be a finite number above 0",
    ),
    "one-short": (
        lambda text: text.replace("4500.0, ", "", 1),
        8,
        "metrics: the metrics have different numbers of samples",
    ),
    "metric": (
        lambda text: text.replace("total_throughput:", "total_tput:", 1),
        10,
        "metric 'total_tput' is not known",
    ),
    "key-twice": (
        lambda text: text.replace("version: 1", "version: 1\nversion: 1"),
        2,
        "version: key stands twice (first in line 1)",
    ),
    "unknown-key": (lambda text: text + "tolerance: 3\n", -1, "tolerance: key is not known"),
    "tolerance": (
        lambda text: text.replace("tolerance: null", "tolerance: 5", 1),
        -1,
        "tolerance: must be above 0 and below 1",
    ),
    "no-protocol": (
        lambda text: text.replace("    protocol:\n", "    protocol: {}\n    old:\n", 1),
        -1,
        "protocol: has no protocol",
    ),
    "topology": (
        lambda text: text.replace("topology: tp1", "topology: tp2"),
        5,
        "topology: is 'tp2', but the file is named tp1.yaml",
    ),
    "not-yaml": (lambda text: text + "  - {\n", -1, "file: not valid YAML"),
    "a-list": (lambda _: "- 1\n", 1, "file: must be a mapping"),
    "empty": (lambda _: "", 1, "file: key 'version' is missing"),
}


def test_a_wrong_file_is_refused_with_file_line_and_key(stored: Project) -> None:
    path = stored.baseline_file()
    good = path.read_text()
    for form, (edit, line, sentence) in WRONG.items():
        path.write_text(edit(good))
        assert path.read_text() != good, form
        result = stored.perf("-k", "test_a")
        result.assert_outcomes(failed=1, deselected=1)
        assert verdicts(result) == ["CONFIG"], form
        (cause,) = lines_with(result, "  cause: ")
        assert cause.startswith(f"cause: {path}:{line}: " if line > 0 else f"cause: {path}:"), form
        assert sentence in cause, form
        checked = CliRunner().invoke(cli, ["baseline", "check", str(path)])
        assert checked.exit_code != 0, form
        assert sentence in str(checked.exception), form
    assert len(stored.calls()) == 4, "a wrong baseline is found before anything is measured"


def test_an_update_never_overwrites_a_file_that_it_cannot_read(stored: Project) -> None:
    stored.edit("version: 1", "version: 2")
    before = stored.baseline_file().read_bytes()
    stored.perf("--perf-update").assert_outcomes(failed=2)
    assert stored.baseline_file().read_bytes() == before


def test_baseline_check_says_what_a_good_file_holds(stored: Project) -> None:
    checked = CliRunner().invoke(cli, ["baseline", "check", str(stored.baseline_file())])
    assert checked.exit_code == 0
    assert checked.output.startswith(f"{stored.baseline_file()}: 2 cells of tp1 on ")


@pytest.fixture
def read_only(stored: Project) -> Iterator[Project]:
    """The baselines on a read-only mount: root may write anywhere else."""
    folder = str(stored.baselines)
    for command in (["--bind", folder, folder], ["-o", "remount,ro,bind", folder]):
        if subprocess.run(["mount", *command], check=False, capture_output=True).returncode != 0:
            pytest.skip("this host lets nobody mount")
    yield stored
    subprocess.run(["umount", folder], check=True)


def test_baselines_that_cannot_be_written_are_one_sentence_and_exit_non_zero(read_only: Project) -> None:
    read_only.control({"speed": 3000})
    result = read_only.perf("--perf-update")
    assert result.ret == 1
    assert lines_with(result, f"ERROR: baseline {read_only.baseline_file()} cannot be written (Read-only file system)")
    assert samples(read_only, A) == [4500, 4509]
    assert "Traceback" not in str(result.stdout)


def test_a_baselines_directory_of_its_own(r1perf_project: Project) -> None:
    r1perf_project.ini.write_text(r1perf_project.ini.read_text() + "perf_baselines = elsewhere\n")
    r1perf_project.write(TWO)
    r1perf_project.perf("--perf-update-new").assert_outcomes(passed=2)
    assert not r1perf_project.baselines.exists()
    assert [path.name for path in (r1perf_project.root / "elsewhere").rglob("*.yaml")] == ["tp1.yaml"]
    r1perf_project.perf().assert_outcomes(passed=2)


def test_baselines_are_per_topology_file(r1perf_project: Project) -> None:
    r1perf_project.write(TWO)
    r1perf_project.perf("--perf-update-new").assert_outcomes(passed=2)
    wrong: Path = r1perf_project.baseline_file().with_name("tp8.yaml")
    shutil.copy(r1perf_project.baseline_file(), wrong)
    r1perf_project.perf().assert_outcomes(passed=2)  # another topology's broken file is not this one's trouble
