"""The import hooks: one finder for absent packages, one that adds something to a real module's import."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AbsentPackage:
    """How to ``make`` an absent package's modules, by full name, and which of its submodules it ``lacks``."""

    make: Callable[[str], types.ModuleType]
    lacks: frozenset[str] = frozenset()


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for absent packages and all their submodules. Stands last, so a real package wins."""

    def __init__(self, absent: Mapping[str, AbsentPackage]) -> None:
        self._absent = absent

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: types.ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """A package spec (so that submodules can be imported) for an absent name, else None."""
        root = fullname.partition(".")[0]
        if root not in self._absent or fullname in self._absent[root].lacks:
            return None
        parent = sys.modules.get(root)
        if fullname != root and getattr(getattr(parent, "__spec__", None), "loader", None) is not self:
            return None  # a submodule that the real package lacks is an ordinary ImportError
        return importlib.machinery.ModuleSpec(fullname, self, origin="stand-in of the CPU rig", is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The stand-in module."""
        return self._absent[spec.name.partition(".")[0]].make(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to execute."""


Addition = Callable[[types.ModuleType], AbstractContextManager[None]]
"""What is entered before a real module is executed, and left after it; called with the module."""


class AdditionFinder(importlib.abc.MetaPathFinder):
    """Finds the real module as ever, and wraps its loader with the addition."""

    def __init__(self, additions: Mapping[str, Addition]) -> None:
        self._additions = additions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The real module's spec with a wrapped loader, or None for every other name."""
        addition = self._additions.get(fullname)
        if addition is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _AddingLoader(spec.loader, addition)
        return spec


class _AddingLoader(importlib.abc.Loader):
    def __init__(self, real: Any, addition: Addition) -> None:
        self._real = real
        self._addition = addition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)  # get_source, get_filename, ...: tracebacks and inspect need them

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        module: types.ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        with self._addition(module):
            self._real.exec_module(module)
