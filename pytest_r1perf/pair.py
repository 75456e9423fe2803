"""A cell in two SGLang environments (``--sglang old=... --sglang new=...``): no baseline, one ratio of this session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_r1perf.baseline import Baseline
from pytest_r1perf.cell import Cell
from pytest_r1perf.changes import changes_since, command_line
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.measure import RoundPlan
from pytest_r1perf.measurement import Measurement, Problem
from pytest_r1perf.report.outputs import outputs_lines
from pytest_r1perf.report.parity import notes_between
from pytest_r1perf.results import OLD_ENVIRONMENT, CellResult
from pytest_r1perf.runner import NEW, OLD
from pytest_r1perf.sglang.protocol import differences
from pytest_r1perf.verdict import Judgement, Reference, Terms, Verdict, judge, judge_gates, worst

if TYPE_CHECKING:
    from pytest_r1perf.assess import Assessor


def assess_pair(
    assessor: Assessor,
    cell: Cell,
    spec: PerfSpec,
    nodeid: str,
    plan: RoundPlan,
    floor: float | None,
    notes: list[str],
) -> tuple[Measurement, CellResult]:
    """Measure both in turn and judge new over old; a floor is the new one's.

    Environments that were measured by different protocols (another attention backend by default, say) are
    INCOMPARABLE, unless SGLang's own defaults are what is compared (``--perf-sglang-defaults``).
    """
    terms = assessor.terms(spec, cell.platform, plan, floor=floor)
    defaults = assessor.runner.options.sglang_defaults

    def decided(old: Measurement, new: Measurement) -> bool:
        comparable = defaults or not differences(old.protocol, new.protocol)
        judged = worst(_judged(old, new, spec, terms, comparable=comparable))
        return not comparable or judged.verdict is not Verdict.UNDECIDED

    old, new = assessor.runner.measure_pair(cell, nodeid, plan, decided)
    for side, measurement in ((OLD, old), (NEW, new)):
        if measurement.problem is not None:
            result = assessor.result(measurement, spec, nodeid, notes=notes)
            cause = result.cause if result.cause.startswith(f"{side}: ") else f"{side}: {result.cause}"
            return measurement, replace(result, cause=cause, against=OLD_ENVIRONMENT)
    rounds = min(len(old.samples), len(new.samples))
    if not rounds:
        return new, replace(assessor.result(new, spec, nodeid, notes=notes), against=OLD_ENVIRONMENT)
    barriers = [f"protocol: {line}" for line in differences(old.protocol, new.protocol)]
    judgements = _judged(old, new, spec, terms, comparable=defaults or not barriers)
    notes = [*notes, *barriers, *_between(old, new), *notes_between(old, new)]
    result = assessor.result(new, spec, nodeid, judgements, notes=notes)
    result = replace(result, against=OLD_ENVIRONMENT)
    if rounds < plan.minimum:
        reason = f"only {rounds} of {plan.minimum} rounds were measured on both sides"
        result = replace(result, verdict=Verdict.UNDECIDED, cause=reason)
    elif barriers and not defaults and result.verdict is not Verdict.REGRESSED:  # a floor needs no comparison
        hint = "state it in the recipe, or compare defaults with --perf-sglang-defaults"
        result = replace(result, verdict=Verdict.INCOMPARABLE, cause=f"{'; '.join(barriers)} ({hint})")
    return new, _with_outputs(assessor, cell, nodeid, result)


def _with_outputs(assessor: Assessor, cell: Cell, nodeid: str, result: CellResult) -> CellResult:
    """A speed-up that changes the answers is not one: the greedy answers of both, beside what was measured."""
    if not assessor.runner.options.outputs:
        return replace(result, outputs=("greedy answers: not asked for (--perf-no-outputs)",))
    told = assessor.runner.outputs(cell, nodeid)
    if isinstance(told, Problem):
        if result.verdict.fails:
            return replace(result, notes=(*result.notes, f"greedy answers: {told.verdict.value}: {told.cause}"))
        return replace(result, verdict=told.verdict, cause=told.cause, log=told.log or result.log)
    lines = tuple(outputs_lines(told, OLD, NEW))
    result = replace(result, outputs=lines)
    if told.fails and not result.verdict.fails:
        result = replace(result, verdict=Verdict.OUTPUTS_CHANGED, cause=told.sentence)
    return result


def _judged(
    old: Measurement, new: Measurement, spec: PerfSpec, terms: Terms, *, comparable: bool
) -> tuple[Judgement, ...]:
    """One judgement a metric, the floor being the first one's; then what only has a limit. Bounds are the new one's."""
    judgements = tuple(
        judge(
            metric,
            new.values(metric),
            Reference(old.values(metric), same_session=True, grows=True) if comparable else None,
            terms.of(metric, first=number == 0),
        )
        for number, metric in enumerate(spec.metrics)
    )
    return (*judgements, *judge_gates(new.values, spec.metrics, terms))


def _between(old: Measurement, new: Measurement) -> Sequence[str]:
    """What differs between the two, as lines: versions, environment, command line, resolved arguments, capacity."""
    stood = Baseline(
        key=old.cell.key,
        samples={},
        protocol=old.protocol,
        provenance={
            "versions": dict(old.versions),
            "env": old.whole_env,
            "command": command_line(old),
            "resolved": dict(old.resolved),
        },
    )
    return changes_since(stood, new)
