"""Collection: find the marked tests, check their arguments, and keep them out of a plain ``pytest``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.unittest import TestCaseFunction

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.marker import ARGUMENTS, PerfSpec, arguments_of, check, with_n
from pytest_r1perf.options import PerfOptions

if TYPE_CHECKING:
    from pytest_r1perf.catalog import Catalog

SPEC = pytest.StashKey[PerfSpec]()
"""The checked marker of an item that has one."""

FLOOR_PLATFORM = "perf_platform"
"""A suite's file names the platform that its floors hold on in a variable of this name."""


class Checker:
    """Turns markers into specs; equal markers are checked once."""

    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        self._catalog = catalog
        self._known: dict[tuple[int, str], PerfSpec] = {}
        self._fit: set[int] = set()
        self._marks: list[pytest.Mark] = []
        self._mistakes: dict[str, dict[tuple[str, str], str]] = {}

    def attach(self, nodes: Iterable[pytest.Item | pytest.Collector]) -> None:
        """Give each marked function its spec; mistakes are kept for :meth:`fail_collection`."""
        for node in nodes:
            try:
                if isinstance(node, pytest.Class):
                    _refuse_class(node)
                elif isinstance(node, pytest.Item):
                    self._attach(node)
            except R1PerfError as error:
                parent = node.parent.nodeid if node.parent is not None else ""
                function = getattr(node, "originalname", None) or node.name
                # once for all parameters of a function
                self._mistakes.setdefault(parent, {}).setdefault((function, str(error)), f"{node.name}: {error}")

    def fail_collection(self, report: pytest.CollectReport) -> None:
        """Turn the mistakes of a file (or class) into its collection error, all of them at once."""
        # unittest makes its items without the hook that calls `attach`
        self.attach(node for node in report.result or () if isinstance(node, TestCaseFunction))
        mistakes = self._mistakes.pop(report.nodeid, None)
        if mistakes and report.outcome != "failed":
            report.outcome = "failed"
            report.longrepr = "\n".join(mistakes.values())
            report.result = []

    def _attach(self, item: pytest.Item) -> None:
        marks = list(item.iter_markers_with_node("perf"))
        if not marks:
            return
        if len(marks) > 1:
            raise R1PerfError("has two perf markers; one marker is one cell, so give the test exactly one")
        ((node, mark),) = marks
        if node is not item:
            raise R1PerfError(
                f"the perf marker stands on {node.name or 'the session'!r}: put it on each function, since one "
                f"marker is one cell"
            )
        function = id(getattr(item, "function", item))
        if function not in self._fit:  # once for all parameters
            _refuse_unfit(item)
            floors_hold_on = getattr(getattr(item, "module", None), FLOOR_PLATFORM, None)
            if floors_hold_on is not None:
                self._catalog().platform(str(floors_hold_on))  # a misspelt one would switch every floor off
            self._fit.add(function)
        item.stash[SPEC] = self._spec(mark, _overrides(item))

    def _spec(self, mark: pytest.Mark, overrides: Mapping[str, Any]) -> PerfSpec:
        if overrides.keys() == {"n"}:  # the commonest: a load sweep, possibly of thousands
            return with_n(self._spec(mark, {}), overrides["n"])
        key = (id(mark), repr(overrides))
        if key not in self._known:
            arguments = {**arguments_of(mark.args, mark.kwargs), **overrides}
            self._known[key] = check(arguments, self._catalog())
            self._marks.append(mark)  # keeps the id from being used again
        return self._known[key]


def select(
    items: Sequence[pytest.Item], options: PerfOptions, asked: Callable[[pytest.Item], bool]
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """(kept, deselected): perf tests only when asked for, and then nothing else beside them.

    ``asked`` says whether an item was named by its node id. Without an option, a named perf test and every
    ordinary test are kept.
    """
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        spec = item.stash.get(SPEC, None)
        if options.selects and not options.narrows:
            wanted = True
        elif options.narrows:
            wanted = spec is not None and (not options.topologies or spec.topology in options.topologies)
        else:
            wanted = spec is None or asked(item)
        (kept if wanted else dropped).append(item)
    return kept, dropped


def named_by_id(config: pytest.Config) -> Callable[[pytest.Item], bool]:
    """Whether an item was asked for by an explicit node id on the command line."""
    wanted: list[tuple[Path, str]] = []
    for argument in config.args:
        path, separator, rest = str(argument).partition("::")
        if separator:
            wanted.append(((config.invocation_params.dir / path).resolve(), rest))

    def asked(item: pytest.Item) -> bool:
        if not wanted:
            return False
        own = item.nodeid.partition("::")[2]
        return any(
            (own == rest or own.startswith((rest + "[", rest + "::"))) and item.path.resolve() == path
            for path, rest in wanted
        )

    return asked


def declare_overrides(metafunc: pytest.Metafunc) -> None:
    """Let a perf test be parametrized over marker arguments that its function doesn't take.

    pytest refuses to parametrize a name that no function or fixture uses; such a name is used by the marker.
    """
    if metafunc.definition.get_closest_marker("perf") is None:
        return
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
        for name in names.split(",") if isinstance(names, str) else names:
            if name.strip() in ARGUMENTS and name.strip() not in metafunc.fixturenames:
                metafunc.fixturenames.append(name.strip())


def _overrides(item: pytest.Item) -> dict[str, Any]:
    """Parametrized arguments that are named like a marker argument."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return {}
    return {name: value for name, value in callspec.params.items() if name in ARGUMENTS}


def _refuse_class(node: pytest.Class) -> None:
    _ = node.obj  # pytest reads the markers of a class when its object is first asked for
    if any(mark.name == "perf" for mark in node.own_markers):
        raise R1PerfError("a class cannot have a perf marker: put it on each function, since one marker is one cell")


def _refuse_unfit(item: pytest.Item) -> None:
    if not isinstance(item, pytest.Function):
        raise R1PerfError("only a test function can have a perf marker")
    unittest = sys.modules.get("unittest")  # whoever has a TestCase has imported it
    if item.cls is not None and unittest is not None and issubclass(item.cls, unittest.TestCase):
        raise R1PerfError("a unittest.TestCase method cannot be a perf test: make it a plain function")
    if inspect.iscoroutinefunction(item.obj) or inspect.isasyncgenfunction(item.obj):
        raise R1PerfError("an async test cannot be a perf test: the measurement runs by itself, so use a plain def")
