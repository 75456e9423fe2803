"""Two sets of rounds that are there already, cell by cell: the judge of the pytest sessions, outside pytest.

The reference is what a baseline is in a session, the new side what the session measured. Nothing is measured or read
here (:mod:`pytest_r1perf.compare.sides` reads).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_r1perf.metrics import METRICS
from pytest_r1perf.platform import Platform
from pytest_r1perf.results import CellResult
from pytest_r1perf.sglang import protocol, resolved
from pytest_r1perf.verdict import Judgement, Reference, Terms, Verdict, judge, terms_for, worst

AGAINST = "A"
"""What a comparison calls its reference, beside B, the new side."""
DEFAULT_METRIC = "total_throughput"
EXIT_DECIDED, EXIT_FAILED, EXIT_UNREADABLE, EXIT_NOTHING_DECIDED = range(4)
"""What ``r1perf compare`` exits with; click's own status for a wrong command line is 2, too."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell as one side has it.

    ``samples`` are one value a round, by metric. ``fault`` is why they are no measurement (a broken run, a line that
    is none) with its verdict. ``metrics`` are those that its own session judged, and ``level`` the error rates (of
    the alarm, of the all-clear) that its look had left when it stopped measuring. ``tolerance`` is what a baseline's
    reviewers gave it, ``hardware`` the key, ``host`` a host's name where it is known.
    """

    topology: str
    key: str
    platform: str
    hardware: str
    samples: Mapping[str, Sequence[float]]
    protocol: Mapping[str, object]
    versions: Mapping[str, str] = field(default_factory=dict)
    resolved: Mapping[str, object] = field(default_factory=dict)
    nodeid: str = ""
    host: str = ""
    metrics: tuple[str, ...] = ()
    level: tuple[float, float] | None = None
    tolerance: float | None = None
    fault: tuple[Verdict, str] | None = None

    @property
    def label(self) -> str:
        """As :attr:`pytest_r1perf.cell.Cell.label` has it: topology, recipe, N and what a marker changed."""
        parts = self.key.split("/")
        if len(parts) < 5 or not parts[3].startswith("n"):
            return f"{self.topology} {self.key}"
        return " ".join([self.topology, parts[1], f"n={parts[3][1:]}", *(["/".join(parts[5:])] if parts[5:] else [])])


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two inputs: its cells by (topology, key), and in sentences what of it was left out."""

    name: str
    session: str
    cells: Mapping[tuple[str, str], Measured]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the two sides are judged.

    ``platform_of`` gives the platform whose tolerance, error rate and noise hold for a cell; it may raise
    :class:`R1PerfError`. ``metrics`` and ``tolerance`` go before what the cell's own session or baseline says.
    ``same_session``: the sides were measured interleaved, so no variance between sessions is added.
    """

    platform_of: Callable[[Measured], Platform]
    metrics: tuple[str, ...] = ()
    tolerance: float | None = None
    same_session: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out: a result a cell that both sides have, and the cells that only one has."""

    reference: Side
    new: Side
    results: tuple[CellResult, ...]
    only_reference: tuple[Measured, ...]
    only_new: tuple[Measured, ...]

    def exit_status(self, *, gate: bool) -> int:
        """1: something fails (with ``gate``, what is not decided fails too); 3: nothing was decided; else 0."""
        verdicts = [result.verdict for result in self.results]
        broken = any(verdict.fails for verdict in verdicts) or any(cell.fault is not None for cell in self.only_new)
        undecided = any(not verdict.decided for verdict in verdicts) or bool(self.only_new)
        if broken or (gate and undecided):
            return EXIT_FAILED
        return EXIT_DECIDED if any(verdict.decided for verdict in verdicts) else EXIT_NOTHING_DECIDED


def compare(reference: Side, new: Side, conditions: Conditions) -> Comparison:
    """Judge every cell that both sides have; raises what ``conditions.platform_of`` raises."""
    both = [key for key in reference.cells if key in new.cells]
    return Comparison(
        reference,
        new,
        results=tuple(compare_cell(reference.cells[key], new.cells[key], conditions) for key in both),
        only_reference=tuple(cell for key, cell in reference.cells.items() if key not in new.cells),
        only_new=tuple(cell for key, cell in new.cells.items() if key not in reference.cells),
    )


