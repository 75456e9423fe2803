"""From a marker to a measurement: platform, hardware, environment, lease, rounds. Judges nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from pytest_r1perf.catalog import Catalog
from pytest_r1perf.cell import Cell, cell_of
from pytest_r1perf.childenv import compose
from pytest_r1perf.deployment import deployed
from pytest_r1perf.devices import LeaseError
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.fit import misfit
from pytest_r1perf.hardware import Hardware, hardware_for
from pytest_r1perf.hoststate import host_state
from pytest_r1perf.launch.process import LaunchError
from pytest_r1perf.launchsettings import AUTO
from pytest_r1perf.load import Batch
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.measure import Budget, Mode, RoundPlan, Side, measure, measure_pair
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.options import PerfOptions
from pytest_r1perf.place import LocalPlace
from pytest_r1perf.platform import Platform, expand
from pytest_r1perf.recorder import Recorder, Where
from pytest_r1perf.rig.home import home
from pytest_r1perf.sglang.environment import SglangEnvironment, local_place, probe
from pytest_r1perf.site import Site
from pytest_r1perf.siteplace import IMAGE, agent_python, environment_named, place_at
from pytest_r1perf.sites import Sites
from pytest_r1perf.verdict import Verdict

if TYPE_CHECKING:
    from pytest_r1perf.outputs.agreement import Answers, NotAsked, OutputsResult
    from pytest_r1perf.sglang.sampling import Sampling

DEFAULT_PLATFORM = "cpu"
OLD, NEW = "old", "new"
"""The sides of a session that compares two environments; new is the one under test."""

Result = TypeVar("Result")


class CannotRun(Exception):
    """The platform or this host can't run the test at all: skipped with the reason, failed under the gate."""


class Modes(Protocol):
    """Makes the way of measuring a cell in an environment."""

    def __call__(
        self,
        site: Site,
        environment: SglangEnvironment,
        cell: Cell,
        *,
        side: str | None,
        siblings: Callable[[Cell, int], Sequence[tuple[Cell, str]]],
        keep: Callable[[Measurement, Sample | Problem, str], None],
        coming: Callable[[Cell], Sequence[Sampling]],
    ) -> Mode:
        """``siblings`` are other tests' cells that could be measured in the same engine; ``keep`` records them.

        ``coming``: which workloads the tests to come will want with the cell's model and data sets.
        """
        ...

    def ask(self, site: Site, environment: SglangEnvironment, cell: Cell, *, side: str) -> Answers | NotAsked | Problem:
        """The greedy answers of an environment with the cell's server arguments."""
        ...


