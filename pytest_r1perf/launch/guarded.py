"""Before anything is started: the record of it, and the guard."""

from __future__ import annotations

from pathlib import Path

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launch import guard, record
from pytest_r1perf.launch.record import Launch


class LaunchError(R1PerfError):
    """Something could not be started, or not be reached, at all."""


def note(state_dir: Path, launch: Launch) -> None:
    """Write the record; raises ``LaunchError``."""
    try:
        record.write(state_dir, launch)
    except OSError as error:
        raise LaunchError(
            f"cannot record the launch of {launch.program!r} under {state_dir} ({error.strerror}); "
            "make the directory writable or free some space"
        ) from error


def begin(state_dir: Path, launch: Launch) -> guard.Guard:
    """Record and guard: from its first instruction on, what is started next has both. Raises ``LaunchError``."""
    note(state_dir, launch)
    try:
        return guard.start(launch.mark, state_dir)
    except guard.GuardError as error:
        record.remove(state_dir, launch.mark)
        raise LaunchError(
            f"the watcher for {launch.program!r} did not start ({error}); is {guard.__file__} readable?"
        ) from None
