"""Anti-patterns as data: a rule, the condition it matches on, and what it means for a test."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from pytest_r1perf.datafile import Section, is_finite_number
from pytest_r1perf.errors import did_you_mean
from pytest_r1perf.topology import Topology

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
_NAMES: Mapping[str, frozenset[str]] = {
    "topology": frozenset(field.name for field in fields(Topology)),
    "platform": frozenset({"name", "accelerator", "gpus_per_node", "nodes"}),
    "load": frozenset({"n"}),
}
"""What may be asked of a subject; a flag may have any name."""


def _is_bound(value: object) -> bool:
    return value == MIN_CONCLUSIVE_N or is_finite_number(value)


MIN_CONCLUSIVE_N = "min_conclusive_n"
"""Stands for the platform's own number."""

_WANTED: Mapping[str, Callable[[object], bool]] = {
    "equals": lambda value: isinstance(value, (str, bool)) or is_finite_number(value),
    "in": lambda value: isinstance(value, list) and bool(value),
    "at_least": _is_bound,
    "at_most": _is_bound,
    "below": _is_bound,
    "given": lambda value: isinstance(value, bool),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """``subject.name operator value``, e.g. ``flag kv_cache_dtype in [...]``.

    The value :data:`MIN_CONCLUSIVE_N` stands for the platform's own number.
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
        wanted = cell.platform.min_conclusive_n if self.value == MIN_CONCLUSIVE_N else self.value
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
        if not self._holds_for(sglang_version):
            return False
        return any(all(condition.holds(cell) for condition in every) for every in self.when)

    def _holds_for(self, sglang_version: str | None) -> bool:
        """A version that is not known, or is no version, rules nothing out."""
        try:
            return sglang_version is None or self.sglang.contains(Version(sglang_version), prereleases=True)
        except InvalidVersion:
            return True


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
    if [] in entries:
        data.fail("an alternative without a condition would match every cell", "when")
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
    if condition.name not in _NAMES.get(subject, (condition.name,)):
        entry.fail(f"{condition.name!r} is not known; {did_you_mean(condition.name, _NAMES[subject])}", subject)
    if not _WANTED[condition.operator](condition.value):
        entry.fail(f"a condition cannot compare with {condition.value!r}", condition.operator)
    entry.done()
    return condition


def _actual(subject: str, name: str, cell: Cell) -> object:
    if subject == "flag":
        return cell.flags.get(name)
    if subject == "load":
        # A batch's or a rate's N is no load to conclude from by itself.
        return cell.num_prompts if name == "n" and cell.load is None else None
    return getattr(cell.topology if subject == "topology" else cell.platform, name, None)
