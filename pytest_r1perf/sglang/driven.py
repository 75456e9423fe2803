"""What a driver tells of the process that it keeps up for several cells, and how it is read.

A driver (``scripts/engine_driver.py``, ``scripts/serve_driver.py``) appends one JSON object a line to a file; ``kind``
tells what it is:

``refused``      it will never be ready: ``reason``, a word that the parent knows
``ready``        it is up, and what it says of itself
``cell``         a cell was begun, and what its driver made of it
``window``       one window is over: times, amounts
``cell_done``    all windows of the cell are over
``cell_failed``  the cell can't be measured (``reason``), the process may go on
``broken``       the process doesn't answer any more; the driver ends
``end``          all cells were tried

Nothing is repaired here. A line that is none of these, or that comes where it can't be, is garbage: it is told with
its number, and the cell that it falls into counts for nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar

FOREIGN = "foreign"
"""The reason of a driver that is refused by a server which is not its own."""


@dataclass(frozen=True, slots=True)
class TimedWindow:
    """When one window was.

    ``start`` and ``end`` are by the monotonic clock of its host, ``time`` is the start by its calendar (seconds since
    1970).
    """

    index: int
    discarded: bool
    time: float
    start: float
    end: float


W = TypeVar("W", bound=TimedWindow)


@dataclass(frozen=True, slots=True)
class DrivenCell(Generic[W]):
    """What the driver told of one cell, so far as it came.

    ``done``: all its windows are over; ``seconds`` is what it took then. ``failed`` is (reason, error); ``garbage`` is
    what can't be read.
    """

    windows: tuple[W, ...] = ()
    done: bool = False
    seconds: float = 0.0
    failed: tuple[str, str] | None = None
    garbage: tuple[str, ...] = ()

    @property
    def timed(self) -> tuple[W, ...]:
        """The windows that count."""
        return tuple(window for window in self.windows if not window.discarded)

    @property
    def over(self) -> bool:
        """Whether the cell came to an end, good or bad."""
        return self.done or self.failed is not None


C = TypeVar("C", bound=DrivenCell[Any])


@dataclass(frozen=True, slots=True)
class Report(Generic[C]):
    """The whole file: how long the start took (``None``: it never came up), and what became of the cells.

    ``told`` is what it says of itself when it is ready, ``refused`` is (reason, error) where it can't be. ``garbage``:
    lines that belong to no cell. ``last`` is the cell that was begun last and not over when the file ended.
    """

    startup_s: float | None = None
    told: Mapping[str, Any] = field(default_factory=dict)
    cells: Mapping[str, C] = field(default_factory=dict)
    refused: tuple[str, str] | None = None
    broken: str | None = None
    ended: bool = False
    last: str | None = None
    garbage: tuple[str, ...] = ()


class Planned(Protocol):
    """What the reader needs to know of a cell that was planned."""

    @property
    def id(self) -> str:
        """The name that lines have."""
        ...

    @property
    def windows(self) -> int:
        """How many count."""
        ...

    @property
    def discard(self) -> int:
        """How many come before them."""
        ...


@dataclass(frozen=True, slots=True)
class Grammar(Generic[W, C]):
    """How one driver's lines are read: what it calls its process, the reasons that it knows, its own fields.

    ``begun`` makes a cell of a ``cell`` line and ``window`` a window of its own, ``told`` looks at a ``ready`` line;
    each calls :func:`garbage` for what can't be.
    """

    what: str
    reasons: tuple[str, ...]
    begun: Callable[[Mapping[str, Any]], C]
    window: Callable[[Mapping[str, Any]], W]
    nothing: C
    told: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda line: {}


class _Garbage(Exception):
    """A line that the driver can't have written."""


def garbage(sentence: str) -> NoReturn:
    """Refuse the line that is being read."""
    raise _Garbage(sentence)


