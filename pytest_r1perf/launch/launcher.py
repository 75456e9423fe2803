"""What a launcher is: where the ranks of a run are, and how a program is started there.

A launcher knows no SGLang and supervises nothing. It names the nodes, and says which local command runs a
program on one of them with standard input, output and error connected. Everything else (the run mark, logs,
timeout, ending) is the same for all of them: ``process.py`` here, and a copy of it on the other node
(``agent.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Node:
    """One host of a run. ``rank`` is SGLang's ``--node-rank``; ``host`` is the name its launcher knows it by."""

    rank: int
    host: str


@dataclass(frozen=True, slots=True)
class Closer:
    """A command that ends what no signal reaches from here: a container, a batch job.

    Run where the process that it belongs to runs, by whoever ends the run: us, the guard after our death, or
    the next session. It must be harmless when there is nothing left to end; ``gone`` is a regular expression
    of what it says then (searched in its output, case ignored), for commands that exit non-zero in that case.
    ``env`` is added to the environment. Both are written to disk: no secrets.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    gone: str = ""


@dataclass(frozen=True, slots=True)
class RankCommand:
    """What runs on one node.

    ``env`` is the whole environment on this host; on another it is added to what a login there has. ``cwd``
    is made when it is missing on another host (and removed with all in it at the end). ``fetch`` are files in
    ``cwd`` that are brought here when the command has ended. ``gpus``: UUIDs of GPUs of another host, which have to
    be free before the command is started there, and are watched beside it.
    """

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    fetch: tuple[str, ...] = ()
    closers: tuple[Closer, ...] = ()
    gpus: tuple[str, ...] = ()


class Allocation(Protocol):
    """Nodes that are ours until the ``with`` block of :meth:`Launcher.allocate` is left."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In the order of their ranks; rank 0 is the head."""
        ...

    @property
    def remote(self) -> bool:
        """Whether programs run elsewhere, through :meth:`connect` and the agent."""
        ...

    def connect(self, node: Node, argv: Sequence[str]) -> tuple[str, ...]:
        """The local command that runs ``argv`` on the node, its three standard streams connected to ours.

        ``argv`` is quoted so that any character survives.
        """
        ...

    def diagnose(self, said: Mapping[int, str]) -> str | None:
        """Why the launch itself broke, in one sentence with the way to mend it; ``None`` when it did not.

        ``said`` is what each rank's local command wrote to standard error: an unreachable host, a changed
        host key, a cancelled or preempted job.
        """
        ...


class Launcher(Protocol):
    """A way to get nodes; one file each."""

    @property
    def name(self) -> str:
        """As platforms write it: ``local``, ``ssh``, ``slurm``, ``pbs``."""
        ...

    def allocate(self, count: int, waiting: Callable[[str], None]) -> AbstractContextManager[Allocation]:
        """``count`` nodes, waited for as long as it takes; ``waiting`` is told what for, now and then.

        Time in a queue is no part of any benchmark's timeout. Raises ``LaunchError``. However the block is
        left (also when this process is killed), what was allocated is given back.
        """
        ...
