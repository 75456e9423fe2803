"""What a channel is: it takes a session's document somewhere, or shows what it would send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from pytest_r1perf.document.model import Document
from pytest_r1perf.errors import R1PerfError


class NotifyError(R1PerfError):
    """What could not be told, in one sentence without a secret: host, status, and what to do."""


class Unsure(NotifyError):
    """A request may have been carried out, or not: whoever repeats it looks first."""


class Channel(Protocol):
    """A channel is a file here and a command in :mod:`pytest_r1perf.notify.commands`."""

    def shown(self, document: Document) -> Iterator[str]:
        """What would be sent, as text. Asks nobody, and needs no variable."""

    def send(self, document: Document) -> Iterator[str]:
        """Send; each line says what was done. Raises :class:`NotifyError` where that is not possible."""
