"""Ranks on this host: one for most topologies, several for a rehearsal of more nodes on one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_r1perf.launch.launcher import Node


@dataclass(frozen=True, slots=True)
class LocalAllocation:
    """This host, once for each rank."""

    nodes: tuple[Node, ...]
    remote: bool = False

    def connect(self, node: Node, argv: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002
        """The command itself."""
        return tuple(argv)

    def diagnose(self, said: Mapping[int, str]) -> str | None:  # noqa: ARG002
        """Nothing lies between us and the command that could break."""
        return None


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """``host``: by what name or address the ranks reach each other."""

    host: str = "127.0.0.1"
    name: str = "local"

    @contextlib.contextmanager
    def allocate(self, count: int, waiting: Callable[[str], None]) -> Iterator[LocalAllocation]:  # noqa: ARG002
        """Nothing is waited for, and nothing given back."""
        yield LocalAllocation(tuple(Node(rank, self.host) for rank in range(count)))
