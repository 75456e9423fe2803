"""From a measurement to a cell's result: the baseline, the floor, the anti-pattern rules, the notes beside them."""

from __future__ import annotations

import datetime
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_r1perf import baseline as baselines
from pytest_r1perf.antipatterns import Rule, RuleKind, matching
from pytest_r1perf.baseline import Baseline
from pytest_r1perf.cell import Cell
from pytest_r1perf.changes import changes_since, command_line
from pytest_r1perf.deployment import OPTION, bound_note, deployment_note
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.expected import advice, assess_oom, assess_slower
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.measure import RoundPlan
from pytest_r1perf.measurement import Measurement, Problem
from pytest_r1perf.options import Update
from pytest_r1perf.ownprocess import WALL_TIME
from pytest_r1perf.pair import assess_pair
from pytest_r1perf.platform import Platform
from pytest_r1perf.report.parity import notes_against
from pytest_r1perf.results import CellResult
from pytest_r1perf.roundrun import translated
from pytest_r1perf.runner import Runner, verdict_of
from pytest_r1perf.sglang.protocol import differences
from pytest_r1perf.sglang.resolved import storable
from pytest_r1perf.verdict import (
    Judgement,
    Reference,
    Terms,
    Verdict,
    judge,
    judge_gates,
    terms_for,
    worst,
)

ONLY_NEW = "only the new environment was measured: the two are compared by tests without perf_lab and anti-patterns"


@dataclass(frozen=True)
class Assessment:
    """A test's measurement with its result; ``rules`` are the anti-patterns that the cell is an instance of."""

    measurement: Measurement
    result: CellResult
    rules: tuple[Rule, ...] = ()

    @property
    def expected_to_lose(self) -> Rule | None:
        """The rule that makes the test xfail, if any."""
        return _losing(self.rules)


