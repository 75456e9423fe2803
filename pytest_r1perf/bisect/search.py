"""What to measure next, and when it is known: a pure function of the questions asked so far.

Every answer is in a log, oldest first, and the next question follows from the log alone. So a search that was killed
after any answer goes on to the same end.

The good end is the reference of every step. A wrong answer, should there be one, always ends up at the boundary that
the search stops at: a version called bad by mistake sends it down to that version, one called good by mistake up to
it. That is why both sides of the boundary are asked once more, with more rounds, before it is believed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

FIRST_LOOKS = 2
"""How often a version is asked before a neighbour is tried (ours): the second time it has twice the rounds."""


class Answer(str, Enum):
    """What a step says of a version, compared with the good one."""

    GOOD = "good"
    BAD = "bad"
    UNDECIDED = "undecided"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Build:
    """What was measured: versions of packages, and of the resolved arguments what a baseline keeps."""

    versions: Mapping[str, str] = field(default_factory=dict)
    resolved: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer on one version, from all its rounds so far.

    ``ratio`` is (estimate, lower, upper) of it over the good end in the better direction; ``rounds`` a side.
    """

    candidate: str
    answer: Answer
    reason: str = ""
    rounds: int = 0
    ratio: tuple[float, float, float] | None = None
    own: Build = Build()
    reference: Build = Build()


@dataclass(frozen=True, slots=True)
class Plan:
    """``candidates`` in order, the good end first and the bad end last; each is asked at most ``looks`` times.

    ``check_good``: first compare the good end with itself. ``confirm``: ask both sides of the boundary once more.
    """

    candidates: tuple[str, ...]
    looks: int
    check_good: bool = False
    confirm: bool = True

    @property
    def good(self) -> str:
        """The end that is known to be fast."""
        return self.candidates[0]

    @property
    def bad(self) -> str:
        """The end that is slower."""
        return self.candidates[-1]

    @property
    def expected_steps(self) -> int:
        """How many versions get an answer when none is skipped: the halvings, and the bad end."""
        return math.ceil(math.log2(max(len(self.candidates) - 1, 1))) + 1 + self.check_good


@dataclass(frozen=True, slots=True)
class Ask:
    """Measure ``candidate`` for the ``look``-th time (from 1)."""

    candidate: str
    look: int
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """The boundary: ``good`` is the last good version, ``bad`` the first bad one that could be told.

    ``unknown`` lie between them and could not be told: each of them, or ``bad``, may be the first bad one.
    ``contradictions`` are (bad, good) with the good one later, after all looks: the speed went up and down.
    """

    good: str
    bad: str
    unknown: tuple[str, ...] = ()
    contradictions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    """There is nothing to bisect, in one sentence; ``solved`` when that is the answer (the bad end isn't worse)."""

    reason: str
    solved: bool = False


def next_question(plan: Plan, log: Sequence[Outcome]) -> Ask | Found | Stopped:
    """What follows from the log. Outcomes of versions that are not in the plan are passed over."""
    known = _Known(plan, log)
    end = _good_end(known) or _bad_end(known)
    if end is not None:
        return end
    contradictions = known.contradictions()
    again = [name for pair in contradictions for name in pair if known.may_ask(name)]
    if again:
        return known.ask(min(again, key=known.asked), "two answers contradict each other")
    low, high = known.boundary()
    between = plan.candidates[low + 1 : high]
    unknown = [name for name in between if known.answer(name) in (None, Answer.UNDECIDED) and known.may_ask(name)]
    if unknown:
        return _between(known, unknown, (low + high) / 2)
    if plan.confirm:
        for name in (plan.candidates[high], plan.candidates[low]):
            if known.asked(name) == 1 and known.may_ask(name):
                return known.ask(name, "the boundary is asked once more")
    return Found(plan.candidates[low], plan.candidates[high], between, tuple(contradictions))


def marks(plan: Plan, log: Sequence[Outcome]) -> dict[str, Outcome]:
    """The last outcome of each version that was asked, in the plan's order."""
    last = {outcome.candidate: outcome for outcome in log}
    return {name: last[name] for name in plan.candidates if name in last}


