"""Does a topology fit a platform, and the platform this host? Counted both ways: an idle GPU is a finding."""

from __future__ import annotations

from pytest_r1perf.hardware import Hardware
from pytest_r1perf.platform import Platform
from pytest_r1perf.topology import Topology


def misfit(topology: Topology, platform: Platform, hardware: Hardware | None, *, remote: bool = False) -> str | None:
    """Why the platform can't run the topology, with what it needs and has; ``None`` when it can.

    ``hardware`` is this host's; where the ranks run on other hosts (``remote``) only what the platform says of
    them counts here, and they are looked at when they are reached.
    """
    unit = "core" if platform.is_cpu else "GPU"
    needs = f"topology {topology.name!r} needs {_counted(topology.gpus_used, unit)} on {_nodes(topology.nnodes)}"
    if topology.nnodes > platform.nodes:
        counted = f" with {_counted(platform.gpus_per_node, unit)} each" if platform.gpus_per_node else ""
        return f"{needs}; platform {platform.name!r} has {_nodes(platform.nodes)}{counted}"
    per_node = platform.gpus_per_node
    if per_node is not None and topology.gpus_used > topology.nnodes * per_node:
        return (
            f"{needs}; platform {platform.name!r} has {_counted(per_node, unit)} on each of {_nodes(topology.nnodes)}"
        )
    return None if remote else _misfit_here(needs, topology, platform, hardware)


def unlike(platform: Platform, topology: Topology, hardware: Hardware, host: str) -> str | None:
    """Why a host that was reached is not what the platform says of it; ``None`` when it is."""
    if not platform.is_cpu and hardware.name != platform.accelerator:
        return f"{host} has {hardware}, and platform {platform.name!r} is {platform.accelerator}"
    needed = topology.gpus_used // topology.nnodes
    if hardware.count < needed:
        return f"{host} has {hardware}, and topology {topology.name!r} needs {needed} on each node"
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


def _misfit_here(needs: str, topology: Topology, platform: Platform, hardware: Hardware | None) -> str | None:
    if hardware is None:
        return f"{needs}; platform {platform.name!r} is {platform.accelerator}, and this host has no such GPU"
    if not platform.is_cpu and hardware.name != platform.accelerator:
        return f"{needs}; platform {platform.name!r} is {platform.accelerator}, and this host has {hardware}"
    if topology.gpus_used <= hardware.count:
        return None
    if topology.nnodes > 1:
        return (
            f"{needs}; this host has {hardware.count}, and platform {platform.name!r} does not say how to reach "
            f"other nodes: give it `launch:` in your r1perf.yaml (ssh, slurm or pbs)"
        )
    return f"{needs}; this host has {hardware.count}"


def _nodes(count: int) -> str:
    return _counted(count, "node")


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
