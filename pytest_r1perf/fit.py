"""Does a topology fit a platform, and the platform this host? Counted both ways: an idle GPU is a finding."""

from __future__ import annotations

from pytest_r1perf.hardware import Hardware
from pytest_r1perf.platform import Platform
from pytest_r1perf.topology import Topology


def misfit(topology: Topology, platform: Platform, hardware: Hardware | None) -> str | None:
    """Why the platform can't run the topology on this host, with what it needs and has; ``None`` when it can."""
    unit = "cores" if platform.is_cpu else "GPUs"
    needs = f"topology {topology.name!r} needs {topology.gpus_used} {unit} on {_nodes(topology.nnodes)}"
    if hardware is None:
        return f"{needs}; platform {platform.name!r} is {platform.accelerator}, and this host has no such GPU"
    if not platform.is_cpu and hardware.name != platform.accelerator:
        return f"{needs}; platform {platform.name!r} is {platform.accelerator}, and this host has {hardware}"
    per_node = hardware.count if platform.gpus_per_node is None else platform.gpus_per_node
    if topology.nnodes > platform.nodes:
        return f"{needs}; platform {platform.name!r} has {_nodes(platform.nodes)} with {per_node} {unit} each"
    if topology.gpus_used > topology.nnodes * per_node:
        return f"{needs}; platform {platform.name!r} has {per_node} {unit} on each of {_nodes(topology.nnodes)}"
    if topology.gpus_used > topology.nnodes * hardware.count:
        return f"{needs}; this host has {hardware.count}"
    return None


def idle(topology: Topology, platform: Platform) -> str | None:
    """A note when GPUs of the nodes that a topology takes stay unused."""
    if platform.gpus_per_node is None:
        return None
    allocated = topology.nnodes * platform.gpus_per_node
    unused = allocated - topology.gpus_used
    if unused <= 0:
        return None
    return f"{unused} of {allocated} GPUs stay idle: {topology.name} uses {topology.gpus_used}"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
