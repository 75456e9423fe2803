"""From the sessions that measured a version, all of them pooled, to what they say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_r1perf import records
from pytest_r1perf.bisect.search import Answer, Build, Outcome
from pytest_r1perf.compare.cells import DEFAULT_METRIC, Measured
from pytest_r1perf.compare.sides import read_sides
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.platform import Platform
from pytest_r1perf.sglang.protocol import differences
from pytest_r1perf.verdict import Judgement, Reference, Verdict, judge, terms_for

OLD, NEW = "old", "new"
_MEND = "mend it, then go on with --resume"


@dataclass(frozen=True, slots=True)
class Rules:
    """How a version is judged against the good end.

    ``error`` is the probability of a wrong answer on one version, over all its looks together; ``looks`` are the
    rounds a side after which there is one. ``tolerance`` of ``None`` is the test's own, else the platform's.
    ``metric`` of ``None`` is the first that the test judges. ``exact``: PASS asks for the tolerance itself, also where
    the platform has a larger drop to detect. ``sglang_defaults``: SGLang's own defaults are what is compared, so that
    another protocol bars nothing.
    """

    platform: Platform
    looks: tuple[int, ...]
    error: float
    tolerance: float | None = None
    metric: str | None = None
    exact: bool = False
    sglang_defaults: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """One session's two sides of the one cell that was measured; ``fault`` where a side has no usable rounds."""

    old: Measured | None
    new: Measured | None
    fault: tuple[Verdict, str] | None = None


def read_look(session: Path) -> Look:
    """What a session that compared the good end with a version left behind.

    Where both sides were measured, what else its verdict says (other answers, or none) is passed over. Raises
    :class:`R1PerfError` when it measured more than one cell or nothing at all, or when the good end broke.
    """
    said = [line["result"] for line in records.lines(records.SessionFolder(session)) if line.get("kind") == "verdict"]
    broken = next(
        ((Verdict(result["verdict"]), str(result.get("cause", ""))) for result in said if _fails(result)), None
    )
    try:
        sides = read_sides(session)
    except R1PerfError:
        if broken is None:
            raise
        sides = {}
    found = {name: sides[name].cells for name in (OLD, NEW) if name in sides}
    cells = sorted({key for own in found.values() for key in own})
    if len(cells) > 1:
        names = ", ".join(f"{topology} {key}" for topology, key in cells)
        raise R1PerfError(f"the test measures {len(cells)} cells ({names}): bisect one, by its whole node id")
    old, new = (found.get(name, {}).get(cells[0]) if cells else None for name in (OLD, NEW))
    if old is not None and new is not None:
        return Look(old, new, new.fault)
    if new is not None and new.fault is not None:
        return Look(old, new, new.fault)
    if broken is not None and broken[1].startswith(f"{OLD}: "):
        raise R1PerfError(f"the good end broke ({broken[0].value}: {broken[1]}): {_MEND}")
    if broken is None and old is None and new is None:
        raise R1PerfError(f"{session}: nothing was measured on two sides; see pytest.log beside it")
    return Look(old, new, broken)


def outcome_of(candidate: str, looks: Sequence[Look], rules: Rules) -> Outcome:
    """The answer from all rounds of all looks.

    A version that broke, whose numbers are no measurement, or that resolved another protocol is skipped. Raises
    :class:`R1PerfError` when the good end broke, or is not what it was in an earlier look.
    """
    old = _pooled([look.old for look in looks if look.old is not None], "the good end")
    new = _pooled([look.new for look in looks if look.new is not None], candidate)
    if old is not None and old.fault is not None:
        verdict, cause = old.fault
        raise R1PerfError(f"the good end broke ({verdict.value}: {cause}): {_MEND}")
    own, reference = _build(new), _build(old)
    fault = next((look.fault for look in looks if look.fault is not None), None)
    if fault is not None:
        return Outcome(candidate, Answer.SKIPPED, f"{fault[0].value}: {fault[1]}", own=own, reference=reference)
    if old is None or new is None:
        raise R1PerfError(f"{candidate}: only one side was measured; see pytest.log beside the session")
    barriers = () if rules.sglang_defaults else differences(old.protocol, new.protocol)
    if barriers:
        reason = f"INCOMPARABLE: protocol: {'; '.join(barriers)}"
        return Outcome(candidate, Answer.SKIPPED, reason, own=own, reference=reference)
    judgement = _judged(old, new, rules)
    ratio = judgement.ratio
    return Outcome(
        candidate,
        _ANSWERS.get(judgement.verdict, Answer.UNDECIDED),
        judgement.reason,
        rounds=judgement.rounds,
        ratio=(ratio.estimate, ratio.lower, ratio.upper) if ratio is not None else None,
        own=own,
        reference=reference,
    )


_ANSWERS = {Verdict.REGRESSED: Answer.BAD, Verdict.PASS: Answer.GOOD, Verdict.IMPROVED: Answer.GOOD}


def _judged(old: Measured, new: Measured, rules: Rules) -> Judgement:
    metric = rules.metric or next(iter(new.metrics or old.metrics), DEFAULT_METRIC)
    values, against = new.samples.get(metric, ()), old.samples.get(metric, ())
    if not values or not against:
        raise R1PerfError(f"{metric} was not measured: name one of {', '.join(new.samples)} with --metric")
    given = (rules.tolerance, new.tolerance, rules.platform.tolerance)
    terms = terms_for(
        rules.platform,
        tolerance=next(value for value in given if value is not None),
        floor=None,
        looks=rules.looks,
        detect=0.0 if rules.exact else None,
    )
    terms = replace(terms, alpha=rules.error, beta=rules.error)
    return judge(metric, values, Reference(against, same_session=True, grows=True), terms)


def _pooled(parts: Sequence[Measured], what: str) -> Measured | None:
    """All rounds of one side together, if they are of the same hardware, versions and protocol."""
    if not parts:
        return None
    first = parts[0]
    for part in parts[1:]:
        if part.fault is None and (part.hardware, part.versions) != (first.hardware, first.versions):
            raise R1PerfError(
                f"{what} is not what it was in an earlier look ({first.hardware}, sglang "
                f"{first.versions.get('sglang')} -> {part.hardware}, sglang {part.versions.get('sglang')}): "
                "start anew with another --state"
            )
        changed = differences(first.protocol, part.protocol) if part.fault is None else ()
        if changed:
            raise R1PerfError(
                f"{what} was measured by another protocol in an earlier look ({'; '.join(changed)}): start anew with "
                "another --state"
            )
    fault = next((part.fault for part in parts if part.fault is not None), None)
    samples = {
        name: [value for part in parts for value in part.samples.get(name, ())]
        for name in first.samples
        if all(name in part.samples for part in parts)
    }
    return replace(first, samples=samples, fault=fault)


def _build(side: Measured | None) -> Build:
    return Build() if side is None else Build(dict(side.versions), dict(side.resolved))


def _fails(result: object) -> bool:
    """Whether a verdict line says that the run broke; that it is slower, or answers otherwise, is no such thing."""
    try:
        verdict = Verdict(result["verdict"])  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        return False
    return verdict.fails and verdict not in (Verdict.REGRESSED, Verdict.XPASS, Verdict.OUTPUTS_CHANGED)
