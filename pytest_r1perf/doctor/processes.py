"""Who else runs SGLang here, and what dead sessions of ours left. Nothing is ended."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_r1perf.doctor.check import Check, ok, skip, warn
from pytest_r1perf.launch.reap import Victim, find_marked
from pytest_r1perf.nodeinfo import NodeInfo


def our_processes() -> tuple[list[Victim], list[Victim]]:
    """(of dead sessions, of sessions that still run), on this host and of this user only."""
    from pytest_r1perf.launch.mark import owner_alive

    return find_marked(lambda mark: not owner_alive(mark)), find_marked(owner_alive)


def session_checks(dead: list[Victim], live: list[Victim]) -> list[Check]:
    """What sessions of this user run or left running here."""
    checks = []
    if dead:
        checks.append(
            warn(
                "leftovers",
                f"{len(dead)} processes of sessions that have ended: {_listed(dead)}",
                "the next perf session of this user ends them at its start",
            )
        )
    else:
        checks.append(ok("leftovers", "no process of a dead session"))
    if live:
        sessions = sorted({victim.mark.session for victim in live})
        checks.append(
            warn(
                "sessions",
                f"{len(live)} processes of {', '.join(sessions)} run now: {_listed(live)}",
                "wait for it: a perf session waits for the lease, anything else started now would change its numbers",
            )
        )
    return checks


def stranger_check(node: NodeInfo, ours: Iterable[int]) -> Check:
    """Processes that are SGLang's and not of a session of ours, by anyone."""
    name = "other SGLang"
    if node.sglang_processes is None:
        return skip(name, f"the processes of {node.hostname} could not be read")
    known = set(ours)
    others = [one for one in node.sglang_processes if one.pid not in known]
    if not others:
        return ok(name, "no other SGLang process is shown")
    listed = [f"pid {one.pid} of {one.user} ({one.name[:80]})" for one in others[:4]]
    if len(others) > 4:
        listed.append(f"{len(others) - 4} more")
    orphans = [one for one in others if one.ppid == 1 and one.name.startswith("sglang::")]
    return warn(
        name,
        "; ".join(listed) + (f"; {len(orphans)} of them lost their parent" if orphans else ""),
        "ask their user to end them: a neighbour changes the numbers, an orphan holds its memory for ever",
    )


def _listed(victims: list[Victim]) -> str:
    shown = [f"pid {victim.pid} ({' '.join(victim.cmdline)[:60] or 'no command line'})" for victim in victims[:3]]
    return ", ".join(shown) + (f", {len(victims) - 3} more" if len(victims) > 3 else "")
