"""Other nodes for the tests: `relay.py` stands between us and a process that is no descendant of ours."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_r1perf.launch.launcher import Node

RELAY = str(Path(__file__).with_name("relay.py"))


@dataclass(frozen=True)
class Elsewhere:
    """An allocation whose nodes all are this host, behind a relay. ``python_options`` are slipped in there."""

    count: int = 1
    python_options: tuple[str, ...] = ()
    remote: bool = True
    hosts: Mapping[int, str] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(Node(rank, self.hosts.get(rank, f"node{rank}")) for rank in range(self.count))

    def connect(self, node: Node, argv: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002
        return (sys.executable, RELAY, argv[0], *self.python_options, *argv[1:])

    def diagnose(self, said: Mapping[int, str]) -> str | None:
        unreachable = [rank for rank, text in said.items() if "No route to host" in text]
        return f"node{unreachable[0]} cannot be reached" if unreachable else None


@dataclass(frozen=True)
class Unreachable(Elsewhere):
    """A connection that fails as ssh's does."""

    def connect(self, node: Node, argv: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002
        return ("sh", "-c", f"echo 'ssh: connect to host {node.host}: No route to host' >&2; exit 255")
