"""The TCP ports that SGLang takes. Facts: SGLang's PortArgs (server_args.py), 0.4.6 to 0.5.23."""

from __future__ import annotations

from pytest_r1perf.doctor.check import Check, ok, skip, warn
from pytest_r1perf.nodeinfo import NodeInfo

HTTP_PORT = 30000
"""SGLang's default."""

FAMILY = 6
"""The rendezvous port and five after it: detokenizer, rpc, metrics, scheduler input, load collector."""

DP_OFFSET = 233
"""Without a rendezvous address DP attention takes the family at the HTTP port + 233."""


def port_checks(node: NodeInfo, *, http_port: int = HTTP_PORT, dist_port: int | None = None) -> list[Check]:
    """The HTTP port, the family of the rendezvous port, and which families are free.

    Two sockets can bind one port after the other was looked at, so a free port is a hope; one that is held is a fact.
    """
    if node.listening is None:
        return [skip("ports", f"the listening ports of {node.hostname} could not be read")]
    holders = {entry.port: entry.user for entry in node.listening}
    free = node.free_families or ()
    suggestion = f"use a free family of {FAMILY} ports, as {free[0]}" if free else "end what holds the ports"
    first = http_port + DP_OFFSET if dist_port is None else dist_port
    family = range(first, first + FAMILY)
    checks = [
        _held("HTTP port", [http_port], holders, "name another port, or ask its user to end the server"),
        _held("rendezvous ports", list(family), holders, suggestion),
    ]
    if free:
        checks.append(ok("free families", f"{', '.join(map(str, free))} and the {FAMILY - 1} ports after each"))
    else:
        checks.append(
            warn(
                "free families",
                f"no {FAMILY} consecutive free ports were found on {node.hostname}",
                "end what listens there: DP attention and several nodes need such a family",
            )
        )
    return checks


def _held(name: str, ports: list[int], holders: dict[int, str], mend: str) -> Check:
    shown = str(ports[0]) if len(ports) == 1 else f"{ports[0]} to {ports[-1]}"
    held = [f"{port} (listened on by {holders[port]})" for port in ports if port in holders]
    if held:
        return warn(name, f"of {shown} in use: {', '.join(held)}", mend)
    if ports[-1] >= 32768:
        return warn(
            name,
            f"{shown} lies in the range that the kernel hands out to clients (from 32768)",
            "choose below 32768: a client's socket may sit on it when the run starts",
        )
    return ok(name, f"{shown} free")