@dataclass
class Runner:
    """Measures the cells of a session; one a process (pytest itself, or an xdist worker).

    ``sites`` has the nodes, ``lease`` keeps other sessions off their devices while a cell is measured, ``modes``
    makes the way of measuring in an environment, and ``upcoming`` gives the tests that are still to be run.
    """

    options: PerfOptions
    catalog: Catalog
    recorder: Recorder
    sites: Sites
    lease: Callable[[Site, Cell, str], contextlib.AbstractContextManager[None]]
    modes: Modes
    upcoming: Callable[[], Sequence[tuple[PerfSpec, str]]] = lambda: ()
    budget: Budget = field(init=False)
    _environments: dict[tuple[Site, str], SglangEnvironment] = field(default_factory=dict)
    _hardware: dict[bool, Hardware | None] = field(default_factory=dict)
    _states: dict[tuple[Site, int], dict[str, object]] = field(default_factory=dict)
    _outputs: dict[str, OutputsResult | Problem] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.budget = Budget(self.options.budget_s)

    def platform_of(self, spec: PerfSpec) -> Platform:
        """The platform of a test: option or ini, else the marker's, else ``cpu``.

        Raises :class:`CannotRun` when the marker pins the test to another one than the session's, and
        :class:`R1PerfError` where a closing pass is asked for and it has no ``deployment:``.
        """
        name = self.options.platform or spec.platform or DEFAULT_PLATFORM
        if spec.platform is not None and spec.platform != name:
            raise CannotRun(f"is for platform {spec.platform!r}; this session runs on {name!r}")
        platform = self.catalog.platform(name)
        return deployed(platform) if self.options.deployment and not platform.deployed else platform

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

    def environment(self, cell: Cell, side: str | None = None) -> SglangEnvironment:
        """The cell's SGLang environment, probed once; raises as :meth:`site` does.

        ``side`` is :data:`OLD` for the one that a session of two environments compares with.
        """
        key = site, given = self.site(cell), self.given(cell.platform, elsewhere=self.is_remote(cell), side=side)
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

    def given(self, platform: Platform, *, elsewhere: bool = False, side: str | None = None) -> str:
        """The SGLang environment that was named: by option, by the platform's container, or by the platform."""
        option = self.options.sglang_old if side == OLD else self.options.sglang
        return environment_named(platform, option, elsewhere=elsewhere)

    def plan(self, spec: PerfSpec, platform: Platform) -> RoundPlan:
        """Rounds by option, then by marker, then by platform."""
        return RoundPlan(*(self.options.rounds or spec.rounds or platform.rounds))

    def measure(self, cell: Cell, nodeid: str, plan: RoundPlan, decided: Callable[[Measurement], bool]) -> Measurement:
        """The rounds of a cell, under a lease; rounds that this session already has are used again."""
        site, problem = self._ready(cell, None)
        if site is None:
            return Measurement(cell, problem=problem)

        def work() -> Measurement:
            side = self._side(site, cell, nodeid, None)
            measurement = measure(cell, side, plan, decided=decided, budget=self.budget)
            self.recorder.problem(measurement, nodeid, self._where(site, cell, None))
            return measurement

        done = self._leased(site, cell, nodeid, work)
        return Measurement(cell, problem=done) if isinstance(done, Problem) else done

    def measure_pair(
        self, cell: Cell, nodeid: str, plan: RoundPlan, decided: Callable[[Measurement, Measurement], bool]
    ) -> tuple[Measurement, Measurement]:
        """The rounds of a cell in the old and in the new environment, in turn, under one lease."""
        for name in (OLD, NEW):
            site, problem = self._ready(cell, name)
            if site is None:
                broken = Measurement(cell, problem=problem)
                return (broken, Measurement(cell)) if name == OLD else (Measurement(cell), broken)
        assert site is not None

        def work() -> tuple[Measurement, Measurement]:
            old, new = (self._side(site, cell, nodeid, name) for name in (OLD, NEW))
            pair = measure_pair(cell, old, new, plan, decided=decided, budget=self.budget)
            for name, measurement in zip((OLD, NEW), pair, strict=True):
                self.recorder.problem(measurement, nodeid, self._where(site, cell, name))
            return pair

        done = self._leased(site, cell, nodeid, work)
        return (Measurement(cell), Measurement(cell, problem=done)) if isinstance(done, Problem) else done

    def outputs(self, cell: Cell, nodeid: str) -> OutputsResult | Problem:
        """Whether both environments give the same greedy answers; asked once for each set of server arguments."""
        key = cell.engine_key
        if key not in self._outputs:
            self._outputs[key] = self._compare_outputs(cell, nodeid)
        return self._outputs[key]

    def _compare_outputs(self, cell: Cell, nodeid: str) -> OutputsResult | Problem:
        from pytest_r1perf.outputs.agreement import judge_outputs

        site = self.site(cell)
        answers = []
        for side in (OLD, NEW):
            environment = self.environment(cell, side)
            told = self._leased(site, cell, nodeid, partial(self.modes.ask, site, environment, cell, side=side))
            if isinstance(told, Problem):
                return replace(told, cause=f"{side}: greedy answers: {told.cause}")
            answers.append(told)
        return judge_outputs(answers[0], answers[1], cell.platform.outputs_min_share)

    def _ready(self, cell: Cell, side: str | None) -> tuple[Site | None, Problem | None]:
        try:
            self.environment(cell, side)
            site = self.site(cell)
            self._where(site, cell, side)
            return site, None
        except R1PerfError as error:
            return None, Problem(verdict_of(error), f"{side}: {error}" if side else str(error))

    def _leased(self, site: Site, cell: Cell, nodeid: str, work: Callable[[], Result]) -> Result | Problem:
        try:
            with self.lease(site, cell, nodeid):
                return work()
        except (LaunchError, LeaseError) as error:
            return Problem(Verdict.INFRA, str(error))
        except OSError as error:
            reason = f"results cannot be written to {self.recorder.folder.path} ({error.strerror or error})"
            return Problem(Verdict.INFRA, reason)

    def _side(self, site: Site, cell: Cell, nodeid: str, name: str | None) -> Side:
        where = self._where(site, cell, name)

        def keep(measurement: Measurement, outcome: Sample | Problem, of: str) -> None:
            if isinstance(outcome, Problem):
                self.recorder.problem(replace(measurement, problem=outcome), of, where)
            else:
                self.recorder.sample(measurement, outcome, of, where)

        return Side(
            mode=self.modes(
                site,
                self.environment(cell, name),
                cell,
                side=name,
                siblings=lambda of, number: self._siblings(of, number, name),
                keep=keep,
                coming=self.coming,
            ),
            kept=lambda prepared: self.recorder.kept(prepared, where),
            record=lambda now, outcome: self.recorder.sample(now, outcome, nodeid, where),
        )

    def host_names(self, cell: Cell) -> str:
        """The hosts that the cell is measured on, in the order of their ranks."""
        state = self._where(self.site(cell), cell, None).host
        return ", ".join(str(value) for key, value in state.items() if key.startswith("hostname"))

    def host_settings(self, cell: Cell) -> dict[str, str]:
        """Kernel, driver, clocks and power limit of the cell's hosts, for what changed since a baseline."""
        state = self._where(self.site(cell), cell, None).host
        return {key: str(value) for key, value in state.items() if not key.startswith("hostname")}

    def _where(self, site: Site, cell: Cell, side: str | None) -> Where:
        key = site, cell.topology.gpus_used
        if key not in self._states:
            per_node = cell.topology.gpus_used // cell.topology.nnodes
            self._states[key] = host_state(site.infos if site.remote else (), site.devices(0, per_node))
        return Where(site.hardware.key, self._states[key], side)

    def coming(self, cell: Cell) -> list[Sampling]:
        """The workloads of tests to come on the cell's platform: sampled with its own, they cost no further process."""
        found: dict[Sampling, None] = {}
        for spec, _ in self.upcoming():
            try:
                other = self.cell_of(spec)
            except (CannotRun, R1PerfError):
                continue  # its own test says why
            if other.platform.name == cell.platform.name and not isinstance(other.load, Batch):
                found.setdefault((other.workload, other.num_prompts))
        return list(found)

    def _siblings(self, cell: Cell, number: int, side: str | None) -> list[tuple[Cell, str]]:
        """The cells of tests to come that an engine of this cell's could measure, and that lack this round."""
        found: dict[str, tuple[Cell, str]] = {}
        if side is None and self.options.sglang_old is not None:
            return []  # a reference, or a cell of perf_lab: the others are measured on both sides, by themselves
        for spec, nodeid in self.upcoming():
            if spec.mode != cell.mode:
                continue
            try:
                other = self.cell_of(spec)
            except (CannotRun, R1PerfError):
                continue  # its own test says why
            if other.fingerprint == cell.fingerprint or other.engine_key != cell.engine_key:
                continue
            rounds, broken = self.recorder.rounds(other, side)
            if rounds == number - 1 and not broken and number <= self.plan(spec, other.platform).maximum:
                found.setdefault(other.fingerprint, (other, nodeid))
        return list(found.values())


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
