"""The summary as a person sees it: widths, verbosity, colours, names that hold anything, and live progress."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.report.columns import Column, fitted
from pytest_r1perf.report.message import failure_message, skip_message
from pytest_r1perf.report.plain import clipped, columns, padded, plain
from pytest_r1perf.report.table import counted, tables
from pytest_r1perf.report.terminal import lists
from pytest_r1perf.results import CellResult
from pytest_r1perf.statistics import Interval
from pytest_r1perf.verdict import Judgement, Verdict
from tests.project import QUIET, Project, lines_with, verdicts

THREE = """
@perf(topology="tp1", n=50)
def test_slow(): ...

@perf(topology="tp1", n=60)
def test_steady(): ...

@perf(topology="tp1", n=70)
def test_new(): ...
"""
WHAT = "total_throughput in tok/s: input + output tokens / the whole timed window; more is better"
ESCAPE = "\x1b["
_THEIRS = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "PY_COLORS")
"""Variables that decide instead of the terminal: of whoever runs this, and pytester's own."""


@pytest.fixture
def project(r1perf_project: Project) -> Project:
    """test_slow regresses, test_steady passes, test_new has no baseline."""
    r1perf_project.write(THREE)
    r1perf_project.perf("--perf-update-new", "-k", "not new", "-q").assert_outcomes(passed=2, deselected=1)
    r1perf_project.control({}, n50={"speed": 2250.0})
    return r1perf_project


def judged(verdict: Verdict, ratio: float, **changes: object) -> Judgement:
    limits = Interval(ratio, ratio - 0.012, ratio + 0.013, 0.01, 3.0, 0.01, 0.025)
    values = {"baseline": 22600.0, "ratio": limits, "tolerance": 0.03, "reason": "as it is", **changes}
    return Judgement("total_throughput", verdict, 5, 22600.0 * ratio, 0.004, **values)  # type: ignore[arg-type]


def cell(number: int, verdict: Verdict = Verdict.PASS, ratio: float = 1.0, **changes: object) -> CellResult:
    values = {
        "nodeid": f"test_p.py::test_x[{number}]",
        "key": f"h200x8/default/sharegpt/n{number}/offline",
        "label": f"tp8 tp8-champion n={number}",
        "judgements": (judged(verdict, ratio),),
        "reproduce": f"pytest 'test_p.py::test_x[{number}]' --perf",
        "failed": verdict.fails,
        **changes,
    }
    return CellResult(topology="tp8", platform="h200x8", hardware="8x-h200", verdict=verdict, **values)  # type: ignore[arg-type]


def summary(result: pytest.RunResult) -> list[str]:
    """Our part of the output."""
    start = next(at for at, line in enumerate(result.outlines) if "performance (r1perf)" in line)
    return result.outlines[start:]


# -- text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tp8 n=50", "tp8 n=50"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07name", "name"),
        ("\x1b]8;;http://e.invalid\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x9b31mred", "red"),
        ("\x1b]0;never closed", "\\x1b]0;never closed"),
        ("bell\x07 back\x08 nul\x00 cr\r", "bell\\x07 back\\x08 nul\\x00 cr\\r"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("half \ud800", "half \\ud800"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        (
            "\u6f22\u5b57 \U0001f680 e\u0301 \U0001f469\u200d\U0001f680",
            "\u6f22\u5b57 \U0001f680 e\u0301 \U0001f469\u200d\U0001f680",
        ),
    ],
)
def test_what_a_terminal_is_given(text: str, shown: str) -> None:
    assert plain(text) == shown


@given(st.text(st.characters(), max_size=60))
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    shown = plain(text)
    assert plain(shown) == shown
    shown.encode("utf-8")
    assert not [letter for letter in shown if unicodedata.category(letter) in ("Cc", "Cs") and letter not in "\n\t"]


@given(st.text(max_size=60), st.integers(4, 40))
def test_a_text_is_clipped_to_its_columns(text: str, width: int) -> None:
    text = plain(text)
    assert columns(clipped(text, width)) <= width
    assert columns(padded(clipped(text, width), width)) == width
    assert clipped(text, width) == text or columns(text) > width


