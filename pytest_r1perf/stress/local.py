"""Measures against a server that is already there: a client process a case, on this host."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.launch.mark import marked_environment, new_mark
from pytest_r1perf.launch.process import Exit, LaunchError, run
from pytest_r1perf.sglang.server_kind import ServerGone, read_server
from pytest_r1perf.sglang.skips import skip_reason
from pytest_r1perf.stress.bencher import Done, Failed
from pytest_r1perf.stress.cases import Case
from pytest_r1perf.stress.rows import skip_row

Command = Callable[[Case, str], Sequence[str]]
"""The client's argv for a case and the path of its result file."""

GIVE_UP_AFTER = 3
"""Clients that fail one after another while the server answers: what fails then is no single case (ours)."""

_TAIL = 65536
_SAID = 200


@dataclass(frozen=True, slots=True)
class LocalBencher:
    """``logs`` gets each client's log and its own result file; ``timeout_s`` is for one client, start-up included.

    The server at ``url`` must be the same start from the first case to the last: it is asked after every client.
    """

    url: str
    command: Command
    env: Mapping[str, str]
    logs: Path
    state_dir: Path
    timeout_s: float
    session: str = "stress"

    def measure(self, cases: Sequence[Case], done: Done) -> str | None:
        """See :class:`pytest_r1perf.stress.bencher.Bencher`. A case whose client fails is left to the next run."""
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            start = read_server(self.url).start
        except ServerGone as gone:
            return f"the server at {self.url} is not there: {gone}"
        failed: list[str] = []
        in_a_row = 0
        for case in cases:
            files = _fresh(self.logs, case)
            try:
                ended = self._run(case, files)
            except LaunchError as error:
                return f"the client of {case.name} could not be started: {error}"
            lost = self._lost(case, start, ended, files)
            if lost is not None:
                return lost
            rows, why = _rows(case, ended, files)
            if why is None:
                in_a_row = 0
                done(case, rows)
                continue
            failed.append(f"{case.name}: {why} (log: {files.log})")
            in_a_row += 1
            if in_a_row == GIVE_UP_AFTER:
                return f"{in_a_row} clients failed one after another, the last of them {failed[-1]}"
        return Failed(f"{len(failed)} of {len(cases)} cases failed: {'; '.join(failed)}") if failed else None

    def _run(self, case: Case, files: _Files) -> Exit:
        mark = new_mark(self.session)
        return run(
            self.command(case, str(files.result)),
            env={**self.env, **marked_environment(mark)},
            cwd=self.logs,
            log_path=files.log,
            timeout_s=self.timeout_s,
            mark=mark,
            state_dir=self.state_dir,
        )

    def _lost(self, case: Case, start: str, ended: Exit, files: _Files) -> str | None:
        """Why the sweep can't go on with this server, in one sentence."""
        if ended.ended_by == "timeout":
            return (
                f"{case.name} was not over after {self.timeout_s:g} s: the server at {self.url} hangs, or the case "
                f"takes longer than --case-timeout (log: {files.log})"
            )
        try:
            now = read_server(self.url).start
        except ServerGone as gone:
            return f"the server at {self.url} was lost during {case.name}: {gone} (log: {files.log})"
        if now != start:
            return f"another server, or another start of it, answers at {self.url} since {case.name}, which is not kept"
        return None


@dataclass(frozen=True, slots=True)
class _Files:
    log: Path
    result: Path


def _fresh(logs: Path, case: Case) -> _Files:
    """Files that no client has had: SGLang appends to its result file."""
    for number in itertools.count(1):
        files = _Files(logs / f"{case.name}.{number}.log", (logs / f"{case.name}.{number}.jsonl").absolute())
        if not files.log.exists() and not files.result.exists():
            break
    return files


def _rows(case: Case, ended: Exit, files: _Files) -> tuple[list[Mapping[str, object]], str | None]:
    """The client's rows, or why it failed; a case that it skipped is a row as well."""
    said = files.log.read_bytes()[-_TAIL:].decode(errors="replace") if files.log.exists() else ""
    if ended.returncode != 0:
        return [], f"its client ended with {ended.returncode} ({_last_words(said)})"
    text = files.result.read_text(encoding="utf-8", errors="replace") if files.result.exists() else ""
    rows: list[Mapping[str, object]] = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return [], f"its client wrote a line that is not JSON ({line[:60]!r})"
        if not isinstance(row, dict):
            return [], f"its client wrote a line that is no object ({line[:60]!r})"
        rows.append(row)
    if rows:
        return rows, None
    reason = skip_reason(said)
    if reason is None:
        return [], f"its client ended well, wrote no row and named no reason ({_last_words(said)})"
    return [skip_row(case, reason)], None


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:_SAID] if lines else "it said nothing"
