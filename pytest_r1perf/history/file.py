"""One file of a record, read a line at a time: rounds, verdicts, and what is wrong with it."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pytest_r1perf.datafile import is_finite_number
from pytest_r1perf.records import FORMAT
from pytest_r1perf.sglang.resolved import storable

LONGEST_LINE = 16 * 2**20
"""Bytes of a line that is still read; the longest (500 resolved arguments, a hundred windows) have 0.1 MiB."""

_ASKED = ("fingerprint", "workload", "topology", "cell", "env", "command")
_FOUND = ("hardware", "host", "versions", "protocol", "side")
_IDENTITY = (*_ASKED, *_FOUND)
"""What must be the same for two rounds to be of one night; of the host its settings, too, as when a session resumes."""
_WITHOUT_ROUNDS = ("start", "discarded", "end")


@dataclass(frozen=True, slots=True)
class Round:
    """One process that was measured: metrics in the units of :mod:`pytest_r1perf.metrics`, each above 0.

    ``windows`` are the single timed windows of ``engine`` mode, in order, after the ``discarded`` ones; empty in the
    other modes.
    """

    number: int
    time: datetime.datetime
    metrics: Mapping[str, float]
    windows: tuple[Mapping[str, float], ...]
    wall_s: float
    discarded: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """A verdict on a cell: (session, topology, cell, hardware), from a ``verdict`` or ``problem`` line."""

    cell: tuple[str, str, str, str]
    verdict: str
    nodeid: str
    time: datetime.datetime | None = None
    side: str | None = None
    cause: str = ""


@dataclass(slots=True)
class Draft:
    """A night while it is read; ``fixed`` are the fields that all its rounds share."""

    session: str
    fixed: dict[str, Any]
    resolved: Mapping[str, object] = field(default_factory=dict)
    rounds: dict[int, Round] = field(default_factory=dict)


@dataclass(slots=True)
class Shared:
    """Values that many lines repeat, each kept once."""

    mappings: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def mapping(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """The first mapping with these values."""
        return self.mappings.setdefault(json.dumps(value, sort_keys=True), value)

    def text(self, value: object) -> str:
        """A text, or the text of anything else; nothing is the empty one."""
        text = "" if value is None else str(value)
        return self.texts.setdefault(text, text)


@dataclass(slots=True)
class Part:
    """What one file holds: drafts by session and identity, what was said of cells, and its faults."""

    path: Path
    drafts: dict[tuple[str, str], Draft] = field(default_factory=dict)
    verdicts: list[Said] = field(default_factory=list)
    broken: list[Said] = field(default_factory=list)
    faults: dict[str, tuple[int, int]] = field(default_factory=dict)
    repeated: int = 0
    repeated_first: str = ""

    def fault(self, what: str, line: int) -> None:
        """A line that can't be used."""
        count, first = self.faults.get(what, (0, line))
        self.faults[what] = (count + 1, first)

    def repeats(self, draft: Draft) -> None:
        """A line whose round is known already."""
        self.repeated += 1
        self.repeated_first = self.repeated_first or f"{draft.fixed['cell']} in session {draft.session}"

    def sentences(self) -> Iterator[str]:
        """What is wrong with the file, a sentence a kind of fault."""
        for what, (count, first) in self.faults.items():
            if count == 1:
                yield f"{self.path}:{first}: {what}: left out"
            else:
                yield f"{self.path}: {count} lines, the first of them line {first}: {what}: left out"
        if self.repeated:
            lines = "a line repeats a round" if self.repeated == 1 else f"{self.repeated} lines repeat rounds"
            yield f"{self.path}: {lines} ({self.repeated_first}): the first counts"


def read_file(path: Path, shared: Shared, problems: list[str]) -> Part | None:
    """A file's lines; ``None``, and a sentence, where it can't be read or is of a newer format."""
    part, session = Part(path), shared.text(path.absolute().parent.name)
    try:
        with path.open("rb") as file:
            for number, text in enumerate(_whole_lines(file), 1):
                if not text.strip():
                    continue
                line = _parse(text)
                if line is None:
                    cut = not text.endswith(b"\n")
                    part.fault("cut short, since its writer was killed" if cut else "is no record", number)
                    continue
                version = line.get("format", 0)
                if version > FORMAT:
                    problems.append(
                        f"{path}: left out as a whole: written by a newer pytest-r1perf (format {version}, this one "
                        f"reads {FORMAT}): update this one"
                    )
                    return None
                if line.get("kind") == "start":
                    session = shared.text(line.get("session") or session)
                    continue
                try:
                    wrong = _add(part, session, line, shared)
                except RecursionError:  # JSON may nest deeper than it can be written again
                    wrong = "is nested too deep"
                if wrong:
                    part.fault(wrong, number)
    except (OSError, ValueError) as error:  # a NUL in a path is a ValueError
        problems.append(f"{path}: cannot be read ({reason(error)})")
        return None
    return part


def reason(error: Exception) -> str:
    """What the system says, without the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines one at a time; one that is too long is replaced by something that is no record."""
    while text := file.readline(LONGEST_LINE):
        rest = text
        while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
            text, rest = b"too long\n", file.readline(LONGEST_LINE)
        yield text