@dataclass(frozen=True)
class Assessor:
    """Measures and judges the cells of tests."""

    runner: Runner
    git_commit: str

    def assess(self, spec: PerfSpec, nodeid: str, floor_platform: str | None) -> Assessment:
        """Measure and judge the cell of a marker.

        ``floor_platform``: where the suite's file says that its floors hold; ``None`` is everywhere.
        Raises :class:`CannotRun`; every other mistake is a CONFIG result.
        """
        cell = self.runner.cell_of(spec)
        plan = self.runner.plan(spec, cell.platform)
        spec, notes = _bounded(spec, cell, floor_platform)
        floor = spec.min_tokps
        try:
            stored = self._stored(cell) if self.runner.options.sglang_old is None else None
            environment = self.runner.environment(cell)
            version = environment.version
            # Before a reference is measured for nothing.
            translated(cell, environment.options, sglang_defaults=self.runner.options.sglang_defaults)
            rules = matching(self.runner.catalog.rules.values(), cell, version)
            _refuse_rejected(rules, version)
        except R1PerfError as error:
            broken = Measurement(cell, problem=Problem(verdict_of(error), str(error)))
            return Assessment(broken, self.result(broken, spec, nodeid, notes=notes))
        notes += [advice(rule) for rule in rules if rule.kind is RuleKind.ADVISORY]
        rule = _losing(rules)
        if rule is None and self.runner.options.sglang_old is not None:
            measurement, result = assess_pair(self, cell, spec, nodeid, plan, floor, notes)
        elif rule is None:
            measurement, result = self._assess_plain(cell, spec, nodeid, plan, stored, floor, notes)
        elif rule.kind is RuleKind.OOM:
            measurement, result = assess_oom(self, cell, spec, nodeid, rule, notes)
        else:
            measurement, result = assess_slower(self, cell, spec, nodeid, plan, rule, notes)
        if rule is not None and self.runner.options.sglang_old is not None:
            result = replace(result, notes=(*result.notes, ONLY_NEW))
        return Assessment(measurement, result, rules)

    def measured(self, spec: PerfSpec, nodeid: str) -> Assessment:
        """Measure a cell for ``perf_lab``: no baseline, no floor, no verdict of its own."""
        cell = self.runner.cell_of(spec)
        plan = self.runner.plan(spec, cell.platform)
        measurement = self.runner.measure(cell, nodeid, plan, lambda now: True)
        own = [deployment_note(cell.platform)] if cell.platform.deployed else []
        result = self.result(measurement, spec, nodeid, notes=own)
        if measurement.problem is None and len(measurement.samples) >= plan.minimum:
            result = replace(result, verdict=Verdict.MEASURED, cause="")
        elif measurement.problem is None and measurement.samples:
            reason = f"only {len(measurement.samples)} of {plan.minimum} rounds were measured"
            result = replace(result, cause=reason)
        if self.runner.options.sglang_old is not None:
            result = replace(result, notes=(*result.notes, ONLY_NEW))
        return Assessment(measurement, result)

    def _assess_plain(
        self,
        cell: Cell,
        spec: PerfSpec,
        nodeid: str,
        plan: RoundPlan,
        stored: Baseline | None,
        floor: float | None,
        notes: list[str],
    ) -> tuple[Measurement, CellResult]:
        terms = self.terms(spec, cell.platform, plan, stored=stored, floor=floor)

        def judged(now: Measurement) -> tuple[Judgement, ...]:
            return _judge_all(now, spec, stored, terms, other_host=self._other_host(stored, cell))

        storing = self._stores(stored)
        measurement = self.runner.measure(
            cell,
            nodeid,
            plan,
            lambda now: not storing and worst(judged(now)).verdict is not Verdict.UNDECIDED,
        )
        if measurement.problem is not None or not measurement.samples:
            return measurement, self.result(measurement, spec, nodeid, notes=notes)
        judgements = judged(measurement)
        barriers = self._barriers(cell, stored, measurement)
        notes = [*notes, *barriers, *self._changes(cell, stored, measurement), *notes_against(stored, measurement)]
        result = self.result(measurement, spec, nodeid, judgements, notes=notes)
        result = replace(result, entry=self._entry(measurement))
        if len(measurement.samples) < plan.minimum:
            reason = f"only {len(measurement.samples)} of {plan.minimum} rounds were measured"
            result = replace(result, verdict=Verdict.UNDECIDED, cause=reason)
        elif storing and not _below_floor(judgements):
            result = replace(result, verdict=Verdict.STORED, cause=_stored_cause(judgements[0], self._path(cell)))
        elif barriers and result.verdict is not Verdict.REGRESSED:
            advice = ": store a baseline of this hardware with --perf-update-new" if stored is None else ""
            result = replace(result, verdict=Verdict.INCOMPARABLE, cause="; ".join(barriers) + advice)
        return measurement, result

    def terms(
        self,
        spec: PerfSpec,
        platform: Platform,
        plan: RoundPlan,
        *,
        stored: Baseline | None = None,
        floor: float | None = None,
    ) -> Terms:
        """Tolerance by option, then marker, then the baseline's own, then the platform's."""
        given = (self.runner.options.tolerance, spec.tolerance, stored.tolerance if stored else None)
        tolerance = next((value for value in given if value is not None), platform.tolerance)
        limits = () if spec.max_wall_time is None else ((WALL_TIME, spec.max_wall_time),)
        return terms_for(
            platform,
            tolerance=tolerance,
            floor=floor,
            looks=plan.looks,
            metrics=len({*spec.metrics, *(metric for metric, _ in limits)}),
            detect=self.runner.options.detect,
            limits=limits,
        )

    def _other_host(self, stored: Baseline | None, cell: Cell) -> bool:
        """Whether another machine of this model measured the baseline; older ones don't say."""
        host = stored.provenance.get("host") if stored is not None else None
        return bool(host) and host != self.runner.host_names(cell)

    def _stores(self, stored: Baseline | None) -> bool:
        update = self.runner.options.update
        return update is Update.ALL or (update is Update.NEW and stored is None)

    def _path(self, cell: Cell) -> Path:
        hardware = self.runner.hardware(cell)
        return baselines.path_of(self.runner.options.baselines, hardware.key, cell.topology.name)

    def _stored(self, cell: Cell) -> Baseline | None:
        hardware = self.runner.hardware(cell)
        path = self._path(cell)
        if not path.exists():
            return None
        file = baselines.load(path)
        if (file.hardware_name, file.hardware_count) != (hardware.name, hardware.count):
            raise R1PerfError(
                f"{path}: hardware: is {file.hardware_name!r} x {file.hardware_count}, but the folder's name "
                f"stands for {hardware}: move the file, or measure anew with --perf-update"
            )
        return file.cells.get(cell.key)

    def _barriers(self, cell: Cell, stored: Baseline | None, measurement: Measurement) -> list[str]:
        """Why the numbers may not be compared, key by key."""
        if stored is not None:
            return [f"protocol: {line}" for line in differences(stored.protocol, measurement.protocol)]
        hardware = self.runner.hardware(cell)
        files = baselines.other_hardware(self.runner.options.baselines, hardware.key, cell.topology.name, cell.key)
        return [
            f"hardware: {file.hardware_name}, {file.hardware_count} -> {hardware.name}, {hardware.count}"
            for file in files
        ]

    def result(
        self,
        measurement: Measurement,
        spec: PerfSpec,
        nodeid: str,
        judgements: tuple[Judgement, ...] = (),
        *,
        notes: Sequence[str] = (),
    ) -> CellResult:
        """The result of a measurement: its problem, or the worst of the judgements."""
        cell, problem, samples = measurement.cell, measurement.problem, measurement.samples
        if problem is not None:
            verdict, cause = problem.verdict, problem.cause + (f" ({problem.hint})" if problem.hint else "")
        elif judgements:
            decisive = worst(judgements) if len(judgements) > 1 else judgements[0]
            verdict, cause = decisive.verdict, decisive.reason
        else:
            verdict, cause = Verdict.UNDECIDED, "no round was measured"
        remarks = [f"round {sample.round}: {remark}" for sample in samples for remark in sample.remarks]
        site = self.runner.sites.known(cell)
        return CellResult(
            nodeid=nodeid,
            topology=cell.topology.name,
            key=cell.key,
            label=cell.label,
            platform=cell.platform.name,
            hardware=site.hardware.key if site is not None else self.runner.hardware_key(cell),
            hardware_name=site.hardware.name if site is not None else "",
            hardware_count=site.hardware.count if site is not None else 0,
            verdict=verdict,
            cause=cause,
            judgements=judgements,
            medians={name: statistics.median(measurement.values(name)) for name in spec.metrics} if samples else {},
            rounds=len(samples),
            log=problem.log if problem else samples[-1].log if samples else "",
            reproduce=self._reproduce(nodeid, cell),
            notes=(*notes, *measurement.remarks, *remarks),
            quarantined=spec.quarantine_until is not None and datetime.date.today() <= spec.quarantine_until,
            engine={"engine": cell.engine_key, "serve": f"serve-{cell.engine_key}"}.get(cell.mode, ""),
            error_rate=cell.platform.error_rate.per_cell,
            missed_rate=cell.platform.error_rate.missed,
            discarded=len(measurement.discarded) + sum(sample.discarded for sample in samples),
            ceilings=_reached(measurement),
        )

    def _changes(self, cell: Cell, stored: Baseline | None, measurement: Measurement) -> list[str]:
        return changes_since(stored, measurement, self.runner.host_settings(cell))

    def _entry(self, measurement: Measurement) -> dict[str, Any]:
        return {
            "samples": {name: list(measurement.values(name)) for name in measurement.samples[0].metrics},
            "protocol": dict(measurement.protocol),
            "provenance": {
                "host": self.runner.host_names(measurement.cell),
                "host_settings": self.runner.host_settings(measurement.cell),
                "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
                "session": self.runner.recorder.folder.name,
                "rounds": len(measurement.samples),
                "git_commit": self.git_commit,
                "versions": dict(measurement.versions),
                "env": measurement.whole_env,
                "command": command_line(measurement),
                "resolved": storable(measurement.resolved),
            },
        }

    def _reproduce(self, nodeid: str, cell: Cell) -> str:
        options = self.runner.options
        parts = ["pytest", nodeid, "--perf", "--perf-platform", cell.platform.name]
        if options.sglang and options.sglang_old:
            parts += ["--sglang", f"old={options.sglang_old}", "--sglang", f"new={options.sglang}"]
        elif options.sglang:
            parts += ["--sglang", options.sglang]
        if options.sglang_defaults:
            parts.append("--perf-sglang-defaults")
        if options.deployment:
            parts.append(OPTION)
        if not options.outputs:
            parts.append("--perf-no-outputs")
        if options.tolerance is not None:
            parts += ["--perf-tolerance", f"{options.tolerance:g}"]
        if options.detect is not None:
            parts += ["--perf-detect", f"{options.detect:g}"]
        if options.rounds is not None:
            parts += ["--perf-rounds", f"{options.rounds[0]}:{options.rounds[1]}"]
        for name, value in (("--perf-windows", options.windows), ("--perf-discard", options.discard)):
            parts += [name, str(value)] if value is not None else []
        if options.gate:
            parts.append("--perf-gate")
        return shlex.join(parts)


