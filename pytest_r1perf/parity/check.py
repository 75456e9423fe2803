"""The six items of the best-practice guide's checklist over two recorded cells: held, broken, or not known.

What differs in the protocol and in the resolved arguments is asked of the modules that verdicts use
(:mod:`pytest_r1perf.sglang.protocol`, :mod:`pytest_r1perf.sglang.resolved`); here it only gets its place in the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pytest_r1perf.measurement import Measurement
from pytest_r1perf.parity.checklist import Checklist, Entry, load_checklist
from pytest_r1perf.parity.recorded import Recorded, of_measurement
from pytest_r1perf.sglang.graphs import UNKNOWN
from pytest_r1perf.sglang.protocol import NOT_RECORDED, differences
from pytest_r1perf.sglang.resolved import storable

NOT_SET = "not set"
"""An argument or a variable that a side leaves to its default, or to SGLang."""
AT_ONCE = "all at once"
"""The load of a record that has a mode and no load of a server's: all N together."""
NO_LIMITS = "none"
"""The slo of a record that has none."""
_SLO = "slo-"
_POOL = "max_total_tokens"


class State(str, Enum):
    """What is known of an item."""

    HELD = "held"
    BROKEN = "broken"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Item:
    """One item of the checklist: ``says`` is the guide's sentence, ``a`` and ``b`` what each side has.

    Of a broken item these are the values that differ, of one that is not known those that a record lacks. ``why``
    are sentences beside that.
    """

    name: str
    says: str
    state: State
    a: str
    b: str
    why: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Whether both sides are known to agree in it."""
        return self.state is State.HELD

    def __str__(self) -> str:
        values = self.a if self.a == self.b else f"{self.a} -> {self.b}"
        return f"{self.name} {self.state.value}: {values}" + (f" ({'; '.join(self.why)})" if self.why else "")


@dataclass(frozen=True, slots=True)
class _Key:
    """One value on both sides, as text."""

    name: str
    a: str
    b: str

    @property
    def state(self) -> State:
        if {self.a, self.b} & {NOT_RECORDED, UNKNOWN}:
            return State.NOT_KNOWN
        return State.HELD if self.a == self.b else State.BROKEN


def check(a: Recorded, b: Recorded, checklist: Checklist | None = None) -> tuple[Item, ...]:
    """The six items in the guide's order.

    Two different topologies are a broken item, whatever they are; the memory fractions are then held to each one's
    own figure.
    """
    known = checklist or load_checklist()
    return tuple(_OWN.get(entry.name, _plain)(entry, a, b, known) for entry in known.entries.values())


def check_measurements(a: Measurement, b: Measurement) -> tuple[Item, ...]:
    """:func:`check` of two measurements of this session."""
    return check(of_measurement(a), of_measurement(b))


def broken(items: Iterable[Item]) -> tuple[Item, ...]:
    """Those that are broken."""
    return tuple(item for item in items if item.state is State.BROKEN)


def not_known(items: Iterable[Item]) -> tuple[Item, ...]:
    """Those that a record lacks something for."""
    return tuple(item for item in items if item.state is State.NOT_KNOWN)


def check_alone(one: Recorded, checklist: Checklist | None = None) -> tuple[Item, ...]:
    """What of the checklist a cell by itself cannot be held to: the items that are not held against itself."""
    return tuple(item for item in check(one, one, checklist) if item.state is not State.HELD)


def _topology(entry: Entry, a: Recorded, b: Recorded, known: Checklist) -> Item:
    """By the sizes; by the name, which stands for a layout, where a record lacks them."""
    del known
    keys = list(_keys(entry, a, b))
    names = _Key("topology", a.topology or NOT_RECORDED, b.topology or NOT_RECORDED)
    if any(key.state is State.BROKEN for key in keys):
        return _item(entry, [names, *keys])
    if names.state is State.HELD:
        return _item(entry, [names, *(key for key in keys if key.state is State.HELD)])
    if names.state is State.BROKEN and all(key.state is State.HELD for key in keys):
        why = f"{a.topology} and {b.topology} are one layout"
        return _item(entry, keys, why)
    return _item(entry, [names])


def _load(entry: Entry, a: Recorded, b: Recorded, known: Checklist) -> Item:
    both = (_with_load(a, b), _with_load(b, a))
    return _item(entry, list(_keys(entry, *both)), *_not_the_guides(a, b, known))


def _with_load(side: Recorded, other: Recorded) -> Recorded:
    """A server's load is recorded where it is more than N: beside one that has it, none is another load.

    An slo gets a key of its own. It is no part of what the server is given, and the rows that SGLang writes by itself
    (they name no workload) do not tell it.
    """
    own, there = (str(one.protocol.get("load", "")).split() for one in (side, other))
    if not (own or there) or not (own or "mode" in side.protocol):
        return side
    limits = [word.removeprefix(_SLO) for word in own if word.startswith(_SLO)]
    given = " ".join(word for word in own if not word.startswith(_SLO))
    protocol = {**side.protocol, "load": given or AT_ONCE}
    if any(word.startswith(_SLO) for word in (*own, *there)):
        without = NO_LIMITS if "workload" in side.protocol else NOT_RECORDED
        protocol["slo"] = " ".join(limits) or without
    return replace(side, protocol=protocol)


def _not_the_guides(a: Recorded, b: Recorded, known: Checklist) -> Iterator[str]:
    """A remark on loads that the guide neither compares at nor takes its peaks at; for its own topologies only."""
    for side in dict.fromkeys((a.topology, b.topology)):
        peaks = known.peak_loads.get(side)
        if peaks is None:
            continue
        usual = (*known.comparison_loads, *peaks)
        loads = dict.fromkeys(one.protocol.get("num_prompts") for one in (a, b) if one.topology == side)
        for n in loads:
            if isinstance(n, int) and n not in usual:
                compared, peak = _listed(known.comparison_loads), _listed(peaks)
                yield f"N={n} is not a load of the guide's ({compared} to compare, {peak} for the peak of {side})"


def _memory(entry: Entry, a: Recorded, b: Recorded, known: Checklist) -> Item:
    """Each side at its topology's figure where the guide has one; else the same on both.

    Where both sides were given the size of the KV pool in tokens, the fraction decides nothing.
    """
    (key,) = _keys(entry, a, b)
    figures = [known.memory_fractions.get(side.topology) for side in (a, b)]
    if key.state is State.NOT_KNOWN:
        return _item(entry, [key])
    if None not in figures:
        off = [
            f"{name} has {value}, and the guide {figure:g} for {side.topology}"
            for name, value, figure, side in zip(_names(a, b), (key.a, key.b), figures, (a, b), strict=True)
            if value != f"{figure:g}"
        ]
        state = State.BROKEN if off else State.HELD
        return Item(entry.name, entry.says, state, _text([key], "a"), _text([key], "b"), tuple(dict.fromkeys(off)))
    pools = [storable(side.resolved).get(_POOL) for side in (a, b)]
    if key.state is State.BROKEN and pools[0] is not None and pools[0] == pools[1]:
        why = f"both have a KV pool of {pools[0]} tokens, so the fraction decides nothing"
        return Item(entry.name, entry.says, State.HELD, _text([key], "a"), _text([key], "b"), (why,))
    return _item(entry, [key])


def _record(entry: Entry, a: Recorded, b: Recorded, known: Checklist) -> Item:
    """What a record lacks breaks this one: it asks for the record itself."""
    del known
    lacking = [(name, list(_lacking(side))) for name, side in zip(_names(a, b), (a, b), strict=True)]
    why = tuple(dict.fromkeys(f"{name} has no {_listed(missing, 'and')}" for name, missing in lacking if missing))
    return Item(entry.name, entry.says, State.BROKEN if why else State.HELD, _written(a), _written(b), why)


def _names(a: Recorded, b: Recorded) -> tuple[str, str]:
    return ("it", "it") if a is b else ("A", "B")


def _lacking(side: Recorded) -> Iterator[str]:
    if not side.command:
        yield "command line"
    if side.env is None:
        yield "environment"
    if "sglang" not in side.versions:
        yield "version of SGLang"
    if side.runs_without and side.command and side.env is not None:
        yield f"command line or environment in {side.runs_without} of its rounds"


def _written(side: Recorded) -> str:
    command = f"command of {len(side.command.split())} words" if side.command else "no command"
    env = f"{len(side.env)} variables" if side.env is not None else "no environment"
    versions = ", ".join(f"{name} {side.versions[name]}" for name in ("sglang", "torch") if name in side.versions)
    return ", ".join(filter(None, (command, env, versions or "no versions")))


def _plain(entry: Entry, a: Recorded, b: Recorded, known: Checklist) -> Item:
    del known
    return _item(entry, list(_keys(entry, a, b)))


_OWN: Mapping[str, Callable[[Entry, Recorded, Recorded, Checklist], Item]] = {
    "topology": _topology,
    "load": _load,
    "memory fraction": _memory,
    "record": _record,
}
"""Items that are more than equal values."""


def _keys(entry: Entry, a: Recorded, b: Recorded) -> Iterator[_Key]:
    given = [key for key in entry.where_given if key in a.protocol or key in b.protocol]
    yield from _of_protocol((*entry.protocol, *given), a.protocol, b.protocol)
    yield from _of_resolved(entry, a.resolved, b.resolved)
    if entry.variables is not None:
        yield from _variables(entry, a.env, b.env)


def _of_protocol(keys: Sequence[str], a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[_Key]:
    """Both sides under today's names, whichever of them an older record is."""
    before, now = ({key: old for key, (old, _) in _told(differences(side, {})).items()} for side in (a, b))
    differing = _told(differences(a, b)).keys() & _told(differences(b, a)).keys()
    for key in keys:
        old, new = before.get(key, NOT_RECORDED), now.get(key, NOT_RECORDED)
        yield _Key(key, old, new if key in differing else old)


