"""One step of a bisection: measure a version beside the good end, interleaved, by a pytest of its own."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_r1perf import records
from pytest_r1perf.bisect.environments import Environments, Unavailable
from pytest_r1perf.bisect.evidence import Rules, outcome_of, read_look
from pytest_r1perf.bisect.search import Answer, Ask, Outcome
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launch.mark import owner_alive, parse

PYTEST = (sys.executable, "-m", "pytest")
ENDING_S = 120
"""How long the pytest of a killed bisect is waited for: its guard takes seconds, a GPU's memory longer (ours)."""

_INTERRUPTED = 2
_TESTS_RAN = (0, 1)
_PR_SET_PDEATHSIG = 1


class Step(Protocol):
    """What a search asks; replaced by a simulation in the tests of the search."""

    def measure(self, ask: Ask, log: Sequence[Outcome]) -> Outcome:
        """Measure a version once more and answer from all its rounds so far; ``log`` are the answers before."""
        ...


@dataclass(frozen=True, slots=True)
class PytestStep:
    """Runs ``pytest NODEID --sglang old=GOOD --sglang new=VERSION`` and judges the rounds of its record.

    Each look is a session in a folder of its own under ``folder``, of a fixed number of rounds: the looks are planned,
    so that looking again costs what it must. A look whose session was killed is gone on with, one that came to its end
    is only read. ``rules_for`` gives the rules for a version after a log; ``check`` raises :class:`Unavailable` for
    an environment of this host that is none.
    """

    nodeid: str
    good: str
    environments: Environments
    folder: Path
    rules_for: Callable[[str, Sequence[Outcome]], Rules]
    check: Callable[[str, str], None]
    pytest_options: tuple[str, ...] = ()
    command: tuple[str, ...] = PYTEST

    def measure(self, ask: Ask, log: Sequence[Outcome]) -> Outcome:
        """See :class:`Step`; :class:`R1PerfError` when the good end or the test itself can't be run."""
        try:
            good = self._environment(self.good)
        except Unavailable as error:
            raise R1PerfError(f"the good end {self.good} has no environment: {error}") from None
        try:
            new = self._environment(ask.candidate)
        except Unavailable as error:
            return Outcome(ask.candidate, Answer.SKIPPED, str(error))
        rules = self.rules_for(ask.candidate, log)
        own = self.folder / _folder_name(ask.candidate)
        rounds = rules.looks[ask.look - 1] - (rules.looks[ask.look - 2] if ask.look > 1 else 0)
        self._measured(own / f"look-{ask.look}", good, new, rounds, rules)
        try:
            looks = [read_look(_session(own / f"look-{number}").path) for number in range(1, ask.look + 1)]
            return outcome_of(ask.candidate, looks, rules)
        except R1PerfError:
            _set_aside(own / f"look-{ask.look}")  # what is mended is measured anew, not read again
            raise

    def _environment(self, candidate: str) -> str:
        place = self.environments.of(candidate)
        self.check(candidate, place)
        return place

    def _measured(self, out: Path, good: str, new: str, rounds: int, rules: Rules) -> None:
        """Make sure that the session of a look is there, whole."""
        before = records.sessions(out)
        if before and _ended(before[-1]):
            return
        _wait_for_its_end(before)
        words = [
            *self.command,
            self.nodeid,
            "--perf",
            "--perf-platform",
            rules.platform.name,
            "--sglang",
            f"old={good}",
            "--sglang",
            f"new={new}",
            "--perf-out",
            str(out.absolute()),
            "--perf-rounds",
            f"{rounds}:{rounds}",
            "--perf-no-outputs",
            *(["--perf-tolerance", f"{rules.tolerance:.6g}"] if rules.tolerance is not None else []),
            *(["--perf-resume"] if before else []),
            *self.pytest_options,
        ]
        out.mkdir(parents=True, exist_ok=True)
        log = out / "pytest.log"
        status = _run(words, log)
        after = records.sessions(out)
        if status == _INTERRUPTED:
            raise R1PerfError(f"pytest was interrupted (its output: {log}): go on with --resume")
        if status not in _TESTS_RAN or not after or not _ended(after[-1]):
            log = _set_aside(out) / log.name
            raise R1PerfError(f"pytest ended with status {status} and no whole session: {_last_words(log)}")


def _run(words: Sequence[str], log: Path) -> int:
    """Run a command to its end; it gets Ctrl-C from the terminal itself, and a SIGINT when this process is gone."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=_interrupt_with_parent if sys.platform == "linux" else None,
        )
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # it ends its benchmark and writes what it has
            raise
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise


def _interrupt_with_parent() -> None:
    """Between fork and exec: a killed bisect must not leave a pytest behind that measures on."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def _session(out: Path) -> records.SessionFolder:
    try:
        return records.sessions(out)[-1]
    except IndexError:
        raise R1PerfError(f"{out}: the session of this look is gone: start anew with another --state") from None


def _ended(session: records.SessionFolder) -> bool:
    return any(line.get("kind") == "end" for line in records.lines(session))


def _wait_for_its_end(sessions: Sequence[records.SessionFolder]) -> None:
    """The pytest of a killed bisect may still be ending its benchmark."""
    until = time.monotonic() + ENDING_S
    for session in sessions[-1:]:
        owners = [parse(str(line["owner"])) for line in records.lines(session) if "owner" in line]
        while any(owner is not None and owner_alive(owner) for owner in owners):
            if time.monotonic() > until:
                raise R1PerfError(f"{session.path}: its pytest still runs: wait for it, or end it, then --resume")
            time.sleep(0.2)


def _set_aside(out: Path) -> Path:
    """Keep what can't be used out of the way of the next try; where it is then."""
    number = 1
    while (aside := out.with_name(f"{out.name}.unused-{number}")).exists():
        number += 1
    return out.rename(aside)


def _folder_name(candidate: str) -> str:
    """A release's own name; of a path a name that no other one has."""
    plain = re.sub(r"[^\w.+-]+", "_", candidate).strip("_.")
    return plain if plain == candidate else f"{plain}-{hashlib.sha256(candidate.encode()).hexdigest()[:8]}"


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"ERROR|E  |.*[eE]rror:", line)]
    return f"{(errors or lines or ['no output'])[-1][:300]} (the whole output is in {log})"
