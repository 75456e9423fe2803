"""Leases on other nodes: an agent there takes the locks and holds them until its lifeline ends.

The same locks as those of sessions on that host (``devices.acquire``), so each waits for the other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_r1perf.launch.client import Running, start
from pytest_r1perf.launch.guarded import LaunchError
from pytest_r1perf.launch.held import held
from pytest_r1perf.launch.launcher import Allocation, Node
from pytest_r1perf.launch.logfile import LogFile
from pytest_r1perf.launch.mark import RunMark
from pytest_r1perf.launch.ranks import connected
from pytest_r1perf.launch.wire import packed, sifted

_LOOK_S = 0.05
# For an agent to let go of its locks and say goodbye; the connection is ended after that.
_PATIENCE_S = 10.0


class Leases:
    """The leases of all nodes, while they are held."""

    def __init__(self) -> None:
        self._holders: list[tuple[Node, Running, Path]] = []

    def lost(self) -> str | None:
        """Which lease went away although nobody gave it back, in one sentence; ``None`` as long as none did."""
        for node, agent, errors in self._holders:
            if agent.ended():
                return f"the lease on {node.host} was lost: {_last_words(errors)}"
        return None


@contextlib.contextmanager
def lease_on(
    allocation: Allocation,
    devices_by_rank: Mapping[int, Sequence[str]],
    *,
    python: str,
    session: str,
    test: str,
    folder: Path,
    state_dir: Path,
    share_host: bool,
    waiting: Callable[[str], None],
    directory: str | None = None,
) -> Iterator[Leases]:
    """Hold the devices of every node while the block runs; wait for them as long as it takes.

    ``state_dir`` is this host's, ``directory`` the nodes' lease directory (its default when ``None``).
    ``waiting`` is told in one sentence, every few seconds, who holds what. Raises ``LaunchError`` when a node
    cannot be reached or its lease directory is unfit.
    """
    leases = Leases()
    with contextlib.ExitStack() as stack:
        stack.callback(_collect, leases)
        hold = stack.enter_context(held(session, state_dir))
        stack.callback(_release, leases)
        # One after another, in one order for all sessions: nobody waits in a circle.
        for node in sorted(
            (node for node in allocation.nodes if node.rank in devices_by_rank), key=lambda one: one.host
        ):
            spec = {
                "kind": "hold",
                "devices": list(devices_by_rank[node.rank]),
                "session": session,
                "test": test,
                "share_host": share_host,
                "state_dir": None if directory is None else packed(directory),
            }
            errors = folder / f"lease-rank{node.rank}.txt"
            _lease(allocation, node, python, spec, hold.mark, errors, leases, waiting)
        yield leases


def _lease(
    allocation: Allocation,
    node: Node,
    python: str,
    spec: dict[str, object],
    mark: RunMark,
    errors: Path,
    leases: Leases,
    waiting: Callable[[str], None],
) -> None:
    client = connected(allocation, node.rank, python, spec, mark, log_path=errors, errors_path=errors)
    lines = bytearray()
    errors.unlink(missing_ok=True)  # an earlier lease's words
    with LogFile(errors) as log:
        agent = start(client, log.descriptor, log.descriptor)
        leases._holders.append((node, agent, errors))
        while True:
            ended = agent.ended()
            agent.pump()
            log.tail(lines.extend, everything=ended)
            whole, newline, rest = lines.rpartition(b"\n")
            lines[:] = rest
            events, _ = sifted((whole + newline).decode("utf-8", "replace"))
            for event in events:
                if event["event"] == "leased":
                    return
                if event["event"] == "waiting":
                    waiting(f"{node.host}: {event['device'] or 'a device'} is leased by {event['holder']}")
            if ended:
                said = {node.rank: _text(errors)}
                sentence = allocation.diagnose(said) or f"no lease on {node.host}: {_last_words(errors)}"
                raise LaunchError(sentence)
            time.sleep(_LOOK_S)


def _release(leases: Leases) -> None:
    holders = [agent for _, agent, _ in leases._holders]
    for agent in holders:
        agent.close_lifeline()
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until and not all(agent.ended() for agent in holders):
        time.sleep(_LOOK_S)


def _collect(leases: Leases) -> None:
    for _, agent, _ in leases._holders:
        agent.collect()


def _text(errors: Path) -> str:
    with contextlib.suppress(OSError):
        return errors.read_text(encoding="utf-8", errors="replace")
    return ""


def _last_words(errors: Path) -> str:
    """What the agent gave as its problem, else the last line of its connection."""
    events, rest = sifted(_text(errors))
    problems = [str(event["sentence"]) for event in events if event["event"] == "problem"]
    last = rest.splitlines()[-1] if rest else "the connection ended without a word"
    return problems[-1] if problems else last
