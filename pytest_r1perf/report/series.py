"""A cell as a point of a series over sessions, for tools that keep the series themselves."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_r1perf.document.model import Cell, Document, Environment
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.report.plain import plain
from pytest_r1perf.statistics import geometric_mean

_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell's own rounds in a session: when they began, and the values of each metric, a round each.

    ``series`` names what may be compared over time: a cell on a hardware.
    """

    cell: Cell
    series: str
    began: str
    environment: Environment
    values: dict[str, tuple[float, ...]]

    @property
    def rounds(self) -> int:
        """Rounds with a number."""
        return max(len(values) for values in self.values.values())


def series_of(cell: Cell) -> str:
    """The name of the cell's series in one line, e.g. ``8x-nvidia-h200 tp8 h200x8/default/sharegpt/n5000/engine``."""
    return one_line(f"{cell.result.hardware} {cell.name}")


def measured(document: Document) -> Iterator[Measured]:
    """Every series of a document once, in its order; none of a cell that broke or was no measurement.

    Of two environments the new one. A value that is not finite or not above 0 is left out.
    """
    seen: set[str] = set()
    for cell in document.cells:
        series = series_of(cell)
        found = None if series in seen or cell.result.verdict.broken else _measured(document, cell, series)
        if found is not None:  # the next of several tests that share a measurement may be whole
            seen.add(series)
            yield found


def nights_before(cell: Cell, began: str) -> list[tuple[str, float]]:
    """(time, geometric mean of total_throughput) of the nights in the cell's trend that are older than ``began``."""
    if cell.trend is None:
        return []
    first = datetime.datetime.fromisoformat(began)
    nights = zip(cell.trend["times"], cell.trend["means"], strict=True)
    return [(time, mean) for time, mean in nights if is_value(mean) and datetime.datetime.fromisoformat(time) < first]


def mean(values: Sequence[float]) -> float:
    """The geometric mean over rounds, as in a trend; of one value that value with all its digits."""
    return values[0] if len(values) == 1 else geometric_mean(values)


def is_value(value: float | None) -> bool:
    """A number that a metric can have."""
    return value is not None and math.isfinite(value) and value > 0


def one_line(text: str) -> str:
    """Without escape sequences and line ends."""
    return _SPACE.sub(" ", plain(text)).strip()


def _measured(document: Document, cell: Cell, series: str) -> Measured | None:
    environments: Sequence[Environment] = document.environments
    own = [sample for sample in cell.samples if environments[sample.environment].side in (None, "new")]
    values = {
        name: tuple(sample.metrics[name] for sample in own if is_value(sample.metrics.get(name))) for name in METRICS
    }
    values = {name: numbers for name, numbers in values.items() if numbers}
    if not values:
        return None
    first = min(own, key=lambda sample: datetime.datetime.fromisoformat(sample.time))
    return Measured(cell, series, first.time, environments[first.environment], values)
