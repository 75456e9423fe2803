"""A site: where the cells of a platform with so many nodes run, and how something is started there.

It is the only place that knows both the launcher (nodes, agents, containers) and what is to be launched.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_r1perf.childenv import compose
from pytest_r1perf.ended import Ended, launch_problem
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.gpu.occupancy import ALLOWED_S
from pytest_r1perf.hardware import Hardware
from pytest_r1perf.launch.container import find_engine, wrap
from pytest_r1perf.launch.launcher import Allocation, Node, RankCommand
from pytest_r1perf.launch.mark import RunMark, new_mark
from pytest_r1perf.launch.process import LaunchError, Poll, supervise
from pytest_r1perf.launch.ranks import clients_for, told
from pytest_r1perf.launchsettings import ENGINES, ContainerSettings
from pytest_r1perf.network import check_given, head_address, one_host, rendezvous_environment
from pytest_r1perf.nodeinfo import NodeInfo, inspect_here
from pytest_r1perf.platform import Platform
from pytest_r1perf.sglang.leftovers import segment_closer

_LOOPBACK = "127.0.0.1"
LOG = "log.txt"
"""Rank 0's, in a run's folder."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a site needs to know of the session: its name, where launches are noted, where logs go.

    ``lease_dir`` is the lease directory that was configured, for other hosts too; ``None`` is the default one.
    """

    name: str
    state_dir: Path
    folder: Path
    lease_dir: Path | None = None


@dataclass(eq=False)
class Site:
    """Nodes that are ours for now, all alike: ``hardware`` is that of each.

    ``infos``: what the nodes are, by rank; empty for this host alone, where nobody asked. ``agent_python`` starts
    our agent on other hosts. ``lost_lease`` tells in one sentence when a lease elsewhere went away meanwhile.
    ``broken``: a launch failed, so the nodes may not be ours any more (a job that is over).
    """

    platform: Platform
    allocation: Allocation
    hardware: Hardware
    infos: tuple[NodeInfo, ...]
    session: Session
    agent_python: str = "python3"
    lost_lease: Callable[[], str | None] = lambda: None
    broken: bool = False
    _families: Iterator[int] | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In the order of their ranks."""
        return self.allocation.nodes

    @property
    def remote(self) -> bool:
        """Whether programs run through an agent, on other hosts."""
        return self.allocation.remote

    # -- the network between the ranks -----------------------------------------------------------------------

    @property
    def together(self) -> bool:
        """Whether all ranks share one host: this one, or two names of one elsewhere."""
        return not self.remote or (bool(self.infos) and one_host(self.infos))

    @property
    def hosts(self) -> dict[str, tuple[int, ...]]:
        """The ranks by host, as the hosts tell themselves apart."""
        found: dict[str, tuple[int, ...]] = {}
        for node, info in zip(self.nodes, self.infos, strict=True):
            found[info.host_id] = (*found.get(info.host_id, ()), node.rank)
        return found

    @property
    def host_count(self) -> int:
        """How many machines the ranks are on: loopback is not a network."""
        return len(self.hosts) if self.infos else 1

    @cached_property
    def head(self) -> str:
        """The address at which the ranks find rank 0."""
        return head_address(self.infos) if self.remote and self.infos else _LOOPBACK

    def rendezvous(self) -> str | None:
        """``HOST:PORT`` for one run of several nodes, a fresh port each time; ``None`` for one node."""
        if len(self.nodes) == 1:
            return None
        fixed = self.platform.launch.dist_port
        return f"{self.head}:{fixed if fixed is not None else self._port()}"

    def _port(self) -> int:
        if not self.remote:
            return free_port()
        if self._families is None:
            free = self.infos[0].free_families or (25000,) if self.infos else (25000,)
            self._families = itertools.cycle(free)
        return next(self._families)

    def rank_environment(
        self, rank: int, given: Mapping[str, str], gpus: int, *, contained: bool = False
    ) -> dict[str, str]:
        """What a rank needs beside its own flags: its GPUs on this host, its cores, its network interfaces.

        ``gpus``: how many (or cores, on a CPU) a rank uses. A variable that is ``given`` is left as it is. A
        container sees its own GPUs only, counted from 0.
        """
        from pytest_r1perf.sglang.command import core_binding

        extra: dict[str, str] = {}
        if self.hardware.is_cpu and gpus * len(self.nodes) > 1:
            cores = sorted(os.sched_getaffinity(0)) if not self.remote else list(range(self.hardware.count))
            first = rank * gpus if self.together else 0
            extra |= core_binding(cores[first : first + gpus])
        indices = self._hardware_of(rank).indices
        if indices and not contained:
            first = rank * gpus if self.together else 0
            extra["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            extra["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, indices[first : first + gpus]))
        if len(self.nodes) > 1:
            if self.together:
                extra["GLOO_SOCKET_IFNAME"] = "lo"
            else:
                extra |= rendezvous_environment(self.infos, given, rank=rank)
        return {name: value for name, value in extra.items() if name not in given}

    def devices(self, rank: int, gpus: int) -> tuple[str, ...]:
        """The devices of a rank: ranks that share a host have their own, else each has the first of its host."""
        own = self._hardware_of(rank)
        first = rank * gpus if self.together else 0
        return own.devices if own.is_cpu else own.devices[first : first + gpus]

    def _hardware_of(self, rank: int) -> Hardware:
        """That of the rank's own node: GPUs of two hosts have different UUIDs."""
        from pytest_r1perf.sites import hardware_of

        return hardware_of(self.infos[rank], self.platform) if self.infos else self.hardware

    def gpus_there(self, rank: int, gpus: int) -> tuple[str, ...]:
        """The GPUs of another host that a rank uses; none here or on a CPU."""
        return self.devices(rank, gpus) if self.remote and self.infos and not self.hardware.is_cpu else ()

    def local_gpus(self, count: int) -> tuple[str, ...]:
        """The GPUs of this host that a run of ``count`` uses; none where it runs elsewhere or on a CPU."""
        return () if self.remote or self.hardware.is_cpu else self.hardware.devices[:count]

    # -- running ---------------------------------------------------------------------------------------------

    def run(
        self,
        argv_of: Callable[[int], Sequence[str]],
        env_of: Callable[[int], Mapping[str, str]],
        *,
        image: ContainerSettings | None,
        folder: Path,
        timeout_s: float,
        ranks: int,
        gpus: int = 0,
        mounts: Sequence[str] = (),
        fetch: tuple[str, ...] = (),
        on_output: Callable[[bytes], None] | None = None,
        poll: Callable[[], Poll] | None = None,
    ) -> Ended:
        """Run one command a rank until rank 0 ends, and leave nothing of them anywhere.

        ``env_of`` gives a rank's own variables; on this host the ambient ones are under them. ``folder`` takes
        the logs (``log.txt``, ``log-rank1.txt``, ...) and the files of ``fetch``. Raises ``LaunchError``.
        """
        mark = new_mark(self.session.name)
        if gpus and self.gpus_there(0, gpus):
            timeout_s += ALLOWED_S  # the agents wait there for the memory of earlier runs, and that is no hang
        commands = [
            self._command(
                rank, argv_of(rank), env_of(rank), mark, image, folder, gpus, mounts, fetch if rank == 0 else ()
            )
            for rank in range(ranks)
        ]
        clients = clients_for(
            self.allocation,
            commands,
            python=self.agent_python,
            session=self.session.name,
            mark=mark,
            folder=folder,
            timeout_s=timeout_s,
        )
        exit_ = supervise(
            clients,
            timeout_s=timeout_s,
            mark=mark,
            state_dir=self.session.state_dir,
            on_output=on_output,
            poll=poll,
        )
        said = {client.rank: told(client.errors_path, folder) for client in clients if client.errors_path is not None}
        problem = launch_problem(self.allocation, exit_, said, image, folder)
        self.broken = self.broken or (self.remote and problem is not None)
        return Ended(exit_, said, problem)

    def _command(
        self,
        rank: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        mark: RunMark,
        image: ContainerSettings | None,
        folder: Path,
        gpus: int,
        mounts: Sequence[str],
        fetch: tuple[str, ...],
    ) -> RankCommand:
        if self.remote:
            cwd = f"/tmp/r1perf-{mark}-{rank}"
        else:
            here = folder if rank == 0 else folder / f"rank-{rank}"
            here.mkdir(exist_ok=True)
            cwd = str(here)
        closers = (segment_closer(self.agent_python if self.remote else sys.executable),)
        whole = env if self.remote else compose(env)
        command = RankCommand(rank, tuple(argv), whole, cwd, fetch, closers, self.gpus_there(rank, gpus))
        if image is None:
            return command
        return wrap(
            command,
            image,
            engine=find_engine(image) if not self.remote else image.engine or ENGINES[0],
            mark=mark,
            gpus=() if self.hardware.is_cpu else self.devices(rank, gpus),
            read_only=mounts,
            names=env.keys(),
        )

    def wrong_network(self, env: Mapping[str, str]) -> str | None:
        """The first thing wrong with the network variables of a run of several nodes, on whichever node."""
        if len(self.nodes) == 1 or not any(name.startswith(("NCCL_", "GLOO_")) for name in env):
            return None
        infos = self.infos or (inspect_here(),)
        return next((sentence for info in infos for sentence in check_given(env, info)), None)


def free_port() -> int:
    """A port of this host that nobody listens on now, below those that outgoing connections are given.

    SGLang takes the next ones as well (reference: field notes, section 6: dist port, then up to + 5).
    """
    first = 20000 + os.getpid() % 10000
    for port in itertools.chain(range(first, 32000, 8), range(20000, first, 8)):
        if all(_is_free(port + offset) for offset in range(8)):
            return port
    raise LaunchError("no 8 consecutive ports from 20000 to 32000 are free on this host: end what holds them")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def fresh_folder(base: Path, name: str) -> Path:
    """A folder that did not exist: a stale result can't be taken for a new one."""
    base.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 1000):
        folder = base / (name if attempt == 1 else f"{name}.{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise R1PerfError(f"{base} is full of runs: choose another --perf-out")