class _Known:
    """What the log says of each version: its last answer (from all its rounds) and how often it was asked."""

    def __init__(self, plan: Plan, log: Sequence[Outcome]) -> None:
        self.plan = plan
        self._last = marks(plan, log)
        self._asked: dict[str, int] = {}
        for outcome in log:
            self._asked[outcome.candidate] = self._asked.get(outcome.candidate, 0) + 1
        self.current = next((outcome.candidate for outcome in reversed(log)), None)

    def asked(self, name: str) -> int:
        return self._asked.get(name, 0)

    def answer(self, name: str) -> Answer | None:
        return self._last[name].answer if name in self._last else None

    def reason(self, name: str) -> str:
        return self._last[name].reason

    def may_ask(self, name: str) -> bool:
        """What was skipped isn't asked again, nor the good end after its check: it is good by definition."""
        return name != self.plan.good and self.asked(name) < self.plan.looks and self.answer(name) is not Answer.SKIPPED

    def ask(self, name: str, why: str) -> Ask:
        return Ask(name, self.asked(name) + 1, why)

    def places(self, answer: Answer) -> Iterator[int]:
        """Where the versions with this answer are; the good end is good, whatever its check said."""
        for place, name in enumerate(self.plan.candidates):
            if place and self.answer(name) is answer:
                yield place

    def boundary(self) -> tuple[int, int]:
        """The last good version, and the first bad one after it."""
        low = max(self.places(Answer.GOOD), default=0)
        return low, min(place for place in self.places(Answer.BAD) if place > low)

    def contradictions(self) -> list[tuple[str, str]]:
        """(bad, good) where the good one is later, the closest pair first."""
        bad, good = list(self.places(Answer.BAD)), list(self.places(Answer.GOOD))
        pairs = sorted((late - early, early, late) for early in bad for late in good if early < late)
        names = self.plan.candidates
        return [(names[early], names[late]) for _, early, late in pairs]


def _good_end(known: _Known) -> Ask | Stopped | None:
    plan = known.plan
    if not plan.check_good:
        return None
    name, answer = plan.good, known.answer(plan.good)
    if answer is Answer.GOOD:
        return None
    if answer in (None, Answer.UNDECIDED) and known.asked(name) < plan.looks:
        return known.ask(name, "the good end against itself")
    if answer is Answer.BAD:
        return Stopped(f"{name} against itself is called slower ({known.reason(name)}): this host can't tell versions")
    return Stopped(
        f"{name} against itself is {_text(answer)} ({known.reason(name)}): give more rounds or a quieter host"
    )


def _bad_end(known: _Known) -> Ask | Stopped | None:
    name, answer = known.plan.bad, known.answer(known.plan.bad)
    if answer is Answer.BAD:
        return None
    if answer in (None, Answer.UNDECIDED) and known.asked(name) < known.plan.looks:
        return known.ask(name, "is the bad end really worse?")
    if answer is Answer.GOOD:
        return Stopped(f"{name} is not worse than {known.plan.good} ({known.reason(name)}): nothing to bisect", True)
    return Stopped(
        f"whether {name} is worse than {known.plan.good} is {_text(answer)} ({known.reason(name)}): "
        f"{'give another bad end' if answer is Answer.SKIPPED else 'give more rounds or another tolerance'}"
    )


def _between(known: _Known, unknown: Sequence[str], middle: float) -> Ask:
    """The one at hand while it has its first looks; then what was never asked; then back to the undecided ones."""
    places = {name: place for place, name in enumerate(known.plan.candidates)}

    def distance(name: str) -> tuple[float, int]:
        return abs(places[name] - middle), places[name]

    first_looks = min(FIRST_LOOKS, known.plan.looks)
    for name in unknown:
        if name == known.current and known.asked(name) < first_looks:
            return known.ask(name, "undecided: more rounds")
    fresh = [name for name in unknown if known.asked(name) == 0]
    if fresh:
        return known.ask(min(fresh, key=distance), f"one of {len(unknown)} between")
    return known.ask(min(unknown, key=distance), "back to an undecided one")


def _text(answer: Answer | None) -> str:
    return "unknown" if answer is None else answer.value
