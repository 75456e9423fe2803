"""Tests whose cells share an engine or a server run one after another, in one xdist worker; and which are to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.selection import SPEC

if TYPE_CHECKING:
    from pytest_r1perf.catalog import Catalog
    from pytest_r1perf.platform import Platform

GROUP = "xdist_group"
SHARED = ("engine", "serve")
"""The modes whose process several tests share."""


def group_by_engine(items: list[pytest.Item], key_of: Callable[[PerfSpec], str | None]) -> None:
    """Move tests of one engine up to the first of them, and mark them as one group for ``--dist loadgroup``.

    ``key_of`` gives the engine's key, ``None`` for a cell that starts an engine of its own. All other tests keep
    their order; a group that the user gave stays.
    """
    first: dict[str, int] = {}
    order: list[tuple[int, int]] = []
    for place, item in enumerate(items):
        spec = item.stash.get(SPEC, None)
        key = key_of(spec) if spec is not None else None
        if key is not None and item.get_closest_marker(GROUP) is None:
            item.add_marker(pytest.mark.xdist_group(f"engine-{key}"))
        order.append((first.setdefault(key, place) if key is not None else place, place))
    items[:] = [items[place] for _, place in sorted(order)]


def engine_keys(platform_of: Callable[[PerfSpec], Platform], catalog: Catalog) -> Callable[[PerfSpec], str | None]:
    """The key of a marker's engine or server; ``None`` where it has none, or where the cell is wrong.

    What is wrong with it its own test says.
    """
    from pytest_r1perf.cell import cell_of

    def key_of(spec: PerfSpec) -> str | None:
        if spec.mode not in SHARED:
            return None
        try:
            key = cell_of(spec, platform_of(spec), catalog).engine_key
            return key if spec.mode == "engine" else f"{spec.mode}-{key}"
        except R1PerfError:
            return None

    return key_of


def send_groups_together(config: pytest.Config) -> None:
    """``-n`` alone distributes test by test: with perf tests, groups go to one worker (the same for all others)."""
    if getattr(config.option, "dist", None) == "load":
        config.option.dist = "loadgroup"


def plain_nodeid(item: pytest.Item) -> str:
    """The test's id without the group that xdist appends to it."""
    marker = item.get_closest_marker(GROUP)
    name = str(marker.args[0]) if marker is not None and marker.args else ""
    return item.nodeid.removesuffix(f"@{name}") if name else item.nodeid


def _left_out(item: pytest.Item) -> bool:
    """Whether a marker may keep the test from running; what it would measure is not measured beforehand then."""
    no_run = any(mark.kwargs.get("run") is False for mark in item.iter_markers("xfail"))
    return no_run or any(True for name in ("skip", "skipif") for _ in item.iter_markers(name))


class Upcoming:
    """The perf tests of a session in their order, each until it has begun."""

    def __init__(self) -> None:
        self._tests: dict[str, PerfSpec] = {}

    def collected(self, items: list[pytest.Item]) -> None:
        """What will be run."""
        from pytest_r1perf.testrun import LAB_FIXTURE

        self._tests = {
            plain_nodeid(item): item.stash[SPEC]
            for item in items
            if SPEC in item.stash and LAB_FIXTURE not in getattr(item, "fixturenames", ()) and not _left_out(item)
        }

    def begun(self, item: pytest.Item) -> None:
        """A test that is running or has run needs nothing any more."""
        self._tests.pop(plain_nodeid(item), None)

    def __call__(self) -> list[tuple[PerfSpec, str]]:
        """(marker, node id) of each that is still to come."""
        return [(spec, nodeid) for nodeid, spec in self._tests.items()]
