"""SIGTERM as Ctrl-C: a batch system's or a CI's way to end pytest must not lose what Ctrl-C keeps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the session as an interrupt: processes ended, samples kept, table printed, exit status 2.

    Outside the main thread, or where somebody else handles SIGTERM, nothing is changed.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise pytest.exit.Exception("SIGTERM", pytest.ExitCode.INTERRUPTED)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
