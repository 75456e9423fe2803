"""Asking Slurm for nodes, waiting, giving them back, and what took them away."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launch import proc
from pytest_r1perf.launch.slurm import SlurmAllocation, SlurmLauncher
from tests.cluster.lab import SlurmLab
from tests.processes import wait_until

pytestmark = pytest.mark.cluster


def launcher(folder: Path, *options: str) -> SlurmLauncher:
    return SlurmLauncher("test", folder / "state", options)


def names(lab: SlurmLab) -> list[str]:
    """Of the jobs that have not ended; one that is completing has."""
    return [name for _, state, name in (job.split() for job in lab.jobs()) if state != "COMPLETING"]


@contextlib.contextmanager
def occupied(lab: SlurmLab, *options: str) -> Iterator[str]:
    """Both nodes are somebody else's; the job's id."""
    said = lab.call("salloc", "--no-shell", "--nodes=2", "--exclusive", "--job-name=neighbour", *options)
    found = re.search(r"Granted job allocation (\d+)", said)
    assert found, said
    try:
        yield found[1]
    finally:
        lab.call("scancel", found[1])


def node_name(allocation: SlurmAllocation, rank: int) -> str:
    argv = allocation.connect(allocation.nodes[rank], ["sh", "-c", "echo $SLURMD_NODENAME"])
    return subprocess.run(argv, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout.strip()


# -- getting nodes ---------------------------------------------------------------------------------------------


def test_two_nodes_of_our_own_are_given_back(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    with launcher(tmp_path).allocate(2, print) as allocation:
        assert [(node.rank, node.host) for node in allocation.nodes] == [(0, "node1"), (1, "node2")]
        assert [node_name(allocation, rank) for rank in (0, 1)] == ["node1", "node2"]
        (name,) = names(slurm_lab)
        assert name.startswith("r1perf-test-")
        assert allocation.diagnose({0: "", 1: ""}) is None
    assert names(slurm_lab) == []
    assert list((tmp_path / "state").glob("launches/*")) == []


def test_the_users_options_cannot_change_how_many_nodes(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    with launcher(tmp_path, "--nodes=2", "--partition=urgent").allocate(1, print) as allocation:
        job = slurm_lab.call("scontrol", "show", "job", allocation.job)
    assert "NumNodes=1" in job
    assert "Partition=urgent" in job


def test_inside_a_job_its_nodes_are_taken_and_not_given_back(
    slurm_lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with occupied(slurm_lab) as job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
        with launcher(tmp_path).allocate(2, print) as allocation:
            assert [node_name(allocation, rank) for rank in (0, 1)] == ["node1", "node2"]
        with launcher(tmp_path).allocate(1, print) as allocation:
            assert [node.host for node in allocation.nodes] == ["node1"]
        with pytest.raises(R1PerfError, match=r"3 nodes are needed, and 2 \(node1, node2\) are in this Slurm job"):
            launcher(tmp_path).allocate(3, print).__enter__()
        assert names(slurm_lab) == ["neighbour"]


@pytest.mark.parametrize(
    ("options", "count", "words"),
    [
        (("--partition=nope",), 1, "invalid partition|Invalid partition"),
        ((), 5, "PartitionConfig"),
        (("--nonsense",), 1, "nonsense"),
    ],
)
def test_what_slurm_will_never_give_is_refused_with_its_own_reason(
    slurm_lab: SlurmLab, tmp_path: Path, options: tuple[str, ...], count: int, words: str
) -> None:
    with pytest.raises(R1PerfError, match=words):
        launcher(tmp_path, *options).allocate(count, print).__enter__()
    assert names(slurm_lab) == []


def test_without_slurm_the_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(R1PerfError, match="is this a host of a Slurm cluster"):
        launcher(tmp_path).allocate(1, print).__enter__()


def test_a_controller_that_is_not_there_is_named(
    tmp_path: Path, slurm_lab: SlurmLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "slurm.conf"
    text = re.sub(r"(?m)^SlurmctldPort=.*", "SlurmctldPort=9", (slurm_lab.folder / "slurm.conf").read_text())
    conf.write_text(text + "MessageTimeout=2\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    with pytest.raises(R1PerfError, match=r"Unable to (?:contact|allocate)"):
        launcher(tmp_path).allocate(1, print).__enter__()


# -- the queue -------------------------------------------------------------------------------------------------

WAITER = """
import sys
from pathlib import Path
from pytest_r1perf.launch.slurm import SlurmLauncher
with SlurmLauncher("test", Path(sys.argv[1])).allocate(2, lambda text: print(text, flush=True)) as allocation:
    print("got", *(node.host for node in allocation.nodes), flush=True)
