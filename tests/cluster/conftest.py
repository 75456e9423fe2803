"""The lab's parts, each started once a session when a test first asks for it.

What is not installed skips its tests with the reason, and fails them under ``R1PERF_REQUIRE_CLUSTER=1``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_r1perf.launch.launcher import Allocation
from pytest_r1perf.launch.local import LocalLauncher
from pytest_r1perf.launch.pbs import PbsLauncher
from pytest_r1perf.launch.slurm import SlurmLauncher
from pytest_r1perf.launch.ssh import SshLauncher
from tests.cluster import lab
from tests.cluster.lab import PodmanLab, SlurmLab, SshLab

T = TypeVar("T")


@pytest.fixture(scope="session")
def lab_folder() -> Iterator[Path]:
    """Not below pytest's own: the paths of Unix sockets are short, and munged wants its parents unwritable."""
    folder = Path(tempfile.mkdtemp(prefix="r1perf-lab-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _had(start: Callable[[Path], AbstractContextManager[T]], folder: Path) -> Iterator[T]:
    with contextlib.ExitStack() as stack:
        try:
            part = stack.enter_context(start(folder))
        except (lab.NoLab, OSError) as error:
            if os.environ.get("R1PERF_REQUIRE_CLUSTER"):
                pytest.fail(str(error), pytrace=False)
            pytest.skip(str(error))
        yield part


@pytest.fixture(scope="session")
def ssh_lab(lab_folder: Path) -> Iterator[SshLab]:
    yield from _had(lab.ssh_lab, lab_folder / "ssh")


@pytest.fixture(scope="session")
def slurm_part(lab_folder: Path) -> Iterator[SlurmLab]:
    yield from _had(lab.slurm_lab, lab_folder / "slurm")


@pytest.fixture(scope="session")
def podman_part(lab_folder: Path) -> Iterator[PodmanLab]:
    yield from _had(lab.podman_lab, lab_folder / "podman")


@pytest.fixture(scope="session")
def mpi_part(lab_folder: Path) -> Iterator[Callable[[str], Path]]:
    yield from _had(lambda folder: contextlib.nullcontext(lab.mpi_folders(folder)), lab_folder / "mpi")


@pytest.fixture
def slurm_lab(slurm_part: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> SlurmLab:
    """Slurm with both nodes idle, and we are on a login node of it."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "SALLOC", "SRUN")):
            monkeypatch.delenv(name)
    for name, value in slurm_part.env.items():
        monkeypatch.setenv(name, value)
    # Between two hosts a mark ends nothing: here, where both are one, it is not passed on, so that what ends the far
    # side is what would end it there.
    monkeypatch.setenv("SLURM_EXPORT_ENV", "ALL,R1PERF_RUN_ID=none")
    slurm_part.clear()
    return slurm_part


@pytest.fixture
def podman_lab(podman_part: PodmanLab, monkeypatch: pytest.MonkeyPatch) -> PodmanLab:
    """Podman first on the PATH is the lab's, and no container is there."""
    monkeypatch.setenv("PATH", f"{podman_part.path}{os.pathsep}{os.environ['PATH']}")
    for name in podman_part.containers():
        podman_part.call("rm", "-f", name)
    return podman_part


@pytest.fixture
def allocation(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Allocation]:
    """Nodes from the launcher that the test's parameter names; two of them where the lab has two."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(allocate(request.param, request, tmp_path, monkeypatch))


def allocate(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AbstractContextManager[Allocation]:
    if kind == "local":
        return LocalLauncher().allocate(2, print)
    if kind == "ssh":
        part: SshLab = request.getfixturevalue("ssh_lab")
        return SshLauncher(("node1", "node2"), part.options).allocate(2, print)
    if kind == "slurm":
        request.getfixturevalue("slurm_lab")
        return SlurmLauncher("test", tmp_path / "state").allocate(2, print)
    folders: Callable[[str], Path] = request.getfixturevalue("mpi_part")
    nodes = tmp_path / "nodes"
    nodes.write_text("localhost\n" * 2)
    monkeypatch.setenv("PBS_NODEFILE", str(nodes))
    monkeypatch.setenv("PATH", f"{folders(kind)}{os.pathsep}{os.environ['PATH']}")
    # Open MPI wants to hear twice that root may do this.
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    return PbsLauncher().allocate(1, print)


@pytest.fixture
def through(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Any]:
    """The ``launch:`` section of a launcher, its part of the lab started."""

    def section(kind: str) -> dict[str, Any]:
        if kind == "ssh":
            part: SshLab = request.getfixturevalue("ssh_lab")
            return {"by": "ssh", "hosts": ["node1", "node2"], "options": list(part.options)}
        if kind == "slurm":
            request.getfixturevalue("slurm_lab")
            return {"by": "slurm"}
        if kind == "local":
            return {"by": "local"}
        folders: Callable[[str], Path] = request.getfixturevalue("mpi_part")
        nodes = tmp_path / "nodes"
        nodes.write_text("localhost\n127.0.0.1\n")
        monkeypatch.setenv("PBS_NODEFILE", str(nodes))
        monkeypatch.setenv("PATH", f"{folders(kind)}:{os.environ['PATH']}")
        monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
        monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        return {"by": "pbs"}

    return section
