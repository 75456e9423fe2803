"""One case's result file: a row a repeat, as SGLang's client wrote it, with a mark that says whose it is.

    {"run_name": "default", "batch_size": 1, ..., "r1perf": {"sweep": "5f...", "server": "9c...", "repeat": 1}}

A case that the server can't take has a row with ``skipped`` and the reason in place of the measured values. Files of
the guide's own script have no marks; they are read as they are, and are no sweep's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pytest_r1perf.sglang.jsonrow import RowRefused, load
from pytest_r1perf.sglang.one_batch import (
    OneBatchResult,
    below_its_own_times,
    differs_from_guide,
    lines_of,
    read_one_batch_line,
    spread_out,
)
from pytest_r1perf.stress.cases import Case

MARK = "r1perf"
SKIPPED = "skipped"


class Fault(str, Enum):
    """Why a file does not count; the value goes into the name of the file that is set aside."""

    UNREADABLE = "unreadable"
    TRUNCATED = "truncated"
    GARBLED = "garbled"
    CONTRADICTION = "contradiction"
    CUT_ANSWERS = "cut-answers"
    OTHER_CASE = "other-case"
    OTHER_SERVER = "other-server"
    OTHER_RUN = "other-run"
    UNMARKED = "unmarked"
    DUPLICATED = "duplicated"


@dataclass(frozen=True, slots=True)
class Mark:
    """Which sweep wrote a row, in which repeat, and on which start of its server.

    ``server`` is that start: :attr:`pytest_r1perf.sglang.server_kind.Server.start`.
    """

    sweep: str
    server: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement of a case; without a mark it is the guide's script's."""

    case: Case
    result: OneBatchResult
    mark: Mark | None


@dataclass(frozen=True, slots=True)
class Skip:
    """A case that the server can't take: it was skipped, and this is why."""

    case: Case
    reason: str
    mark: Mark | None


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with a file, in one sentence without its name and without a full stop."""

    fault: Fault
    sentence: str


@dataclass(frozen=True, slots=True)
class CaseFile:
    """What a case's file holds. With a flaw nothing of it counts, though ``rows`` has what could be read."""

    case: Case
    rows: tuple[Row, ...] = ()
    skip: Skip | None = None
    flaw: Flaw | None = None

    @property
    def repeats(self) -> frozenset[int]:
        """The repeats that are there."""
        return frozenset(row.mark.repeat for row in self.rows if row.mark is not None)


