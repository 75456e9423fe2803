"""One line on a session: ``outcome.py SOURCE STATUS`` prints ``regressed: 12 cells: 11 PASS, 1 REGRESSED``.

SOURCE is a file of ``--perf-json`` or a session's folder, or empty where there is neither; STATUS is pytest's. The
first word is what a workflow decides by: ``green``, ``regressed``, ``broken``, ``failed`` or ``undecided``.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from pytest_r1perf.document.model import Document
from pytest_r1perf.document.source import document_from
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.verdict import Verdict

_WORSE = (Verdict.REGRESSED, Verdict.OUTPUTS_CHANGED)
_STATUS = {
    124: "ran past its limit and was ended",
    137: "was killed",
    2: "was interrupted",
    3: "had an internal error",
    4: "did not accept its arguments",
    5: "selected no test",
}


def word(document: Document, status: int) -> str:
    """What kind of night it was; green only where pytest says so, and its own document, too."""
    if any("REGRESSED" in told for told in document.suite):
        return "regressed"
    if status == 0:
        return "green" if document.exitstatus == 0 and not document.failed and not document.trouble else "broken"
    if status != 1:
        return "broken"
    failed = {cell.result.verdict for cell in document.failed}
    if failed & set(_WORSE):
        return "regressed"
    if any(verdict.broken for verdict in failed):
        return "broken"
    undecided = any(not cell.result.verdict.decided for cell in document.cells)
    return "undecided" if undecided and not any(verdict.decided for verdict in failed) else "failed"


def line(document: Document, status: int) -> str:
    """The word, and how many cells ended how."""
    counts = Counter(str(cell.result.verdict.value) for cell in document.cells)
    told = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common()) or "none measured"
    ended = f"; pytest {_STATUS[status]}" if status in _STATUS else ""
    return f"{word(document, status)}: {len(document.cells)} cells: {told}{ended}"


def main() -> None:
    """Print the line; a record that cannot be read is broken, and says why."""
    source, status = sys.argv[1], int(sys.argv[2])
    if not source:
        print(f"broken: nothing was measured; pytest {_STATUS.get(status, f'ended with status {status}')}")
        return
    try:
        print(line(document_from(Path(source)), status))
    except R1PerfError as error:
        print(f"broken: {error}")


if __name__ == "__main__":
    main()
