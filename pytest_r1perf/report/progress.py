"""Live progress of a round: one line that is redrawn on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_r1perf.report.plain import clipped, columns, plain
from pytest_r1perf.sglang.facts import Phase

if TYPE_CHECKING:
    from pytest_r1perf.cell import Cell
    from pytest_r1perf.sglang.facts import Progress as RunProgress

_EVERY_S = 30.0
"""Seconds between lines where there is no terminal (a CI log)."""

_BAR = 20
_LEAST_LABEL = 20
"""Columns of a cell's name that a narrow terminal keeps when there is no room for the whole line."""


class Progress:
    """Writes past pytest's capture; silent with ``-q``."""

    def __init__(self, config: pytest.Config, *, enabled: bool) -> None:
        self._capture: Any = config.pluginmanager.getplugin("capturemanager")
        reporter: Any = config.pluginmanager.getplugin("terminalreporter")
        self._writer: Any = reporter._tw if reporter is not None else None
        # Not by the colours: FORCE_COLOR in a CI log asks for no redrawing, and NO_COLOR on a terminal forbids none.
        self._redraws = reporter is not None and bool(reporter.isatty) and os.environ.get("TERM") != "dumb"
        self._enabled = enabled and self._writer is not None and config.get_verbosity() >= 0
        self._drawn = ""
        self._next = 0.0
        self._round: tuple[str, int, str | None] | None = None
        self._waiting = ""
        self._started = 0.0
        self._window = 0.0

    def show(self, cell: Cell, number: int, now: RunProgress, side: str | None = None) -> None:
        """A round's state; called several times a second. ``side``: of two environments."""
        clock = time.monotonic()
        if (cell.fingerprint, number, side) != self._round:
            self._round = (cell.fingerprint, number, side)
            self._started, self._window, self._next = clock, 0.0, clock + _EVERY_S
        if now.phase >= Phase.BENCHMARK and not self._window:
            self._window = clock
        if self._redraws or clock >= self._next:
            self._next = clock + _EVERY_S
            self._write(self._text(cell, number, now, clock, side))

    def waiting(self, holder: object) -> None:
        """Somebody else measures on this host."""
        who = f" held by {holder}" if holder is not None else ""
        text = plain(f"r1perf: waiting for the device{who}")
        if self._redraws or text != self._waiting:  # in a log once is enough
            self._waiting = text
            self._write(text, whole_line=not self._redraws)

    def line(self, text: str) -> None:
        """Something worth a line of its own."""
        self.clear()
        self._write(f"r1perf: {plain(text)}", whole_line=True)

    def clear(self) -> None:
        """Take the redrawn line away."""
        self._waiting = ""
        if self._drawn:
            self._raw("\r" + " " * columns(self._drawn) + "\r")
            self._drawn = ""

    def _text(self, cell: Cell, number: int, now: RunProgress, clock: float, side: str | None) -> str:
        """The whole line; on a narrow terminal without the bar, then without the speed, then with a shorter name."""
        label = plain(cell.label)
        phase = now.phase.name.lower().replace("_", " ")
        which = f"{side}, " if side is not None else ""
        state = f", {which}round {number}, {phase}, {clock - self._started:.0f} s"
        bar = done = speed = ""
        if now.phase == Phase.BENCHMARK and now.fraction > 0:
            filled = round(min(1.0, now.fraction) * _BAR)
            bar = f" [{'#' * filled}{'.' * (_BAR - filled)}]"
            left = max(0.0, (clock - self._window) * (1 - now.fraction) / now.fraction)
            done = f" {now.requests_done}/{cell.num_prompts}, {left:.0f} s left"
        if now.gen_throughput:
            speed = f", {now.gen_throughput:,.0f} output tok/s now"
        text = f"r1perf: {label}{state}{bar}{done}{speed}"
        if not self._redraws:
            return text
        room = self._room
        for narrower in (f"{state}{done}{speed}", f"{state}{done}"):
            if columns(text) > room:
                text = f"r1perf: {label}{narrower}"
        if columns(text) > room:
            kept = max(_LEAST_LABEL, columns(label) - (columns(text) - room))
            text = f"r1perf: {clipped(label, kept)}{state}{done}"
        return text

    @property
    def _room(self) -> int:
        """Columns of a redrawn line: one less than the terminal has, where the cursor stays."""
        with self._uncaptured():  # else it is the width of the file that pytest captures into
            return max(1, int(self._writer.fullwidth) - 1)

    def _write(self, text: str, *, whole_line: bool = False) -> None:
        if not self._enabled:
            return
        if whole_line or not self._redraws:
            self._raw(f"\n{text}\n" if not self._redraws else f"{text}\n")
            return
        text = clipped(text, self._room)
        padding = " " * max(0, columns(self._drawn) - columns(text))
        self._raw(f"\r{text}{padding}")
        self._drawn = text

    def _raw(self, text: str) -> None:
        with self._uncaptured():
            self._writer.write(text, flush=True)

    def _uncaptured(self) -> contextlib.AbstractContextManager[None]:
        if self._capture is None:
            return contextlib.nullcontext()
        found: contextlib.AbstractContextManager[None] = self._capture.global_and_fixture_disabled()
        return found