"""


@contextlib.contextmanager
def waiter(folder: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", WAITER, str(folder / "state")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_queue_is_waited_for_and_told(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    with contextlib.ExitStack() as neighbour:
        neighbour.enter_context(occupied(slurm_lab))
        with waiter(tmp_path) as process:
            assert process.stdout is not None
            assert re.match(r"Slurm job \d+ is PENDING \((Resources|Priority)\)", process.stdout.readline())
            neighbour.close()
            assert process.stdout.read() == "got node1 node2\n"
            assert process.wait(60) == 0
    assert names(slurm_lab) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["INT", "KILL"])
def test_who_leaves_the_queue_leaves_no_job_there(slurm_lab: SlurmLab, tmp_path: Path, number: signal.Signals) -> None:
    with occupied(slurm_lab), waiter(tmp_path) as process:
        assert process.stdout is not None
        assert "PENDING" in process.stdout.readline()
        assert len(names(slurm_lab)) == 2
        process.send_signal(number)
        process.wait(60)
        wait_until(lambda: names(slurm_lab) == ["neighbour"], "no job but the neighbour's")
        wait_until(lambda: not list((tmp_path / "state").glob("launches/*")), "no record")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
def test_a_salloc_that_is_killed_leaves_no_job(slurm_lab: SlurmLab, tmp_path: Path, number: signal.Signals) -> None:
    """Killed with KILL it leaves its request in the queue (measured): ours is taken back by name."""
    told: list[str] = []

    def kill(sentence: str) -> None:
        told.append(sentence)
        for stat in proc.own_processes():
            line = proc.command_line(stat.pid)
            if stat.ppid == os.getpid() and line[:1] == ("salloc",):
                os.kill(stat.pid, number)

    with occupied(slurm_lab), pytest.raises(R1PerfError):
        launcher(tmp_path).allocate(2, kill).__enter__()
    assert told
    assert names(slurm_lab) == []


# -- what takes them away --------------------------------------------------------------------------------------


def cancel_job(lab: SlurmLab, job: str) -> None:
    lab.call("scancel", job)


def cancel_step(lab: SlurmLab, job: str) -> None:
    (step,) = re.findall(rf"{job}\.\d+", lab.call("squeue", "-h", "-s", "-j", job, "-o", "%i"))
    lab.call("scancel", step)


def take_node_down(lab: SlurmLab, _job: str) -> None:
    lab.call("scontrol", "update", "nodename=node2", "state=down", "reason=test")


def preempt(lab: SlurmLab, _job: str) -> None:
    options = ("--no-shell", "--nodes=2", "--exclusive", "--partition=urgent", "--job-name=urgent")
    threading.Thread(target=lab.call, args=("salloc", *options), daemon=True).start()


LOSSES = [
    (cancel_job, r"Slurm job {job} was cancelled"),
    (cancel_step, r"somebody cancelled the step on node2 \(scancel\), not the whole Slurm job {job}"),
    (take_node_down, r"a node of the Slurm job {job} failed|the node node2 of the Slurm job {job} failed"),
    (preempt, r"Slurm job {job} was preempted"),
]


@pytest.mark.parametrize(("lose", "cause"), LOSSES, ids=[lose.__name__ for lose, _ in LOSSES])
def test_a_job_that_is_lost_says_how(
    slurm_lab: SlurmLab, tmp_path: Path, lose: Callable[[SlurmLab, str], None], cause: str
) -> None:
    with launcher(tmp_path, "--exclusive").allocate(2, print) as allocation:
        argv = allocation.connect(allocation.nodes[1], ["sh", "-c", "echo up; exec sleep 600"])
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            assert allocation.diagnose({1: ""}) is None
            lose(slurm_lab, allocation.job)
            _, said = process.communicate(timeout=60)
        wait_until(lambda: allocation.diagnose({0: "", 1: said}) is not None, "a diagnosis")
        assert re.search(cause.format(job=allocation.job), str(allocation.diagnose({0: "", 1: said}))), said


@pytest.mark.usefixtures("slurm_lab")
def test_a_client_that_we_end_ourselves_is_no_loss(tmp_path: Path) -> None:
    with launcher(tmp_path).allocate(1, print) as allocation:
        argv = allocation.connect(allocation.nodes[0], ["sh", "-c", "echo up; exec sleep 600"])
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.terminate()
            _, said = process.communicate(timeout=60)
        assert "CANCELLED" in said
        assert allocation.diagnose({0: said}) is None
    assert allocation.diagnose({0: said}) is None


@pytest.mark.usefixtures("slurm_lab")
def test_the_job_is_released_with_its_steps_still_running(tmp_path: Path) -> None:
    with launcher(tmp_path).allocate(1, print) as allocation:
        program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
        argv = allocation.connect(allocation.nodes[0], [sys.executable, "-c", program])
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        pid = json.loads(process.stdout.readline())
    process.wait(60)
    process.stdout.close()
    stat = proc.read_stat(pid)
    assert stat is None or stat.gone