def read(path: Path, planned: Sequence[Planned], grammar: Grammar[W, C]) -> Report[C]:
    """What the driver told. No file is a process that never came up. Raises OSError when it can't be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Report()
    report: Report[C] = Report()
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            if number == len(lines):
                garbage(f"has no line end after {len(line)} bytes: it was cut off")
            report = _taken(report, _object(line), {cell.id: cell for cell in planned}, grammar)
        except _Garbage as wrong:
            report = _spoilt(report, f"line {number} of {path.name} {wrong}")
    return report


def _object(line: bytes) -> dict[str, Any]:
    def constant(name: str) -> float:
        garbage(f"holds {name}, which is no number")

    try:
        loaded = json.loads(line.decode("utf-8"), parse_constant=constant)
    except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise _Garbage(f"is not JSON: {line[:60]!r}") from None
    if not isinstance(loaded, dict) or not isinstance(loaded.get("kind"), str):
        garbage(f"is no object with a kind: {line[:60]!r}")
    return loaded


def _spoilt(report: Report[C], sentence: str) -> Report[C]:
    """Garbage is the fault of the cell that was being measured, or of none."""
    if report.last is None:
        return replace(report, garbage=(*report.garbage, sentence))
    cell = report.cells[report.last]
    return _with(report, report.last, replace(cell, garbage=(*cell.garbage, sentence)))


def _with(report: Report[C], name: str, cell: C) -> Report[C]:
    return replace(report, cells={**report.cells, name: cell})


def _taken(
    report: Report[C], line: Mapping[str, Any], planned: Mapping[str, Planned], grammar: Grammar[W, C]
) -> Report[C]:
    kind = line["kind"]
    if report.ended or report.broken is not None or report.refused is not None:
        garbage(f"comes after the end: {kind}")
    if kind == "ready":
        if report.startup_s is not None:
            garbage(f"says a second time that the {grammar.what} is ready")
        return replace(report, startup_s=number_of(line, "startup_s"), told=grammar.told(line))
    if report.startup_s is None:
        if kind == "refused":
            return replace(report, refused=(_reason(line, grammar), text_of(line, "error")))
        garbage(f"comes before the {grammar.what} was ready: {kind}")
    if kind == "end":
        return replace(report, ended=True, last=None)
    name = line.get("cell")
    if not isinstance(name, str) or name not in planned:
        garbage(f"names the cell {name!r}, which was not planned")
    if kind == "broken":
        return replace(_known(report, name, grammar), broken=text_of(line, "error"), last=name)
    cell = report.cells.get(name, grammar.nothing)
    if cell.over or (report.last not in (None, name)):
        garbage(f"comes when the cell {name} is not being measured: {kind}")
    if kind == "cell":
        if name in report.cells:
            garbage(f"begins the cell {name} a second time")
        return replace(_with(report, name, grammar.begun(line)), last=name)
    if kind == "cell_failed":
        failed = (_reason(line, grammar), text_of(line, "error"))
        return replace(_with(report, name, replace(cell, failed=failed)), last=None)
    if name not in report.cells:
        garbage(f"comes before the requests of the cell {name}: {kind}")
    if kind == "window":
        window = grammar.window(line)
        _refuse_order(cell, window, planned[name])
        return _with(report, name, replace(cell, windows=(*cell.windows, window)))
    if kind == "cell_done":
        done = replace(cell, done=True, seconds=number_of(line, "seconds"))
        return replace(_with(report, name, done), last=None)
    garbage(f"is of a kind that is not known: {kind!r}")


def _known(report: Report[C], name: str, grammar: Grammar[W, C]) -> Report[C]:
    """A process may break at a cell of which nothing was told yet."""
    return report if name in report.cells else _with(report, name, grammar.nothing)


def _reason(line: Mapping[str, Any], grammar: Grammar[W, C]) -> str:
    reason = text_of(line, "reason")
    if reason not in grammar.reasons:
        garbage(f"has the reason {reason!r}, which is not known")
    return reason


def _refuse_order(cell: DrivenCell[Any], window: TimedWindow, planned: Planned) -> None:
    number = len(cell.windows)
    discarded = number < planned.discard
    index = number if discarded else number - planned.discard
    if (window.index, window.discarded) != (index, discarded) or number >= planned.discard + planned.windows:
        which = "discarded " if window.discarded else ""
        garbage(f"is {which}window {window.index} of the cell {planned.id}, out of its order")
    if window.end < window.start or (cell.windows and window.start < cell.windows[-1].end):
        garbage(f"is a window from {window.start} to {window.end}, which can't be")


def when_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of :class:`TimedWindow`."""
    discarded = line.get("discarded")
    if not isinstance(discarded, bool):
        garbage("is a window without discarded")
    times = {key: number_of(line, key) for key in ("time", "start", "end")}
    return {"index": count_of(line, "index"), "discarded": discarded, **times}


def text_of(line: Mapping[str, Any], key: str) -> str:
    """A text that is not empty."""
    value = line.get(key)
    if not isinstance(value, str) or not value:
        garbage(f"has {key} {value!r}, which is no text")
    return value


def count_of(line: Mapping[str, Any], key: str) -> int:
    """A whole number, 0 or more."""
    value = line.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        garbage(f"has {key} {value!r}, which is no count")
    return value


def number_of(line: Mapping[str, Any], key: str) -> float:
    """A finite number."""
    value = line.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        garbage(f"has {key} {value!r}, which is no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        garbage(f"has {key} {value!r}, which is not finite")
    return number
