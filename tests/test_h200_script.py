"""``scripts/h200.sh``: its stages run, rehearsed against the fake SGLang, and its project fits the plugin's data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.rig.home import dataset_path, interpreter, model_dir, rig_dir
from tests.project import make_environment, sharegpt

SCRIPTS = Path(__file__).parents[1] / "scripts"


@dataclass(frozen=True)
class Rehearsal:
    """A host with the fake SGLang where the CPU rig would be."""

    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def control(self, default: Mapping[str, Any], **cells: Mapping[str, Any]) -> None:
        (self.folder / "control.json").write_text(json.dumps({"default": default, "cells": cells}))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "H200_"))},
            "R1PERF_HOME": str(self.folder / "home"),
            "HOME": str(self.folder / "userhome"),
            "H200_WORK": str(self.folder / "work"),
            "H200_PYTHON": sys.executable,
            "OUT": str(self.out),
            "PYTEST_ADDOPTS": f"-o perf_lease_dir={self.folder / 'leases'}",
        }
        return subprocess.run(
            ["bash", str(SCRIPTS / "h200.sh"), "--rehearse", *arguments],
            env=env,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def summary(self) -> str:
        return (self.out / "summary.txt").read_text(encoding="utf-8")

    def lines(self, kind: str) -> list[dict[str, Any]]:
        records = map(json.loads, (self.out / "records.jsonl").read_text(encoding="utf-8").splitlines())
        return [line for line in records if line["kind"] == kind]


@pytest.fixture
def rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    monkeypatch.setenv("R1PERF_HOME", str(tmp_path / "home"))
    make_environment(rig_dir(), control=tmp_path / "control.json")
    assert interpreter(rig_dir()).exists()
    model_dir().mkdir(parents=True)
    (model_dir() / "config.json").write_text('{"architectures": ["DeepseekV3ForCausalLM"]}')
    (model_dir() / "tokenizer.json").write_text("{}")
    dataset_path().parent.mkdir(parents=True)
    dataset_path().write_text(sharegpt(120))
    host = Rehearsal(tmp_path)
    host.control({"speed": [4500]})
    return host


def test_stages_store_compare_and_find_the_injected_regression(rehearsal: Rehearsal) -> None:
    cells: dict[str, Mapping[str, Any]] = {"n8+max_running_requests=1": {"speed": [900]}}
    rehearsal.control({"speed": [4500]}, **cells)
    done = rehearsal.run("setup", "cold", "engine", "gate", "overhead")
    assert done.returncode == 0, done.stdout
    verdicts = [(line["result"]["nodeid"], line["result"]["verdict"]) for line in rehearsal.lines("verdict")]
    assert ("test_h200.py::test_load[6]", "BASELINE STORED") in verdicts
    assert ("test_h200.py::test_load[8]", "PASS") in verdicts
    assert ("test_h200.py::test_load[8]", "REGRESSED") in verdicts
    summary = rehearsal.summary()
    assert "plugin / bare, 1 pairs" in summary
    assert "3 cells, 9 windows behind one start" in summary
    assert sorted(path.name for path in rehearsal.out.iterdir()) == [
        "baselines.yaml",
        "machine.txt",
        "records.jsonl",
        "report.txt",
        "sessions.tar.gz",
        "summary.txt",
    ]


def test_what_was_killed_is_found_and_ended(rehearsal: Rehearsal) -> None:
    rehearsal.control({"mode": ["hang-warm-up"]})
    done = rehearsal.run("setup", "validity")
    told = json.loads((rehearsal.folder / "work" / "project" / "killed.json").read_text(encoding="utf-8"))
    assert told["killed"]["guards"], done.stdout
    assert told["left_at_once"], done.stdout
    assert told["still_there"] == []
    (problem,) = rehearsal.lines("problem")
    assert problem["verdict"] == "HANG"


def test_a_stage_that_fails_does_not_keep_the_next_from_running(rehearsal: Rehearsal) -> None:
    done = rehearsal.run("setup", "overhead", "cold")
    assert done.returncode == 1
    assert "there is no offline round yet" in done.stdout
    assert "BASELINE STORED" in [line["result"]["verdict"] for line in rehearsal.lines("verdict")]


def test_what_does_not_fit_into_the_time_is_skipped(rehearsal: Rehearsal) -> None:
    done = rehearsal.run("--until", "30", "engine")
    assert "engine skipped: it takes about" in done.stdout
    assert not (rehearsal.folder / "work" / "project" / ".r1perf").exists()


def test_a_stage_that_is_not_known_is_told(rehearsal: Rehearsal) -> None:
    done = rehearsal.run("engins")
    assert done.returncode == 2
    assert "stage 'engins' is not known" in done.stdout


@pytest.mark.parametrize("over", ["slow.yaml", "versions.yaml", "two.yaml"])
def test_the_project_of_an_h200_is_read_by_the_plugin(tmp_path: Path, over: str) -> None:
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "H200_"))},
        "H200_SGLANG": "/opt/sglang/bin/python",
        "H200_SITE": "/opt/site",
        "R1_SLICE": "/data/r1-slice",
        "SHAREGPT": "/data/sharegpt.json",
    }
    project = tmp_path / "project"
    subprocess.run([sys.executable, str(SCRIPTS / "h200" / "project.py"), str(project)], env=env, check=True)
    platform = load_catalog([project / "r1perf.yaml"]).platform("h200x1")
    assert platform.model_path == "/data/r1-slice"
    assert platform.env["PYTHONPATH"] == "/opt/site"
    assert platform.noise is not None
    laid_over = load_catalog([project / "r1perf.yaml", project / over])
    if over == "slow.yaml":
        assert laid_over.platform("h200x1").flags == {**platform.flags, "max_running_requests": 4}
    elif over == "versions.yaml":
        assert laid_over.platform("h200x1").env["PYTHONPATH"] == ""
    else:
        assert laid_over.topology("pp2-ranks").nnodes == laid_over.platform("h200x2").nodes == 2


def test_the_slice_has_the_shapes_of_r1(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPTS / "h200" / "make_slice.py"), str(tmp_path)], check=True)
    config = yaml.safe_load((tmp_path / "r1-slice" / "config.json").read_text(encoding="utf-8"))
    # DeepSeek-R1's own config.json.
    shapes = {"hidden_size": 7168, "n_routed_experts": 256, "kv_lora_rank": 512, "moe_intermediate_size": 2048}
    assert {name: config[name] for name in shapes} == shapes
    assert config["quantization_config"]["weight_block_size"] == [128, 128]
    assert (tmp_path / "sharegpt-like.json").stat().st_size > 1_000_000
