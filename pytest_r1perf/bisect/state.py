"""A bisection on disk: what was asked for and every answer, one JSON file, written whole after each step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_r1perf.bisect.search import Answer, Build, Outcome
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.rig.steps import write_atomically

FORMAT = 1


@dataclass(frozen=True, slots=True)
class State:
    """``question`` is what decides the answers (plain data); ``log`` are the outcomes, oldest first."""

    question: Mapping[str, Any]
    log: tuple[Outcome, ...] = ()

    def after(self, outcome: Outcome) -> State:
        """The state with one more outcome."""
        return State(self.question, (*self.log, outcome))


def save(path: Path, state: State) -> None:
    """Write the file so that a kill leaves the old or the new one; raises :class:`R1PerfError` when it can't be."""
    data = {"format": FORMAT, "question": dict(state.question), "log": [_plain(outcome) for outcome in state.log]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise R1PerfError(f"--state {path}: cannot be written ({error.strerror or error}): choose another") from None


def load(path: Path) -> State:
    """Read a state back; raises :class:`R1PerfError` for a file that is none, or of a newer format."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] > FORMAT:
            raise R1PerfError(f"--state {path}: written by a newer pytest-r1perf: update this one")
        return State(dict(data["question"]), tuple(_outcome(item) for item in data["log"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise R1PerfError(
            f"--state {path}: is no state of a bisection: give another, or start without --resume"
        ) from None


def begin(path: Path, question: Mapping[str, Any], *, resume: bool) -> State:
    """The state to go on with.

    Raises :class:`R1PerfError` when there is a state and it isn't to be resumed, when there is none and it is, or
    when it is of another question.
    """
    if not resume:
        if path.exists():
            raise R1PerfError(f"--state {path}: is there already: go on with --resume, or choose another --state")
        return State(question)
    if not path.exists():
        raise R1PerfError(f"--state {path}: does not exist: there is nothing to resume")
    state = load(path)
    for key in [*question, *(key for key in state.question if key not in question)]:
        before, now = state.question.get(key), question.get(key)
        if before != now:
            raise R1PerfError(
                f"--state {path}: is of another bisection ({key}: {_shown(before)} -> {_shown(now)}): "
                "resume it with its own arguments, or choose another --state"
            )
    return state


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {
        "candidate": outcome.candidate,
        "answer": outcome.answer.value,
        "reason": outcome.reason,
        "rounds": outcome.rounds,
        "ratio": None
        if outcome.ratio is None
        else [value if math.isfinite(value) else None for value in outcome.ratio],
        "own": _plain_build(outcome.own),
        "reference": _plain_build(outcome.reference),
    }


def _plain_build(build: Build) -> dict[str, Any]:
    return {"versions": dict(build.versions), "resolved": dict(build.resolved)}


def _outcome(data: Mapping[str, Any]) -> Outcome:
    ratio = data["ratio"]
    if ratio is not None:
        estimate, lower, upper = (math.inf if value is None else float(value) for value in ratio)
        ratio = (estimate, lower, upper)
    return Outcome(
        candidate=str(data["candidate"]),
        answer=Answer(data["answer"]),
        reason=str(data["reason"]),
        rounds=int(data["rounds"]),
        ratio=ratio,
        own=Build(**data["own"]),
        reference=Build(**data["reference"]),
    )
