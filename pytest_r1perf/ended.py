"""A run that is over: how it ended on every node, and whether what broke was the launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_r1perf.launch.container import diagnose
from pytest_r1perf.launch.launcher import Allocation
from pytest_r1perf.launch.process import Exit
from pytest_r1perf.launch.ranks import Told, errors_name, log_name
from pytest_r1perf.launchsettings import ContainerSettings


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over: its exit, and what each rank's agent told (empty on this host)."""

    exit: Exit
    told: Mapping[int, Told] = field(default_factory=dict)
    launch_problem: str | None = None

    @property
    def returncode(self) -> int | None:
        """Rank 0's own: on another host its agent tells it, and ssh's or srun's says nothing of it."""
        there = self.told.get(0)
        return self.exit.returncode if there is None or there.ended_by is None else there.returncode

    @property
    def left(self) -> tuple[str, ...]:
        """What could not be ended, on whichever node, for people."""
        here = [f"process {victim.pid}" for victim in self.exit.left]
        there = [f"process {pid} on {one.host}" for one in self.told.values() for pid in one.left]
        silent = [f"{one.host} did not confirm that its processes ended" for one in self.silent]
        unclosed = [text for one in self.told.values() for text in one.unclosed]
        return (*here, *there, *silent, *self.exit.unclosed, *unclosed)

    @property
    def silent(self) -> tuple[Told, ...]:
        """The agents that started their command and never said how it ended."""
        return tuple(one for one in self.told.values() if one.started and one.ended_by is None)


def launch_problem(
    allocation: Allocation, exit_: Exit, said: Mapping[int, Told], image: ContainerSettings | None, folder: Path
) -> str | None:
    """Why the launch itself broke (a host, a job, a container engine), in one sentence; ``None`` when it did not."""
    problems = [text for one in said.values() for text in one.problems]
    if problems:
        return problems[0]
    if exit_.ended_by in ("timeout", "lingering") or _ended_by_itself(exit_, said.get(0), image):
        return None  # what we ended ourselves says all sorts of things
    reason = allocation.diagnose({rank: one.text for rank, one in said.items()})
    if reason is None and image is not None:
        log = folder / log_name(0)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        reason = diagnose(text[:20000], image.image or "")
    return reason or next((_silence(allocation, rank, one) for rank, one in said.items() if one.ended_by is None), None)


def _ended_by_itself(exit_: Exit, told: Told | None, image: ContainerSettings | None) -> bool:
    """Whether rank 0's command was launched and came to an end of its own.

    Not so with a signal, which may be a batch system's, nor with the client of a container engine that failed.
    """
    if exit_.ended_by != "exit":
        return False
    if told is None:
        return exit_.returncode == 0
    code = told.returncode or 0
    return told.ended_by == "exit" and (code == 0 or (code > 0 and image is None))


def _silence(allocation: Allocation, rank: int, told: Told) -> str:
    what = "ended without a word" if told.started else "did not start"
    last = (told.text.splitlines() or ["nothing was said"])[-1][:200]
    host = next((node.host for node in allocation.nodes if node.rank == rank), "?")
    return f"our agent on {host} {what} ({last}): look at that host, and at {errors_name(rank)} of this run"
