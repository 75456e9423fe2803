"""One run of a sweep: what is whole stays, what is missing is measured, what does not belong is set aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.sglang.server_kind import Server, differences
from pytest_r1perf.stress.bencher import Bencher, Failed
from pytest_r1perf.stress.cases import Case, in_order
from pytest_r1perf.stress.folder import add_row, contents, locked, mend
from pytest_r1perf.stress.manifest import NAME, Asked, Manifest, extended, new_manifest, read_manifest, write_manifest
from pytest_r1perf.stress.rows import SKIPPED, CaseFile, Fault, Mark, skip_row

_NAMED = 4


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: ``cases`` and ``repeats`` asked for; rows ``new`` and ``kept`` from before; cases ``skipped``.

    ``missing`` rows are not there. ``why``: one sentence, where the run ended early or something failed.
    """

    cases: int
    repeats: int
    new: int
    kept: int
    skipped: int
    missing: int
    why: str | None


def run_sweep(
    folder: Path,
    asked: Asked,
    bencher: Bencher,
    identify: Callable[[], Server],
    tell: Callable[[str], None],
) -> Ended:
    """Measure what the folder lacks of what is asked for, one repeat of all cases after another.

    ``identify`` says which server is measured, and is asked before every repeat. Whatever ends the run, rows that are
    known are on the disk. Raises :class:`R1PerfError` where the folder is another server's, is in use, or can't be
    written.
    """
    with locked(folder):
        try:
            return _run(folder, asked, bencher, identify, tell)
        except OSError as error:
            raise R1PerfError(
                f"{error.filename or folder}: {error.strerror or error}: mend that and run the same command again"
            ) from None


def _run(
    folder: Path, asked: Asked, bencher: Bencher, identify: Callable[[], Server], tell: Callable[[str], None]
) -> Ended:
    manifest = _begun(folder, asked, identify())
    mend(folder, contents(folder), tell)
    state = _State(folder, manifest, dict(contents(folder).files), tell)
    kept = state.rows()
    why = None
    for repeat in range(1, manifest.repeats + 1):
        lacking = [case for case in manifest.cases if state.lacks(case, repeat)]
        if not lacking:
            continue
        server = identify()
        changed = differences(manifest.server, server)
        if changed:
            why = f"the server is another one now ({'; '.join(changed)})"
            break
        state.manifest = state.manifest.with_start(server.start)
        write_manifest(folder, state.manifest)
        state.begin(repeat, server.start)
        why = bencher.measure(in_order(lacking, manifest.order, manifest.sweep, repeat), state.done)
        why = why or state.unheard(lacking)
        if isinstance(why, Failed):
            state.refused.append(f"repeat {repeat}: {why}" if manifest.repeats > 1 else why)
            why = None
        if why is not None:
            break
    cases, rows = len(manifest.cases), state.rows()
    skipped = sum(file.skip is not None for file in state.files.values())
    missing = (cases - skipped) * manifest.repeats - rows
    said = "; ".join([*state.refused, *([why] if why is not None else [])])
    return Ended(cases, manifest.repeats, rows - kept, kept, skipped, missing, said or None)


def _begun(folder: Path, asked: Asked, server: Server) -> Manifest:
    known = read_manifest(folder)
    if known is None:
        files = contents(folder).files
        if files:
            raise R1PerfError(
                f"{folder} has {len(files)} result files and no {NAME}, so whose they are is not known: name a new "
                f"folder (r1perf stress report reads this one as it is)"
            )
    manifest = new_manifest(asked, server) if known is None else extended(known, asked, server, folder)
    if manifest != known:
        write_manifest(folder, manifest)
    return manifest


@dataclass(slots=True)
class _State:
    """The files as they grow."""

    folder: Path
    manifest: Manifest
    files: dict[Case, CaseFile]
    tell: Callable[[str], None]
    repeat: int = 0
    start: str = ""
    refused: list[str] = field(default_factory=list)
    heard: set[Case] = field(default_factory=set)

    def rows(self) -> int:
        """Rows of the cases that are asked for, of the repeats that are asked for."""
        wanted = range(1, self.manifest.repeats + 1)
        return sum(len(self.files[case].repeats & set(wanted)) for case in self.manifest.cases if case in self.files)

    def lacks(self, case: Case, repeat: int) -> bool:
        """Whether this repeat of a case is to be measured."""
        file = self.files.get(case, CaseFile(case))
        return file.skip is None and repeat not in file.repeats

    def begin(self, repeat: int, start: str) -> None:
        """What comes next is of this repeat and this start of the server."""
        self.repeat, self.start, self.heard = repeat, start, set()

    def unheard(self, cases: Sequence[Case]) -> str | None:
        """What nothing was said of although all is said to be over, in one sentence."""
        silent = [case.name for case in cases if case not in self.heard]
        if not silent:
            return None
        return (
            f"{len(silent)} of {len(cases)} cases of repeat {self.repeat} were not measured, and nothing says why: "
            + (", ".join(silent[:_NAMED]) + (", ..." if len(silent) > _NAMED else ""))
        )

    def done(self, case: Case, rows: Sequence[Mapping[str, object]]) -> None:
        """Take a case's rows, or say why not; what is not taken is measured by the next run."""
        mark = Mark(self.manifest.sweep, self.start, self.repeat)
        self.heard.add(case)
        if len(rows) != 1:
            self._refuse(case, f"SGLang's client wrote {len(rows)} rows for one case")
            return
        if SKIPPED in rows[0]:
            self._skip(case, str(rows[0][SKIPPED]), mark)
            return
        try:
            file = add_row(self.folder, case, rows[0], mark)
        except (TypeError, ValueError) as error:
            self._refuse(case, f"its row cannot be stored ({error})")
            return
        if file.flaw is None:
            self.files[case] = file
            result = file.rows[-1].result
            self.tell(
                f"{self._count()} {case.name}: {result.output_throughput:.2f} output tok/s, {result.latency_s:.2f} s"
            )
        elif file.flaw.fault is Fault.CUT_ANSWERS:
            self._skip(case, file.flaw.sentence, mark)
        else:
            self._refuse(case, file.flaw.sentence)

    def _skip(self, case: Case, reason: str, mark: Mark) -> None:
        if self.files.get(case, CaseFile(case)).rows:
            self._refuse(case, f"was measured before, and now: {reason}")
            return
        self.files[case] = add_row(self.folder, case, skip_row(case, reason), mark)
        self.tell(f"{self._count()} {case.name}: skipped: {reason}")

    def _refuse(self, case: Case, why: str) -> None:
        self.refused.append(f"{case.name}: {why}")
        self.tell(f"{self._count()} {case.name}: not kept: {why}")

    def _count(self) -> str:
        """Place among all cases of this repeat."""
        wanted = self.manifest.cases
        over = sum(not self.lacks(case, self.repeat) for case in wanted)
        several = f" repeat {self.repeat} of {self.manifest.repeats}," if self.manifest.repeats > 1 else ""
        return f"[{several.lstrip()}{' ' if several else ''}{over} of {len(wanted)}]"
