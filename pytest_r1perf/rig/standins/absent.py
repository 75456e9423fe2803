"""A name that can be imported, looked into, subclassed and annotated with, but never called."""

from __future__ import annotations

import types
from typing import Any, NoReturn


class AbsentBase:
    """What a class that derives from an absent one derives from instead."""


class Absent:
    """The stand-in for one name of an absent package; its attributes are stand-ins too.

    Raises NotImplementedError, with the full name, when it is called.
    """

    def __init__(self, name: str) -> None:
        self._absent_name = name

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse: whatever was called is not here."""
        raise NotImplementedError(
            f"{self._absent_name} is a stand-in of the CPU rig and cannot be called: the real package is not installed"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._absent_name}.{name}")

    def __getitem__(self, key: object) -> Any:
        # Generic[...] in annotations, and `kernel[grid]` of a Triton launch, whose call then raises.
        return Absent(f"{self._absent_name}[...]")

    def __contains__(self, item: object) -> bool:
        return False

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (AbsentBase,)

    def __or__(self, other: object) -> Any:
        return self  # `Absent | None` in an annotation that is evaluated

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<stand-in {self._absent_name}>"


class AbsentModule(types.ModuleType):
    """A module whose every public attribute is an `Absent`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"module {self.__name__!r} (a stand-in) has no attribute {name!r}")
        return Absent(f"{self.__name__}.{name}")
