"""Series of rounds: what a cell's throughput does when nothing changes, made or resampled, always from a seed.

A series gives the logarithm's deviations from the cell's level, session by session: the baseline is one session of
20 rounds, each night is another. "CV" is the standard deviation of the logarithms.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import yaml

from gate.decider import Measure, Past

LEVEL = 1000.0
BASELINE_ROUNDS = 20


class Series(Protocol):
    """A kind of noise."""

    @property
    def name(self) -> str:
        """How the tables call it."""
        ...

    @property
    def about(self) -> str:
        """Where it comes from, in a line."""
        ...

    @property
    def session_cv(self) -> float:
        """What the platform's file would state of the spread between sessions."""
        ...

    def session(self, rng: random.Random, start: int) -> Iterator[float]:
        """The endless deviations of one session that begins when ``start`` rounds have been measured before."""
        ...


@dataclass(frozen=True, slots=True)
class Normal:
    """Independent log-normal rounds."""

    name: str
    about: str
    cv: float
    session_cv: float = 0.0

    def session(self, rng: random.Random, start: int) -> Iterator[float]:  # noqa: ARG002
        while True:
            yield rng.gauss(0, self.cv)


@dataclass(frozen=True, slots=True)
class StudentT:
    """Heavy tails: t with 3 degrees of freedom (variance 3), scaled to the CV."""

    name: str
    about: str
    cv: float
    session_cv: float = 0.0

    def session(self, rng: random.Random, start: int) -> Iterator[float]:  # noqa: ARG002
        scale = self.cv / math.sqrt(3)
        while True:
            chi2 = math.fsum(rng.gauss(0, 1) ** 2 for _ in range(3))
            yield scale * rng.gauss(0, 1) / math.sqrt(chi2 / 3)


@dataclass(frozen=True, slots=True)
class Drift:
    """Every round is slower than the one before it by ``step``, from the baseline on and through the nights."""

    name: str
    about: str
    cv: float
    step: float
    session_cv: float = 0.0

    def session(self, rng: random.Random, start: int) -> Iterator[float]:
        for number in itertools.count(start):
            yield rng.gauss(0, self.cv) - self.step * number


@dataclass(frozen=True, slots=True)
class Cold:
    """The first round of a session runs at a fraction ``first`` of the level."""

    name: str
    about: str
    cv: float
    first: float
    session_cv: float = 0.0

    def session(self, rng: random.Random, start: int) -> Iterator[float]:  # noqa: ARG002
        yield rng.gauss(0, self.cv) + math.log(self.first)
        while True:
            yield rng.gauss(0, self.cv)


@dataclass(frozen=True, slots=True)
class Autoregressive:
    """AR(1) within a session, ``cv`` its marginal spread; sessions are independent of each other."""

    name: str
    about: str
    cv: float
    rho: float
    session_cv: float = 0.0

    def session(self, rng: random.Random, start: int) -> Iterator[float]:  # noqa: ARG002
        value = rng.gauss(0, self.cv)
        fresh = self.cv * math.sqrt(1 - self.rho**2)
        while True:
            yield value
            value = self.rho * value + rng.gauss(0, fresh)


