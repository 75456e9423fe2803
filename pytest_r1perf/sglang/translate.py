"""Logical flags to what one SGLang release accepts: renames, moved defaults, and refusals with the reason.

A logical flag has the name that SGLang's own arguments have (``tp_size``). ``True`` turns a switch on and ``False``
means off, also in releases where it became the default. Nothing is left out silently: a flag ends as an argument, as
a variable, in a note, or in :class:`CannotExpress`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.options import OptionTable
from pytest_r1perf.sglang.translate_env import set_variables
from pytest_r1perf.sglang.translate_nouns import CannotExpress, Draft, Note, NoteKind, Translation, as_it_is
from pytest_r1perf.sglang.translate_rules import RULES

__all__ = ["CannotExpress", "Note", "NoteKind", "Translation", "translate"]


def translate(flags: Mapping[str, FlagValue], env: Mapping[str, str], table: OptionTable) -> Translation:
    """What the release of ``table`` is given for these flags and variables.

    The release's own options decide; its version only where they can't, e.g. where a meaning changed. Spellings are
    always whole, since abbreviations became ambiguous between releases. Raises :class:`CannotExpress`.
    """
    draft = Draft(flags, env, table)
    for flag, value in flags.items():
        rule = RULES.get(flag)
        apply = as_it_is if rule is None else rule.apply
        apply(draft, flag, value)
    set_variables(draft)
    variables, said = MappingProxyType(draft.variables), MappingProxyType(draft.said())
    return Translation(draft.argv(), variables, tuple(draft.notes), said)
