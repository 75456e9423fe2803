"""Anti-patterns as data: a rule, the condition it matches on, and what it means for a test."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from pytest_r1perf.datafile import Section
from pytest_r1perf.errors import did_you_mean

if TYPE_CHECKING:
    from pytest_r1perf.cell import Cell


class RuleKind(str, Enum):
    """What a rule predicts; only the first two make a test xfail (design section 6)."""

    SLOWER = "slower"
    OOM = "oom"
    REJECTED = "rejected"
    ADVISORY = "advisory"


_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "equals": operator.eq,
    "in": lambda value, allowed: value in allowed,
    "at_least": operator.ge,
    "at_most": operator.le,
    "below": operator.lt,
    "given": lambda value, wanted: (value is not None) is wanted,
}
_SUBJECTS = ("flag", "topology", "load", "platform")


@dataclass(frozen=True, slots=True)
class Condition:
    """``subject.name operator value``, e.g. ``flag kv_cache_dtype in [...]``.

    The value ``min_conclusive_n`` stands for the platform's own number.
    """

    subject: str
    name: str
    operator: str
    value: object

    def holds(self, cell: Cell) -> bool:
        """Whether it holds for a cell; an absent flag satisfies only ``given: false``."""
        actual = _actual(self.subject, self.name, cell)
        if actual is None and self.operator != "given":
            return False
        wanted = cell.platform.min_conclusive_n if self.value == "min_conclusive_n" else self.value
        try:
            return _OPERATORS[self.operator](actual, wanted)
        except TypeError:
            return False


@dataclass(frozen=True, slots=True)
class Rule:
    """One anti-pattern.

    ``when`` is a tuple of alternatives, each a tuple of conditions that must all hold. ``impact`` is the
    published relative change of throughput (-0.78 is 78 % slower), where one is published. ``sglang`` limits
    the versions it holds for.
    """

    id: str
    kind: RuleKind
    title: str
    when: tuple[tuple[Condition, ...], ...]
    impact: float | None
    instead: str
    sglang: SpecifierSet
    source: str

    def matches(self, cell: Cell, sglang_version: str | None) -> bool:
        """Whether the cell is an instance of this anti-pattern for that SGLang."""
        if sglang_version is not None and not self.sglang.contains(Version(sglang_version), prereleases=True):
            return False
        return any(all(condition.holds(cell) for condition in every) for every in self.when)


def matching(rules: Iterable[Rule], cell: Cell, sglang_version: str | None) -> tuple[Rule, ...]:
    """The rules that a cell breaks, in the files' order."""
    return tuple(rule for rule in rules if rule.matches(cell, sglang_version))


def load_rule(name: str, data: Section) -> Rule:
    """One entry of ``antipatterns:``."""
    kind = data.text("kind")
    kinds = [member.value for member in RuleKind]
    if kind not in kinds:
        data.fail(f"kind {kind!r} is not known; {did_you_mean(kind, kinds)}", "kind")
    try:
        specifier = SpecifierSet(data.text("sglang", ""))
    except InvalidSpecifier as error:
        data.fail(f"is no version specifier ({error})", "sglang")
    rule = Rule(
        id=name,
        kind=RuleKind(kind),
        title=data.text("title"),
        when=_alternatives(data),
        impact=data.number("impact", above=-1.0, below=0.0) if "impact" in data else None,
        instead=data.text("instead"),
        sglang=specifier,
        source=data.text("source"),
    )
    data.done()
    return rule


def _alternatives(data: Section) -> tuple[tuple[Condition, ...], ...]:
    entries = data.need("when")
    if not isinstance(entries, list) or not entries:
        data.fail("must be a list of conditions, or of lists of conditions", "when")
    if all(isinstance(entry, list) for entry in entries):
        return tuple(tuple(_condition(data, item) for item in every) for every in entries)
    return (tuple(_condition(data, item) for item in entries),)


def _condition(data: Section, entry: object) -> Condition:
    if not isinstance(entry, Section):
        data.fail(f"a condition must be a mapping, got {entry!r}", "when")
    subject = next((name for name in _SUBJECTS if name in entry), None)
    if subject is None:
        entry.fail(f"a condition needs one of {', '.join(_SUBJECTS)}")
    operators = [name for name in entry if name in _OPERATORS]
    if len(operators) != 1:
        entry.fail(f"a condition needs exactly one of {', '.join(_OPERATORS)}")
    condition = Condition(subject, entry.text(subject), operators[0], entry.get(operators[0]))
    entry.done()
    return condition


def _actual(subject: str, name: str, cell: Cell) -> object:
    if subject == "flag":
        return cell.flags.get(name)
    if subject == "load":
        return cell.num_prompts if name == "n" else None
    return getattr(cell.topology if subject == "topology" else cell.platform, name, None)
