"""From a marker to a measurement: platform, hardware, environment, lease, rounds. Judges nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_r1perf.catalog import Catalog
from pytest_r1perf.cell import Cell, cell_of
from pytest_r1perf.childenv import compose
from pytest_r1perf.devices import LeaseError
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.fit import misfit
from pytest_r1perf.hardware import Hardware, hardware_for
from pytest_r1perf.launch.process import LaunchError
from pytest_r1perf.launchsettings import AUTO
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.measure import Budget, Mode, RoundPlan, measure
from pytest_r1perf.measurement import Measurement, Problem
from pytest_r1perf.options import PerfOptions
from pytest_r1perf.place import LocalPlace
from pytest_r1perf.platform import Platform, expand
from pytest_r1perf.recorder import Recorder
from pytest_r1perf.rig.home import home
from pytest_r1perf.sglang.environment import SglangEnvironment, local_place, probe
from pytest_r1perf.site import Site
from pytest_r1perf.siteplace import IMAGE, agent_python, environment_named, place_at
from pytest_r1perf.sites import Sites
from pytest_r1perf.verdict import Verdict

DEFAULT_PLATFORM = "cpu"


class CannotRun(Exception):
    """The platform or this host can't run the test at all: skipped with the reason, failed under the gate."""


@dataclass
class Runner:
    """Measures the cells of a session; one a process (pytest itself, or an xdist worker).

    ``sites`` has the nodes, ``lease`` keeps other sessions off their devices while a cell is measured, and
    ``mode`` makes the way of measuring in an environment.
    """

    options: PerfOptions
    catalog: Catalog
    recorder: Recorder
    sites: Sites
    lease: Callable[[Site, Cell, str], contextlib.AbstractContextManager[None]]
    mode: Callable[[Site, SglangEnvironment], Mode]
    budget: Budget = field(init=False)
    _environments: dict[tuple[Site, str], SglangEnvironment] = field(default_factory=dict)
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
        remote = self.is_remote(cell)
        reason = misfit(cell.topology, platform, None if remote else self.find_hardware(platform), remote=remote)
        if reason is not None:
            raise CannotRun(reason)
        return cell

    def find_hardware(self, platform: Platform) -> Hardware | None:
        """This host's hardware of the platform's kind, if it has any; asked once."""
        if platform.is_cpu not in self._hardware:
            self._hardware[platform.is_cpu] = hardware_for(is_cpu=platform.is_cpu)
        return self._hardware[platform.is_cpu]

    def site(self, cell: Cell) -> Site:
        """Where the cell runs, got when it is first needed.

        Raises ``LaunchError`` when its nodes can't be got, and :class:`R1PerfError` with one sentence otherwise.
        """
        python = agent_python(cell.platform, self.options.sglang) if self.is_remote(cell) else sys.executable
        return self.sites.site(cell, python)

    def hardware(self, cell: Cell) -> Hardware:
        """What a node of the cell has."""
        return self.site(cell).hardware

    def hardware_key(self, cell: Cell) -> str:
        """The hardware's key as far as it is known without asking for nodes."""
        site = self.sites.known(cell)
        found = (
            site.hardware if site is not None else None if self.is_remote(cell) else self.find_hardware(cell.platform)
        )
        return found.key if found is not None else "none"

    def environment(self, cell: Cell) -> SglangEnvironment:
        """The cell's SGLang environment, probed once; raises as :meth:`site` does."""
        key = site, given = self.site(cell), self.given(cell.platform, elsewhere=self.is_remote(cell))
        if key not in self._environments:
            place = place_at(site, given)
            env = compose(cell.platform.env) if isinstance(place, LocalPlace) else dict(cell.platform.env)
            self._environments[key] = probe(place, env, cache=home() / "probes")
        return self._environments[key]

    def environment_here(self, cell: Cell) -> SglangEnvironment:
        """The environment as far as this host can tell, for a plan: no node is asked for."""
        given = self.given(cell.platform, elsewhere=self.is_remote(cell))
        if not given.startswith(IMAGE):
            return probe(local_place(given), compose(cell.platform.env), cache=home() / "probes")
        if self.is_remote(cell):
            raise R1PerfError(f"{given} is on other hosts: its options are known when the nodes are ours")
        return self.environment(cell)

    def is_remote(self, cell: Cell) -> bool:
        """Whether the cell's ranks run through ssh or a batch system."""
        return cell.platform.launch.chosen(cell.topology.nnodes, os.environ) != "local"

    def given(self, platform: Platform, *, elsewhere: bool = False) -> str:
        """The SGLang environment that was named: by option, by the platform's container, or by the platform."""
        return environment_named(platform, self.options.sglang, elsewhere=elsewhere)

    def plan(self, spec: PerfSpec, platform: Platform) -> RoundPlan:
        """Rounds by option, then by marker, then by platform."""
        return RoundPlan(*(self.options.rounds or spec.rounds or platform.rounds))

    def measure(self, cell: Cell, nodeid: str, plan: RoundPlan, decided: Callable[[Measurement], bool]) -> Measurement:
        """The rounds of a cell, under a lease; rounds that this session already has are used again."""
        try:
            environment = self.environment(cell)
            site = self.site(cell)
        except R1PerfError as error:
            return Measurement(cell, problem=Problem(verdict_of(error), str(error)))
        hardware = site.hardware
        try:
            with self.lease(site, cell, nodeid):
                measurement = measure(
                    cell,
                    self.mode(site, environment),
                    plan,
                    decided=decided,
                    budget=self.budget,
                    kept=lambda prepared: self.recorder.kept(prepared, hardware.key),
                    record=lambda now, sample: self.recorder.sample(now, sample, nodeid, hardware.key),
                )
                self.recorder.problem(measurement, nodeid, hardware.key)
        except (LaunchError, LeaseError) as error:
            return Measurement(cell, problem=Problem(Verdict.INFRA, str(error)))
        except OSError as error:
            reason = f"results cannot be written to {self.recorder.folder.path} ({error.strerror or error})"
            return Measurement(cell, problem=Problem(Verdict.INFRA, reason))
        return measurement


def verdict_of(error: R1PerfError) -> Verdict:
    """INFRA for what hosts, leases and launchers say; every other mistake is CONFIG."""
    return Verdict.INFRA if isinstance(error, (LaunchError, LeaseError)) else Verdict.CONFIG


def check_here(given: str, catalog: Catalog, platform: str | None) -> None:
    """Refuse an SGLang environment of this host that is none, before anything is collected.

    One in a container or on other hosts is asked when it is needed. Raises :class:`R1PerfError`.
    """
    possible = [catalog.platform(platform)] if platform is not None else list(catalog.platforms.values())
    if given.startswith(IMAGE) or any(one.launch.by not in (AUTO, "local") for one in possible):
        return
    probe(local_place(expand(given, what="--sglang", home=home())), compose({}), cache=home() / "probes")