def read_case_file(path: Path, case: Case) -> CaseFile:
    """Read the file of ``case``; its flaw is the first one of the first bad line. An absent file is empty.

    A file may also be one row over several lines, as the guide prints it.
    Whose rows they are is not judged here: see :func:`foreign`.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return CaseFile(case)
    except OSError as error:
        return CaseFile(case, flaw=Flaw(Fault.UNREADABLE, f"cannot be read ({error.strerror or error})"))
    if not text.strip():
        return CaseFile(case, flaw=Flaw(Fault.TRUNCATED, "is empty"))
    rows: list[Row] = []
    skips: list[Skip] = []
    flaw: Flaw | None = None
    if not text.endswith(b"\n") and not spread_out(text):
        last = text.count(b"\n") + 1
        flaw = Flaw(Fault.TRUNCATED, f"line {last} has no end: its writer was killed")
    for number, line in lines_of(text):
        found = _line(number, line, case)
        if isinstance(found, Row):
            rows.append(found)
        elif isinstance(found, Skip):
            skips.append(found)
        else:
            flaw = flaw or found
    flaw = flaw or _twice(rows, skips)
    return CaseFile(case, tuple(rows), skips[0] if skips else None, flaw)


def foreign(file: CaseFile, sweep: str, servers: Iterable[str]) -> Flaw | None:
    """Why a file is not this sweep's: no mark, another sweep's, or a start of a server that it never talked to."""
    known = set(servers)
    marks = [row.mark for row in file.rows] + ([file.skip.mark] if file.skip is not None else [])
    for mark in marks:
        if mark is None:
            return Flaw(Fault.UNMARKED, "has rows without a mark: who measured them is not known")
        if mark.sweep != sweep:
            return Flaw(Fault.OTHER_RUN, f"is of another run (sweep {mark.sweep}, this one is {sweep})")
        if mark.server not in known:
            return Flaw(Fault.OTHER_SERVER, f"is of another server (start {mark.server}, which this sweep never had)")
    return None


def row_line(raw: Mapping[str, object], mark: Mark) -> str:
    """A row as it is stored; raises ValueError where a value is NaN or infinite, TypeError where it is no JSON."""
    own = {"sweep": mark.sweep, "server": mark.server, "repeat": mark.repeat}
    return json.dumps({**raw, MARK: own}, allow_nan=False) + "\n"


def skip_row(case: Case, reason: str) -> dict[str, object]:
    """The row of a case that was skipped."""
    return {
        "batch_size": case.batch_size,
        "input_len": case.input_len,
        "output_len": case.output_len,
        SKIPPED: reason,
    }


def _short(result: OneBatchResult) -> str | None:
    """Why a row is not the measurement that was asked for: fewer tokens were generated; ``None`` where all were."""
    asked = result.batch_size * result.output_len
    if result.total_output_tokens == asked:
        return None
    return (
        f"the server generated {result.total_output_tokens} of {asked} tokens: it cut the answers, "
        f"e.g. at its context length"
    )


def _off_formula(result: OneBatchResult, raw: Mapping[str, Any]) -> str | None:
    """What contradicts the guide's formulas where SGLang's rules for replayed texts (0.5.20 on) allow it.

    A sweep's prompts have the length that was asked for and its answers all their tokens, so both rates of a row must
    be those of its own latency.
    """
    wrong = next(iter(differs_from_guide(result)), None)
    wrong = wrong or below_its_own_times(result, float(raw["output_throughput"]))
    return wrong.sentence if wrong is not None else None


def _line(number: int, line: bytes, case: Case) -> Row | Skip | Flaw:
    where = f"line {number}"
    try:
        raw: dict[str, Any] = load(line)
    except RowRefused as refused:
        return Flaw(Fault.GARBLED, f"{where} {refused}")
    mark = _mark(raw.get(MARK))
    if isinstance(mark, str):
        return Flaw(Fault.GARBLED, f"{where}: {mark}")
    key = tuple(raw.get(name) for name in ("batch_size", "input_len", "output_len"))
    if any(isinstance(value, bool) or not isinstance(value, int) for value in key):
        return Flaw(Fault.GARBLED, f"{where} names no case: its batch_size, input_len and output_len are {key}")
    if key != case.key:
        return Flaw(Fault.OTHER_CASE, f"{where} is of another case: {'-'.join(map(str, key))}")
    if SKIPPED in raw:
        reason = raw[SKIPPED]
        if not isinstance(reason, str) or not reason:
            return Flaw(Fault.GARBLED, f"{where}: skipped is {reason!r}, not a reason")
        return Skip(case, reason, mark)
    read = read_one_batch_line(number, line)
    if read.failed is not None:
        fault = Fault.CONTRADICTION if read.failed.name == "contradiction" else Fault.GARBLED
        return Flaw(fault, read.failed.sentence.removeprefix("result "))
    assert read.result is not None
    few = _short(read.result)
    if few is not None:
        return Flaw(Fault.CUT_ANSWERS, few)
    wrong = _off_formula(read.result, raw)
    if wrong is not None:
        return Flaw(Fault.CONTRADICTION, f"{where}: {wrong}")
    return Row(case, read.result, mark)


def _mark(value: object) -> Mark | str | None:
    if value is None:
        return None
    if isinstance(value, dict):
        sweep, server, repeat = (value.get(name) for name in ("sweep", "server", "repeat"))
        whole = isinstance(repeat, int) and not isinstance(repeat, bool) and repeat > 0
        if isinstance(sweep, str) and isinstance(server, str) and isinstance(repeat, int) and whole:
            return Mark(sweep, server, repeat)
    return f"its mark is {value!r}, which is none"


def _twice(rows: list[Row], skips: list[Skip]) -> Flaw | None:
    """A repeat that is there twice, in a marked file; of unmarked rows, one that is there twice to the last digit."""
    if len({row.mark is None for row in rows}) > 1:
        return Flaw(Fault.UNMARKED, "has rows with a mark and rows without: they are not of one run")
    if skips and (rows or len(skips) > 1):
        return Flaw(Fault.DUPLICATED, "says that the case was skipped, and has more lines than that")
    repeats = Counter(row.mark.repeat for row in rows if row.mark is not None)
    for repeat, count in repeats.items():
        if count > 1:
            return Flaw(Fault.DUPLICATED, f"has repeat {repeat} {count} times")
    same = Counter(row.result for row in rows if row.mark is None)
    if any(count > 1 for count in same.values()):
        return Flaw(Fault.DUPLICATED, "has one row more than once, to the last digit")
    return None