@dataclass(frozen=True, slots=True)
class Resampled:
    """Rounds drawn from recorded ones, with replacement; ``cv`` rescales them."""

    name: str
    about: str
    deviations: tuple[float, ...]
    cv: float | None = None
    session_cv: float = 0.0

    def session(self, rng: random.Random, start: int) -> Iterator[float]:  # noqa: ARG002
        scale = 1.0 if self.cv is None else self.cv / statistics.pstdev(self.deviations)
        while True:
            yield scale * rng.choice(self.deviations)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Recorded rounds in the order they came in, from a random place on: sessions differ as they did."""

    name: str
    about: str
    deviations: tuple[float, ...]
    session_cv: float = 0.0

    def session(self, rng: random.Random, start: int) -> Iterator[float]:  # noqa: ARG002
        first = rng.randrange(len(self.deviations))
        for number in itertools.count(first):
            yield self.deviations[number % len(self.deviations)]


@lru_cache(maxsize=1)
def all_series() -> dict[str, Series]:
    """Every series by name; the first is the one that the targets are about."""
    data = yaml.safe_load((Path(__file__).parent / "data.yaml").read_text(encoding="utf-8"))
    engine = data["h200_engine"]
    h200 = (*_deviations(engine["n1000"]), *_deviations(engine["n3000"]))
    spread = math.sqrt(math.fsum(item**2 for item in h200) / (len(h200) - 2))  # of two loads, each with its mean
    fresh = data["h200_fresh"]["n1000"]
    cold = fresh[0] / statistics.geometric_mean(fresh[1:])
    cpu = _deviations(data["cpu"]["n50"])
    series: tuple[Series, ...] = (
        Normal("log-normal 2 %", "independent, CV 2 %", 0.02),
        Normal("log-normal 4 %", "independent, CV 4 %: twice the noise that thresholds were set for", 0.04),
        StudentT("heavy tails", "t with 3 degrees of freedom, CV 2 %", 0.02),
        Autoregressive("AR(1) 0.5", "autocorrelation 0.5 from round to round of a session, CV 2 %", 0.02, 0.5),
        Drift("drift", "0.05 % slower each round: 1 % over the baseline's 20; CV 2 %", 0.02, 0.0005),
        Cold("cold first", f"each session's first round at {cold:.2f} of the level (H200 record); CV 2 %", 0.02, cold),
        Resampled("H200, 2 %", f"the {len(h200)} warm windows of the H200 record, scaled to CV 2 %", h200, 0.02),
        Resampled("H200, one engine", f"the same at the spread of the record: CV {100 * spread:.0f} %", h200, spread),
        Resampled(
            "CPU rounds", f"the {len(cpu)} processes of the CPU record, in any order: CV {100 * _cv(cpu):.1f} %", cpu
        ),
        Blocks("CPU sessions", "the same in their order, each session from a random place on", cpu, 0.032),
    )
    return {item.name: item for item in series}


TARGET_SERIES, DOUBLED = "log-normal 2 %", "log-normal 4 %"


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens to the cell after its baseline: its speed is multiplied by ``speed``."""

    name: str
    speed: float
    better: int = 1


UNCHANGED = Scenario("unchanged", 1.0)
TOLERATED = Scenario("1 % slower", 0.99)
DROPS = tuple(Scenario(f"{drop} % slower", 1 - drop / 100) for drop in (2, 3, 5, 10))
DROP_5 = DROPS[2]
FASTER = Scenario("5 % faster", 1.05)
LATENCY_SLOWER = Scenario("latency, 5 % slower", 0.95, -1)
LATENCY_FASTER = Scenario("latency, 5 % faster", 1.05, -1)
SCENARIOS = {item.name: item for item in (UNCHANGED, TOLERATED, *DROPS, FASTER, LATENCY_SLOWER, LATENCY_FASTER)}


class Cell:
    """One simulated cell: its baseline, and nights of rounds on demand.

    The same ``index`` gives the same numbers to every decider.
    """

    def __init__(self, series: Series, scenario: Scenario, index: int) -> None:
        self._series, self._scenario = series, scenario
        self._rng = random.Random(f"{series.name}|{scenario.name}|{index}")
        stored = itertools.islice(series.session(self._rng, 0), BASELINE_ROUNDS)
        self.baseline = tuple(self._value(item, 1.0) for item in stored)
        self._measured = BASELINE_ROUNDS

    def past(self, since: Sequence[tuple[float, ...]] = ()) -> Past:
        """What is stored."""
        return Past(self.baseline, tuple(since), self._scenario.better)

    def night(self, kept: list[float] | None = None) -> Measure:
        """A new session's rounds; ``kept`` collects them."""
        rounds = self._series.session(self._rng, self._measured)

        def measure() -> float:
            value = self._value(next(rounds), self._scenario.speed)
            self._measured += 1
            if kept is not None:
                kept.append(value)
            return value

        return measure

    def _value(self, deviation: float, speed: float) -> float:
        log = deviation + math.log(speed)
        return LEVEL * math.exp(log if self._scenario.better > 0 else -log)


def _deviations(values: Sequence[float]) -> tuple[float, ...]:
    logs = [math.log(value) for value in values]
    centre = math.fsum(logs) / len(logs)
    return tuple(log - centre for log in logs)


def _cv(deviations: Sequence[float]) -> float:
    return statistics.pstdev(deviations)
