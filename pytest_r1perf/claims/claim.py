"""A claim of a document: what it says, in which releases it is so, and what a release's own parser must show for it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from pytest_r1perf.datafile import Section, read_yaml
from pytest_r1perf.errors import did_you_mean
from pytest_r1perf.sglang.options import OptionTable

_FILE = Path(__file__).parents[1] / "data" / "claims.yaml"
FIRST, LAST = Version("0.4.3"), Version("0.5.23")
"""The releases that were looked at (claims.yaml); an open specifier says nothing of those beyond."""


class Kind(str, Enum):
    """What is the matter with a claim."""

    STALE = "stale"
    WRONG = "wrong"
    UNTESTABLE = "untestable"


@dataclass(frozen=True, slots=True)
class Fact:
    """What is so in some releases, and whether the claim holds there."""

    sglang: SpecifierSet
    holds: bool
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """An option that the releases of ``sglang`` have, and no other: with a choice, a default (its ``repr``), in use."""

    option: str
    sglang: SpecifierSet
    choice: str | None
    default: str | None
    usable: bool

    def contradicted_by(self, table: OptionTable) -> bool:
        """Whether the release's own parser shows it otherwise."""
        found = table.usable(self.option) if self.usable else table.get(self.option)
        there = found is not None
        if found is not None and self.choice is not None:
            there = self.choice in (found.choices or ())
        if found is not None and self.default is not None:
            there = found.default == self.default
        return there is not self.sglang.contains(Version(table.version), prereleases=True)

    def __str__(self) -> str:
        choice = f" {self.choice}" if self.choice is not None else ""
        default = f" (default {self.default})" if self.default is not None else ""
        return f"{self.option}{choice}{default}, {self.sglang}"


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement. ``facts`` are empty for what cannot be tested; ``why`` then says why."""

    id: str
    document: str
    says: str
    kind: Kind
    facts: tuple[Fact, ...]
    shown: tuple[Shown, ...]
    why: str
    evidence: str

    def fact(self, version: str) -> Fact | None:
        """What is so in a release; ``None`` where that was not established."""
        if Version(version) < FIRST or Version(version).release > LAST.release:
            return None
        return next((one for one in self.facts if one.sglang.contains(Version(version), prereleases=True)), None)

    def contradictions(self, table: OptionTable) -> Iterator[str]:
        """What of its evidence a release's own parser does not show."""
        for one in self.shown:
            if one.contradicted_by(table):
                yield f"{self.id}: SGLang {table.version}'s own parser shows another thing than {one}"


@functools.cache
def load_claims(path: Path = _FILE) -> tuple[Claim, ...]:
    """The claims of a YAML file. Raises :class:`DataError` with file, line and key."""
    data = read_yaml(path)
    claims = tuple(_claim(name, section) for name, section in data.section("claims").sections())
    data.done()
    return claims


def _claim(name: str, data: Section) -> Claim:
    kind = data.text("kind")
    kinds = [member.value for member in Kind]
    if kind not in kinds:
        data.fail(f"kind {kind!r} is not known; {did_you_mean(kind, kinds)}", "kind")
    claim = Claim(
        id=name,
        document=data.text("document"),
        says=data.text("says"),
        kind=Kind(kind),
        facts=tuple(_fact(section) for section in _list(data, "versions")),
        shown=tuple(_shown(section) for section in _list(data, "parser")),
        why=data.text("why", ""),
        evidence=data.text("evidence"),
    )
    if claim.kind is Kind.UNTESTABLE and (claim.facts or not claim.why):
        data.fail("what cannot be tested says why, and has no versions", "why")
    if claim.kind is not Kind.UNTESTABLE and not claim.facts:
        data.fail("must say of at least one release what is so", "versions")
    if claim.kind is Kind.WRONG and any(fact.holds for fact in claim.facts):
        data.fail("is wrong, yet some release has it so: then it is stale", "kind")
    data.done()
    return claim


def _list(data: Section, key: str) -> list[Section]:
    values = data.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, Section) for value in values):
        data.fail("must be a list of mappings", key)
    return values


def _fact(data: Section) -> Fact:
    fact = Fact(_specifier(data), data.flag("holds"), data.text("is"))
    data.done()
    return fact


def _shown(data: Section) -> Shown:
    shown = Shown(
        option=data.text("option"),
        sglang=_specifier(data),
        choice=data.optional_text("choice"),
        default=data.optional_text("default"),
        usable=data.flag("usable"),
    )
    data.done()
    return shown


def _specifier(data: Section) -> SpecifierSet:
    try:
        return SpecifierSet(data.text("sglang"))
    except InvalidSpecifier as error:
        data.fail(f"is no version specifier ({error})", "sglang")
