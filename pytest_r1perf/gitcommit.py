"""Which commit of the tests measured something."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def commit_of(root: Path) -> str:
    """The commit of the tests, with ``+`` when the tree has changes; ``unknown`` outside a repository."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