def _of_resolved(entry: Entry, a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[_Key]:
    both = bool(a and b)
    if len(entry.resolved) > 1 and not both:  # one word for all of them
        yield _Key("resolved arguments", *(f"{len(side)} recorded" if side else NOT_RECORDED for side in (a, b)))
        return
    before, now = storable(a), storable(b)
    for key in (*entry.resolved, *(entry.where_resolved if both else ())):
        values = ((side.get(key, NOT_SET), whole) for side, whole in ((before, a), (now, b)))
        yield _Key(key, *(str(value) if whole else NOT_RECORDED for value, whole in values))


def _variables(entry: Entry, a: Mapping[str, str] | None, b: Mapping[str, str] | None) -> Iterator[_Key]:
    if a is None or b is None:
        yield _Key("variables", *(NOT_RECORDED if env is None else f"{len(env)} recorded" for env in (a, b)))
        return
    assert entry.variables is not None
    for name in sorted({*a, *b}):
        if entry.variables.match(name):
            yield _Key(name, a.get(name, NOT_SET), b.get(name, NOT_SET))


def _told(lines: Iterable[str]) -> dict[str, tuple[str, str]]:
    """``key: old -> new`` by key."""
    told = {}
    for line in lines:
        key, _, values = line.partition(": ")
        old, _, new = values.partition(" -> ")
        told[key] = (old, new)
    return told


def _item(entry: Entry, keys: Sequence[_Key], *why: str) -> Item:
    """The worst of the keys' states, with the keys that have it (all, where it is held)."""
    states = {key.state for key in keys}
    state = next((one for one in (State.BROKEN, State.NOT_KNOWN) if one in states), State.HELD)
    telling = [key for key in keys if key.state is state]
    return Item(entry.name, entry.says, state, _text(telling, "a"), _text(telling, "b"), why)


def _text(keys: Sequence[_Key], side: str) -> str:
    return ", ".join(f"{key.name}={getattr(key, side)}" for key in keys) or "nothing recorded"


def _listed(values: Iterable[object], last: str = "or") -> str:
    texts = [str(value) for value in values]
    return f" {last} ".join(filter(None, (", ".join(texts[:-1]), texts[-1]))) if texts else ""
