"""Whatever dies in between, our processes on every node end and the leases there are free.

Each action is one that was measured to leave processes behind, or not, when nothing of ours is there: `scancel`
leaves what was daemonised, a killed ssh leaves everything, a killed `podman run` its container. Each rank's
command is a tree with a child, a daemon in a session of its own, and one that ignores SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_r1perf import devices
from pytest_r1perf.launch import container, proc, reap
from pytest_r1perf.launch.hold import lease_on
from pytest_r1perf.launch.launcher import Allocation, RankCommand
from pytest_r1perf.launch.mark import new_mark
from pytest_r1perf.launch.process import Exit, Poll, supervise
from pytest_r1perf.launch.ranks import clients_for, errors_name, told
from pytest_r1perf.launchsettings import ContainerSettings
from tests.cluster.conftest import allocate
from tests.cluster.lab import PodmanLab, SlurmLab
from tests.processes import TREE, TREE_ROLES, noted, running, script, wait_until

pytestmark = pytest.mark.cluster


class Site:
    """Directories of one test, and who of its processes runs. ``session`` is in every mark of it."""

    def __init__(self, folder: Path, session: str | None = None) -> None:
        self.folder = folder
        self.session = session or f"test{secrets.token_hex(6)}"
        self.state = folder / "state"
        self.directory = folder / "node-state"
        self.ranks: tuple[int, ...] = (0, 1)
        self.directory.mkdir(mode=0o700, exist_ok=True)

    def notes(self, rank: int) -> Path:
        return self.folder / f"notes-{rank}"

    def commands(self) -> list[RankCommand]:
        """Two nodes on one host have one file system: each rank has its own directory, not there yet."""
        commands = []
        for rank in self.ranks:
            cwd = str(self.folder / f"cwd-{rank}")
            env = {"R1PERF_TEST_NOTES": str(self.notes(rank))}
            commands.append(RankCommand(rank, tuple(script(TREE + "time.sleep(600)")), env, cwd))
        return commands

    def up(self) -> bool:
        return all(set(noted(self.notes(rank))) == TREE_ROLES for rank in self.ranks)

    def tree(self, rank: int) -> Mapping[str, tuple[int, int]]:
        return noted(self.notes(rank))

    def marked(self) -> list[reap.Victim]:
        """Whatever carries a mark of this test: agents, clients, their commands."""
        return reap.find_marked(lambda mark: mark.session == self.session)

    def still_running(self) -> list[tuple[int, str]]:
        return [(rank, role) for rank in self.ranks for role, one in self.tree(rank).items() if running(one)]

    def assert_all_gone(self) -> None:
        # Both: one that is just dying has no environment any more.
        wait_until(lambda: not self.marked() and not self.still_running(), f"nothing marked {self.session}", 20)
        for rank in self.ranks:
            assert self.tree(rank).keys() == TREE_ROLES
        # The agent made them, so they go too.
        wait_until(lambda: not list(self.folder.glob("cwd-*")), "no directory", 20)

    def assert_leases_free(self) -> None:
        names = [f"gpu-{rank}" for rank in self.ranks]

        def free() -> bool:
            with contextlib.suppress(devices.LeaseError):
                devices.acquire(
                    names, directory=self.directory, share_host=True, timeout_s=0, waiting=lambda holder: None
                ).release()
                return True
            return False

        wait_until(free, "free leases", 20)

    def assert_no_records(self) -> None:
        wait_until(lambda: not list(self.folder.glob("*/launches/*")), "no record", 20)


def client(rank: int, allocation: Allocation) -> int:
    """The pid of the local command (srun, ssh) of a rank's program, not of its lease."""
    host = allocation.nodes[rank].host
    found = []
    for stat in proc.own_processes():
        line = proc.command_line(stat.pid)
        if stat.ppid == os.getpid() and line and (host in line or f"--nodelist={host}" in line):
            found.append((stat.start, stat.pid))
    # Its lease was taken before.
    return max(found)[1]


