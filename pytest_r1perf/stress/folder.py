"""A sweep's folder: one result file a case, completed repeat by repeat; what does not belong is set aside.

``sweep.json``: which sweep, which server, which cases. ``1-128-256.jsonl``: a row a repeat. ``aside/``: files that did
not count, renamed, never deleted. ``logs/RUN/``: what each client said.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.stress.cases import Case, case_named
from pytest_r1perf.stress.manifest import NAME, Manifest, read_manifest, write_whole
from pytest_r1perf.stress.rows import CaseFile, Flaw, Mark, foreign, read_case_file, row_line

ASIDE = "aside"
LOGS = "logs"
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a folder holds: its manifest, the file of every case, and files that are named as no case is."""

    manifest: Manifest | None
    files: Mapping[Case, CaseFile]
    strangers: tuple[str, ...]


def path_of(folder: Path, case: Case) -> Path:
    """Where a case's rows are."""
    return folder / f"{case.name}.jsonl"


def contents(folder: Path) -> Contents:
    """Read a folder of a sweep, or of the guide's own script; cases that the manifest asks for are there, maybe empty.

    With a manifest, a file that is another sweep's has a flaw. Raises :class:`R1PerfError` where there is no folder,
    its manifest is damaged, or it has none and its files are of several sweeps.
    """
    if not folder.is_dir():
        raise R1PerfError(f"{folder}: there is no such folder")
    manifest = read_manifest(folder)
    cases = list(manifest.cases) if manifest is not None else []
    strangers = []
    for path in sorted(folder.glob("*.jsonl")):
        case = case_named(path.stem)
        if case is None:
            strangers.append(path.name)
        elif case not in cases:
            cases.append(case)
    files = {case: read_case_file(path_of(folder, case), case) for case in sorted(cases)}
    if manifest is not None:
        files = {case: _owned(file, manifest) for case, file in files.items()}
    else:
        _of_one(folder, files)
    return Contents(manifest, files, tuple(strangers))


def set_aside(folder: Path, case: Case, flaw: Flaw) -> Path:
    """Rename a case's file out of the way; gives its new name. Nothing is overwritten. Raises OSError."""
    return _move(path_of(folder, case), folder / ASIDE, f"{case.name}.{flaw.fault.value}")


def add_row(folder: Path, case: Case, raw: Mapping[str, object], mark: Mark) -> CaseFile:
    """Add a row to a case's file, unless that made it flawed; gives the file as it is, or would be, with its flaw.

    The file is replaced whole: a kill leaves it without the row or with it. A row that is not taken is kept under
    ``aside/``. Raises OSError, and TypeError or ValueError for what is no JSON.
    """
    path = path_of(folder, case)
    line = row_line(raw, mark)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    trial = folder / f".{case.name}.trial"
    trial.write_text(before + line, encoding="utf-8")
    try:
        found = read_case_file(trial, case)
        if found.flaw is None:
            write_whole(path, before + line)
            return found
        trial.write_text(line, encoding="utf-8")
        _move(trial, folder / ASIDE, f"{case.name}.rejected-{found.flaw.fault.value}")
        return found
    finally:
        trial.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder and keep other runs out of it; raises :class:`R1PerfError` where one is in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        raise R1PerfError(f"{folder}: another run measures into it: wait for its end, or name another") from None
    except OSError as error:
        raise R1PerfError(f"{folder}: cannot be written ({error.strerror or error}): choose another folder") from None
    try:
        yield
    finally:
        lock.release()


def mend(folder: Path, found: Contents, tell: Callable[[str], None]) -> int:
    """Set aside every file that has a flaw, and say so; gives how many. Raises OSError."""
    count = 0
    for case, file in found.files.items():
        if file.flaw is not None:
            new = set_aside(folder, case, file.flaw)
            again = ", measured again" if found.manifest is not None and case in found.manifest.cases else ""
            tell(f"{case.name}.jsonl {file.flaw.sentence}: set aside as {new.relative_to(folder)}{again}")
            count += 1
    return count


def _of_one(folder: Path, files: Mapping[Case, CaseFile]) -> None:
    whole = [file for file in files.values() if file.flaw is None]
    marks = [row.mark for file in whole for row in file.rows]
    marks += [file.skip.mark for file in whole if file.skip is not None]
    sweeps = sorted({"without a mark" if mark is None else f"of sweep {mark.sweep}" for mark in marks})
    if len(sweeps) > 1:
        raise R1PerfError(
            f"{folder}: has no {NAME}, and rows {' and '.join(sweeps)}: which belong together is not known; take "
            f"apart what was copied into one folder"
        )


def _owned(file: CaseFile, manifest: Manifest) -> CaseFile:
    if file.flaw is not None:
        return file
    flaw = foreign(file, manifest.sweep, manifest.starts)
    return file if flaw is None else CaseFile(file.case, file.rows, file.skip, flaw)


def _move(path: Path, folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    for number in itertools.count(1):
        new = folder / (f"{name}.jsonl" if number == 1 else f"{name}.{number}.jsonl")
        if not new.exists():
            break
    path.rename(new)
    return new