def _reached(measurement: Measurement) -> dict[str, float]:
    """The median fraction of the hardware's bound that the rounds reached, by metric."""
    fractions: dict[str, list[float]] = {}
    for sample in measurement.samples:
        for metric, bound in sample.ceiling.items():
            if metric in sample.metrics:
                fractions.setdefault(metric, []).append(sample.metrics[metric] / bound)
    return {metric: statistics.median(values) for metric, values in fractions.items()}


def _losing(rules: Sequence[Rule]) -> Rule | None:
    """The rule that a cell is judged and xfailed by: what must run out of memory cannot be slower."""
    by_kind = {rule.kind: rule for rule in reversed(rules)}
    return by_kind.get(RuleKind.OOM) or by_kind.get(RuleKind.SLOWER)


def _bounded(spec: PerfSpec, cell: Cell, floor_platform: str | None) -> tuple[PerfSpec, list[str]]:
    """The marker with the bounds that hold here, and the notes that a report starts with."""
    own = [deployment_note(cell.platform)] if cell.platform.deployed else []
    if not own and floor_platform in (None, cell.platform.name):
        return spec, []
    bounds = [f"the floor {spec.min_tokps:g}"] if spec.min_tokps is not None else []
    bounds += [f"the limit {spec.max_wall_time:g} s"] if spec.max_wall_time is not None else []
    if own:
        notes = [*own, *map(bound_note, bounds)]
    else:
        notes = [f"{bound} is for platform {floor_platform!r}: not applied here" for bound in bounds]
    return replace(spec, min_tokps=None, max_wall_time=None), notes


