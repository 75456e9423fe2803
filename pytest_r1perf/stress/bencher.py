"""What measures the cases of a sweep: against a server that is there, or with one of our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pytest_r1perf.stress.cases import Case

Done = Callable[[Case, Sequence[Mapping[str, object]]], None]
"""Takes a case that is over and the rows that SGLang's client wrote for it.

One row of :func:`pytest_r1perf.stress.rows.skip_row`: the server can't take the case, by SGLang's own words. Where
there is not exactly one row, nothing is kept, and the next run measures the case again.
"""


class Failed(str):
    """What a bencher says when it has tried all cases and some failed: the next repeat is measured all the same."""

    __slots__ = ()


class Bencher(Protocol):
    """Measures cases one after another."""

    def measure(self, cases: Sequence[Case], done: Done) -> str | None:
        """Measure in this order, telling ``done`` of each as soon as it is over.

        ``None``: all are over. :class:`Failed`: all were tried, and these failed. Any other text, one sentence: why it
        ended early. Cases that ``done`` never heard of are measured by the next run.
        """
        ...
