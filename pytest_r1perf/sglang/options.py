"""What one SGLang release accepts: its own options, as its own parser lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.version import InvalidVersion, Version

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.recipe import FlagValue

_NUMBERS: Mapping[str, type[int] | type[float]] = {"int": int, "float": float}
"""Argument types that a value can be checked against before SGLang does; of the others only SGLang knows."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the server's command line.

    ``names`` are all its spellings, ``default`` is the ``repr`` of its default. ``many`` takes several values
    (nargs ``+`` and ``*``), ``optional_value`` works without one as well (nargs ``?`` and ``*``). ``deprecated`` is the
    release's own mark, ``inert`` an option that is accepted and stores nothing, or is refused when it is used.
    """

    names: tuple[str, ...]
    dest: str
    default: str | None
    choices: tuple[str, ...] | None
    takes_value: bool
    many: bool = False
    optional_value: bool = False
    number: str | None = None
    deprecated: bool = False
    inert: bool = False

    @property
    def off_spelling(self) -> str | None:
        """``--no-...`` of an option that has one (argparse's BooleanOptionalAction)."""
        positive = {name.removeprefix("--") for name in self.names}
        return next((name for name in self.names if name.removeprefix("--no-") in positive), None)


@dataclass(frozen=True, slots=True)
class OptionTable:
    """All options of one release; ``version`` is SGLang's own."""

    options: tuple[Option, ...]
    version: str
    _by_name: Mapping[str, Option] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {name: option for option in self.options for name in option.names}
        object.__setattr__(self, "_by_name", by_name)

    def get(self, name: str) -> Option | None:
        """The option of exactly this spelling. Abbreviations are never tried: SGLang's became ambiguous."""
        return self._by_name.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def usable(self, name: str) -> Option | None:
        """:meth:`get`, without an option that stores nothing."""
        option = self.get(name)
        return None if option is None or option.inert else option

    def accepts(self, name: str, value: FlagValue) -> str | None:
        """``None`` where the parser takes ``name`` with ``value``, else the reason, without a full stop."""
        option = self.get(name)
        if option is None:
            return f"it has no option {name}{self.nearest(name)}"
        if option.inert:
            return f"its option {name} is deprecated and does nothing"
        if not option.takes_value:
            return None if isinstance(value, bool) else f"its option {name} is a switch and takes no value"
        if isinstance(value, bool):
            return None if value and option.optional_value else f"its option {name} takes a value"
        return _bad_value(option, name, str(value).split() if option.many else [str(value)])

    def nearest(self, name: str) -> str:
        """``" (nearest: --a, --b)"``, or nothing where none is near."""
        import difflib  # a mistake may take its time, a plain pytest may not

        near = difflib.get_close_matches(name, self._by_name, n=3, cutoff=0.6)
        return f" (nearest: {', '.join(near)})" if near else ""

    def before(self, version: str) -> bool:
        """Whether this release is older than ``version``.

        Only for what the options cannot tell. A version that is no version (a build from a checkout) is taken
        for the newest.
        """
        try:
            return Version(self.version) < Version(version)
        except InvalidVersion:
            return False


def _bad_value(option: Option, name: str, values: list[str]) -> str | None:
    if not values and not option.optional_value:
        return f"its option {name} takes a value"
    for value in values:
        if option.choices is not None and value not in option.choices:
            return f"its option {name} has no choice {value!r} (choices: {', '.join(option.choices)})"
        if option.number is not None:
            try:
                _NUMBERS[option.number](value)
            except ValueError:
                return f"its option {name} takes {'a whole number' if option.number == 'int' else 'a number'}"
    return None


def from_probe(version: str, entries: Iterable[Mapping[str, object]]) -> OptionTable:
    """The table from what the probe prints: a mapping an option with opts, dest, default, choices, nargs, action, type.

    Raises :class:`R1PerfError` where that isn't its shape.
    """
    try:
        return OptionTable(tuple(_option(entry) for entry in entries), version)
    except (KeyError, TypeError, AttributeError) as error:
        raise R1PerfError(
            f"the options of sglang {version} cannot be read ({type(error).__name__}: {error}): "
            f"its parser lists them in another shape than 0.4.3 to 0.5.23 do"
        ) from None


def _option(entry: Mapping[str, object]) -> Option:
    opts, choices, nargs, action, kind = (entry[key] for key in ("opts", "choices", "nargs", "action", "type"))
    default = entry["default"]
    if not isinstance(opts, list) or not isinstance(action, str) or not isinstance(choices, (list, type(None))):
        raise TypeError(f"option {opts!r}")
    return Option(
        names=tuple(str(name) for name in opts),
        dest=str(entry["dest"]),
        default=None if default is None else str(default),
        choices=None if choices is None else tuple(str(choice) for choice in choices),
        takes_value=str(nargs) != "0" and "Const" not in action,
        many=nargs in ("+", "*"),
        optional_value=nargs in ("?", "*"),
        number=kind if isinstance(kind, str) and kind in _NUMBERS else None,
        deprecated=action.startswith("Deprecated"),
        # DeprecatedAction raises in 0.5.3, and from 0.4.5 to 0.4.6.post5 and from 0.5.8 on only warns; it never stores.
        inert=action == "DeprecatedAction",
    )
