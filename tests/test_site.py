"""Where ranks run: devices, ports, environments and the hosts behind their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.hardware import Hardware
from pytest_r1perf.launch.launcher import Node
from pytest_r1perf.launch.local import LocalLauncher
from pytest_r1perf.launchsettings import LaunchSettings
from pytest_r1perf.nodeinfo import Gpu, Interface, NodeInfo
from pytest_r1perf.place import Answer
from pytest_r1perf.site import Session, Site, free_port
from pytest_r1perf.siteplace import interpreter_there
from pytest_r1perf.sites import hardware_of

CATALOG = load_catalog()
H200 = Hardware("NVIDIA H200", 8, tuple(f"GPU-{n}" for n in range(8)), is_cpu=False, indices=tuple(range(8)))


@dataclass(frozen=True)
class Elsewhere:
    """Nodes that nothing is started on."""

    nodes: tuple[Node, ...]
    remote: bool = True

    def connect(self, node: Node, argv: Sequence[str]) -> tuple[str, ...]:
        raise AssertionError((node, argv))

    def diagnose(self, said: Mapping[int, str]) -> str | None:
        raise AssertionError(said)


def site(tmp_path: Path, *hosts: str, remote: bool = True, hardware: Hardware = H200) -> Site:
    """A site on these machines, one rank each; the same name twice is one machine."""
    session = Session("s", tmp_path, tmp_path)
    platform = CATALOG.platform("cpu" if hardware.is_cpu else "h200x16")
    if not remote:
        with LocalLauncher().allocate(len(hosts), print) as allocation:
            return Site(platform, allocation, hardware, (), session)
    infos = tuple(
        NodeInfo(
            hostname=host,
            boot_id=host,
            cpu="Some CPU",
            cores=hardware.count,
            gpus=tuple(Gpu(n, f"GPU-{n}", "NVIDIA H200") for n in range(8)),
            free_families=(21000, 21016),
            interfaces=(Interface("eth0", "up", 1, ipv4=(f"10.0.0.{ord(host)}/24",)),),
        )
        for host in hosts
    )
    nodes = tuple(Node(rank, f"alias{rank}") for rank in range(len(hosts)))
    return Site(platform, Elsewhere(nodes), hardware, infos, session)


@pytest.mark.parametrize(
    ("hosts", "remote", "indices"),
    [
        (("a", "b"), True, ["0,1,2,3", "0,1,2,3"]),  # each host has its own
        (("a", "a"), True, ["0,1,2,3", "4,5,6,7"]),  # two names of one host
        (("a", "a"), False, ["0,1,2,3", "4,5,6,7"]),  # ranks on this host
    ],
)
def test_each_rank_has_its_own_gpus(tmp_path: Path, hosts: tuple[str, ...], remote: bool, indices: list[str]) -> None:
    """By number in PCI order: SGLang's custom all-reduce reads whole numbers, so UUIDs end in a ValueError."""
    here = site(tmp_path, *hosts, remote=remote)
    found = [here.rank_environment(rank, {"NCCL_SOCKET_IFNAME": "x", "GLOO_SOCKET_IFNAME": "x"}, 4) for rank in (0, 1)]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in found] == indices
    assert {env["CUDA_DEVICE_ORDER"] for env in found} == {"PCI_BUS_ID"}
    leased = [here.devices(rank, 4) for rank in (0, 1)]
    assert [",".join(uuid.removeprefix("GPU-") for uuid in uuids) for uuids in leased] == indices


def test_a_container_counts_its_own_gpus(tmp_path: Path) -> None:
    assert "CUDA_VISIBLE_DEVICES" not in site(tmp_path, "a").rank_environment(0, {}, 8, contained=True)


