"""What the deciders share that run a package in its own environment: many cells in one question, since asking costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from gate.decider import Decider, Decision, Outcome, Past
from gate.worker import worker

Night = tuple[Past, Sequence[float]]
"""What is stored of a cell, and its new rounds."""


@runtime_checkable
class Packaged(Decider, Protocol):
    """A decider of a fixed number of rounds whose verdict is a worker's answer."""

    @property
    def rounds(self) -> int:
        """Rounds a night."""
        ...

    @property
    def worker(self) -> tuple[str, str]:
        """Environment and rule."""
        ...

    def request(self, past: Past, values: Sequence[float]) -> dict[str, object] | Outcome:
        """What to ask, or what comes out where the package has nothing to compare."""
        ...


def decide_many(decider: Packaged, nights: Sequence[Night]) -> list[Decision]:
    """The verdicts on many cells; an exception of the package is an ERROR."""
    return [_decision(decider, answer) for answer in _answers(decider, nights)]


def strengths_of(decider: Packaged, nights: Sequence[Night]) -> list[float]:
    """The strengths of many cells; ValueError with the package's own exception."""
    found = []
    for answer in _answers(decider, nights, graded=True):
        if isinstance(answer, Outcome):
            raise ValueError(f"{decider.name} has nothing to compare")
        if "error" in answer:
            raise ValueError(answer["error"])
        found.append(float(answer["strength"]))
    return found


def _answers(decider: Packaged, nights: Sequence[Night], *, graded: bool = False) -> list[dict[str, Any] | Outcome]:
    requests = [decider.request(past, values) for past, values in nights]
    asked = [{**request, "graded": graded} for request in requests if not isinstance(request, Outcome)]
    answers = iter(worker(*decider.worker).ask(asked) if asked else ())
    return [request if isinstance(request, Outcome) else next(answers) for request in requests]


def _decision(decider: Packaged, answer: dict[str, Any] | Outcome) -> Decision:
    if isinstance(answer, Outcome):
        return Decision(answer, decider.rounds, "nothing to compare")
    if "error" in answer:
        return Decision(Outcome.ERROR, decider.rounds, answer["error"])
    return Decision(Outcome.REGRESSED if answer["regressed"] else Outcome.OK, decider.rounds)
