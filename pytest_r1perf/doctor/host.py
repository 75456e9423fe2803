"""The host itself: memory, /dev/shm, limits, processors; and all checks of one node together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytest_r1perf.doctor.check import Check, fail, gib, ok, skip, warn
from pytest_r1perf.doctor.gpu import gpu_checks
from pytest_r1perf.doctor.network import network_checks
from pytest_r1perf.doctor.ports import HTTP_PORT, port_checks
from pytest_r1perf.doctor.processes import stranger_check
from pytest_r1perf.nodeinfo import NodeInfo
from pytest_r1perf.platform import Platform

_GIB = 1 << 30
GPU_SHM = 16 * _GIB
"""Ours: half of the private-deployment guide's ``docker run --shm-size 32g``."""

CPU_SHM = _GIB
"""Ours: a container's default of 64 MiB is too small for the engine's queues (one of SGLang's has 24 MiB)."""

OPEN_FILES = 65535
"""What SGLang raises its own limit to when it may (``set_ulimit``)."""


def node_checks(
    node: NodeInfo,
    platform: Platform,
    *,
    env: Mapping[str, str],
    our_pids: Iterable[int] = (),
    http_port: int = HTTP_PORT,
    dist_port: int | None = None,
) -> list[Check]:
    """Every check that needs only what was seen of a node: for this host and for others.

    ``env`` is the run's environment (its network variables and CUDA_VISIBLE_DEVICES), ``our_pids`` are those of our
    own sessions there.
    """
    return [
        *gpu_checks(node, platform, env.get("CUDA_VISIBLE_DEVICES")),
        stranger_check(node, our_pids),
        *port_checks(node, http_port=http_port, dist_port=dist_port),
        *host_checks(node, platform),
        *network_checks(node, platform, env),
    ]


def host_checks(node: NodeInfo, platform: Platform) -> list[Check]:
    """Memory, /dev/shm, processors, limits."""
    return [
        _memory(node),
        *_shm(node, platform),
        _processors(node),
        *_limits(node, platform),
    ]


def _memory(node: NodeInfo) -> Check:
    name = "memory"
    if node.memory_total is None or node.memory_available is None:
        return skip(name, f"/proc/meminfo of {node.hostname} could not be read")
    text = f"{gib(node.memory_available)} of {gib(node.memory_total)} available"
    if node.memory_available < min(node.memory_total / 4, 64 * _GIB):
        return warn(name, text, "see who holds it (ps aux --sort=-rss): the OOM killer ends runs")
    return ok(name, text)


def _shm(node: NodeInfo, platform: Platform) -> list[Check]:
    name = "/dev/shm"
    if node.shm is None:
        return [skip(name, f"/dev/shm of {node.hostname} could not be read")]
    needed = CPU_SHM if platform.is_cpu else GPU_SHM
    text = f"{gib(node.shm.free)} of {gib(node.shm.total)} free"
    if node.shm.free < needed:
        enough = "there is room when the segments below are gone" if node.shm.total >= needed else "it is too small"
        checks = [
            fail(
                name,
                f"{text}; NCCL and SGLang's processes share memory there: {enough}",
                f"in a container give it --shm-size {needed // _GIB * 2}g or --ipc=host; on a host remount it larger",
            )
        ]
    else:
        checks = [ok(name, text)]
    leaked = [one for one in node.shm.segments if one.open is False]
    if leaked:
        largest = sorted(leaked, key=lambda one: -one.bytes)
        shown = ", ".join(f"{one.name} ({gib(one.bytes)}, {one.user})" for one in largest[:3])
        more = f" and {len(leaked) - 3} more" if len(leaked) > 3 else ""
        checks.append(
            warn(
                "leaked segments",
                f"{gib(sum(one.bytes for one in leaked))} in /dev/shm that no process has open: {shown}{more}",
                "remove those that are yours (rm): a killed run leaves them, and they count as used memory",
            )
        )
    else:
        checks.append(ok("leaked segments", f"none; {len(node.shm.segments)} files of 1 MiB or more are there"))
    return checks


def _processors(node: NodeInfo) -> Check:
    name = "processors"
    if node.cores is None:
        return skip(name, "the usable cores could not be read")
    numa = "unknown" if node.numa_nodes is None else str(node.numa_nodes)
    text = f"{node.cores} usable cores, {node.cpu or 'unknown CPU'}, NUMA nodes: {numa}"
    near = {gpu.numa_node for gpu in node.gpus or () if gpu.numa_node is not None}
    if len(near) > 1:
        text += f", GPUs on nodes {', '.join(map(str, sorted(near)))}"
    if node.numa_balancing and (node.numa_nodes or 1) > 1:
        return warn(
            name,
            f"{text}; automatic NUMA balancing is on, and moves pages while a run is timed",
            "sysctl kernel.numa_balancing=0 (as root), or leave it so for all runs, baselines included",
        )
    return ok(name, text)


def _limits(node: NodeInfo, platform: Platform) -> list[Check]:
    checks = []
    if node.nofile is None:
        checks.append(skip("open files", "the limit could not be read"))
    else:
        soft, hard = node.nofile
        text = f"limit {_limit(soft)}, up to {_limit(hard)}"
        if hard != -1 and hard < OPEN_FILES and not platform.is_cpu:
            checks.append(
                warn(
                    "open files",
                    f"{text}; SGLang wants {OPEN_FILES}",
                    "raise it (limits.conf, --ulimit nofile)",
                )
            )
        else:
            checks.append(ok("open files", text))
    if node.memlock is None:
        checks.append(skip("locked memory", "the limit could not be read"))
    elif node.memlock[0] != -1 and node.ib_ports:
        checks.append(
            warn(
                "locked memory",
                f"limit {gib(node.memlock[0])}; RDMA locks the memory that it sends from",
                "ulimit -l unlimited (limits.conf; in a container --ulimit memlock=-1), or NCCL fails",
            )
        )
    else:
        shown = "unlimited" if node.memlock[0] == -1 else gib(node.memlock[0])
        checks.append(ok("locked memory", f"limit {shown}" + ("" if node.ib_ports else "; no adapter needs more")))
    return checks


def _limit(value: int) -> str:
    return "unlimited" if value == -1 else str(value)
