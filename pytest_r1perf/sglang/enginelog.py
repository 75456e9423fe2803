"""A driver's log, split by cell: what SGLang logs at its start belongs to every cell, the rest to the one it fell in.

The driver prints a line before and after every cell and window (``r1perf-engine: cell ID``, ``window ID 0
Benchmark...``; a server's driver ``r1perf-serve: ...``). One reader takes the start; each cell has a copy of it that
goes on with the cell's own lines, so that phases, compilations, retractions and causes of a cell are its own. Line
numbers stay those of the whole log.
"""

from __future__ import annotations

import copy
import re
import time
from dataclasses import dataclass

from pytest_r1perf.sglang.facts import LogFacts, Phase, Progress
from pytest_r1perf.sglang.log import LogReader, progress

_NOTE = rb"(cell|over|window|window-over|end)\b(?: ([0-9a-zA-Z_-]+))?(?: (\d+))?"
_LONG = 1 << 17


@dataclass(frozen=True, slots=True)
class Place:
    """Where the driver is: in which cell (``None``: starting, between two, or at the end), since when.

    ``since`` is by our monotonic clock: when the line was seen here, so up to a look late.
    """

    cell: str | None
    since: float
    windows: int = 0
    ended: bool = False


class EngineLog:
    """Takes the log in pieces of any size; ``mark`` is what the driver's own lines begin with."""

    def __init__(self, mark: str = "r1perf-engine: ") -> None:
        self._mark = mark.encode()
        self._note_form = re.compile(re.escape(self._mark) + _NOTE)
        self._head = LogReader()
        self._readers: dict[str, LogReader] = {}
        self._current: LogReader = self._head
        self._line_no = 1
        self._pending = b""
        self._over = False
        self.place = Place(None, time.monotonic())

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        data = self._pending + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) > _LONG:
            end = len(data)
        whole, self._pending = data[:end], data[end:]
        while (at := whole.find(self._mark)) >= 0:
            stop = whole.find(b"\n", at) + 1 or len(whole)
            begin = whole.rfind(b"\n", 0, at) + 1
            self._take(whole[:begin])
            self._note(whole[begin:stop])
            whole = whole[stop:]
        self._take(whole)

    def close(self) -> None:
        """Take what is left as the last line: a killed process ends its log anywhere."""
        if self._pending:
            self.feed(b"\n")
        self._current.close()

    def facts(self, cell: str) -> LogFacts:
        """What the log says of a cell; of one that was never begun, what it says of the start."""
        return self._readers.get(cell, self._head).facts

    def begun(self, cell: str) -> bool:
        """Whether the driver came to this cell."""
        return cell in self._readers

    def progress(self, num_prompts: int) -> Progress:
        """Of the cell that is being measured, in its present window."""
        return progress(self._current.facts, num_prompts)

    def first_line(self, cell: str) -> int | None:
        """Where the timed windows of a cell begin in the log."""
        marks = self.facts(cell).phases
        return next((mark.line_no for mark in marks if mark.phase is Phase.BENCHMARK), None)

    def _take(self, data: bytes) -> None:
        if data:
            self._current.feed(data)
            self._line_no += data.count(b"\n")

    def _note(self, line: bytes) -> None:
        found = self._note_form.search(line)
        now = time.monotonic()
        if found is None or self._over:
            self._take(line)
            return
        word, name = found[1], (found[2] or b"").decode("ascii")
        if word == b"cell" and name not in self._readers:
            reader = copy.deepcopy(self._head)
            reader.feed(b"\n" * (self._line_no - 1 - reader.facts.lines))
            self._readers[name] = self._current = reader
            self.place = Place(name, now)
        self._take(line)
        if word == b"window":
            self.place = Place(self.place.cell, self.place.since, self.place.windows + 1)
        elif word in (b"over", b"end"):
            self._current.close()
            # What is between two cells is nobody's; it has to be counted, no more.
            self._current = LogReader()
            self._over = word == b"end"
            self.place = Place(None, now, ended=self._over)
