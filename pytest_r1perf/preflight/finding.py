"""What a preflight rule sees and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from pytest_r1perf.cell import Cell
from pytest_r1perf.memory import Load, MemoryEstimate, number
from pytest_r1perf.modelshape import ModelShape


class Severity(str, Enum):
    """``REFUSE``: it cannot work. ``WARN``: it works, and not as one would think. ``NOTE``: good to know."""

    REFUSE = "refuse"
    WARN = "warn"
    NOTE = "note"


ESTIMATED = frozenset({"weights-do-not-fit", "kv-below-longest-request"})
"""Rules that rest on an estimate."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence of a rule: what, why, how to mend. ``source`` is where the rule comes from."""

    rule: str
    severity: Severity
    text: str
    source: str

    @property
    def blocks(self) -> bool:
        """Whether a measurement is not even started.

        What rests on an estimate of memory is not: the run itself says whether it fits, and a cell that must
        run out of memory (an anti-pattern of kind ``oom``) has to.
        """
        return self.severity is Severity.REFUSE and self.rule not in ESTIMATED


@dataclass(frozen=True, slots=True)
class Situation:
    """All that is known before a run. ``None`` is "not known", and a rule that needs it says nothing.

    ``gpu_bytes`` is the memory of one GPU, ``gpus_available`` counts the GPUs (or cores) of one node, ``load``
    the workload's tokens.
    """

    cell: Cell
    version: Version | None
    shape: ModelShape | None
    gpu_bytes: int | None
    gpus_available: int | None
    memory: MemoryEstimate | None
    load: Load | None

    def number(self, *names: str) -> float | None:
        """The first of these logical flags that is given as a number."""
        return number(self.cell.flags, *names)

    def text(self, name: str) -> str | None:
        """A logical flag that is given as a text, or as anything that reads as one."""
        value = self.cell.flags.get(name)
        return None if value is None or isinstance(value, bool) else str(value)

    def holds(self, versions: str) -> bool:
        """Whether this SGLang is one of ``versions`` (a specifier); an unknown one is ruled out by none."""
        return self.version is None or SpecifierSet(versions).contains(self.version, prereleases=True)

    def refusal(self, rule: str, versions: str, text: str, source: str) -> Iterator[Finding]:
        """A refusal by the SGLang of ``versions``; only a warning while it is not known which SGLang it is."""
        if not self.holds(versions):
            return
        if self.version is None and versions:
            yield Finding(rule, Severity.WARN, f"with SGLang {versions}: {text}", source)
        else:
            yield Finding(rule, Severity.REFUSE, text, source)


CheckRule: TypeAlias = Callable[[Situation], Iterator[Finding]]
"""A rule: looks at the situation and yields what it finds. Its docstring says what, each finding from where."""


def version_of(text: str | None) -> Version | None:
    """The version, or ``None`` for one that is not known or is no version."""
    try:
        return Version(text) if text is not None else None
    except InvalidVersion:
        return None