def _parse(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and isinstance(line.get("format", 0), int) else None


def _add(part: Part, session: str, line: dict[str, Any], shared: Shared) -> str | None:
    """Take a line in, or say why not."""
    kind = line.get("kind")
    if kind == "sample":
        return _add_sample(part, session, line, shared)
    if kind == "problem":
        return _add_problem(part, session, line, shared)
    if kind == "verdict":
        return _add_verdict(part, session, line, shared)
    return None if kind in _WITHOUT_ROUNDS else "of a kind that is not known here"


def _add_problem(part: Part, session: str, line: Mapping[str, Any], shared: Shared) -> str | None:
    time = _time(line.get("time"))
    if time is None or not isinstance(line.get("cell"), str) or not isinstance(line.get("verdict"), str):
        return "a problem without a cell, a time or a verdict"
    cell = (session, shared.text(line.get("topology")), shared.text(line["cell"]), shared.text(line.get("hardware")))
    side = None if line.get("side") is None else shared.text(line["side"])
    said = (shared.text(line["verdict"]), shared.text(line.get("nodeid")))
    part.broken.append(Said(cell, *said, time=time, side=side, cause=shared.text(line.get("cause"))))
    return None


def _add_verdict(part: Part, session: str, line: Mapping[str, Any], shared: Shared) -> str | None:
    result = line.get("result")
    if not isinstance(result, dict) or not isinstance(result.get("key"), str):
        return "a verdict without a cell"
    if not isinstance(result.get("verdict"), str):
        return "a verdict without a verdict"
    cell = (
        session,
        shared.text(result.get("topology")),
        shared.text(result["key"]),
        shared.text(result.get("hardware")),
    )
    part.verdicts.append(Said(cell, shared.text(result["verdict"]), shared.text(result.get("nodeid"))))
    return None


def _add_sample(part: Part, session: str, line: dict[str, Any], shared: Shared) -> str | None:
    one, cell = _round(line, shared), line.get("cell")
    if one is None or not isinstance(cell, str) or not cell:
        return "a sample without a cell, a round, a time, or finite metrics above 0"
    identity = json.dumps([line.get(name) for name in _IDENTITY], sort_keys=True)
    key = (session, hashlib.blake2b(identity.encode(), digest_size=16).hexdigest())
    draft = part.drafts.get(key)
    if draft is None:
        draft = part.drafts[key] = Draft(session, _fixed(line, cell, shared))
    resolved = line.get("resolved")
    if isinstance(resolved, dict) and resolved and not draft.resolved:
        draft.resolved = shared.mapping(storable(resolved))
    if one.number in draft.rounds:
        part.repeats(draft)
    else:
        draft.rounds[one.number] = one
    return None


def _fixed(line: Mapping[str, Any], cell: str, shared: Shared) -> dict[str, Any]:
    """The fields of a night that all its rounds share; an older record lacks some."""
    versions, protocol, host = line.get("versions"), line.get("protocol"), line.get("host")
    versions = {str(name): str(value) for name, value in versions.items()} if isinstance(versions, dict) else {}
    state = {str(name): str(value) for name, value in host.items()} if isinstance(host, dict) else {}
    names = [name for name in state if name.startswith("hostname")]  # "hostname 1" is a second node's
    return {
        "cell": shared.text(cell),
        "topology": shared.text(line.get("topology")),
        "platform": shared.text(line.get("platform") or cell.split("/")[0]),
        "hardware": shared.text(line.get("hardware")),
        "host": shared.text(", ".join(state[name] for name in names)),
        "settings": shared.mapping({name: value for name, value in state.items() if name not in names}),
        "side": None if line.get("side") is None else shared.text(line["side"]),
        "nodeid": shared.text(line.get("nodeid")),
        "versions": shared.mapping(versions),
        "protocol": shared.mapping(protocol if isinstance(protocol, dict) else {}),
        "workload": None if line.get("workload") is None else shared.text(line["workload"]),
    }


def _round(line: Mapping[str, Any], shared: Shared) -> Round | None:
    number, windows = line.get("round"), line.get("windows", [])
    time, metrics, wall_s = _time(line.get("time")), _metrics(line.get("metrics"), shared), line.get("wall_s", 0.0)
    if not isinstance(number, int) or isinstance(number, bool) or time is None or not metrics:
        return None
    if not isinstance(windows, list) or not is_finite_number(wall_s):
        return None
    single = [_metrics(window, shared) for window in windows]
    if not all(single):
        return None
    thrown_away = line.get("discarded", 0)
    discarded = thrown_away if isinstance(thrown_away, int) and thrown_away > 0 else 0
    return Round(number, time, metrics, tuple(window for window in single if window), float(wall_s), discarded)


def _metrics(value: object, shared: Shared) -> dict[str, float] | None:
    """Finite numbers above 0 by name; ``None`` when there is anything else among them."""
    if not isinstance(value, dict) or not all(is_finite_number(number) and number > 0 for number in value.values()):
        return None
    return {shared.text(name): float(number) for name, number in value.items()}


def _time(value: object) -> datetime.datetime | None:
    if not isinstance(value, str):
        return None
    try:
        time = datetime.datetime.fromisoformat(value)
        time = time if time.tzinfo is not None else time.replace(tzinfo=datetime.timezone.utc)
        time.astimezone(datetime.timezone.utc)  # the calendar's very ends have none, and could not be compared
    except (ValueError, OverflowError):
        return None
    return time
