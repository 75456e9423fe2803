"""Waiting for several clients at once."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator, Sequence

from pytest_r1perf.launch import proc, reap
from pytest_r1perf.launch.client import Running
from pytest_r1perf.launch.mark import RunMark
from pytest_r1perf.launch.record import Launch

# SGLang's launcher returns before its children are gone (PR #36589 made it wait): who ends within this is no
# survivor.
_SETTLE_S = 1.0


def ticks(crew: Sequence[Running], interval_s: float, deadline: float) -> Iterator[None]:
    """Yield every ``interval_s``, and when one ends, until the first has ended or ``deadline`` (monotonic) is past.

    Meanwhile the clients are fed their input.
    """
    poller = select.poll()
    handles: dict[int, Running] = {}
    try:
        for one in crew:
            with contextlib.suppress(ProcessLookupError):
                handle = proc.open_handle(one.pid)
                if handle is not None:
                    handles[handle] = one
                    poller.register(handle, select.POLLIN)
        tick_at = time.monotonic() + interval_s
        while not crew[0].ended():
            now = time.monotonic()
            if now >= deadline:
                return
            inputs = [fd for one in crew if (fd := one.wants_input) is not None]
            for fd in inputs:
                poller.register(fd, select.POLLOUT)
            ready = [fd for fd, _ in poller.poll(1000 * max(0.0, min(tick_at, deadline) - now))]
            for fd in inputs:
                poller.unregister(fd)
            for one in crew:
                one.pump()
            ended = [fd for fd in ready if fd in handles]
            for fd in ended:  # readable for ever from now on
                poller.unregister(fd)
            if ended or time.monotonic() >= tick_at:
                tick_at = time.monotonic() + interval_s
                yield
    finally:
        for handle in handles:
            os.close(handle)


def settle(mark: RunMark, launch: Launch) -> None:
    """Give helpers that end by themselves (multiprocessing's resource tracker) the time to."""
    until = time.monotonic() + _SETTLE_S
    while time.monotonic() < until and reap.find_marked(lambda found: found == mark, launches=(launch,)):
        time.sleep(0.05)


def hang_up(crew: Sequence[Running], patience_s: float) -> None:
    """Close the lifelines, and let agents on other nodes end what is theirs and report it."""
    for one in crew:
        one.close_lifeline()
    until = time.monotonic() + patience_s
    while time.monotonic() < until and any(one.has_lifeline and not one.ended() for one in crew):
        time.sleep(0.05)
