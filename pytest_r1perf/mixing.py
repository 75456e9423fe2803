"""What differs between measured cells: what was changed on purpose, and what makes a comparison a mixed one.

The seeds: "Keep topology fixed (TP8 vs PP2 vs TP16 must not be mixed in comparison). Keep load fixed." A comparison
across them may be the very question (PP2 against TP16), so it is said, and refused for platforms alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from pytest_r1perf.cell import Cell
from pytest_r1perf.childenv import redact
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.load import Traffic
from pytest_r1perf.marker import DEFAULT_WORKLOAD
from pytest_r1perf.measurement import Measurement
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.protocol import differences
from pytest_r1perf.topology import LAYOUT_FLAGS

_OF_THE_LAYOUT = ("tp_size", "pp_size", "dp_size", "ep_size", "nnodes", "hosts", "enable_dp_attention")
_OF_THE_LOAD = ("workload", "num_prompts", "load")
_FEW = 3
"""Up to so many changes are listed; another recipe with more is told by its name."""
_OF_THE_MODE = ("mode", "metric_definition", "cache_state")


class Checklist(Protocol):
    """Holds two measured cells to the guide's methodology checklist."""

    def __call__(self, a: Measurement, b: Measurement) -> Sequence[str]:
        """The items that are broken between the two, each with both values."""
        ...


def guides_checklist(a: Measurement, b: Measurement) -> tuple[str, ...]:
    """The six items of the best-practice guide, those that are broken: see docs/parity.md."""
    from pytest_r1perf.parity.check import broken, check_measurements

    return tuple(f"{item.name} ({item.a} against {item.b})" for item in broken(check_measurements(a, b)))


def mixed(measurements: Sequence[Measurement], *, loads: bool = True) -> tuple[str, ...]:
    """Sentences on topologies, loads, modes and protocols that differ; ``loads=False`` where N differs by intent.

    A protocol's keys that follow from another topology, load or mode are not listed again. Raises
    :class:`R1PerfError` for two platforms: those are never compared.
    """
    cells = [one.cell for one in measurements]
    first = measurements[0]
    for one in measurements[1:]:
        if one.cell.platform.name != first.cell.platform.name:
            raise R1PerfError(
                f"{first.cell.label} and {one.cell.label} are of different platforms: they cannot be compared"
            )
    found = []
    aside: set[str] = set()
    topologies = _each(cell.topology.name for cell in cells)
    if len(topologies) > 1:
        found.append(f"mixed topologies in one comparison: {' and '.join(topologies)}")
        aside |= {*_OF_THE_LAYOUT}
    modes = _each(cell.mode for cell in cells)
    if len(modes) > 1:
        found.append(f"mixed modes in one comparison: {' and '.join(modes)}")
        aside |= {*_OF_THE_MODE}
    own = _each(load_of(cell) for cell in cells)
    if len(own) > 1:
        aside |= {*_OF_THE_LOAD}
        if loads:
            found.append(f"mixed loads in one comparison: {' and '.join(own)}")
    keys: dict[str, str] = {}
    for one in measurements[1:]:
        for line in differences(first.protocol, one.protocol):
            key, _, values = line.partition(": ")
            if key not in aside:
                keys.setdefault(key, values)
    if keys:
        listed = ", ".join(f"{key} {values}" for key, values in keys.items())
        found.append(f"the protocols differ: {listed}")
    return tuple(found)


def changed(before: Cell, after: Cell) -> str:
    """What ``after`` has that ``before`` hasn't, in a few words: ``+ schedule_policy=lof``, ``n 1000 -> 7000``."""
    parts = []
    if before.topology.name != after.topology.name:
        parts.append(f"{before.topology.name} -> {after.topology.name}")
    if before.mode != after.mode:
        parts.append(f"{before.mode} -> {after.mode}")
    if load_of(before) != load_of(after):
        parts.append(f"{load_of(before)} -> {load_of(after)}")
    if before.kernel_caches != after.kernel_caches:
        parts.append(f"+ kernel_caches={after.kernel_caches}")
    old, new = _own_flags(before), _own_flags(after)
    tuning = [f"+ {key}" if new[key] is True else f"+ {key}={new[key]}" for key in new if old.get(key) != new[key]]
    tuning += [f"- {key}" for key in old if key not in new]
    env = [f"+ {key}={redact(key, value)}" for key, value in after.env.items() if before.env.get(key) != value]
    env += [f"- {key}" for key in before.env if key not in after.env]
    if before.recipe.name != after.recipe.name and len(tuning) + len(env) > _FEW:
        return " ".join([*parts, f"recipe {before.recipe.name} -> {after.recipe.name}"])
    return " ".join([*parts, *tuning, *env]) or "nothing"


def _own_flags(cell: Cell) -> dict[str, FlagValue]:
    """Without the layout's, and without switches that are off: those are left out of the command line."""
    return {key: value for key, value in cell.flags.items() if key not in LAYOUT_FLAGS and value is not False}


def load_of(cell: Cell) -> str:
    """N with whatever else is given as a load, in a few words: ``n=5000``, ``n=200 rate=4``."""
    workload = () if cell.workload.name == DEFAULT_WORKLOAD else (cell.workload.name,)
    return " ".join([*workload, f"n={cell.num_prompts}", *(cell.load.parts if cell.load is not None else ())])


def pace(cell: Cell) -> tuple[int, float, float]:
    """By what loads are ordered: N, then how fast and how many at once a server gets them."""
    if not isinstance(cell.load, Traffic):
        return cell.num_prompts, math.inf, math.inf
    return cell.num_prompts, cell.load.request_rate or math.inf, cell.load.max_concurrency or math.inf


def _each(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
