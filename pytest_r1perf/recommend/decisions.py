"""The guide's matrix as data: goal and GPUs to a recipe, and what it leaves open (data/decisions.yaml)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.datafile import Section, read_yaml
from pytest_r1perf.errors import did_you_mean

_FILE = Path(__file__).parents[1] / "data" / "decisions.yaml"

METRIC_OF = {"throughput": "total_throughput", "efficiency": "tokps_per_gpu", "reference": "total_throughput"}
"""The guide's goals, and the metric that each is about: its 'Max total throughput' and 'Max per-GPU efficiency'."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One line of the matrix; ``note`` is what has to be said beside it."""

    goal: str
    gpus: int
    intent: str
    recipe: str
    note: str
    source: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """What the guide answers, and in a sentence what it does not."""

    decisions: tuple[Decision, ...]
    unanswered: dict[tuple[str, int], str]

    def decision(self, goal: str, gpus: int) -> Decision | None:
        """The line for a goal on so many GPUs."""
        return next((one for one in self.decisions if (one.goal, one.gpus) == (goal, gpus)), None)


@functools.cache
def load_matrix(path: Path = _FILE) -> Matrix:
    """The matrix of a YAML file. Raises :class:`DataError` with file, line and key."""
    data = read_yaml(path)
    decisions = tuple(_decision(section) for _, section in data.section("decisions").sections())
    unanswered = {}
    for _, section in data.section("unanswered").sections():
        unanswered[_goal(section), section.integer("gpus")] = section.text("says")
        section.done()
    data.done()
    return Matrix(decisions, unanswered)


def _decision(data: Section) -> Decision:
    decision = Decision(
        goal=_goal(data),
        gpus=data.integer("gpus"),
        intent=data.text("intent"),
        recipe=data.text("recipe"),
        note=data.text("note", ""),
        source=data.text("source"),
    )
    data.done()
    return decision


def _goal(data: Section) -> str:
    goal = data.text("goal")
    if goal not in METRIC_OF:
        data.fail(f"goal {goal!r} is not known; {did_you_mean(goal, METRIC_OF)}", "goal")
    return goal
