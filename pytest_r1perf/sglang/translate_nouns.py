"""What a translation is made of: the result, its notes, and the draft that the rules write into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NoReturn, TypeAlias

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.options import OptionTable


class NoteKind(str, Enum):
    """What happened to a flag on its way to the command line."""

    CHANGED = "changed"  # said in another way, or meaning something else than in other releases
    DROPPED = "dropped"  # not on the command line, or without effect there
    PINNED = "pinned"  # nobody asked: a default that moves between releases is stated


@dataclass(frozen=True, slots=True)
class Note:
    """One line for the report. ``matters``: the run may not be what was asked for, or not what other releases do."""

    kind: NoteKind
    flag: str
    text: str
    matters: bool = False


@dataclass(frozen=True, slots=True)
class Translation:
    """What one release is given: its arguments, the environment variables, and all that isn't as it was asked.

    ``said`` has the arguments' values under the names where the release's own parser puts them: compare those, and
    not the logical flags, with what it resolved.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    notes: tuple[Note, ...]
    said: Mapping[str, FlagValue]


class CannotExpress(R1PerfError):
    """A flag that an SGLang release has no way of saying; one sentence with what to do."""


@dataclass(slots=True)
class Draft:
    """A translation in the making. ``flags`` and ``env`` are what was asked, for rules that need the others."""

    flags: Mapping[str, FlagValue]
    env: Mapping[str, str]
    table: OptionTable
    variables: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    _options: dict[str, tuple[FlagValue, str]] = field(default_factory=dict)

    def size(self, flag: str) -> int:
        """A layout size such as ``tp_size``, 1 where it isn't asked for."""
        value = self.flags.get(flag, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.cannot(flag, value, "it is no size", "give a whole number of at least 1")
        return value

    def emit(self, flag: str, option: str, value: FlagValue = True) -> None:
        """Put an option on the command line; ``True`` is a bare switch. Refused where the release doesn't take it."""
        reason = self.table.accepts(option, value)
        if reason is not None:
            self.cannot(flag, self.flags.get(flag, value), reason)
        given, by = self._options.setdefault(option, (value, flag))
        if str(given) != str(value):
            self.cannot(flag, value, f"{by} already sets {option} to {given}", "leave one of the two out")

    def changed(self, flag: str, text: str, *, matters: bool = False) -> None:
        """Note that a flag was said in another way."""
        self.notes.append(Note(NoteKind.CHANGED, flag, text, matters))

    def dropped(self, flag: str, text: str, *, matters: bool = False) -> None:
        """Note that a flag isn't on the command line or does nothing there."""
        self.notes.append(Note(NoteKind.DROPPED, flag, text, matters))

    def cannot(self, flag: str, value: object, why: str, instead: str = "") -> NoReturn:
        """Raise :class:`CannotExpress`."""
        mend = instead or "leave it out, or use another SGLang"
        raise CannotExpress(f"{flag}={value!r} cannot be said to SGLang {self.table.version}: {why}; {mend}")

    def said(self) -> dict[str, FlagValue]:
        """The values by the place where the parser puts them."""
        said: dict[str, FlagValue] = {}
        for name, (value, _) in self._options.items():
            option = self.table.get(name)
            if option is not None:
                said[option.dest] = False if name == option.off_spelling else value
        return said

    def argv(self) -> tuple[str, ...]:
        """The arguments, in the order in which the flags were given."""
        argv: list[str] = []
        for name, (value, _) in self._options.items():
            option = self.table.get(name)
            text = str(value)
            if value is True:
                argv.append(name)
            elif option is not None and option.many:
                argv += [name, *text.split()]
            elif text.startswith("-") and isinstance(value, str):
                argv.append(f"{name}={text}")  # as a word of its own it would be taken for an option
            else:
                argv += [name, text]
        return tuple(argv)


Apply: TypeAlias = Callable[[Draft, str, FlagValue], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """How some flags are said. ``source``: where the facts are from, as SGLang release and file where it is code."""

    flags: tuple[str, ...]
    apply: Apply
    source: str


def option_of(flag: str) -> str:
    """The spelling that a logical flag has by itself: ``tp_size`` is ``--tp-size``."""
    return "--" + flag.replace("_", "-")


def as_it_is(draft: Draft, flag: str, value: FlagValue) -> None:
    """A flag that needs no rule: the option of its own name, checked against the release's table."""
    name = option_of(flag)
    option = draft.table.get(name)
    if value is not False or option is None or option.inert or option.takes_value:
        draft.emit(flag, name, value)
    elif option.off_spelling is not None:
        draft.emit(flag, option.off_spelling)
        draft.changed(flag, f"said as {option.off_spelling}")
    elif option.default == "True":
        draft.cannot(flag, value, f"{name} is on by default and has no way of being turned off")
    elif option.default == "None":
        draft.dropped(flag, f"{name} can only be turned on; unasked, SGLang decides", matters=True)
    else:
        draft.dropped(flag, f"{name} is off unless asked for")
