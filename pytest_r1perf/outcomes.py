"""The exceptions that carry a verdict into pytest's outcome.

Each has a short message and no traceback: the message is the verdict, the cause, the log's path and the command
to reproduce it. They are pytest's own failure type, so a regression is FAILED in the terminal and in JUnit.
"""

from __future__ import annotations

from _pytest.outcomes import Failed, Skipped  # pytest.fail.Exception and pytest.skip.Exception, typed


class PerfFailure(Failed):
    """A verdict that fails: REGRESSED, INVALID, a broken run, XPASS, or an open one under ``--perf-gate``."""

    def __init__(self, message: str) -> None:
        super().__init__(message, pytrace=False)


class AntiPatternSlower(PerfFailure):
    """An anti-pattern lost, as its rule says: the ``raises=`` of its xfail."""


class AntiPatternOutOfMemory(PerfFailure):
    """An anti-pattern ran out of memory, as its rule says: the ``raises=`` of its xfail."""


class LowLoadOnly(PerfFailure):
    """A conclusion was drawn from low loads only: xfailed, since rankings flip at higher N."""


class PerfSkip(Skipped):
    """An open verdict outside the gate; reported at the test's own place."""


for _outcome in (PerfFailure, AntiPatternSlower, AntiPatternOutOfMemory, LowLoadOnly, PerfSkip):
    _outcome.__module__ = "builtins"  # as pytest's own: its short summary then shows the bare name
