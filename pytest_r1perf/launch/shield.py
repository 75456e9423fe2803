"""Hold signals back while processes are started and ended, and serve them at a safe point.

A Python signal handler may raise at any line (Ctrl-C, pytest-timeout's SIGALRM). Between the start of a
child and the note of its pid, or in the middle of ending a run, that would leave processes behind.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)

_Handler = Callable[[int, FrameType | None], Any]


class Shield:
    """While entered, signals with a Python handler are noted and not handled.

    ``serve()`` runs the handlers of what was noted; it is called where an exception may propagate. A second
    signal that comes before the first was served is handled at once: whatever does not return can be
    interrupted. After ``hold()`` nothing is handled until the shield is left, which restores the handlers
    and raises what is pending.

    Signals left to their default action, and handlers set in C, stay as they are. Outside the main thread
    Python never runs a handler, and the shield does nothing.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, _Handler] = {}
        self._pending: list[int] = []
        self._holding = True

    def __enter__(self) -> Shield:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for number in self._pending:
            signal.raise_signal(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._holding or number not in self._pending:
            if number not in self._pending:
                self._pending.append(number)
            return
        self._handlers[number](number, frame)

    def release(self) -> None:
        """From here a signal waits for ``serve()`` only (the opposite of ``hold()``)."""
        self._holding = False

    def hold(self) -> None:
        """From here signals are only noted."""
        self._holding = True

    def serve(self) -> None:
        """Run the handlers of what was noted; they may raise."""
        while self._pending:
            number = self._pending.pop(0)
            self._handlers[number](number, sys._getframe())
