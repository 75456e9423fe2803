"""The documents' claims for people: all of them, or what is so in one release."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_r1perf.claims.claim import Kind

if TYPE_CHECKING:
    from pytest_r1perf.claims.claim import Claim

WIDTH = 110
_TITLES = {
    Kind.STALE: "stale: so in some releases only",
    Kind.WRONG: "wrong: so in none",
    Kind.UNTESTABLE: "cannot be tested here",
}


def claim_lines(claims: Iterable[Claim]) -> list[str]:
    """Every claim under its kind, release by release, with its evidence."""
    every = list(claims)
    lines: list[str] = []
    for kind, title in _TITLES.items():
        own = [claim for claim in every if claim.kind is kind]
        if own:
            lines += [*([""] if lines else []), title]
            lines += [line for claim in own for line in _whole(claim)]
    return lines


def lines_for(claims: Sequence[Claim], version: str) -> list[str]:
    """What is so in one release; what no entry covers is named, and what cannot be tested counted."""
    lines = [f"SGLang {version}"]
    for claim in claims:
        fact = claim.fact(version)
        if fact is not None:
            lines += _wrapped(f'{claim.id}: {claim.document}: "{claim.says}"', "  ")
            lines += _wrapped(f"{'holds' if fact.holds else 'does not hold'}: {fact.text}", "      ")
    unknown = [claim.id for claim in claims if claim.kind is not Kind.UNTESTABLE and claim.fact(version) is None]
    if unknown:
        lines += ["", *_wrapped(f"not established for {version}: {', '.join(unknown)}", "")]
    untestable = sum(claim.kind is Kind.UNTESTABLE for claim in claims)
    if untestable:
        lines += ["", f"{untestable} more cannot be tested here (r1perf claims names them)"]
    return lines


def _whole(claim: Claim) -> Iterator[str]:
    yield from _wrapped(f'{claim.id}: {claim.document}: "{claim.says}"', "  ")
    for fact in claim.facts:
        yield from _wrapped(f"{fact.sglang}: {'holds' if fact.holds else 'does not hold'}: {fact.text}", "      ")
    if claim.why:
        yield from _wrapped(claim.why, "      ")
    if claim.kind is not Kind.UNTESTABLE:
        yield from _wrapped(f"evidence: {claim.evidence}", "      ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