def test_wide_letters_take_two_columns() -> None:
    assert [columns(text) for text in ("tp8", "\u6f22\u5b57", "\U0001f680", "e\u0301")] == [3, 4, 2, 1]
    assert clipped("tp8-champion-of-the-long-name", 16) == "tp8-champi..name"


@given(
    st.lists(st.lists(st.sampled_from(["-", "4,512", "22,854", "0.1 %"]), min_size=3, max_size=3), min_size=1),
    st.data(),
)
def test_a_table_keeps_to_its_width(rows: list[list[str]], data: st.DataObject) -> None:
    names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).map(plain)
    named = [(data.draw(names), *row, "REGRESSED") for row in rows]
    heads = (Column("cell", right=False), Column("a", leaves=2), Column("b"), Column("c", leaves=1), Column("verdict"))
    width = data.draw(st.integers(40, 100))
    lines = fitted(heads, named, width)
    assert all(columns(line) <= width for line in lines)
    assert [line.endswith("REGRESSED") for line in lines].count(True) == len(rows)


def test_the_least_telling_columns_leave_first() -> None:
    heads = (
        Column("cell", right=False),
        Column("first", leaves=1),
        Column("second", leaves=2),
        Column("empty", leaves=3),
        Column("kept"),
    )
    rows = [("tp8 n=50", "1,000", "2,000", "-", "3,000")]
    shown = {width: fitted(heads, rows, width)[0].split() for width in (40, 32, 26, 18)}
    assert shown == {
        40: ["cell", "first", "second", "empty", "kept"],
        32: ["cell", "first", "second", "kept"],
        26: ["cell", "second", "kept"],
        18: ["cell", "kept"],
    }


# -- the table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100])
def test_500_cells_are_counted_where_they_passed(width: int) -> None:
    results = [cell(number, *((Verdict.REGRESSED, 0.788) if number in (7, 400) else ())) for number in range(500)]
    ((title, table),) = tables(results, width=width, most=24, more=" (-v shows them)")
    lines = table.splitlines()
    assert title == WHAT
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines[2:4]] == ["tp8", "tp8"]
    assert all(line.endswith("REGRESSED") and "0.788 [0.776, 0.801]" in line for line in lines[2:4])
    assert lines[4:] == ["  ... and 498 more: 498 PASS (-v shows them)"]
    ((_, everything),) = tables(results, width=width)
    assert everything.count("PASS") == 498


def test_of_500_cells_that_passed_the_first_are_shown() -> None:
    ((_, table),) = tables([cell(number) for number in range(500)], most=24)
    assert table.splitlines()[-1] == "  ... and 476 more: 476 PASS"
    assert table.count(" PASS\n") == 24


def test_failures_then_what_is_open_then_the_rest() -> None:
    order = (Verdict.PASS, Verdict.UNDECIDED, Verdict.REGRESSED, Verdict.IMPROVED, Verdict.OOM)
    ((_, table),) = tables([cell(number, verdict) for number, verdict in enumerate(order)])
    assert [line.split()[-1] for line in table.splitlines()[2:]] == [
        "REGRESSED",
        "OOM",
        "UNDECIDED",
        "PASS",
        "IMPROVED",
    ]
    assert counted(order) == "1 REGRESSED, 1 OOM, 1 UNDECIDED, 1 PASS, 1 IMPROVED"


def test_names_that_hold_anything_keep_the_columns_straight() -> None:
    names = ("a|b<c>&\"d'", "\U0001f680 \u6f22\u5b57", "\x1b[31mred\x1b[0m \x07", "x" * 200, "tp8 " + "y" * 70 + " n=5")
    ((_, table),) = tables([cell(at, label=name) for at, name in enumerate(names)], width=80)
    lines = table.splitlines()
    assert ESCAPE not in table
    ends = {columns(line[: line.index("PASS")]) for line in lines if "PASS" in line}
    assert len(ends) == 1
    assert max(map(columns, lines)) <= 80


