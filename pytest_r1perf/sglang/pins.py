"""Defaults that moved between SGLang releases, stated explicitly (data/pins.yaml)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.datafile import Section, read_yaml
from pytest_r1perf.errors import did_you_mean
from pytest_r1perf.recipe import FlagValue, flag_value
from pytest_r1perf.sglang.options import OptionTable
from pytest_r1perf.sglang.translate import CannotExpress, Note, NoteKind, translate

_FILE = Path(__file__).parents[1] / "data" / "pins.yaml"
_SIZES = ("tp_size", "pp_size", "dp_size", "ep_size", "nnodes")


@dataclass(frozen=True, slots=True)
class PinValue:
    """One value and when it holds: on a CPU or a GPU (``None``: both), for sizes of ``at_least <= size < below``."""

    value: FlagValue
    on_cpu: bool | None
    at_least: Mapping[str, int]
    below: Mapping[str, int]
    source: str

    def holds(self, is_cpu: bool, sizes: Mapping[str, int]) -> bool:
        """Whether this value is for such a machine and layout."""
        return (
            self.on_cpu in (None, is_cpu)
            and all(sizes[name] >= bound for name, bound in self.at_least.items())
            and all(sizes[name] < bound for name, bound in self.below.items())
        )


@dataclass(frozen=True, slots=True)
class Pin:
    """A logical flag whose default moved. Flags in ``unless`` say the same thing in another way."""

    flag: str
    unless: tuple[str, ...]
    values: tuple[PinValue, ...]


@dataclass(frozen=True, slots=True)
class Pins:
    """What to state besides the cell's own flags, and the lines about it for the report."""

    flags: Mapping[str, FlagValue]
    notes: tuple[Note, ...]


def pins_for(
    flags: Mapping[str, FlagValue], *, is_cpu: bool, table: OptionTable, pins: tuple[Pin, ...] | None = None
) -> Pins:
    """The pins of a cell with these logical flags (its layout among them), none of which it gives itself.

    Merge them before :func:`translate`. Where a release does nothing else than the pinned "off", there is nothing to
    state; where it can't be told a value, its own default holds and a note says so.
    """
    stated: dict[str, FlagValue] = {}
    notes: list[Note] = []
    sizes = {name: size if isinstance(size := flags.get(name, 1), int) else 1 for name in _SIZES}
    for pin in load_pins() if pins is None else pins:
        chosen = next((value for value in pin.values if value.holds(is_cpu, sizes)), None)
        if chosen is None or pin.flag in flags or not flags.keys().isdisjoint(pin.unless):
            continue
        try:
            said = translate({pin.flag: chosen.value}, {}, table).argv
        except CannotExpress as refused:
            notes.append(Note(NoteKind.DROPPED, pin.flag, f"not pinned, the release's default holds: {refused}", True))
            continue
        if said:
            stated[pin.flag] = chosen.value
            notes.append(Note(NoteKind.PINNED, pin.flag, f"{_shown(chosen.value)} stated ({chosen.source})"))
    return Pins(stated, tuple(notes))


def _shown(value: FlagValue) -> str:
    return "off" if value is False else "on" if value is True else str(value)


@functools.cache
def load_pins(path: Path = _FILE) -> tuple[Pin, ...]:
    """The pins of a YAML file. Raises :class:`DataError` with file, line and key."""
    data = read_yaml(path)
    pins = tuple(_pin(flag, section) for flag, section in data.section("pins").sections())
    data.done()
    return pins


def _pin(flag: str, data: Section) -> Pin:
    unless, values = data.get("unless", []), data.need("values")
    if not isinstance(unless, list) or not all(isinstance(name, str) for name in unless):
        data.fail(f"must be a list of flags, got {unless!r}", "unless")
    if not isinstance(values, list) or not values or not all(isinstance(value, Section) for value in values):
        data.fail("must be a list of {value, when, source}", "values")
    data.done()
    return Pin(flag, tuple(unless), tuple(_value(value) for value in values))


def _value(data: Section) -> PinValue:
    when = data.section("when")
    accelerator = when.optional_text("accelerator")
    if accelerator not in (None, "cpu", "gpu"):
        when.fail(f"{accelerator!r} is not known; {did_you_mean(accelerator, ('cpu', 'gpu'))}", "accelerator")
    value = PinValue(
        value=flag_value(data, "value"),
        on_cpu=None if accelerator is None else accelerator == "cpu",
        at_least=_bounds(when, "at_least"),
        below=_bounds(when, "below"),
        source=data.text("source"),
    )
    when.done()
    data.done()
    return value


def _bounds(when: Section, relation: str) -> dict[str, int]:
    return {name: when.integer(key) for name in _SIZES if (key := f"{name}_{relation}") in when}
