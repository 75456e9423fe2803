"""Whole sessions of the plugin on two nodes, through every launcher; the fake SGLang stands in for the benchmark."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.lab import SlurmLab, SshLab
from tests.project import Project

pytestmark = pytest.mark.cluster

SUITE = """
@perf(topology="two", n=50)
def test_two(): ...
"""
# Characters that a shell, ssh, srun or a container would take for their own.
WILD = """we ird 'q' "d" $HOME `x` \\ *\n*é漢"""


def platform(project: Project, launch: Mapping[str, Any] | None = None, **changes: Any) -> None:
    """A platform of two nodes and a topology for them, beside the fake environment."""
    cpu: dict[str, Any] = {
        "model_path": str(project.model),
        "datasets": {"sharegpt": str(project.dataset)},
        "sglang": str(project.environment),
        "rounds": {"min": 1, "max": 1},
        "timeout_s": {"value": 60},
        "noise": None,
        "nodes": 2,
        "launch": dict(launch or {}),
        **changes,
    }
    topologies = {"two": {"tp_size": 2, "nnodes": 2, "source": "test"}}
    text = yaml.safe_dump({"platforms": {"cpu": cpu}, "topologies": topologies}, allow_unicode=True)
    (project.root / "r1perf.yaml").write_text(text)
    project.write(SUITE)


@pytest.fixture
def project(r1perf_project: Project) -> Project:
    return r1perf_project


@pytest.mark.parametrize("kind", ["local", "ssh", "slurm", "mpich"])
def test_two_ranks_give_one_sample(project: Project, through: Callable[[str], Any], kind: str) -> None:
    platform(project, through(kind), env={"WILD": WILD})
    result = project.perf("--perf-update-new")
    result.assert_outcomes(passed=1)
    (sample,) = project.samples()
    assert sample["metrics"]["total_throughput"] == pytest.approx(4500, rel=0.01)
    ranks = {call["cell"]: call for call in project.calls()}
    assert set(ranks) == {"n50", "n50@rank1"}
    addresses = {call["argv"][call["argv"].index("--dist-init-addr") + 1] for call in ranks.values()}
    assert len(addresses) == 1
    for call in ranks.values():
        assert call["wild"] == WILD
    folder = Path(sample["log"]).parent
    assert "server_args=" in (folder / "log-rank1.txt").read_text()
    project.nothing_left()


@pytest.mark.parametrize("kind", ["local", "ssh", "slurm"])
def test_rank_1_dies_at_start(project: Project, through: Callable[[str], Any], kind: str) -> None:
    """Rank 0 waits for it and would for as long as the timeout; the cause is in rank 1's log."""
    platform(project, through(kind), timeout_s={"value": 120})
    project.control_file.write_text(
        json.dumps({"cells": {"n50": {"mode": "hang-start"}, "n50@rank1": {"mode": "oom"}}})
    )
    result = project.perf()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*OOM: two default n=50*", "*cause: rank 1*ended first: *out of memory*"])
    result.stdout.fnmatch_lines(["*log-rank1.txt*"])
    project.nothing_left()


def test_head_port_taken(project: Project, through: Callable[[str], Any]) -> None:
    platform(project, through("local"))
    project.control_file.write_text(
        json.dumps({"cells": {"n50": {"mode": "hang-start"}, "n50@rank1": {"mode": "port"}}})
    )
    result = project.perf()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*INFRA: two default n=50*", "*cause: rank 1*address already in use*"])
    project.nothing_left()


@pytest.mark.parametrize("kind", ["local", "ssh", "slurm"])
def test_both_ranks_hang(project: Project, through: Callable[[str], Any], kind: str) -> None:
    platform(project, through(kind), timeout_s={"value": 4})
    project.control_file.write_text(json.dumps({"cells": {"n50": {"mode": "hang-start"}}}))
    result = project.perf()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*HANG: two default n=50*"])
    project.nothing_left()


def test_unreachable_host(project: Project, ssh_lab: SshLab) -> None:
    launch = {"by": "ssh", "hosts": ["node1", "node9.invalid"], "options": list(ssh_lab.options)}
    platform(project, launch)
    result = project.perf()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*INFRA: two default n=50*", "*node9.invalid*"])
    project.nothing_left()


