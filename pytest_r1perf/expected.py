"""Cells that are expected to lose: an anti-pattern against its reference, or against the memory (design section 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_r1perf.antipatterns import Rule
from pytest_r1perf.cell import Cell, reference_of
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.measure import RoundPlan
from pytest_r1perf.measurement import Measurement
from pytest_r1perf.results import CellResult
from pytest_r1perf.verdict import Judgement, Reference, Verdict, judge_antipattern

if TYPE_CHECKING:
    from pytest_r1perf.assess import Assessor


def assess_slower(
    assessor: Assessor, cell: Cell, spec: PerfSpec, nodeid: str, plan: RoundPlan, rule: Rule, notes: list[str]
) -> tuple[Measurement, CellResult]:
    """An anti-pattern against the reference recipe of its topology and N, both of this session.

    Both sides have the same number of rounds at each planned look (the reference more, where another test has
    measured it already).
    """
    terms = assessor.terms(spec, cell.platform, plan)
    reference_cell = reference_of(cell, assessor.runner.catalog, rule.id)
    metric = spec.metrics[0]
    for look in plan.looks:
        upto = RoundPlan(look, look)
        reference = assessor.runner.measure(reference_cell, nodeid, upto, lambda now: False)
        if reference.problem is not None:
            result = assessor.result(reference, spec, nodeid, notes=notes)
            return reference, replace(result, cause=f"the reference {reference_cell.label}: {result.cause}")
        if len(reference.samples) < look:
            nothing = Measurement(cell, remarks=reference.remarks)
            result = assessor.result(nothing, spec, nodeid, notes=notes)
            return nothing, replace(result, cause=f"the reference {reference_cell.label} has too few rounds")
        measurement = assessor.runner.measure(cell, nodeid, upto, lambda now: False)
        if measurement.problem is not None or len(measurement.samples) < look:
            return measurement, assessor.result(measurement, spec, nodeid, notes=notes)
        against = Reference(reference.values(metric), same_session=True, grows=True)
        judgement = judge_antipattern(metric, measurement.values(metric), against, terms)
        if judgement.verdict is not Verdict.UNDECIDED:
            break
    notes = [*notes, f"compared with the reference {reference_cell.label} of this session"]
    result = assessor.result(measurement, spec, nodeid, (judgement,), notes=notes)
    return measurement, replace(result, verdict=judgement.verdict, cause=_cost(rule, judgement))


def assess_oom(
    assessor: Assessor, cell: Cell, spec: PerfSpec, nodeid: str, rule: Rule, notes: list[str]
) -> tuple[Measurement, CellResult]:
    """A cell that must run out of memory: one round tells."""
    measurement = assessor.runner.measure(cell, nodeid, RoundPlan(1, 1), lambda now: False)
    result = assessor.result(measurement, spec, nodeid, notes=notes)
    if result.verdict is Verdict.OOM:
        result = replace(result, verdict=Verdict.XFAIL)
    elif measurement.problem is None and measurement.samples:
        cause = f"did not run out of memory: re-validate this rule ({advice(rule)})"
        result = replace(result, verdict=Verdict.XPASS, cause=cause)
    return measurement, result


def advice(rule: Rule) -> str:
    """One line: what it is, and what to use instead."""
    return f"{rule.id}: {rule.title}; instead: {rule.instead}"


def _cost(rule: Rule, judgement: Judgement) -> str:
    """The measured cost beside the published one."""
    published = f"published {rule.impact:+.0%}" if rule.impact is not None else "no figure published"
    if judgement.ratio is None:
        return f"{rule.id}: {judgement.reason}"
    ratio = judgement.ratio
    measured = f"{ratio.estimate - 1:+.0%} [{ratio.lower - 1:+.0%}, {ratio.upper - 1:+.0%}]"
    return f"{rule.id}: {judgement.reason}: {judgement.metric} {measured}, {published}; instead: {rule.instead}"
