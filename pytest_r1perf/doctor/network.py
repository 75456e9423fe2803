"""The network between nodes: adapters, the variables that a user gave, and whether the nodes can meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_r1perf.doctor.check import Check, fail, ok, skip, warn
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.network import (
    check_given,
    hca_list,
    head_address,
    one_host,
    rendezvous_environment,
    socket_interface,
)
from pytest_r1perf.nodeinfo import NodeInfo
from pytest_r1perf.platform import Platform

CLOCK_SKEW_S = 30.0
"""Ours: logs of two hosts can still be laid side by side; the looks themselves are seconds apart."""


def network_checks(node: NodeInfo, platform: Platform, env: Mapping[str, str]) -> list[Check]:
    """Addresses and adapters of one node, and the network variables of the run's environment."""
    return [_addresses(node), _adapters(node, platform), _variables(node, platform, env)]


def meeting_checks(nodes: Sequence[NodeInfo], env: Mapping[str, str]) -> list[Check]:
    """Can these nodes meet, over what, and do their clocks agree? ``nodes[0]`` is the head."""
    if one_host(nodes):
        return [skip("rendezvous", "one host: over loopback")]
    try:
        address = head_address(nodes)
    except R1PerfError as error:
        return [fail("rendezvous", str(error), "bring up an interface that all nodes share")]
    lost = [node.hostname for node in nodes if socket_interface(node, address) is None]
    if lost:
        return [
            fail("rendezvous", f"{', '.join(lost)} has no interface towards the head's {address}", "look at its routes")
        ]
    added = rendezvous_environment(nodes, env)
    shown = " ".join(f"{name}={value}" for name, value in added.items()) or "all variables were given"
    checks = [ok("rendezvous", f"the head is {nodes[0].hostname} at {address}; {shown}")]
    times = [node.time for node in nodes if node.time]
    if times and max(times) - min(times) > CLOCK_SKEW_S:
        checks.append(
            warn(
                "host clocks",
                f"the nodes' clocks are up to {max(times) - min(times):.0f} s apart",
                "start chrony or ntpd: logs and telemetry of the nodes cannot be laid side by side",
            )
        )
    return checks


def _addresses(node: NodeInfo) -> Check:
    name = "network"
    if node.interfaces is None:
        return skip(name, f"the interfaces of {node.hostname} could not be read")
    shown = [f"{one.name} {', '.join(one.ipv4)}" for one in node.interfaces if one.is_up and one.ipv4]
    route = node.default_route or "none"
    if not shown:
        return warn(
            name,
            f"no interface of {node.hostname} that is up has an IPv4 address (iproute2 missing, or IPv6 only)",
            "SGLang's processes meet over IPv4 loopback: ip link set lo up",
        )
    return ok(name, f"{'; '.join(shown)}; default route {route}")


def _adapters(node: NodeInfo, platform: Platform) -> Check:
    name = "adapters"
    if not node.ib_ports:
        if platform.nodes > 1:
            return warn(
                name,
                f"{node.hostname} shows no InfiniBand or RoCE adapter, and platform {platform.name!r} has "
                f"{platform.nodes} nodes: NCCL would use TCP sockets",
                "load the driver (lsmod | grep mlx5); a container needs --device=/dev/infiniband or --privileged",
            )
        return skip(name, "no InfiniBand or RoCE adapter, and one node needs none")
    down = [f"{port} {port.state or 'unknown'}" for port in node.ib_ports if not port.is_active]
    used = hca_list(node)
    if not used:
        return (fail if platform.nodes > 1 else warn)(
            name, f"no link is up: {', '.join(down)}", "look at cables and subnet manager (ibstat)"
        )
    first = next(port for port in node.ib_ports if str(port) == used[0])
    broken = f"; down: {', '.join(down)}" if down else ""
    text = f"{len(used)} x {first.link_layer or 'unknown'} {first.rate or 'of unknown rate'}: {', '.join(used)}"
    if platform.nodes > 1 and platform.gpus_per_node and len(used) < platform.gpus_per_node:
        return warn(
            name,
            f"{text}; fewer than the {platform.gpus_per_node} GPUs of a node{broken}",
            "look at the links that are down: traffic between nodes shares those that are left",
        )
    return ok(name, text + broken)


def _variables(node: NodeInfo, platform: Platform, env: Mapping[str, str]) -> Check:
    name = "network variables"
    given = {key: value for key, value in sorted(env.items()) if key.startswith("NCCL_") or key == "GLOO_SOCKET_IFNAME"}
    problems = check_given(env, node)
    checked = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME")
    problems += [f"{key} is set to nothing" for key, value in given.items() if not value.strip() and key not in checked]
    if problems:
        only_nccl = platform.is_cpu and not any(problem.startswith("GLOO") for problem in problems)
        complain = warn if only_nccl else fail  # no GPU, no NCCL
        return complain(name, "; ".join(problems), "correct the variable where it is exported, or unset it")
    shown = " ".join(f"{key}={value}" for key, value in given.items())
    return ok(name, shown or "none given; for several nodes they are filled in from what is seen on them")
