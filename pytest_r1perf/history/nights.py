"""Reading records back: every session's rounds, as nights of a cell, whatever state the files are in.

A night is one cell in one session, of one side where two environments were compared. Nothing here raises for what
a file holds: what can't be used is left out, and a sentence of :attr:`History.problems` says so. Files are read a
line at a time (:mod:`pytest_r1perf.history.file`), and what repeats is kept once, so a long history fits the memory.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_r1perf.history.file import Draft, Part, Said, Shared, read_file, reason
from pytest_r1perf.history.file import Round as Round

_FILES = "samples-*.jsonl"


@dataclass(frozen=True, slots=True)
class Night:
    """One cell in one session (of one side): rounds of one environment on one host.

    ``time`` is the earliest round's. ``hardware`` is the key; ``host`` the host's name (several nodes': with
    commas), empty in older records, and ``settings`` its driver, kernel, clocks and power limits.
    ``resolved`` is what a baseline would keep of SGLang's resolved arguments
    (:func:`pytest_r1perf.sglang.resolved.storable`); empty where round 1 is missing. ``verdict`` is what the session
    said of the cell, ``None`` when it never came so far.
    """

    session: str
    time: datetime.datetime
    cell: str
    topology: str
    platform: str
    hardware: str
    host: str
    side: str | None
    nodeid: str
    versions: Mapping[str, str]
    protocol: Mapping[str, object]
    resolved: Mapping[str, object]
    workload: str | None
    rounds: tuple[Round, ...]
    verdict: str | None
    settings: Mapping[str, str] = field(default_factory=dict)

    def values(self, metric: str) -> tuple[float, ...]:
        """One value a round, in the order of the rounds that have this metric."""
        return tuple(one.metrics[metric] for one in self.rounds if metric in one.metrics)


@dataclass(frozen=True, slots=True)
class Broken:
    """A cell that broke or was no measurement in a session: the verdict (OOM, INVALID, ...) and its cause."""

    session: str
    time: datetime.datetime
    cell: str
    topology: str
    hardware: str
    side: str | None
    verdict: str
    cause: str


@dataclass(frozen=True, slots=True)
class History:
    """All nights, oldest first, and in sentences what of the files could not be used.

    ``broken`` are the cells that ended with a problem, oldest first; rounds that they had before it are nights, too.
    """

    nights: tuple[Night, ...]
    problems: tuple[str, ...]
    broken: tuple[Broken, ...] = ()


def read_history(paths: Sequence[Path]) -> History:
    """The nights of output directories (``.r1perf``), sessions' folders and single ``.jsonl`` files.

    Of lines with the same session, cell, side, round and environment the first counts, in the order of the paths
    and of the files' names. Rounds of one session that differ in fingerprint, workload, versions, environment,
    command, protocol, hardware or host are nights of their own. A file with a line of a newer format is left out as
    a whole.
    """
    problems: list[str] = []
    collected, shared = _Collected(), Shared()
    for file in _files(paths, problems):
        part = read_file(file, shared, problems)
        if part is not None:
            collected.add(part, problems)
    return collected.history(problems)


def _files(paths: Sequence[Path], problems: list[str]) -> Iterator[Path]:
    """Every file once, even where two paths lead to it."""
    seen: set[Path] = set()
    for path in paths:
        try:
            if path.is_dir():
                folders = [path, *sorted(folder for folder in path.iterdir() if folder.is_dir())]
                found = [file for folder in folders for file in sorted(folder.glob(_FILES))]
                if not found:
                    problems.append(f"{path}: has no records ({_FILES}), neither itself nor in its folders")
            else:
                found = [path]
        except (OSError, ValueError) as error:  # a NUL in a path is a ValueError
            problems.append(f"{path}: cannot be read ({reason(error)})")
            continue
        for file in found:
            try:
                real = file.resolve()
            except (OSError, RuntimeError, ValueError):
                real = file
            if real not in seen:
                seen.add(real)
                yield file


@dataclass(slots=True)
class _Collected:
    """What all files hold together."""

    drafts: dict[tuple[str, str], Draft] = field(default_factory=dict)
    verdicts: list[Said] = field(default_factory=list)
    broken: list[Said] = field(default_factory=list)

    def add(self, part: Part, problems: list[str]) -> None:
        """Join a file's drafts to those of the session's other files."""
        for key, draft in part.drafts.items():
            whole = self.drafts.setdefault(key, Draft(draft.session, draft.fixed))
            whole.resolved = whole.resolved or draft.resolved
            for number, one in draft.rounds.items():
                if number in whole.rounds:
                    part.repeats(whole)
                else:
                    whole.rounds[number] = one
        self.verdicts += part.verdicts
        self.broken += part.broken
        problems += part.sentences()

    def history(self, problems: Sequence[str]) -> History:
        found: dict[tuple[str, ...], list[Night]] = {}
        for draft in sorted(self.drafts.values(), key=_began):
            rounds = tuple(draft.rounds[number] for number in sorted(draft.rounds))
            night = Night(
                draft.session, _began(draft), resolved=draft.resolved, rounds=rounds, verdict=None, **draft.fixed
            )
            found.setdefault((night.session, night.topology, night.cell, night.hardware), []).append(night)
        verdicts = self._verdicts(found)
        nights = [
            replace(night, verdict=verdicts[id(night)]) if id(night) in verdicts else night
            for group in found.values()
            for night in group
        ]
        return History(
            tuple(sorted(nights, key=lambda night: (night.time, night.session, night.topology, night.cell))),
            tuple(problems),
            self._broken(),
        )

    def _verdicts(self, found: Mapping[tuple[str, ...], Sequence[Night]]) -> dict[int, str]:
        """The last word on each night, by its id: the verdict of a comparison is the new side's.

        Of a session that was resumed in another environment it is the last night's.
        """
        verdicts: dict[int, str] = {}
        for said in self.verdicts:
            judged = [night for night in found.get(said.cell, ()) if night.side != "old"]
            own = [night for night in judged if night.nodeid == said.nodeid] or judged
            if own:
                verdicts[id(own[-1])] = said.verdict
        return verdicts

    def _broken(self) -> tuple[Broken, ...]:
        once: dict[tuple[str | None, ...], Broken] = {}
        for said in self.broken:
            session, topology, cell, hardware = said.cell
            if said.time is not None:
                what = Broken(session, said.time, cell, topology, hardware, said.side, said.verdict, said.cause)
                once.setdefault((*said.cell, said.side), what)
        return tuple(sorted(once.values(), key=lambda what: (what.time, what.session, what.topology, what.cell)))


def _began(draft: Draft) -> datetime.datetime:
    return min(one.time for one in draft.rounds.values())
