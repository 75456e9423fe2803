"""Files that are written whole or not at all, so that nobody reads half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace a file's text in one step; makes its folder. A link is followed, a device or pipe is written into.

    Raises :class:`OSError`; the file is then as it was.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # a directory's own error, too
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(path.stat().st_mode if path.exists() else 0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def refuse_unwritable(path: Path) -> None:
    """Raises the :class:`OSError` that :func:`write_whole` would; makes the folder, and leaves no file."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        with path.open("a", encoding="utf-8"):
            return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    os.close(handle)
    Path(name).unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
