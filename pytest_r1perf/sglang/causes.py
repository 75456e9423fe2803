"""How a run broke, as nouns: the classes, a candidate for the cause, and a rule (`cause_rules.py`).

Exit codes explain nothing: SGLang ends itself with SIGKILL (``kill_process_tree``), so 137 and -9 are its
ordinary way out and no proof of an out-of-memory kill.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from pytest_r1perf.sglang.facts import Phase


class FailureClass(str, Enum):
    """How a run broke."""

    OOM = "OOM"
    HANG = "HANG"
    INFRA = "INFRA"
    CONFIG = "CONFIG"
    CRASH = "CRASH"


class Tier(str, Enum):
    """How much a line may be trusted to be the first cause."""

    FIRST = "first"  # the earliest of these is the cause
    SURVIVABLE = "survivable"  # like FIRST, unless the run went on to a later phase
    DECISIVE = "decisive"  # said afterwards by the kernel or the batch system; beats a plain traceback
    KILLED = "killed"  # a child died of SIGKILL and nothing before it says why
    SYMPTOM = "symptom"  # what is left when somebody else broke first


@dataclass(frozen=True, slots=True)
class Cause:
    """A line that may be the cause; ``order`` is the line where its traceback began (else its own line)."""

    rule: str
    kind: FailureClass
    tier: Tier
    text: str
    line_no: int
    order: int
    phase: Phase
    hint: str


@dataclass(frozen=True, slots=True)
class CauseRule:
    """``pattern`` is searched in lines that hold one of ``needles`` (all lines when there is none).

    With ``frame``, it holds only for the exception of a traceback whose last file matches.
    """

    name: str
    pattern: re.Pattern[str]
    needles: tuple[str, ...]
    kind: FailureClass
    hint: str
    source: str
    tier: Tier = Tier.FIRST
    frame: re.Pattern[str] | None = None


TRACEBACK_RULE = "traceback"
TRACEBACK_HINT = "SGLang raised this: look the message up in its issues and compare with another version"
