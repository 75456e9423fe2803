"""The sites of a session: nodes are got when a cell first needs them, looked at, and kept until others are needed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_r1perf.cell import Cell
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.fit import unlike
from pytest_r1perf.hardware import Hardware, hardware_for
from pytest_r1perf.launch.launcher import Allocation, Launcher, Node
from pytest_r1perf.launch.local import LocalLauncher
from pytest_r1perf.launch.slurm import SlurmLauncher
from pytest_r1perf.nodeinfo import SCRIPT, Gpu, NodeInfo, read_node
from pytest_r1perf.platform import Platform
from pytest_r1perf.site import LOG, Session, Site, fresh_folder

_INSPECT_S = 300.0


@dataclass
class Sites:
    """Gives each cell its site. ``waiting`` is told, now and then, what nodes are waited for.

    At most one allocation of other hosts is held at a time: a job that waits for nodes while it holds others
    could wait for itself.
    """

    session: Callable[[], Session]
    waiting: Callable[[str], None]
    _sites: dict[tuple[str, int], Site] = field(default_factory=dict)
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _launcher: Launcher | None = None

    def site(self, cell: Cell, python: str) -> Site:
        """The site of a cell; ``python`` starts our agent on its nodes (where they are other hosts).

        Raises ``LaunchError`` when the nodes can't be got or reached, and :class:`R1PerfError` when they are not
        what the platform says.
        """
        platform, nnodes = cell.platform, cell.topology.nnodes
        key = (platform.name, nnodes)
        if key in self._sites and self._sites[key].broken:
            self._give_back()
        if key not in self._sites:
            by = platform.launch.chosen(nnodes, os.environ)
            self._sites[key] = self._local(platform, nnodes) if by == "local" else self._reach(cell, by, python)
        site = self._sites[key]
        _refuse_unlike(site, cell)
        return site

    def known(self, cell: Cell) -> Site | None:
        """The site of a cell, if there is one already."""
        return self._sites.get((cell.platform.name, cell.topology.nnodes))

    def close(self) -> None:
        """Give back every allocation."""
        self._give_back()

    def _give_back(self) -> None:
        self._sites = {key: site for key, site in self._sites.items() if not site.remote}
        self._held.close()
        if isinstance(self._launcher, SlurmLauncher):
            for sentence in self._launcher.unclosed:
                self.waiting(sentence)
        self._launcher = None

    def _local(self, platform: Platform, nnodes: int) -> Site:
        hardware = hardware_for(is_cpu=platform.is_cpu)
        if hardware is None:
            raise R1PerfError(f"this host has no {platform.accelerator}")
        stack = contextlib.ExitStack()
        allocation = stack.enter_context(LocalLauncher().allocate(nnodes, self.waiting))
        return Site(platform, allocation, hardware, (), self.session())

    def _reach(self, cell: Cell, by: str, python: str) -> Site:
        from pytest_r1perf.launchers import launcher_for

        self._give_back()
        session = self.session()
        launcher = launcher_for(cell.platform, by, session)
        with contextlib.ExitStack() as stack:
            allocation = stack.enter_context(launcher.allocate(cell.topology.nnodes, self.waiting))
            infos = tuple(inspect(cell.platform, allocation, node, python, session) for node in allocation.nodes)
            site = Site(cell.platform, allocation, hardware_of(infos[0], cell.platform), infos, session, python)
            self._held, self._launcher = stack.pop_all(), launcher
        return site


@dataclass(frozen=True, slots=True)
class _Alone:
    """One node of an allocation, for what is asked of each by itself."""

    whole: Allocation
    node: Node

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (Node(0, self.node.host),)

    @property
    def remote(self) -> bool:
        return self.whole.remote

    def connect(self, node: Node, argv: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002
        return self.whole.connect(self.node, argv)

    def diagnose(self, said: Mapping[int, str]) -> str | None:
        return self.whole.diagnose({self.node.rank: said.get(0, "")})


def inspect(platform: Platform, allocation: Allocation, node: Node, python: str, session: Session) -> NodeInfo:
    """Ask a node what it is. Raises ``LaunchError`` or :class:`R1PerfError`."""
    from pytest_r1perf.launch.process import LaunchError

    none = Hardware("unknown", 0, (), is_cpu=True)
    alone = Site(platform, _Alone(allocation, node), none, (), session, python)
    folder = fresh_folder(session.folder, f"inspect-{node.host or 'here'}")
    source = SCRIPT.read_text(encoding="utf-8")
    ended = alone.run(
        lambda rank: (python, "-c", source),
        lambda rank: {},
        image=None,
        folder=folder,
        timeout_s=_INSPECT_S,
        ranks=1,
    )
    if ended.launch_problem is not None:
        raise LaunchError(ended.launch_problem)
    text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
    return read_node(text, node.host)


def hardware_of(info: NodeInfo, platform: Platform) -> Hardware:
    """What a node has that a program there may use. Raises :class:`R1PerfError` for no GPU, or different ones."""
    if platform.is_cpu:
        return Hardware(info.cpu or "unknown CPU", info.cores or 1, ("cpu",), is_cpu=True)
    gpus = _visible(info)
    names = {gpu.name for gpu in gpus}
    if len(names) > 1:
        raise R1PerfError(f"{info.hostname} has different GPUs ({', '.join(sorted(names))}): choose equal ones")
    if not gpus:
        raise R1PerfError(f"{info.hostname} has no NVIDIA GPU that nvidia-smi shows")
    uuids, indices = tuple(gpu.uuid for gpu in gpus), tuple(gpu.index for gpu in gpus)
    return Hardware(names.pop(), len(gpus), uuids, is_cpu=False, indices=indices)


def _visible(info: NodeInfo) -> tuple[Gpu, ...]:
    """The GPUs that a program there may use: a batch system gives each step its own CUDA_VISIBLE_DEVICES."""
    gpus, given = info.gpus or (), info.cuda_visible_devices
    if given is None:
        return gpus
    wanted = [entry.strip() for entry in given.split(",") if entry.strip()]
    return tuple(
        gpu
        for entry in wanted
        for gpu in gpus
        if str(gpu.index) == entry or (gpu.uuid.startswith(entry) and entry[0] == "G")
    )


def _refuse_unlike(site: Site, cell: Cell) -> None:
    """Refuse nodes that are not what the platform says, or not all alike."""
    for node, info in zip(site.nodes, site.infos, strict=False):
        hardware = hardware_of(info, site.platform)
        reason = unlike(site.platform, cell.topology, hardware, node.host or info.hostname)
        if reason is None and hardware.name != site.hardware.name:
            reason = f"{node.host} has {hardware}, and {site.nodes[0].host} has {site.hardware}"
        if reason is not None:
            raise R1PerfError(f"{reason}: mend the platform's entry in your r1perf.yaml, or take other nodes")
