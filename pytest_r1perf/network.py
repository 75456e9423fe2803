"""How the nodes of a run reach each other, from what was seen on them; nothing here looks at this host.

SGLang needs the head's address, torch and NCCL the interfaces and adapters. A wrong name costs hours: Gloo takes an
unset variable for a name, and NCCL passes over an adapter that does not exist without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface

from pytest_r1perf.errors import R1PerfError, did_you_mean
from pytest_r1perf.nodeinfo import IbPort, Interface, NodeInfo

LOOPBACK = "127.0.0.1"

_VIRTUAL = re.compile(r"(docker|br-|virbr|veth|cni|cali|flannel|podman|lxc|tun|tap|kube|ifb|dummy)")
"""Interfaces that end on their host: two hosts may well have the same subnet behind them."""


def one_host(nodes: Sequence[NodeInfo]) -> bool:
    """Whether all nodes are one machine (two "nodes" on one host, or a single one)."""
    return len({node.host_id for node in nodes}) <= 1


def head_address(nodes: Sequence[NodeInfo]) -> str:
    """The head's IPv4 address by which the others reach it; ``nodes[0]`` is the head.

    Loopback when all nodes are one host. Else an address in a subnet that every node is in, on the default
    route's interface before others and on Ethernet before InfiniBand; without such a subnet, the address on the
    default route's interface. Raises :class:`R1PerfError` when the head has none.
    """
    if not nodes:
        raise R1PerfError("a run needs a node, and none was given")
    if one_host(nodes):
        return LOOPBACK
    head = nodes[0]
    candidates = _addresses(head)
    shared = [
        (interface, address)
        for interface, address in candidates
        if all(_neighbour(address, node) for node in nodes[1:] if node.host_id != head.host_id)
    ]
    routed = [entry for entry in candidates if entry[0].name == head.default_route]
    for entries in (shared, routed):
        if entries:
            best = min(entries, key=lambda entry: (entry[0].name != head.default_route, entry[0].is_infiniband))
            return str(best[1].ip)
    others = ", ".join(node.hostname for node in nodes[1:])
    raise R1PerfError(
        f"{head.hostname} has no IPv4 address in a subnet of {others} and no default route: give "
        f"it an address the others reach, or bring an interface up ({_described(head)})"
    )


def socket_interface(node: NodeInfo, address: str) -> str | None:
    """The node's interface by which it reaches ``address``: its own, one of that subnet, else the default route's.

    ``None`` when there is none, or ``address`` is no IPv4 address.
    """
    try:
        target = IPv4Address(address)
    except ValueError:
        return None
    entries = [(interface, one) for interface in node.interfaces or () for one in map(IPv4Interface, interface.ipv4)]
    for interface, one in entries:
        if one.ip == target:
            return interface.name
    near = [
        (interface, one)
        for interface, one in entries
        if interface.is_up and target in one.network and not _VIRTUAL.match(interface.name)
    ]
    if near:
        return max(near, key=lambda entry: entry[1].network.prefixlen)[0].name
    return node.default_route if not target.is_loopback else None


def hca_list(node: NodeInfo) -> tuple[str, ...]:
    """The adapters' ports that NCCL should use, as NCCL_IB_HCA spells them: ``mlx5_0:1``.

    Active ports of one kind (InfiniBand where there is any, else RoCE: NCCL refuses to mix them), and of those the
    fastest: a slower one is for storage or management.
    """
    active = [port for port in node.ib_ports or () if port.is_active]
    kind = [port for port in active if port.link_layer == "InfiniBand"] or active
    fastest = max((port.gbits for port in kind), default=0.0)
    return tuple(str(port) for port in sorted(kind, key=_order) if port.gbits == fastest)


def rendezvous_environment(nodes: Sequence[NodeInfo], given: Mapping[str, str], *, rank: int = 0) -> dict[str, str]:
    """What to add to a rank's environment so that Gloo and NCCL meet on the right network.

    GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME and NCCL_IB_HCA, with names of the rank's own node. Empty on one host,
    and nothing that was given is replaced. NCCL takes names as prefixes (mlx5_1 is mlx5_10 too) unless an ``=`` is
    before them (NCCL's misc/utils.cc, matchIf); Gloo takes them as they are.
    """
    if one_host(nodes):
        return {}
    node = nodes[rank]
    added: dict[str, str] = {}
    interface = socket_interface(node, head_address(nodes))
    if interface is not None:
        added = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    adapters = hca_list(node)
    if adapters and given.get("NCCL_IB_DISABLE", "0") == "0":
        added["NCCL_IB_HCA"] = "=" + ",".join(adapters)
    return {name: value for name, value in added.items() if name not in given}


def check_given(env: Mapping[str, str], node: NodeInfo) -> list[str]:
    """What is wrong with the network variables that a user gave, one sentence each; empty when nothing is."""
    problems: list[str] = []
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"):
        if name not in env:
            continue
        value = env[name]
        exact, words = _words(name, value)
        if not words:
            problems.append(
                f"{name} is empty ({value!r}): the variable in the script that sets it was never set; "
                f"name {'an adapter' if name == 'NCCL_IB_HCA' else 'an interface'} or leave {name} out"
            )
        elif name == "NCCL_IB_HCA":
            problems += _check_adapters(value, exact, words, node)
        else:
            problems += _check_interfaces(name, exact, words, node)
    return problems


def check_base_url(text: str) -> str | None:
    """What is wrong with a server's URL, in one sentence, or ``None``: a missing scheme or host is the usual slip."""
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        scheme, rest = "", text.strip()
    host = rest.partition("/")[0]
    if not host or host.startswith(":"):
        return f"base URL {text!r} has no host: the variable before the port was never set; give http://HOST{host}"
    if not separator:
        return f"base URL {text!r} has no scheme; did you mean {'http://' + rest!r}?"
    if scheme not in ("http", "https"):
        return f"base URL {text!r} has the scheme {scheme!r}; give http or https"
    return None


def _words(name: str, value: str) -> tuple[bool, list[str]]:
    """(exact, names); an exclusion (``^mlx5_3``) is checked like a choice: an absent name excludes nothing."""
    words = [word.strip() for word in value.strip().removeprefix("^").removeprefix("=").split(",")]
    exact = name.startswith("GLOO") or value.strip().removeprefix("^").startswith("=")
    return exact, [word for word in words if word]


def _check_adapters(value: str, exact: bool, words: Iterable[str], node: NodeInfo) -> list[str]:
    if node.ib_ports is None:
        return []
    if not node.ib_ports:
        return [f"NCCL_IB_HCA is {value!r}, and {node.hostname} shows no adapter at all: NCCL would use TCP sockets"]
    ports = {str(port): port for port in node.ib_ports}
    devices = {port.device for port in node.ib_ports}
    problems = []
    for word in words:
        matching = [port for port in ports.values() if _is_meant(port, word, exact)]
        if not matching:
            known = ports if ":" in word else devices
            problems.append(
                f"NCCL_IB_HCA names {word!r}, which {node.hostname} does not have, and NCCL passes over it without "
                f"a word; {did_you_mean(word, known)}"
            )
        elif not any(port.is_active for port in matching) and not value.startswith("^"):
            states = ", ".join(f"{port} {port.state or 'unknown'}" for port in matching)
            problems.append(
                f"NCCL_IB_HCA names {word!r}, whose link on {node.hostname} is down ({states}); "
                f"active: {', '.join(hca_list(node)) or 'none'}"
            )
    return problems


def _check_interfaces(name: str, exact: bool, words: Iterable[str], node: NodeInfo) -> list[str]:
    if node.interfaces is None:
        return []
    interfaces = {interface.name: interface for interface in node.interfaces}
    problems = []
    for word in words:
        found = [one for key, one in interfaces.items() if (key == word if exact else key.startswith(word))]
        if not found:
            problems.append(
                f"{name} names {word!r}, which {node.hostname} does not have; {did_you_mean(word, interfaces)}"
            )
        elif not any(one.is_up and (one.ipv4 or one.ipv6) for one in found):
            problems.append(
                f"{name} names {word!r}, which on {node.hostname} is {found[0].state or 'unknown'} and has "
                f"{'an' if found[0].ipv4 else 'no'} address; {_described(node)}"
            )
    return problems


def _is_meant(port: IbPort, word: str, exact: bool) -> bool:
    device, _, number = word.partition(":")
    named = port.device == device if exact else port.device.startswith(device)
    return named and number in ("", str(port.port))


def _addresses(node: NodeInfo) -> list[tuple[Interface, IPv4Interface]]:
    """Addresses that another host could reach."""
    return [
        (interface, address)
        for interface in node.interfaces or ()
        if interface.is_up and not _VIRTUAL.match(interface.name)
        for address in map(IPv4Interface, interface.ipv4)
        if not address.ip.is_loopback and not address.ip.is_link_local
    ]


def _neighbour(address: IPv4Interface, node: NodeInfo) -> bool:
    """Whether the node is in that subnet, with an address of its own: the same one on both is a bridge of each."""
    return any(one.network == address.network and one.ip != address.ip for _, one in _addresses(node))


def _order(port: IbPort) -> tuple[str, int, int]:
    digits = re.search(r"(\d+)$", port.device)
    return re.sub(r"\d+$", "", port.device), int(digits[1]) if digits else -1, port.port


def _described(node: NodeInfo) -> str:
    shown = [
        f"{interface.name} {interface.state or 'unknown'} {', '.join(interface.ipv4) or 'no IPv4'}"
        for interface in node.interfaces or ()
    ]
    return f"interfaces of {node.hostname}: {'; '.join(shown) or 'none seen'}"
