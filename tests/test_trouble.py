"""A session that is not green beside its cells: no report of it may read as if it were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_r1perf.document.model import Cell, Document
from pytest_r1perf.notify.webhook import Webhook
from pytest_r1perf.report.html.page import headline
from pytest_r1perf.report.markdown import summary
from pytest_r1perf.results import CellResult
from pytest_r1perf.verdict import Verdict

WELL = Document(session="20261201.010000.abcd", created="2026-12-01T02:00:00+00:00", tool="0", exitstatus=0)


def night(*verdicts: Verdict, exitstatus: int | None, failed: bool = False) -> Document:
    results = [
        CellResult(
            nodeid=f"test_a.py::test_{place}",
            topology="tp8",
            key=f"h200x8/n{place}",
            label=f"tp8 n={place}",
            platform="h200x8",
            hardware="8x-nvidia-h200",
            verdict=verdict,
            failed=failed,
        )
        for place, verdict in enumerate(verdicts)
    ]
    return replace(WELL, exitstatus=exitstatus, cells=tuple(Cell(result) for result in results))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (night(Verdict.PASS, exitstatus=1), "the session failed all the same (exit status 1)"),
        (night(Verdict.PASS, exitstatus=2), "the session was interrupted"),
        (night(Verdict.PASS, exitstatus=None), "the session did not come to its end"),
        (night(Verdict.UNDECIDED, Verdict.NO_BASELINE, exitstatus=1), "nothing was decided"),
        (night(exitstatus=5), "no cell was measured"),
    ],
)
def test_every_report_says_it_first(document: Document, said: str) -> None:
    assert document.trouble == said
    assert said in headline(document)
    assert said in summary(document).partition("\n")[0]
    assert said in Webhook(None).text(document).partition("\n")[0]
    shown = "".join(Webhook(None, only_failed=True).shown(document))
    assert said in shown


def test_a_session_that_is_well_or_whose_cells_failed_says_no_more() -> None:
    well = night(Verdict.PASS, exitstatus=0)
    assert well.trouble == ""
    assert "nothing is sent" in "".join(Webhook(None, only_failed=True).shown(well))
    assert night(Verdict.REGRESSED, exitstatus=1, failed=True).trouble == ""