def go(site: Site, allocation: Allocation, action: Callable[[], None], *, last_s: float | None = None) -> Exit:
    """Lease, run, act once all ranks are up, and go on until the run ends (by us after ``last_s`` more)."""
    acted_at: list[float] = []

    def poll() -> Poll:
        if not acted_at:
            if site.up():
                action()
                acted_at.append(time.monotonic())
        elif last_s is not None and time.monotonic() > acted_at[0] + last_s:
            return Poll.END
        return Poll.GO_ON

    with lease_on(
        allocation,
        {rank: [f"gpu-{rank}"] for rank in site.ranks},
        python=sys.executable,
        session=site.session,
        test="test",
        folder=site.folder,
        state_dir=site.state,
        share_host=True,
        directory=str(site.directory),
        waiting=print,
    ):
        mark = new_mark(site.session)
        clients = clients_for(
            allocation,
            site.commands(),
            python=sys.executable,
            session=site.session,
            mark=mark,
            folder=site.folder,
            timeout_s=120,
            state_dir=str(site.directory),
            grace_s=0.3,
        )
        return supervise(
            clients, timeout_s=60, mark=mark, state_dir=site.state, poll=poll, grace_s=0.3, rank_grace_s=0.5
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for victim in made.marked():  # only when the test failed
        reap.send(victim, signal.SIGKILL)


def assert_over(site: Site) -> None:
    site.assert_all_gone()
    site.assert_leases_free()
    site.assert_no_records()


# -- the run ends by itself, or by us ---------------------------------------------------------------------------


@pytest.mark.parametrize("allocation", ["ssh", "slurm"], indirect=True)
def test_a_run_that_we_end(allocation: Allocation, site: Site) -> None:
    exit_ = go(site, allocation, lambda: None, last_s=0)
    assert exit_.ended_by == "lingering"
    assert_over(site)
    for rank in site.ranks:
        said = told(site.folder / errors_name(rank))
        assert (said.ended_by, said.left, said.unclosed, said.problems) == ("lifeline", (), (), ())
        assert allocation.diagnose({rank: said.text}) is None


@pytest.mark.parametrize("allocation", ["openmpi", "mpich"], indirect=True)
def test_a_run_in_a_job_of_pbs_that_we_end(allocation: Allocation, site: Site) -> None:
    site.ranks = (0,)
    exit_ = go(site, allocation, lambda: None, last_s=0)
    assert exit_.ended_by == "lingering"
    assert_over(site)


# -- a client dies ---------------------------------------------------------------------------------------------

SIGNALS = pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name
)


@SIGNALS
@pytest.mark.parametrize("allocation", ["ssh"], indirect=True)
def test_an_ssh_that_is_killed(allocation: Allocation, site: Site, number: signal.Signals) -> None:
    exit_ = go(site, allocation, lambda: os.kill(client(1, allocation), number))
    assert exit_.ended_by == "rank"
    assert_over(site)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("allocation", ["slurm"], indirect=True)
def test_an_srun_that_is_killed(allocation: Allocation, site: Site, number: signal.Signals) -> None:
    exit_ = go(site, allocation, lambda: os.kill(client(1, allocation), number))
    assert exit_.ended_by == "rank"
    assert_over(site)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("allocation", ["openmpi", "mpich"], indirect=True)
def test_an_mpiexec_that_is_killed(allocation: Allocation, site: Site, number: signal.Signals) -> None:
    site.ranks = (0,)
    go(site, allocation, lambda: os.kill(client(0, allocation), number))
    assert_over(site)


@pytest.mark.parametrize("allocation", ["slurm"], indirect=True)
def test_one_interrupt_of_srun_ends_nothing_and_we_still_can(allocation: Allocation, site: Site) -> None:
    exit_ = go(site, allocation, lambda: os.kill(client(1, allocation), signal.SIGINT), last_s=2)
    assert exit_.ended_by == "lingering"
    assert_over(site)


@pytest.mark.parametrize("allocation", ["slurm"], indirect=True)
def test_two_interrupts_of_srun(allocation: Allocation, site: Site) -> None:
    def twice() -> None:
        pid = client(1, allocation)
        os.kill(pid, signal.SIGINT)
        time.sleep(0.3)
        os.kill(pid, signal.SIGINT)

    exit_ = go(site, allocation, twice)
    assert exit_.ended_by == "rank"
    assert_over(site)


# -- the job is taken away -------------------------------------------------------------------------------------


def steps(lab: SlurmLab) -> list[str]:
    return re.findall(r"^\d+\.\d+", lab.call("squeue", "-h", "-s", "-o", "%i"), re.MULTILINE)


@pytest.mark.parametrize("what", ["job", "steps"])
@pytest.mark.parametrize("allocation", ["slurm"], indirect=True)
def test_scancel(allocation: Allocation, site: Site, slurm_part: SlurmLab, what: str) -> None:
    """The daemonised processes are those that scancel alone leaves behind."""

    def cancel() -> None:
        jobs = [job.split()[0] for job in slurm_part.jobs()]
        slurm_part.call("scancel", *(jobs if what == "job" else steps(slurm_part)))

    go(site, allocation, cancel)
    assert_over(site)
    if what == "job":
        assert "was cancelled" in str(allocation.diagnose({}))


