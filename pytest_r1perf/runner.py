"""From a marker to a measurement: platform, hardware, environment, lease, rounds. Judges nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_r1perf.catalog import Catalog
from pytest_r1perf.cell import Cell, cell_of
from pytest_r1perf.childenv import compose
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.fit import misfit
from pytest_r1perf.hardware import Hardware, hardware_for
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.measure import Budget, Mode, RoundPlan, measure
from pytest_r1perf.measurement import Measurement, Problem
from pytest_r1perf.options import PerfOptions
from pytest_r1perf.platform import Platform, expand
from pytest_r1perf.recorder import Recorder
from pytest_r1perf.rig.home import home
from pytest_r1perf.sglang.environment import SglangEnvironment, interpreter_of, probe
from pytest_r1perf.verdict import Verdict

DEFAULT_PLATFORM = "cpu"


class CannotRun(Exception):
    """The platform or this host can't run the test at all: skipped with the reason, failed under the gate."""


@dataclass
class Runner:
    """Measures the cells of a session; one a process (pytest itself, or an xdist worker).

    ``lease`` keeps other sessions off the devices while a cell is measured; ``mode`` makes the way of
    measuring for an environment.
    """

    options: PerfOptions
    catalog: Catalog
    recorder: Recorder
    lease: Callable[[Hardware, Cell, str], contextlib.AbstractContextManager[None]]
    mode: Callable[[SglangEnvironment], Mode]
    budget: Budget = field(init=False)
    _environments: dict[str, SglangEnvironment] = field(default_factory=dict)
    _hardware: dict[bool, Hardware | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.budget = Budget(self.options.budget_s)

    def platform_of(self, spec: PerfSpec) -> Platform:
        """The platform of a test: option or ini, else the marker's, else ``cpu``.

        Raises :class:`CannotRun` when the marker pins the test to another one than the session's.
        """
        name = self.options.platform or spec.platform or DEFAULT_PLATFORM
        if spec.platform is not None and spec.platform != name:
            raise CannotRun(f"is for platform {spec.platform!r}; this session runs on {name!r}")
        return self.catalog.platform(name)

    def cell_of(self, spec: PerfSpec) -> Cell:
        """The cell of a spec; raises :class:`CannotRun` with the counts when it doesn't fit."""
        platform = self.platform_of(spec)
        cell = cell_of(spec, platform, self.catalog)
        reason = misfit(cell.topology, platform, self.find_hardware(platform))
        if reason is not None:
            raise CannotRun(reason)
        if cell.topology.nnodes > 1:
            raise CannotRun(
                f"topology {cell.topology.name!r} spans {cell.topology.nnodes} nodes; this version launches on one"
            )
        return cell

    def find_hardware(self, platform: Platform) -> Hardware | None:
        """This host's hardware of the platform's kind, if it has any; asked once."""
        if platform.is_cpu not in self._hardware:
            self._hardware[platform.is_cpu] = hardware_for(is_cpu=platform.is_cpu)
        return self._hardware[platform.is_cpu]

    def hardware(self, platform: Platform) -> Hardware:
        """:meth:`find_hardware` where there must be some: of a cell that fits."""
        found = self.find_hardware(platform)
        if found is None:
            raise CannotRun(f"this host has no {platform.accelerator}")
        return found

    def environment(self, platform: Platform) -> SglangEnvironment:
        """The SGLang environment, probed once; raises :class:`R1PerfError` with one sentence."""
        path = self.options.sglang or platform.sglang
        if path is None:
            raise R1PerfError(
                f"platform {platform.name!r} names no SGLang environment: give --sglang PATH, ini perf_sglang, "
                f"or sglang: in its entry of your r1perf.yaml"
            )
        if path not in self._environments:
            filled = expand(path, what=f"platform {platform.name!r}: sglang", home=home())
            self._environments[path] = probe(interpreter_of(filled), compose(platform.env))
        return self._environments[path]

    def plan(self, spec: PerfSpec, platform: Platform) -> RoundPlan:
        """Rounds by option, then by marker, then by platform."""
        return RoundPlan(*(self.options.rounds or spec.rounds or platform.rounds))

    def measure(self, cell: Cell, nodeid: str, plan: RoundPlan, decided: Callable[[Measurement], bool]) -> Measurement:
        """The rounds of a cell, under a lease; rounds that this session already has are used again."""
        hardware = self.hardware(cell.platform)
        try:
            environment = self.environment(cell.platform)
        except R1PerfError as error:
            return Measurement(cell, problem=Problem(Verdict.CONFIG, str(error)))
        with self.lease(hardware, cell, nodeid):
            try:
                measurement = measure(
                    cell,
                    self.mode(environment),
                    plan,
                    decided=decided,
                    budget=self.budget,
                    kept=lambda prepared: self.recorder.kept(prepared, hardware.key),
                    record=lambda now, sample: self.recorder.sample(now, sample, nodeid, hardware.key),
                )
            except OSError as error:
                reason = f"results cannot be written to {self.recorder.folder.path} ({error.strerror or error})"
                return Measurement(cell, problem=Problem(Verdict.INFRA, reason))
            self.recorder.problem(measurement, nodeid, hardware.key)
        return measurement