def test_numbers_that_are_none() -> None:
    endless = Interval(1.0, 0.0, float("inf"), float("inf"), 0.0, 0.01, 0.025)
    odd = replace(judged(Verdict.UNDECIDED, float("nan")), ratio=endless, baseline=float("inf"))
    ((_, table),) = tables([cell(1, Verdict.UNDECIDED, judgements=(odd,))])
    assert "nan" in table
    assert "1.000 [0.000, ...]" in table


def test_a_note_of_many_cells_is_told_once() -> None:
    shared = "versions: sglang: 0.5.9 -> 0.5.20"
    results = [cell(number, notes=(shared, "round 1: a remark") if number == 3 else (shared,)) for number in range(9)]
    notes = dict(lists(results, (), ()))["notes"]
    assert notes == [f"{shared} (9 cells)", "tp8 tp8-champion n=3: round 1: a remark"]


def test_a_message_names_versions_clocks_and_flags_first() -> None:
    notes = (
        "resolved: chunked_prefill_size 8192 -> 4096",
        "env: NCCL_ALGO: Ring -> Tree",
        "command: --max-running-requests absent -> 4",
        "host: gpu power_limit_w: 700.0 -> 500.0",
        "host: gpu driver: 570.86 -> 580.159",
        "versions: sglang: 0.5.9 -> 0.5.20",
        "versions: torch: 2.8 -> 2.9",
        "a \x1b[31mremark",
    )
    message = failure_message(cell(1, Verdict.REGRESSED, 0.788, notes=notes))
    assert message.splitlines()[2] == (
        "  changed since the baseline: versions: sglang: 0.5.9 -> 0.5.20; versions: torch: 2.8 -> 2.9; "
        "host: gpu power_limit_w: 700.0 -> 500.0; host: gpu driver: 570.86 -> 580.159; "
        "command: --max-running-requests absent -> 4; env: NCCL_ALGO: Ring -> Tree; and 1 more"
    )


LEGAL = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
"""The characters of XML 1.0 (section 2.2)."""


@given(st.text(st.characters(), max_size=40), st.text(st.characters(), max_size=40))
def test_messages_are_fit_for_xml_and_terminals(label: str, cause: str) -> None:
    broken = cell(1, Verdict.CRASH, label=label, cause=cause, notes=(cause,), log=cause, judgements=())
    for text in (failure_message(broken), skip_message(broken)):
        assert LEGAL.fullmatch(text)
        assert "\x1b" not in text
    assert len(skip_message(broken).splitlines()) == 1


# -- sessions ----------------------------------------------------------------------------------------------


