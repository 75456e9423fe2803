"""An SGLang environment: a Python with SGLang in it, asked about itself without importing SGLang."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from pytest_r1perf.errors import EnvironmentBroken

OLDEST = Version("0.4.3")
"""Older releases have no comparable offline benchmark (reference: sglang-compat, 0.4.3.post2 to 0.5.23)."""

_PROBE = Path(__file__).parent / "scripts" / "probe.py"


@dataclass(frozen=True, slots=True)
class SglangEnvironment:
    """An interpreter, the versions of the packages that decide its speed, and its benchmark module."""

    python: Path
    versions: Mapping[str, str]
    offline_module: str

    @property
    def version(self) -> str:
        """SGLang's own version."""
        return self.versions["sglang"]


def interpreter_of(path: str | os.PathLike[str]) -> Path:
    """The Python that a user's ``--sglang PATH`` means: an interpreter, or a virtual environment's folder.

    The path isn't resolved: a virtual environment's ``bin/python`` is a link, and its place is its meaning.
    """
    given = Path(path).expanduser().absolute()
    if given.is_dir():
        inside = given / "bin" / "python"
        if not inside.exists():
            raise EnvironmentBroken(
                f"--sglang {given}: this folder has no bin/python: name a virtual environment or an interpreter"
            )
        return inside
    if not given.exists():
        raise EnvironmentBroken(
            f"--sglang {given}: does not exist: name a virtual environment or an interpreter "
            f"(`r1perf rig install` makes one for the cpu platform)"
        )
    if not os.access(given, os.X_OK):
        raise EnvironmentBroken(f"--sglang {given}: is not executable: name a Python interpreter")
    return given


def probe(python: Path, env: Mapping[str, str], *, timeout_s: float = 120) -> SglangEnvironment:
    """Ask the interpreter what it has, in the environment that the benchmark will get.

    Raises :class:`EnvironmentBroken` with one sentence: not a Python, no SGLang, too old, no benchmark.
    """
    try:
        done = subprocess.run(
            [str(python), str(_PROBE)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=env,
            stdin=subprocess.DEVNULL,
        )
        answer = json.loads(done.stdout)
        versions: dict[str, str] = answer["versions"]
        modules: list[str] = answer["modules"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise EnvironmentBroken(f"--sglang {python}: is no working Python ({_first_line(error)})") from None
    if "sglang" not in versions:
        raise EnvironmentBroken(
            f"--sglang {python}: Python {versions['python']} has no sglang: install it there, or name another"
        )
    try:
        too_old = Version(versions["sglang"]) < OLDEST
    except InvalidVersion:
        too_old = False  # a build from a checkout; its own parser is the judge
    if too_old:
        raise EnvironmentBroken(
            f"--sglang {python}: sglang {versions['sglang']} is older than {OLDEST}, the first that is supported"
        )
    if not modules:
        raise EnvironmentBroken(
            f"--sglang {python}: sglang {versions['sglang']} has no offline throughput benchmark in it"
        )
    return SglangEnvironment(python, versions, modules[0])


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
