"""The environments of the other deciders, made on demand outside the repository.

Each is a virtual environment from ``requirements/NAME.txt`` under the cache folder; it is made again when that file
changes. A package that can't be installed leaves its decider out, and the report says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("tools", "otava", "plot")


def cache() -> Path:
    """``$R1PERF_GATE_CACHE``, or a folder beside the plugin's other caches."""
    given = os.environ.get("R1PERF_GATE_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "pytest-r1perf" / "gate"


def interpreter(name: str) -> Path | None:
    """The environment's Python, ``None`` where it isn't made yet or is of other requirements."""
    python = cache() / name / "bin" / "python"
    made = cache() / name / "requirements.txt"
    if not python.exists() or not made.exists():
        return None
    return python if made.read_bytes() == _requirements(name).read_bytes() else None


def make(name: str) -> Path:
    """Make the environment if it isn't there; :class:`subprocess.CalledProcessError` where pip fails."""
    python = interpreter(name)
    if python is not None:
        return python
    folder = cache() / name
    print(f"making {folder}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(_requirements(name))], check=True)
    shutil.copyfile(_requirements(name), folder / "requirements.txt")
    return python


def make_all() -> tuple[str, ...]:
    """Make what is missing; gives a sentence for each that could not be made."""
    problems = []
    for name in NAMES:
        try:
            make(name)
        except (OSError, subprocess.CalledProcessError) as error:
            problems.append(f"the environment {name!r} could not be made: {error}")
    return tuple(problems)


def _requirements(name: str) -> Path:
    return HERE / "requirements" / f"{name}.txt"