def test_ranks_on_a_cpu_have_cores_of_their_own(tmp_path: Path) -> None:
    cpu = Hardware("Some CPU", 4, ("cpu",), is_cpu=True)
    two = site(tmp_path, "a", "a", hardware=cpu)
    bound = [two.rank_environment(rank, {}, 2)["SGLANG_CPU_OMP_THREADS_BIND"] for rank in (0, 1)]
    assert bound == ["0|1", "2|3"]
    apart = site(tmp_path, "a", "b", hardware=cpu)
    given = {"NCCL_SOCKET_IFNAME": "x", "GLOO_SOCKET_IFNAME": "x"}
    assert [apart.rank_environment(rank, given, 2)["SGLANG_CPU_OMP_THREADS_BIND"] for rank in (0, 1)] == ["0|1", "0|1"]


def test_what_was_given_is_left_as_it_is(tmp_path: Path) -> None:
    two = site(tmp_path, "a", "a")
    assert two.rank_environment(0, {}, 4)["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in two.rank_environment(0, {"GLOO_SOCKET_IFNAME": "eth7"}, 4)


def test_hosts_are_counted_by_what_they_are(tmp_path: Path) -> None:
    assert site(tmp_path, "a", "b").host_count == 2
    assert site(tmp_path, "a", "a").host_count == 1
    assert site(tmp_path, "a", "a", remote=False).host_count == 1
    assert site(tmp_path, "a", "b", "a").hosts == {"a": (0, 2), "b": (1,)}


def test_a_fresh_port_each_time(tmp_path: Path) -> None:
    """The ports of a run before may still be in TIME_WAIT."""
    there = site(tmp_path, "a", "a")
    first, second = there.rendezvous(), there.rendezvous()
    assert (first, second) == ("127.0.0.1:21000", "127.0.0.1:21016")
    assert site(tmp_path, "a").rendezvous() is None
    assert 20000 <= free_port() < 32000


def test_a_port_that_was_set_is_taken(tmp_path: Path) -> None:
    there = site(tmp_path, "a", "a")
    there.platform = replace(there.platform, launch=LaunchSettings(by="ssh", hosts=("a", "b"), dist_port=5000))
    assert there.rendezvous() == "127.0.0.1:5000"


@pytest.mark.parametrize(
    ("visible", "devices", "indices"),
    [
        (None, ("GPU-a", "GPU-b", "GPU-c"), (0, 1, 2)),
        ("2,0", ("GPU-c", "GPU-a"), (2, 0)),
        ("GPU-b", ("GPU-b",), (1,)),
    ],
)
def test_a_batch_system_chooses_the_gpus(
    visible: str | None, devices: tuple[str, ...], indices: tuple[int, ...]
) -> None:
    gpus = tuple(Gpu(number, f"GPU-{'abc'[number]}", "NVIDIA H200") for number in range(3))
    found = hardware_of(NodeInfo("n1", gpus=gpus, cuda_visible_devices=visible), CATALOG.platform("h200x16"))
    assert (found.devices, found.indices, found.count) == (devices, indices, len(devices))


@pytest.mark.parametrize(
    ("environ", "nnodes", "by"),
    [
        ({}, 1, "local"),
        ({}, 2, "local"),
        ({"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}, 1, "local"),
        ({"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}, 2, "slurm"),
        ({"SLURM_JOB_ID": "7"}, 1, "slurm"),  # the shell of salloc, on a login node
        ({"PBS_NODEFILE": "/n"}, 1, "local"),
        ({"PBS_NODEFILE": "/n"}, 2, "pbs"),
    ],
)
def test_the_launcher_that_is_chosen(environ: dict[str, str], nnodes: int, by: str) -> None:
    assert LaunchSettings().chosen(nnodes, environ) == by
    assert LaunchSettings(by="ssh", hosts=("a",)).chosen(nnodes, environ) == "ssh"


def test_an_answer_among_other_words() -> None:
    text = 'hello\n{"a": 1}\n[rank0]:[W130 ProcessGroup.cpp] Warning: destroy was not called\n{broken\n'
    assert Answer(text, "", 0).json() == {"a": 1}
    with pytest.raises(ValueError, match="no such module"):
        Answer("Traceback\nno such module", "", 1).json()


def test_the_interpreter_that_is_meant_elsewhere() -> None:
    assert interpreter_there("/opt/a b/") == "/opt/a b/bin/python"
    assert interpreter_there("/usr/bin/python3.12") == "/usr/bin/python3.12"