def _judge_all(
    measurement: Measurement, spec: PerfSpec, stored: Baseline | None, terms: Terms, *, other_host: bool
) -> tuple[Judgement, ...]:
    """One judgement a metric, the floor being the first one's; then what only has a limit."""
    comparable = stored is not None and not differences(stored.protocol, measurement.protocol)
    judgements = []
    for number, metric in enumerate(spec.metrics):
        values = stored.samples.get(metric) if stored is not None and comparable else None
        reference = Reference(values, other_host=other_host) if values else None
        judgement = judge(metric, measurement.values(metric), reference, terms.of(metric, first=number == 0))
        if judgement.verdict is Verdict.NO_BASELINE and stored is not None and comparable:
            judgement = replace(judgement, reason=f"the baseline has no {metric}: store it anew with --perf-update")
        judgements.append(judgement)
    return (*judgements, *judge_gates(measurement.values, spec.metrics, terms))


def _below_floor(judgements: Sequence[Judgement]) -> bool:
    return any(item.out_of_bounds for item in judgements)


def _stored_cause(judgement: Judgement, path: Path) -> str:
    if judgement.ratio is None:
        return f"stored in {path}"
    return f"stored in {path}; {judgement.ratio.estimate:.3f} of the one before"


def _refuse_rejected(rules: Sequence[Rule], version: str) -> None:
    for rule in rules:
        if rule.kind is RuleKind.REJECTED:
            raise R1PerfError(f"{rule.title}: sglang {version} refuses it; instead: {rule.instead}")
