"""Where an SGLang environment is, and how a script of ours runs in it: this host, another one, a container."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class PlaceBroken(Exception):
    """The script could not be run at all; the text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a script printed, and how it ended."""

    output: str
    errors: str
    returncode: int | None

    def json(self) -> Any:
        """The value on the last line that is JSON; :class:`ValueError` when there is none.

        In a container, or on another host, what SGLang warns of at its exit comes after it in the same log.
        """
        for line in reversed(self.output.splitlines()):
            if line.startswith(("{", "[")):
                with contextlib.suppress(ValueError):
                    return json.loads(line)
        raise ValueError(self.last_words)

    @property
    def last_words(self) -> str:
        """The last line that was printed, or the exit code where there is none."""
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        return (lines or [f"exit code {self.returncode}"])[-1][:300]


class Place(Protocol):
    """A Python with SGLang in it, on some host."""

    @property
    def label(self) -> str:
        """As an error message names it: ``--sglang /opt/sglang``."""
        ...

    @property
    def python(self) -> str:
        """The interpreter's path where it runs."""
        ...

    def script(
        self,
        script: Path,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout_s: float,
        needs: Sequence[str] = (),
    ) -> Answer:
        """Run one of our scripts (standard library only) in it, with ``env`` over what it has there.

        ``needs``: paths there that a container must see. Raises :class:`PlaceBroken`, or ``LaunchError`` when its
        host or container could not be reached at all.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """An interpreter on this host; ``env`` of a script is its whole environment."""

    python: str
    label: str

    def script(
        self,
        script: Path,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout_s: float,
        needs: Sequence[str] = (),  # noqa: ARG002
    ) -> Answer:
        """Run it as a plain child: it starts nothing and ends by itself."""
        try:
            done = subprocess.run(
                [self.python, str(script), *arguments],
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                env=env,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise PlaceBroken((str(error).splitlines() or [type(error).__name__])[0]) from None
        return Answer(done.stdout, done.stderr, done.returncode)
