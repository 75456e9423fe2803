"""Say how a run broke, from its log's first cause; the exit code only when the log has none.

"First" is the line where the failing process began to say so: an out-of-memory error on one rank makes the
others time out in NCCL later, and the parent reports a dead child last.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from pytest_r1perf.sglang.causes import TRACEBACK_RULE, Cause, FailureClass, Tier
from pytest_r1perf.sglang.events import shorten
from pytest_r1perf.sglang.facts import LogFacts, Phase

__all__ = ["Failure", "FailureClass", "classify"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run broke: the class, the first cause as one line of at most 300 characters, and how to mend it.

    ``line_no`` (from 1) is the cause's line in the log, None when the log has no cause. ``phase`` is where
    the run was then.
    """

    kind: FailureClass
    cause: str
    line_no: int | None
    phase: Phase
    hint: str


def classify(facts: LogFacts, *, returncode: int | None, timed_out: bool) -> Failure:
    """The failure that ``facts`` (of the whole log) and the way the process ended describe.

    A run that was ended for its timeout is a HANG, unless the log has an earlier cause. Lines that ending it
    makes (dead children, SIGQUIT) are no such cause.
    """
    cause = _first_cause(facts, timed_out)
    if cause is not None:
        return Failure(cause.kind, cause.text, cause.line_no, cause.phase, cause.hint)
    if timed_out:
        phase = _hung_in(facts)
        last = next((line for line in reversed(facts.tail) if not _LEFT_OVERS.search(line)), "the log is empty")
        where, hint = f"; last line: {last}", _hang_hint(phase)
        if facts.compiling is not None:
            where, hint = f", while DeepGEMM was compiling: {facts.compiling}", _COMPILING_HINT
        text = shorten(f"no end in time, in phase {phase.name}{where}")
        return Failure(FailureClass.HANG, text, None, phase, hint)
    return Failure(
        FailureClass.CRASH,
        f"no cause in the log; {_exit_text(returncode)}",
        None,
        facts.phase,
        "read the log's last lines; SGLang ends itself with SIGKILL, so exit code -9 or 137 proves nothing: "
        "`dmesg -T | grep -i oom` tells whether the kernel did it",
    )


_COMPILING_HINT = (
    "run `python3 -m sglang.compile_deep_gemm` once with the server's arguments (the kernels stay on disk), raise the "
    "timeout, or compile each size when it is met: env={'SGLANG_JIT_DEEPGEMM_PRECOMPILE': '0'}"
)
_LEFT_OVERS = re.compile(r"resource_tracker")
"""What Python says of a process that was killed: our doing, and no news of the hang."""


def _hung_in(facts: LogFacts) -> Phase:
    """Where a run hung: one that had not begun to measure and was then shut down was ended by us in its start."""
    before = [mark.phase for mark in facts.phases if mark.phase < Phase.SHUTDOWN]
    if facts.phase is Phase.SHUTDOWN and before and before[-1] < Phase.WARMUP:
        return before[-1]
    return facts.phase


def _first_cause(facts: LogFacts, timed_out: bool) -> Cause | None:
    """The first cause by the tiers of `causes.Tier`, within a tier by the order of the log."""
    causes = sorted(facts.causes, key=lambda c: (c.order, c.rule == TRACEBACK_RULE, c.line_no))
    if timed_out:
        # What appears once the run is being ended is the ending's doing.
        causes = [c for c in causes if c.tier not in (Tier.SYMPTOM, Tier.KILLED) and c.phase < Phase.SHUTDOWN]
    survived = [c for c in causes if c.tier is Tier.SURVIVABLE and _went_on(facts, c)]
    first = [c for c in causes if c.tier in (Tier.FIRST, Tier.SURVIVABLE) and c not in survived]
    decisive = [c for c in causes if c.tier is Tier.DECISIVE]
    if first and not (decisive and first[0].rule == TRACEBACK_RULE):
        return first[0]
    if decisive:
        return decisive[0]
    # SGLang's own clean-up kills its children too: only a death before it is news.
    killed = [c for c in causes if c.tier is Tier.KILLED and c.phase < Phase.SHUTDOWN]
    symptoms = [c for c in causes if c.tier is Tier.SYMPTOM]
    rest = killed or symptoms or ([] if timed_out else survived)
    return rest[0] if rest else None


def _went_on(facts: LogFacts, cause: Cause) -> bool:
    """True when the run reached a later phase after ``cause`` (shutting down is not going on)."""
    return any(
        mark.line_no > cause.line_no and mark.phase > cause.phase and mark.phase is not Phase.SHUTDOWN
        for mark in facts.phases
    )


def _hang_hint(phase: Phase) -> str:
    if phase is Phase.SHUTDOWN:
        return "the measurement was over and the engine did not end: see the stack dumps; its result is lost"
    if phase is Phase.RESULT:
        return "the result is printed and the process did not end (--do-not-exit spins so)"
    if phase in (Phase.WARMUP, Phase.BENCHMARK):
        return "raise the timeout if decode lines still came, else install py-spy for the watchdog's stack dump"
    return "raise the timeout above loading, compilation and graph capture, or warm the kernel caches first"


def _exit_text(returncode: int | None) -> str:
    if returncode is None:
        return "exit code unknown"
    number = -returncode if returncode < 0 else returncode - 128
    try:
        name = f" ({signal.Signals(number).name})" if number > 0 else ""
    except ValueError:
        name = ""
    return f"exit code {returncode}{name}"
