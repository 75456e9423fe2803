"""From a candidate to what ``--sglang`` is given: an environment that is there, or that is made on demand."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.rig.home import home, rig_dir
from pytest_r1perf.rig.install import install, rig_state
from pytest_r1perf.rig.steps import Echo, clean_environment
from pytest_r1perf.siteplace import IMAGE


class Unavailable(R1PerfError):
    """A candidate has no environment and none could be made: it is skipped, with this sentence."""


class Environments(Protocol):
    """Where the environment of a candidate is."""

    def of(self, candidate: str) -> str:
        """A virtual environment's folder, an interpreter, or ``image:NAME``; raises :class:`Unavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class Listed:
    """Environments that the user named: candidate -> place."""

    places: Mapping[str, str]

    def of(self, candidate: str) -> str:
        """The place that was named for it."""
        return self.places[candidate]


@dataclass(frozen=True, slots=True)
class CpuRigs:
    """One CPU rig a release, installed when it is first needed (``r1perf rig install``)."""

    echo: Echo
    pip_args: Sequence[str] = ()

    def of(self, candidate: str) -> str:
        """The rig's folder; only releases that have pins can be made."""
        directory = rig_dir(candidate)
        if rig_state(directory).startswith("complete"):
            return str(directory)
        try:
            install(candidate, directory, echo=self.echo, pip_args=self.pip_args)
        except R1PerfError as error:
            raise Unavailable(str(error)) from None
        return str(directory)


def default_template() -> str:
    """Where ``--make`` puts an environment when no template says otherwise."""
    return str(home() / "bisect" / "sglang-{version}")


@dataclass(frozen=True, slots=True)
class Templated:
    """A place a release by ``template`` (``/opt/sglang-{version}``), made by ``make`` where it is missing.

    ``make`` is one command line without a shell, with ``{version}`` and ``{path}`` in it; its output goes to a file in
    ``logs``. A file beside the environment says that it is being made: after a kill it is made again.
    """

    template: str
    make: str | None
    logs: Path
    echo: Echo

    def of(self, candidate: str) -> str:
        """The place, made if it must be."""
        place = self.template.replace("{version}", candidate)
        if self.make is None or place.startswith(IMAGE):
            return place
        path = Path(place).expanduser().absolute()
        begun = path.with_name(f".{path.name}.being-made")
        if begun.exists() or not path.exists():
            self._make(candidate, path, begun)
        return str(path)

    def _make(self, candidate: str, path: Path, begun: Path) -> None:
        assert self.make is not None
        words = [word.replace("{version}", candidate).replace("{path}", str(path)) for word in shlex.split(self.make)]
        log = self.logs / f"make-{candidate}.log"
        self.echo(f"{candidate}: made by {shlex.join(words)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            log.parent.mkdir(parents=True, exist_ok=True)
            begun.touch()
            with log.open("ab") as out:
                status = subprocess.call(
                    words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=clean_environment({})
                )
        except OSError as error:
            raise Unavailable(f"{shlex.join(words)} cannot be run ({error.strerror or error})") from None
        if status != 0:
            raise Unavailable(f"{shlex.join(words)} ended with status {status}; its output is in {log}")
        if not path.exists():
            raise Unavailable(f"{shlex.join(words)} made no {path}; its output is in {log}")
        begun.unlink(missing_ok=True)