def test_remote_python_missing(project: Project, through: Callable[[str], Any]) -> None:
    platform(project, through("ssh"), sglang="/opt/no such/sglang")
    result = project.perf()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*INFRA: two default n=50*", "*Python that shall run our agent is not on node1*"])


def test_a_cancelled_job_is_infra(project: Project, through: Callable[[str], Any], slurm_lab: SlurmLab) -> None:
    platform(project, through("slurm"), timeout_s={"value": 100})
    project.control_file.write_text(json.dumps({"cells": {"n50": {"mode": "hang-warm-up"}}}))
    with project.started() as process:
        project.reached("warm-up")
        (job,) = slurm_lab.jobs()
        slurm_lab.call("scancel", job.split()[0])
        output, _ = process.communicate(timeout=60)
    assert "INFRA: two default n=50" in output, output
    assert "was cancelled while it was used" in output
    project.nothing_left()
    assert slurm_lab.jobs() == []


@pytest.mark.parametrize("kind", ["local", "ssh", "slurm"])
def test_pytest_is_killed(project: Project, through: Callable[[str], Any], kind: str) -> None:
    """SIGKILL: the guards and agents end everything, and the next session can measure."""
    platform(project, through(kind), timeout_s={"value": 100})
    project.control_file.write_text(json.dumps({"cells": {"n50": {"mode": ["hang-warm-up", "ok"]}}}))
    with project.started() as process:
        project.reached("warm-up")
        process.kill()
        process.wait()
    project.nothing_left_soon()
    result = project.perf("--perf-update-new")
    result.assert_outcomes(passed=1)
    project.nothing_left()


@pytest.mark.parametrize("kind", ["local", "ssh"])
def test_flags_are_refused_before_anything_starts(project: Project, through: Callable[[str], Any], kind: str) -> None:
    platform(project, through(kind))
    project.write(
        """
        @perf(topology="two", n=50, flags={"no_such_flag": 1})
        def test_unknown(): ...

        @perf(topology="two", n=50, flags={"schedule_policy": "lifo"})
        def test_choice(): ...
        """
    )
    result = project.perf()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*CONFIG: *no_such_flag*", "*cause: *no_such_flag*0.5.20*"])
    result.stdout.fnmatch_lines(["*cause: *schedule_policy*lifo*"])
    assert project.calls() == []


def test_two_workers_of_one_job_take_turns(project: Project, through: Callable[[str], Any]) -> None:
    """A batch system's nodes are leased, too: otherwise two workers would measure on them at once."""
    platform(project, through("ssh"))
    project.write(
        """
        @perf(topology="two", n=50)
        def test_one(): ...

        @perf(topology="two", n=60)
        def test_other(): ...
        """
    )
    project.control({"mode": "slow"})
    result = project.perf_subprocess("--perf-update-new", "-n", "2")
    result.assert_outcomes(passed=2)
    spans = sorted((call["start"], call["end"]) for call in project.spans())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans)), spans
    project.nothing_left()


def test_environments_of_a_job_that_is_over_are_asked_again(
    project: Project, through: Callable[[str], Any], slurm_lab: SlurmLab
) -> None:
    """One node, two nodes, one node: each time another allocation."""
    platform(project, through("slurm"))
    project.write(
        """
        @perf(topology="tp1", n=50)
        def test_a(): ...

        @perf(topology="two", n=50)
        def test_b(): ...

        @perf(topology="tp1", n=60)
        def test_c(): ...
        """
    )
    result = project.perf("--perf-update-new")
    result.assert_outcomes(passed=3)
    assert slurm_lab.jobs() == []


def test_a_node_that_does_not_confirm_its_end(project: Project, through: Callable[[str], Any]) -> None:
    """Its agent is stopped: rank 0 has a result, and nobody knows what still runs beside it."""
    platform(project, through("ssh"))
    project.control_file.write_text(json.dumps({"cells": {"n50": {"mode": "wait-benchmark"}}}))
    with project.started("--perf-update-new") as process:
        project.reached("benchmark", calls=2)
        agent = project.parent_of("n50@rank1")
        os.kill(agent, signal.SIGSTOP)
        (project.fake / "go").touch()
        try:
            output, _ = process.communicate(timeout=90)
        finally:
            os.kill(agent, signal.SIGKILL)
    assert "did not confirm that its processes ended" in output, output
    assert "INFRA" in output
    project.nothing_left_soon()
