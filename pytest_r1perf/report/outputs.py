"""The lines on greedy answers: how far two environments agree, each with itself, where they part, and the verdict."""

from __future__ import annotations

from pytest_r1perf.outputs.agreement import Agreement, Example, OutputsResult, shown

_TEXT = 24
"""Characters of a token's text; a token is rarely longer."""


def outputs_lines(result: OutputsResult, old: str = "old", new: str = "new") -> list[str]:
    """Three to six lines for the terminal, or one where nothing was compared.

    ``old`` and ``new`` are the environments' names.
    """
    verdict = f"greedy answers: {result.verdict.value}: {result.sentence}"
    if result.between is None or result.old_itself is None or result.new_itself is None:
        return [verdict]
    lines = [
        f"{new} against {old}: {_agreement(result.between)}",
        f"each with itself, batch reversed: {old} {_agreement(result.old_itself)}; "
        f"{new} {_agreement(result.new_itself)}",
    ]
    if result.example is not None:
        lines.append(_example(result.example, old, new))
    if result.repeating * 2 > result.between.prompts:
        lines.append(
            f"{result.repeating} of {result.between.prompts} answers only go round in a few tokens, as dummy weights "
            f"make them: a change that is not gross would not show"
        )
    return [verdict, *(f"  {line}" for line in lines)]


def _agreement(one: Agreement) -> str:
    text = f"{one.equal_prompts} of {one.prompts} answers equal, {shown(one.share_equal)} of the tokens"
    if one.earliest is None or one.median is None:
        return text
    return (
        f"{text} before the first difference (at token {one.earliest + 1} at the earliest, {one.median + 1:g} in the "
        f"median; {shown(one.share_in_place)} place by place)"
    )


def _example(one: Example, old: str, new: str) -> str:
    return (
        f"first in prompt {one.prompt + 1}, token {one.position + 1}: "
        f"{old} {_token(one.old, one.old_text)}, {new} {_token(one.new, one.new_text)}"
    )


def _token(token: int | None, text: str | None) -> str:
    if token is None:
        return "has ended"
    return f"{token}" if text is None else f"{token} {text[:_TEXT]!r}"
