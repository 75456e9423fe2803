"""Ends a process that takes longer for a cell than the cell's limit."""

from __future__ import annotations

import time

from pytest_r1perf.launch.process import Poll
from pytest_r1perf.roundcheck import LINGER_S
from pytest_r1perf.sglang.enginelog import EngineLog


class Late:
    """Ends a process that takes longer for a cell than the cell's limit, or that doesn't exit at its end.

    The first cell's limit holds from the start of the process on; ``waiting_s`` is what may come before that: agents
    wait for the memory of earlier runs. ``said`` is the sentence once it was ended.
    """

    def __init__(
        self, log: EngineLog, limits: dict[str, float], first: str, waiting_s: float, *, what: str = "engine"
    ) -> None:
        self._log = log
        self._limits = limits
        self._first = first
        self._waiting_s = waiting_s
        self._what = what
        self._started: float | None = None
        self.said: str | None = None

    def __call__(self) -> Poll:
        """Whether to go on; asked about five times a second."""
        place = self._log.place
        if self._started is None:
            self._started = time.monotonic() + self._waiting_s
        since, limit = place.since, self._limits[place.cell or self._first]
        said = f"a cell had no end within {limit:g} s"
        if place.ended:
            limit, said = LINGER_S, f"the {self._what} did not exit within {LINGER_S:g} s of its end and was ended"
        elif place.cell == self._first or not self._log.begun(self._first):
            since = self._started
        if time.monotonic() - since <= limit:
            return Poll.GO_ON
        self.said = said
        return Poll.END