def test_a_session_fits_the_terminal(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = project.perf("--tb=no", "-rN")
    result.assert_outcomes(failed=1, passed=1, skipped=1)
    lines = summary(result)
    copied = ("  log: ", "  pytest ")
    assert [line for line in lines if len(line) > 80 and not line.startswith(copied)] == []
    assert verdicts(result) == ["REGRESSED", "NO BASELINE", "PASS"]
    failed = lines[lines.index("failed: 1 of 3") :]
    whole = " ".join(" ".join(failed).split())
    assert "tp1 default n=50: total_throughput REGRESSED: median 2,2" in whole
    assert "baseline 4,50" in whole
    assert "changed since the baseline: nothing in versions, environment or command line" in whole
    assert "  pytest test_perf.py::test_slow --perf --perf-platform cpu" in failed
    assert len(failed) <= 16  # with pytest's own last line it is on the screen, whatever stands above


def test_quiet_and_loud(project: Project) -> None:
    """Each leaves out what a user of pytest expects; ``-rA`` lists every test with its reason."""
    said = {option: project.perf(option, "--tb=no", "-rA") for option in ("-q", "-qq", "-v", "--no-summary")}
    assert verdicts(said["-q"]) == verdicts(said["-v"]) == ["REGRESSED", "NO BASELINE", "PASS"]
    assert "failed: 1 of 3" in said["-q"].outlines
    assert lines_with(said["-q"], "would have been seen with") == []
    assert lines_with(said["-q"], "PASS: its lower end") == []
    assert lines_with(said["-q"], "tp1 default n=70: NO BASELINE") != []
    assert lines_with(said["-v"], "would have been seen with") != []
    assert verdicts(said["-qq"]) == verdicts(said["-v"])
    assert lines_with(said["-qq"], "failed: 1 of 3") == []
    assert lines_with(said["-v"], "FAILED test_perf.py::test_slow - ") != []
    assert "PASSED test_perf.py::test_steady" in said["-v"].outlines
    assert lines_with(said["-v"], "SKIPPED [1] test_perf.py:11: NO BASELINE: tp1 default n=70: ") != []
    assert lines_with(said["--no-summary"], "r1perf: ") == ["r1perf: 1 REGRESSED, 1 NO BASELINE, 1 PASS of 3 cells"]


def test_500_cells_in_a_session(project: Project) -> None:
    """The first failing cell, what changed and how to repeat it stand in the last 24 lines."""
    (project.root / "conftest.py").write_text(
        "import dataclasses, pytest\n"
        "from pytest_r1perf.plugin import SESSION\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_sessionfinish(session):\n"
        "    own = session.config.stash[SESSION].results\n"
        "    steady = next(result for result in own if result.verdict.value == 'PASS')\n"
        "    own += [dataclasses.replace(steady, key=str(n), label=f'tp1 default n={n}') for n in range(1000, 1498)]\n"
    )
    result = project.perf("--tb=short", "-k", "not new")
    lines = summary(result)
    assert lines_with(result, "1 REGRESSED, 499 PASS of 500 cells") != []
    assert lines_with(result, "... and 499 more: 499 PASS (-v shows them)") != []
    last = "\n".join(result.outlines[-24:])
    assert "failed: 1 of 500" in last
    assert "tp1 default n=50: total_throughput REGRESSED" in last
    assert "pytest test_perf.py::test_slow --perf" in last
    assert len(lines) < 50


# -- terminals ---------------------------------------------------------------------------------------------


def on_a_terminal(project: Project, *args: str, columns: int = 100, **env: str) -> str:
    """The output of ``pytest --perf ARGS`` with a terminal of its own."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {key: value for key, value in os.environ.items() if key not in _THEIRS}
    command = [sys.executable, "-m", "pytest", *QUIET, "--perf", *args]
    process = subprocess.Popen(
        command,
        cwd=project.root,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**clean, "TERM": "xterm", **env},
        start_new_session=True,
    )
    os.close(slave)
    parts = []
    try:
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the last process that had the terminal has ended
                break
            if not part:
                break
            parts.append(part)
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return b"".join(parts).decode("utf-8", "replace")


def piped(project: Project, *args: str | Path, **env: str) -> str:
    clean = {key: value for key, value in os.environ.items() if key not in _THEIRS}
    command = [sys.executable, "-m", "pytest", *QUIET, "--perf", *map(str, args)]
    done = subprocess.run(
        command, cwd=project.root, env={**clean, **env}, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout


def redrawn(text: str) -> Sequence[str]:
    """States of the progress line, without the padding."""
    return [part.rstrip() for part in re.findall(r"\r(r1perf: [^\r\n]*)", text)]


def test_colours_and_redrawing_on_a_terminal_only(project: Project) -> None:
    project.control({"mode": "slow"}, n50={"speed": 2250.0, "mode": "slow"})
    only = ("-k", "slow", "--tb=no", "-rN")
    terminal = on_a_terminal(project, *only)
    assert re.search(r"\x1b\[[0-9;]*mREGRESSED", terminal)
    assert [state for state in redrawn(terminal) if "tp1 default n=50, round 1" in state]
    without = on_a_terminal(project, *only, NO_COLOR="1")
    assert ESCAPE not in without
    assert redrawn(without)
    forced = piped(project, *only, FORCE_COLOR="1")
    assert re.search(r"\x1b\[[0-9;]*mREGRESSED", forced)
    assert "\r" not in forced
    assert ESCAPE not in piped(project, *only)


def test_progress_on_a_narrow_terminal_keeps_the_round(project: Project) -> None:
    project.control({"mode": "slow"})
    narrow = redrawn(on_a_terminal(project, "-k", "steady", columns=50))
    assert narrow
    assert all(len(state) < 50 for state in narrow)
    assert all("round " in state for state in narrow)
    assert redrawn(on_a_terminal(project, "-k", "steady", "-q")) == []