def compare_cell(reference: Measured, new: Measured, conditions: Conditions) -> CellResult:
    """The result of one cell: its fault, else what bars the comparison, else the worst of its metrics' verdicts."""
    platform = conditions.platform_of(new)
    metrics = conditions.metrics or new.metrics or reference.metrics or (DEFAULT_METRIC,)
    empty = CellResult(
        nodeid=new.nodeid,
        topology=new.topology,
        key=new.key,
        label=new.label,
        platform=platform.name,
        hardware=new.hardware,
        verdict=Verdict.UNDECIDED,
        notes=tuple(changes(reference, new)),
        rounds=max((len(values) for values in new.samples.values()), default=0),
        medians={name: statistics.median(new.samples[name]) for name in metrics if new.samples.get(name)},
        error_rate=platform.error_rate.per_cell,
        missed_rate=platform.error_rate.missed,
        against=AGAINST,
    )
    barred = _fault(reference, new) or _barrier(reference, new, metrics)
    if barred is not None:
        verdict, cause = barred
        return replace(empty, verdict=verdict, cause=cause, failed=verdict.fails)
    terms = _terms(platform, (reference, new), len(metrics), conditions)
    judgements = tuple(_judged(name, reference, new, terms, conditions) for name in metrics)
    decisive = worst(judgements)
    return replace(
        empty,
        verdict=decisive.verdict,
        cause=decisive.reason,
        judgements=judgements,
        failed=decisive.verdict.fails,
    )


def changes(reference: Measured, new: Measured) -> list[str]:
    """What else differs, each a line; none of it bars the comparison. Resolved arguments as far as both have them."""
    names = [*reference.versions, *(name for name in new.versions if name not in reference.versions)]
    lines = [
        f"versions: {name}: {reference.versions.get(name, 'absent')} -> {new.versions.get(name, 'absent')}"
        for name in names
        if reference.versions.get(name) != new.versions.get(name)
    ]
    if reference.resolved and new.resolved:
        lines += [f"resolved: {line}" for line in resolved.differences(reference.resolved, new.resolved)]
    return lines


def _terms(platform: Platform, sides: tuple[Measured, Measured], metrics: int, conditions: Conditions) -> Terms:
    """One look at what is there. Where a session looked several times, no more than what its last look had is left."""
    given = (conditions.tolerance, sides[0].tolerance)
    tolerance = next((value for value in given if value is not None), platform.tolerance)
    terms = terms_for(platform, tolerance=tolerance, floor=None, metrics=metrics)
    for level in (side.level for side in sides):
        if level is not None:
            terms = replace(terms, alpha=min(terms.alpha, level[0]), beta=min(terms.beta, level[1]))
    return terms


def _judged(metric: str, reference: Measured, new: Measured, terms: Terms, conditions: Conditions) -> Judgement:
    hosts = {side.host for side in (reference, new) if side.host}
    against = Reference(reference.samples[metric], same_session=conditions.same_session, other_host=len(hosts) > 1)
    return judge(metric, new.samples[metric], against, terms)


def _fault(reference: Measured, new: Measured) -> tuple[Verdict, str] | None:
    """The new side's fault is the cell's verdict; a reference that broke is none, and one with a bad line is bad."""
    if new.fault is not None:
        return new.fault
    if reference.fault is None:
        return None
    verdict, cause = reference.fault
    if verdict is Verdict.INVALID:
        return Verdict.INVALID, f"the reference: {cause}"
    return Verdict.NO_BASELINE, f"the reference broke: {verdict.value}: {cause}"


def _barrier(reference: Measured, new: Measured, metrics: Sequence[str]) -> tuple[Verdict, str] | None:
    """Why the numbers may not be compared, key by key."""
    barriers = [f"protocol: {line}" for line in protocol.differences(reference.protocol, new.protocol)]
    if reference.hardware != new.hardware:
        barriers.insert(0, f"hardware: {reference.hardware} -> {new.hardware}")
    missing = [
        f"{name} is missing from {where}"
        for name in metrics
        for where, side in (("the reference", reference), ("the new side", new))
        if name in METRICS and not side.samples.get(name)
    ]
    return (Verdict.INCOMPARABLE, "; ".join([*barriers, *missing])) if barriers or missing else None
