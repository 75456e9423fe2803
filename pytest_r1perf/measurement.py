"""What measuring a cell leaves behind: samples, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_r1perf.cell import Cell
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.verdict import Verdict
from pytest_r1perf.workload import SampledWorkload


@dataclass(frozen=True, slots=True)
class Sample:
    """One round: a process, with one timed window or (``engine`` mode) several, each of which passed every check.

    ``metrics`` are in the units of :mod:`pytest_r1perf.metrics`, the geometric mean over the ``windows`` where there
    are several; ``discarded`` windows before them warmed the engine up. ``wall_s`` is the whole process, start-up
    included; ``remarks`` are things seen that don't make it invalid. ``events`` are what SGLang's log and
    resolved arguments tell beside that, ``telemetry`` what the GPUs did in the timed windows, ``ceiling`` the most
    that the hardware can do, by metric.
    """

    round: int
    metrics: Mapping[str, float]
    wall_s: float
    log: str
    remarks: tuple[str, ...] = ()
    events: tuple[Mapping[str, object], ...] = ()
    telemetry: Mapping[str, object] = field(default_factory=dict)
    windows: tuple[Mapping[str, float], ...] = ()
    discarded: int = 0
    ceiling: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Discarded:
    """A round that is no measurement and no fault: a process that warmed kernel caches on disk for the next."""

    round: int
    reason: str
    metrics: Mapping[str, float]
    log: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a round gave no sample: a broken run or a number that is no measurement."""

    verdict: Verdict
    cause: str
    hint: str = ""
    log: str = ""


@dataclass(frozen=True)
class Measurement:
    """The rounds of one cell, pooled: nothing is ever retried until it passes.

    ``translation``: how the recipe's flags were said to this SGLang where that isn't word for word. ``env_there``:
    the variables that matter as the benchmark really had them on another host.
    """

    cell: Cell
    samples: tuple[Sample, ...] = ()
    discarded: tuple[Discarded, ...] = ()
    problem: Problem | None = None
    planned_rounds: int = 0
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    env_there: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    protocol: Mapping[str, object] = field(default_factory=dict)
    resolved: Mapping[str, object] = field(default_factory=dict)
    workload: SampledWorkload | None = None
    translation: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def whole_env(self) -> dict[str, str]:
        """All variables that matter: what was found on the other host, and what we gave over it.

        Which GPUs a batch system gave is no change of the environment.
        """
        there = {name: value for name, value in self.env_there.items() if name != "CUDA_VISIBLE_DEVICES"}
        return {**there, **self.env}

    def values(self, metric: str) -> tuple[float, ...]:
        """That metric's value in every round; :class:`R1PerfError` where a round has none."""
        lacks = next((sample for sample in self.samples if metric not in sample.metrics), None)
        if lacks is not None:
            raise R1PerfError(
                f"{self.cell.label}: round {lacks.round} has no {metric}, which the benchmark of this SGLang does not "
                f"tell: name another metric ({', '.join(sorted(lacks.metrics))})"
            )
        return tuple(sample.metrics[metric] for sample in self.samples)
