"""Find the candidates for a run's first cause while its log streams by, tracebacks included.

A chained traceback ("During handling of the above exception ...") is one event: a rule that knows any of its
exceptions beats the bare last line of the first. Frames are not searched: they quote source code, and source
code holds every message that there is.
"""

from __future__ import annotations

import re

from pytest_r1perf.sglang.cause_rules import CAUSE_RULES
from pytest_r1perf.sglang.causes import (
    TRACEBACK_HINT,
    TRACEBACK_RULE,
    Cause,
    CauseRule,
    FailureClass,
    Tier,
)
from pytest_r1perf.sglang.events import shorten
from pytest_r1perf.sglang.facts import Phase

BEGIN = "Traceback (most recent call last)"
# What a line can start with: SGLang's log prefix (ranks in any order), torch's "[rank1]: ", srun --label's
# "12: ".
PREFIX = re.compile(
    r"(?:\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)((?: [A-Z_]+\d+)*)\] ?"
    r"|\[rank\d+\]: ?|^ {0,3}\d{1,5}: )"
)
_FRAME = re.compile(r'\s+File "([^"]+)", line \d+, in ')
_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*(?::|\s*$)")
_CHAIN = ("During handling of the above exception", "was the direct cause of the following exception")
# Not causes, though they read like some: optional models and endpoints that SGLang goes on without.
_BENIGN = re.compile(r"Ignore import error when|init failed \(ModuleNotFoundError|error ignored in|Error ignored in")
# The same with a traceback behind it (0.5.9's server without openai_harmony, which then serves all the same).
_BENIGN_BEGIN = re.compile(r"Can not initialize OpenAIServing\w+, error: ")

_MAX_CAUSES = 32
_AFTER = 8  # lines after an exception in which its message goes on (NCCL's has four) or "During handling" comes
_MAX_TRACEBACK = 5000  # lines after which an unfinished traceback is given up


class CauseReader:
    """Collects `Cause` candidates; bounded to 32 plus the first of each rule."""

    def __init__(self) -> None:
        self._causes: list[Cause] = []
        self._rules_seen: set[str] = set()
        self._open = False
        self._fatal = False
        self._benign = False
        self._start = 0
        self._frame = ""
        self._grace = 0
        self._message = False
        self._chained = False

    @property
    def wants_all(self) -> bool:
        """True inside a traceback, when every line matters."""
        return self._open or self._grace > 0

    def feed(self, text: str, line_no: int, phase: Phase) -> None:
        """Take one line (without its end) that holds a needle, or any line while `wants_all`."""
        prefix = PREFIX.search(text)
        body = text[prefix.end() :] if prefix else text
        if BEGIN in body:
            self._begin(body, line_no)
            return
        if self._open:
            if line_no - self._start > _MAX_TRACEBACK:
                self._open = False
            elif body[:1].isspace() or not body:
                frame = _FRAME.match(body)
                self._frame = frame[1] if frame else self._frame
                return
            elif (prefix is None or prefix[1] is None) and _EXCEPTION.match(body):
                self._end(body, line_no, phase)
                return
        elif self._grace > 0:
            self._grace -= 1
            if any(chain in body for chain in _CHAIN):
                self._chained, self._grace, self._message = True, _AFTER, False
                return
        rule = _first_rule(body, None)
        # Another process's line in the middle of a traceback has a prefix, or a bracket as torch's C++ log has.
        foreign = (prefix is not None and prefix[1] is not None) or body.startswith("[")
        self._message = self._message and not foreign
        if rule is not None:
            ours = not foreign and (self._open or self._message)
            self._add(rule, body, line_no, self._start if ours else line_no, phase)

    def blank(self) -> None:
        """Take an empty line: it ends an exception's message."""
        self._message = False

    def _begin(self, body: str, line_no: int) -> None:
        if not (self._open or self._chained):
            self._start, self._fatal = line_no, False
            self._benign = _BENIGN_BEGIN.search(body) is not None
        # SGLang logs an exception of its scheduler so, and then ends the run: this one is never survived.
        self._fatal = self._fatal or "hit an exception" in body
        self._open, self._chained, self._grace, self._message, self._frame = True, False, 0, False, ""

    def _end(self, body: str, line_no: int, phase: Phase) -> None:
        self._open, self._grace, self._message = False, _AFTER, not self._benign
        if self._benign:
            return
        rule = _first_rule(body, self._frame)
        if rule is not None:
            self._add(rule, body, line_no, self._start, phase)
        else:
            self._append(self._traceback(body, line_no, phase))

    def _traceback(self, body: str, line_no: int, phase: Phase) -> Cause:
        return Cause(
            rule=TRACEBACK_RULE,
            kind=FailureClass.CRASH,
            tier=Tier.FIRST if self._fatal else Tier.SURVIVABLE,
            text=shorten(body),
            line_no=line_no,
            order=self._start,
            phase=phase,
            hint=TRACEBACK_HINT,
        )

    def _add(self, rule: CauseRule, body: str, line_no: int, order: int, phase: Phase) -> None:
        self._append(Cause(rule.name, rule.kind, rule.tier, shorten(body), line_no, order, phase, rule.hint))

    def _append(self, cause: Cause) -> None:
        if len(self._causes) < _MAX_CAUSES or cause.rule not in self._rules_seen:
            self._causes.append(cause)
            self._rules_seen.add(cause.rule)

    def causes(self, phase: Phase) -> tuple[Cause, ...]:
        """The candidates so far, in the order of the log; an unfinished traceback is one."""
        if not self._open:
            return tuple(self._causes)
        where = f"a traceback that was cut off in {self._frame or 'its first line'}"
        return (*self._causes, self._traceback(where, self._start, phase))


def _first_rule(body: str, frame: str | None) -> CauseRule | None:
    """The first rule for ``body``; ``frame`` is the last file of its traceback, None outside of one."""
    if _BENIGN.search(body):
        return None
    for rule in CAUSE_RULES:
        if rule.frame is not None and (frame is None or not rule.frame.search(frame)):
            continue
        if rule.needles and not any(needle in body for needle in rule.needles):
            continue
        if rule.pattern.search(body):
            return rule
    return None
