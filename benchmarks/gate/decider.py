"""What a decider is: something that looks at stored rounds, asks for new ones, and says regressed or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

Measure = Callable[[], float]
"""One more round of tonight: one process's value."""


class Outcome(str, Enum):
    """What a night's cell comes to. ``ERROR``: the decider broke, with whatever message."""

    REGRESSED = "regressed"
    OK = "ok"
    NO_VERDICT = "no verdict"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome, and the rounds it took; ``note`` is what the decider said of it, where it says anything."""

    outcome: Outcome
    rounds: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """What is stored of a cell, oldest first.

    ``baseline`` are the rounds from before any change; ``since`` the rounds of each night after it. ``better`` is
    +1 where more is better and -1 where less is. ``comparable`` is false where another machine measured it.
    """

    baseline: tuple[float, ...]
    since: tuple[tuple[float, ...], ...] = ()
    better: int = 1
    comparable: bool = True


class Decider(Protocol):
    """A gate. ``package`` is the distribution whose own code decides; ``None``: written from its source."""

    @property
    def name(self) -> str:
        """How the tables call it."""
        ...

    @property
    def rule(self) -> str:
        """The rule in a line."""
        ...

    @property
    def package(self) -> str | None:
        """The distribution that decides."""
        ...

    def decide(self, past: Past, measure: Measure) -> Decision:
        """Tonight's verdict on one cell."""
        ...


Self = TypeVar("Self", covariant=True)


class Tunable(Decider, Protocol):
    """A gate of a fixed number of rounds with one threshold, which can be moved."""

    @property
    def family(self) -> str:
        """Its name without the threshold."""
        ...

    @property
    def rounds(self) -> int:
        """Rounds a night (of one attempt)."""
        ...

    @property
    def attempts(self) -> int:
        """How often a failing night is measured again, the first time included."""
        ...

    def strength(self, past: Past, values: Sequence[float]) -> float:
        """The highest threshold at which ``values`` (all attempts) would still be called a regression."""
        ...

    def tuned(self, threshold: float, rounds: int) -> Tunable:
        """The same rule with another threshold and number of rounds."""
        ...


def drawn(measure: Measure, rounds: int) -> list[float]:
    """That many rounds."""
    return [measure() for _ in range(rounds)]


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


WORK = 1e6
"""Tokens of a round: what turns a throughput into the seconds that tools for times compare."""


def as_times(values: Sequence[float], better: int) -> list[float]:
    """The values as a tool sees them that knows only "lower is better"."""
    if better < 0:
        return list(values)
    return [WORK / value if value else math.inf for value in values]
