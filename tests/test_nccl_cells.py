"""A cell that asks NCCL for something: a process that is thrown away shows what became of it.

The platform has a GPU as far as nvidia-smi says. The fake prints NCCL's lines only when asked for them, by subsystem.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_r1perf.sglang.nccl_verify import questions
from tests.project import Project, lines_with, verdicts

NOTES = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128", "NCCL_NET_GDR_LEVEL": "5", "NCCL_IB_HCA": "mlx5"}
"""What the optimisation notes set."""

NVIDIA_SMI = """#!/bin/sh
case "$*" in
  *index,name,uuid*) echo "0, NVIDIA H200, GPU-0b1f2c3d-0000-0000-0000-00000000000a" ;;
  *) echo "Unable to determine the device handle for GPU0000:1B:00.0: Unknown Error"; exit 15 ;;
esac
"""


@pytest.fixture
def project(r1perf_project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The fake on a platform with one GPU."""
    tools = r1perf_project.root / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(NVIDIA_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    platform = {
        "accelerator": "NVIDIA H200",
        "gpus_per_node": 1,
        "model_path": str(r1perf_project.model),
        "datasets": {"sharegpt": str(r1perf_project.dataset)},
        "sglang": str(r1perf_project.environment),
        "tolerance": {"value": 0.05, "source": "a test"},
        "rounds": {"min": 2, "max": 2, "source": "a test"},
        "error_rate": {"per_night": 0.05, "suite_size": 3, "source": "a test"},
        "timeout_s": {"value": 60, "source": "a test"},
        "min_conclusive_n": {"value": 40, "source": "a test"},
        "source": "a test",
    }
    (r1perf_project.root / "r1perf.yaml").write_text(yaml.safe_dump({"platforms": {"one": platform}}))
    return r1perf_project


def run(project: Project, env: dict[str, str], *args: str | Path, **chosen: Any) -> pytest.RunResult:
    project.control({"nccl": ["RING", "LL128"], **chosen})
    project.write(f'@perf(topology="tp1", n=50, min_tokps=1, env={env!r})\ndef test_one(): ...\n')
    return project.perf("--perf-platform", "one", *args)


def test_the_notes_settings_are_confirmed_by_a_process_that_does_not_count(project: Project) -> None:
    result = run(project, NOTES)
    assert verdicts(result) == ["PASS"]
    thrown_away, *measured = project.records()[1:4]
    assert [line["kind"] for line in (thrown_away, *measured)] == ["discarded", "sample", "sample"]
    assert thrown_away["reason"] == (
        "NCCL was asked what it chose, in a process that was thrown away: "
        "NCCL_ALGO=Ring confirmed: all 1 collectives that the log shows; "
        "NCCL_IB_HCA=mlx5 confirmed: cn01: mlx5_0:1/IB; "
        "NCCL_NET_GDR_LEVEL=5 confirmed: 1 channels via NET/IB/GDRDMA; "
        "NCCL_PROTO=LL128 confirmed: all 1 collectives that the log shows"
    )
    for line in measured:
        assert thrown_away["reason"] in line["remarks"]
        assert not any("not verifiable" in text for text in line["remarks"])
    assert lines_with(result, "round 1: NCCL was asked what it chose")
    asked, *others = project.calls()
    assert "NCCL_DEBUG" in asked["env"]
    assert all("NCCL_DEBUG" not in call["env"] and "NCCL_ALGO" in call["env"] for call in others)


def test_a_silent_downgrade_is_invalid_before_anything_is_measured(project: Project) -> None:
    result = run(project, NOTES, nccl=["RING", "SIMPLE"])
    assert verdicts(result) == ["INVALID"]
    assert lines_with(
        result, "nccl: NCCL_PROTO=LL128 downgraded: 1 of 1 collectives ran otherwise: AllReduce of 524288"
    )
    assert len(project.calls()) == 1


def test_a_cell_that_asks_itself_is_checked_in_every_round(project: Project) -> None:
    env = {**NOTES, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING,NET"}
    result = run(project, env)
    assert verdicts(result) == ["PASS"]
    assert len(project.calls()) == 2
    assert all(
        "NCCL_ALGO=Ring confirmed: all 1 collectives that the log shows" in line["remarks"]
        for line in project.samples()
    )


def test_what_may_not_be_seen_is_said(project: Project) -> None:
    result = run(project, {**NOTES, "NCCL_DEBUG": "WARN"})
    assert verdicts(result) == ["PASS"]
    assert len(project.calls()) == 2
    assert lines_with(
        result,
        "NCCL_ALGO=Ring not verifiable: the log has no line that tells: run once with NCCL_DEBUG=INFO NCCL_DEBUG_SUB",
    )


def test_a_process_that_shows_no_collective_says_that(project: Project) -> None:
    run(project, {"NCCL_ALGO": "Ring"}, nccl=None)
    assert len(project.calls()) == 3
    for line in project.samples():
        assert any("NCCL_ALGO=Ring not verifiable: the log has no line of NCCL's" in text for text in line["remarks"])


def test_a_resumed_session_asks_once(project: Project) -> None:
    project.control({"nccl": ["RING", "LL128"], "mode": ["ok", "hang-benchmark", "ok"]})
    project.write(f'@perf(topology="tp1", n=50, min_tokps=1, env={NOTES!r})\ndef test_one(): ...\n')
    with project.started("--perf-platform", "one") as process:
        project.reached("benchmark", calls=2)
        process.kill()
    project.nothing_left_soon()
    project.perf("--perf-platform", "one", "--perf-resume").assert_outcomes(passed=1)
    assert ["NCCL_DEBUG" in call["env"] for call in project.calls()] == [True, False, False, False]


def test_on_a_cpu_nobody_asks_nccl(r1perf_project: Project) -> None:
    r1perf_project.control({"nccl": ["TREE", "LL"]})
    r1perf_project.write(f'@perf(topology="tp1", n=50, min_tokps=1, env={NOTES!r})\ndef test_one(): ...\n')
    r1perf_project.perf().assert_outcomes(passed=1)
    assert len(r1perf_project.calls()) == 2


@pytest.mark.parametrize(
    ("env", "subsystems"),
    [
        (NOTES, "INIT,ENV,TUNING,NET"),
        ({"NCCL_PROTO": "LL128"}, "INIT,ENV,TUNING"),
        ({"NCCL_IB_HCA": "mlx5", "NCCL_NET_GDR_LEVEL": "5"}, None),
        ({"NCCL_ALGO": ""}, None),
        ({**NOTES, "NCCL_DEBUG": "VERSION"}, None),
        ({}, None),
    ],
)
def test_which_cells_are_asked(env: dict[str, str], subsystems: str | None) -> None:
    assert questions(env).get("NCCL_DEBUG_SUBSYS") == subsystems
