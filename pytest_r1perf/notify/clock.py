"""Time, as one replaceable part: what waits for minutes is tested without waiting."""

from __future__ import annotations

import random
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds; ``jitter`` is a number from 0 to 1 that spreads the retries of many hosts."""

    def now(self) -> float:
        """Since the epoch, for what a server says in dates."""

    def monotonic(self) -> float:
        """Since any moment, for deadlines."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def jitter(self) -> float:
        """A new number each time."""


class SystemClock:
    """The real one."""

    def now(self) -> float:
        """Of the host."""
        return time.time()

    def monotonic(self) -> float:
        """Of the host."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Really wait."""
        time.sleep(seconds)

    def jitter(self) -> float:
        """Uniform."""
        return random.random()
