"""Windows of one engine with the plugin running (A) and stopped (B), in the order A B B A, and their differences.

All times are of the monotonic clock, which the processes of a host share.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ORDER = "ABBA"


@dataclass(frozen=True, slots=True)
class Window:
    """One timed window, from the driver's results file."""

    start: float
    end: float
    tokps: float


@dataclass(frozen=True, slots=True)
class Switch:
    """From ``done`` on the plugin was surely in this state; the signal was sent at ``begun``."""

    running: bool
    begun: float
    done: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of log differences, running less stopped, and its standard error over ``pairs`` pairs of blocks.

    ``serial`` is the correlation of a difference with the next one: where it is far from 0 the error is wrong.
    """

    mean: float
    error: float
    pairs: int
    serial: float

    @property
    def half_width(self) -> float:
        """Of the 95 % interval, by Student's t."""
        from scipy.stats import t

        return float(t.ppf(0.975, self.pairs - 1)) * self.error

    @property
    def most(self) -> float:
        """The share of the throughput that the plugin takes at most, with 95 % confidence (one-sided)."""
        from scipy.stats import t

        return -math.expm1(self.mean - float(t.ppf(0.95, self.pairs - 1)) * self.error)

    def line(self) -> str:
        """In per cent: what it costs, with its interval, and what was shown."""
        low, high = -math.expm1(self.mean + self.half_width), -math.expm1(self.mean - self.half_width)
        return (
            f"throughput with the plugin running against stopped: {-100 * math.expm1(self.mean):+.2f} % lost, 95 % "
            f"interval {100 * low:+.2f} to {100 * high:+.2f} % ({self.pairs} pairs of blocks); at most "
            f"{100 * self.most:.2f} % (95 %, one-sided); lag-one correlation {self.serial:+.2f}"
        )


def windows(lines: Iterable[str]) -> list[Window]:
    """The timed windows that count, in order; a last line that is cut off is passed over."""
    found = []
    for text in lines:
        if not text.endswith("\n"):
            break
        line = json.loads(text)
        if line["kind"] == "window" and not line["discarded"]:
            tokens = line["total_input_tokens"] + line["total_output_tokens"]
            found.append(Window(line["start"], line["end"], tokens / line["total_latency"]))
    return found


def state_of(number: int, block: int) -> bool:
    """Whether the plugin is to run in this window (from 0 on), with so many windows a block."""
    return ORDER[number // block % len(ORDER)] == "A"


def usable(window: Window, running: bool, switches: Sequence[Switch]) -> bool:
    """Whether the plugin was in this one state from before the window to after it; it runs before the first switch."""
    before = [one for one in switches if one.begun < window.end]
    state = before[-1].running if before else True
    return state is running and all(one.done <= window.start for one in before)


def paired(found: Sequence[Window], switches: Sequence[Switch], block: int) -> list[float]:
    """Log throughput, running less stopped, of every two blocks that follow one another (no block is in two pairs).

    A block without a usable window takes its pair with it.
    """
    differences = []
    for first in range(0, len(found) - 2 * block + 1, 2 * block):
        logs: dict[bool, list[float]] = {True: [], False: []}
        for number in range(first, first + 2 * block):
            running = state_of(number, block)
            if usable(found[number], running, switches):
                logs[running].append(math.log(found[number].tokps))
        if logs[True] and logs[False]:
            differences.append(statistics.fmean(logs[True]) - statistics.fmean(logs[False]))
    return differences


def difference(values: Sequence[float]) -> Difference:
    """Mean and error; :class:`ValueError` for fewer than three pairs."""
    if len(values) < 3:
        raise ValueError(f"{len(values)} pairs of blocks tell no spread: let it measure more windows")
    mean = statistics.fmean(values)
    off = [value - mean for value in values]
    square = math.fsum(one * one for one in off)
    serial = math.fsum(one * two for one, two in itertools.pairwise(off)) / square if square else 0.0
    return Difference(mean, statistics.stdev(values) / math.sqrt(len(values)), len(values), serial)
