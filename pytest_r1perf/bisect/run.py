"""The bisection itself: ask, measure, write down, until it is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pytest_r1perf.bisect.search import Answer, Ask, Found, Outcome, Plan, Stopped, next_question
from pytest_r1perf.bisect.state import State
from pytest_r1perf.bisect.step import Step


def bisect(
    plan: Plan, state: State, step: Step, *, save: Callable[[State], None], echo: Callable[[str], None]
) -> tuple[State, Found | Stopped]:
    """Go on from a state to the end; ``save`` is called after each answer, ``echo`` with a line before and after it.

    Raises what the step raises; the state that was saved last is then the one to go on with.
    """
    while isinstance(question := next_question(plan, state.log), Ask):
        echo(f"{question.candidate}, look {question.look} of {plan.looks} at most: {question.why}")
        outcome = step.measure(question, state.log)
        state = state.after(outcome)
        save(state)
        echo(f"  {said(outcome)}")
    return state, question


def planned_looks(minimum: int, maximum: int) -> tuple[int, ...]:
    """Rounds a side after each look: ``minimum``, doubled from look to look, ``maximum`` the last.

    >>> planned_looks(4, 20)
    (4, 8, 16, 20)
    """
    looks = [minimum]
    while looks[-1] < maximum:
        looks.append(min(2 * looks[-1], maximum))
    return tuple(looks)


def half_of_the_drop(plan: Plan, log: Sequence[Outcome]) -> float | None:
    """The tolerance half-way (on logarithms) between no change and the drop of the bad end, by its first answer.

    What a version did is then as far as can be from the bound, and takes the fewest rounds to tell. ``None`` before
    the bad end is known to be worse.
    """
    for outcome in log:
        if outcome.candidate == plan.bad and outcome.answer is Answer.BAD and outcome.ratio is not None:
            return 1 - math.sqrt(outcome.ratio[0])
    return None


def said(outcome: Outcome) -> str:
    """An outcome in one line: ``0.5.12: bad: ratio 0.912 [0.891, 0.934] in 8 rounds``."""
    words = f"{outcome.candidate}: {outcome.answer.value}"
    if outcome.ratio is None:
        return f"{words}: {outcome.reason}"
    return f"{words}: ratio {interval(outcome.ratio)} in {outcome.rounds} rounds a side"


def interval(ratio: tuple[float, float, float]) -> str:
    """``0.912 [0.891, 0.934]``; a limit that few rounds leave far away in three digits."""
    estimate, lower, upper = (f"{value:.3f}" if value < 100 else f"{value:.3g}" for value in ratio)
    return f"{estimate} [{lower}, {upper}]"