# -- the owner dies --------------------------------------------------------------------------------------------


def owner(site: Site, kind: str, request: pytest.FixtureRequest, *before: str) -> subprocess.Popen[bytes]:
    """A process of its own that does what pytest would; up to here nothing of it is ours."""
    options: tuple[str, ...] = ()
    if kind == "ssh":
        options = request.getfixturevalue("ssh_lab").options
    else:
        request.getfixturevalue("slurm_lab")
    argv = [*before, sys.executable, "-m", "tests.cluster.owner", kind, str(site.folder), site.session, *options]
    process = subprocess.Popen(argv, cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL)
    wait_until(lambda: site.up() or process.poll() is not None, "the ranks")
    assert process.poll() is None
    return process


@pytest.mark.parametrize("kind", ["ssh", "slurm"])
def test_an_owner_that_is_killed(site: Site, kind: str, request: pytest.FixtureRequest) -> None:
    process = owner(site, kind, request)
    process.kill()
    process.wait()
    assert_over(site)
    if kind == "slurm":
        lab: SlurmLab = request.getfixturevalue("slurm_part")
        wait_until(lambda: not lab.jobs(), "no job")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_the_salloc_that_we_run_in_is_killed(
    site: Site, request: pytest.FixtureRequest, number: signal.Signals
) -> None:
    """With TERM the job ends. With KILL it goes on, and so do we: the user's scancel ends both."""
    process = owner(site, "slurm", request, "salloc", "--nodes=2", "--job-name=users")
    lab: SlurmLab = request.getfixturevalue("slurm_part")
    process.send_signal(number)
    process.wait()
    if number == signal.SIGKILL:
        assert any(running(one) for one in site.tree(1).values())
        lab.call("scancel", "--name=users")
    assert_over(site)


# -- containers ------------------------------------------------------------------------------------------------


def contained(site: Site, lab: PodmanLab, rank: int) -> RankCommand:
    """A container whose program notes that it is up and stays; without the mark, so that only its name finds it."""
    cwd = site.folder / f"cwd-{rank}"
    mounts = (*(f"{path}:{path}:ro" for path in lab.mounts), f"{site.folder}:{site.folder}")
    program = f"import time; open({str(site.notes(rank))!r}, 'w').write('main 0 0\\n'); time.sleep(600)"
    command = RankCommand(
        rank, ("/usr/bin/env", "-i", lab.python, "-c", program), {"PATH": os.environ["PATH"]}, str(cwd)
    )
    settings = ContainerSettings(image=lab.image, mounts=mounts)
    return container.wrap(command, settings, engine=str(lab.path / "podman"), mark=new_mark(site.session), gpus=())


@pytest.mark.parametrize("kind", ["local", "ssh", "slurm"])
@pytest.mark.parametrize("how", ["ended by us", "client killed"])
def test_containers(
    site: Site,
    podman_lab: PodmanLab,
    kind: str,
    how: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        allocation = stack.enter_context(allocate(kind, request, site.folder, monkeypatch))
        commands = [contained(site, podman_lab, rank) for rank in (0, 1)]
        if kind == "local":
            for command in commands:
                Path(command.cwd).mkdir()
            commands = [
                RankCommand(one.rank, one.argv, {**os.environ, **one.env}, one.cwd, closers=one.closers)
                for one in commands
            ]
        mark = new_mark(site.session)
        clients = clients_for(
            allocation,
            commands,
            python=sys.executable,
            session=site.session,
            mark=mark,
            folder=site.folder,
            timeout_s=60,
            state_dir=str(site.directory),
            grace_s=0.3,
        )
        running_then: list[str] = []

        def poll() -> Poll:
            if running_then:
                return Poll.GO_ON
            if not all(site.notes(rank).exists() for rank in (0, 1)):
                return Poll.GO_ON
            running_then.extend(podman_lab.containers())
            if how == "ended by us":
                return Poll.END
            for stat in proc.own_processes():
                line = proc.command_line(stat.pid)
                if any("podman" in word for word in line[:2]) and container.container_name(mark, 1)[:20] in " ".join(
                    line
                ):
                    os.kill(stat.pid, signal.SIGKILL)
            return Poll.GO_ON

        exit_ = supervise(clients, timeout_s=60, mark=mark, state_dir=site.state, poll=poll, grace_s=0.3)
    assert len(running_then) == 2
    assert podman_lab.containers() == []
    assert exit_.unclosed == ()
    wait_until(lambda: not site.marked(), "nothing marked")
    site.assert_no_records()
