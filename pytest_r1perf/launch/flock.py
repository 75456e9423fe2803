"""As much of ``filelock`` as ``devices.py`` needs, for nodes whose Python does not have it.

Shipped there under the name ``filelock`` (see ``bundle.py``); never imported on this host. The same locks:
``flock`` on the same files, so a lease taken there by either excludes the other. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class Timeout(TimeoutError):
    """Somebody else holds the lock."""


class FileLock:
    """One lock file; the kernel frees it with this process. ``timeout`` is 0 always: one try."""

    def __init__(self, lock_file: Path, *, mode: int, thread_local: bool) -> None:  # noqa: ARG002
        self._path = lock_file
        self._mode = mode
        self._descriptor: int | None = None

    @property
    def is_locked(self) -> bool:
        """Whether this object holds it."""
        return self._descriptor is not None

    def acquire(self, timeout: float) -> None:  # noqa: ARG002
        """Take it; raises ``Timeout``, or ``OSError`` when the file cannot be opened or locked."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, self._mode)
        try:
            with contextlib.suppress(PermissionError):  # the umask cut it; another user's file is as it is
                os.fchmod(descriptor, self._mode)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink == 0:  # removed meanwhile: locked, and nobody else can find it
                raise BlockingIOError
        except BlockingIOError:
            os.close(descriptor)
            raise Timeout from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self, force: bool = False) -> None:  # noqa: ARG002
        """Give it back; the file stays."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
