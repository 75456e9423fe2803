"""What the engine driver tells and what is read of it: right, cut off, garbled, or out of its place."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf.sglang.driven import Report
from pytest_r1perf.sglang.engine import (
    RESULTS,
    SCRIPT,
    EngineReport,
    PlannedCell,
    driver_source,
    read_report,
)
from pytest_r1perf.sglang.enginelog import EngineLog
from pytest_r1perf.sglang.events import EventKind
from pytest_r1perf.sglang.facts import Phase
from tests.project import make_environment, sharegpt

Line = dict[str, Any]


def cell(name: str, windows: int = 2, discard: int = 1) -> PlannedCell:
    return PlannedCell(name, "/m", "/d", 10, 1, None, None, windows, discard)


def window(name: str, number: int, discard: int = 1, **changes: Any) -> Line:
    discarded = number < discard
    return {
        "kind": "window",
        "cell": name,
        "index": number if discarded else number - discard,
        "discarded": discarded,
        "time": 1.0e9 + number,
        "start": 100.0 + number,
        "end": 100.5 + number,
        "total_latency": 0.5,
        "requests": 10,
        "total_input_tokens": 200,
        "total_output_tokens": 300,
        "cached_tokens": 4,
        "aborted": "",
        **changes,
    }


def begun(name: str) -> Line:
    counts = {"requests": 10, "input_tokens": 200, "output_tokens": 300, "longest_tokens": 60, "shared_tokens": 9}
    return {"kind": "cell", "cell": name, **counts, "ids_digest": "ab" * 32}


READY: Line = {"kind": "ready", "startup_s": 12.5, "max_total_num_tokens": 16384, "context_len": 4096}
WHOLE: list[Line] = [
    READY,
    begun("a"),
    *(window("a", number) for number in range(3)),
    {"kind": "cell_done", "cell": "a", "seconds": 3.5},
    {"kind": "cell_failed", "cell": "b", "reason": "unfit", "error": "too long"},
    begun("c"),
    *(window("c", number, start=200.0 + number, end=200.5 + number) for number in range(3)),
    {"kind": "cell_done", "cell": "c", "seconds": 4.5},
    {"kind": "end"},
]
CELLS = [cell("a"), cell("b"), cell("c")]


def read(tmp_path: Path, lines: list[Line | str], *, end: str = "\n") -> EngineReport:
    path = tmp_path / RESULTS
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
    return read_report(path, CELLS)


def test_a_whole_file(tmp_path: Path) -> None:
    report = read(tmp_path, [*WHOLE])
    assert (report.startup_s, report.ended, report.broken, report.last, report.garbage) == (12.5, True, None, None, ())
    first, failed, third = (report.cells[name] for name in "abc")
    assert first.done
    assert first.seconds == 3.5
    assert [(one.index, one.discarded) for one in first.windows] == [(0, True), (0, False), (1, False)]
    assert [one.start for one in first.timed] == [101.0, 102.0]
    assert (first.input_tokens, first.output_tokens, first.shared_tokens) == (200, 300, 9)
    assert failed.failed == ("unfit", "too long")
    assert not failed.done
    assert third.ids_digest == "ab" * 32


def test_no_file_is_an_engine_that_never_came_up(tmp_path: Path) -> None:
    assert read_report(tmp_path / RESULTS, CELLS) == Report()


def test_a_file_that_stops(tmp_path: Path) -> None:
    for length in range(1, len(WHOLE)):
        report = read(tmp_path, [*WHOLE[:length]])
        assert not report.ended
        assert report.garbage == ()
        assert report.cells.get("a") is None or report.cells["a"].done is (length > 5)
        assert report.last == ("a" if 2 <= length <= 5 else "c" if 8 <= length <= 11 else None)


def test_a_line_that_is_cut_off_is_no_line(tmp_path: Path) -> None:
    report = read(tmp_path, [*WHOLE[:5]], end="")
    (sentence,) = report.cells["a"].garbage
    assert "line 5 of engine.jsonl has no line end" in sentence
    assert len(report.cells["a"].timed) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("\x00\x01garbage", "is not JSON"),
        ('{"kind": "window"', "is not JSON"),
        ("[1, 2]", "is no object with a kind"),
        ('{"king": 1}', "is no object with a kind"),
        ({"kind": "applause", "cell": "a"}, "of a kind that is not known"),
        (window("a", 1, total_latency="fast"), "total_latency 'fast', which is no number"),
        (window("a", 1, total_latency=True), "total_latency True, which is no number"),
        (json.dumps(window("a", 1, total_latency=float("nan"))), "holds NaN"),
        ('{"kind": "cell_done", "cell": "a", "seconds": 1e999}', "seconds inf, which is not finite"),
        (window("a", 1, requests=-1), "requests -1, which is no count"),
        (window("a", 1, requests=10.0), "requests 10.0, which is no count"),
        (window("a", 1, discarded=1), "without discarded or aborted"),
        (window("a", 2), "window 1 of the cell a, out of its order"),
        (window("a", 0), "discarded window 0 of the cell a, out of its order"),
        (window("a", 1, end=1.0), "which can't be"),
        (window("a", 1, start=100.2), "which can't be"),
        (window("z", 1), "'z', which was not planned"),
        (window("c", 1), "when the cell c is not being measured"),
        (begun("a"), "begins the cell a a second time"),
        (READY, "a second time that the engine is ready"),
        ({"kind": "cell_failed", "cell": "a", "reason": "mood", "error": "bad"}, "reason 'mood', which is not known"),
    ],
)
def test_garbage_spoils_the_cell_it_falls_in(tmp_path: Path, line: Line | str, said: str) -> None:
    lines: list[Line | str] = [*WHOLE]
    lines.insert(3, line)
    report = read(tmp_path, lines)
    (sentence,) = report.cells["a"].garbage
    assert said in sentence
    assert sentence.startswith("line 4 of engine.jsonl")
    assert report.cells["c"].garbage == ()
    assert report.cells["c"].done


def test_lines_before_the_start_and_after_the_end(tmp_path: Path) -> None:
    assert "comes before the engine was ready: cell" in read(tmp_path, [*WHOLE[1:3]]).garbage[0]
    assert "comes after the end: window" in read(tmp_path, [*WHOLE, window("a", 0)]).garbage[0]


def test_a_broken_engine(tmp_path: Path) -> None:
    report = read(tmp_path, [*WHOLE[:3], {"kind": "broken", "cell": "a", "error": "no answer"}])
    assert (report.broken, report.last, report.ended) == ("no answer", "a", False)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("report") / RESULTS
    head = "".join(json.dumps(line) + "\n" for line in WHOLE[:4]).encode()
    path.write_bytes(head + data)
    report = read_report(path, CELLS)
    assert not report.ended
    assert report.cells["a"].windows[0].discarded


# -- the log -------------------------------------------------------------------------------------------------

LOG = """\
loading
[2026-11-30 10:00:00] server_args={'device': 'cpu', 'tp_size': 1}
[2026-11-30 10:00:01] max_total_num_tokens=16384, chunked_prefill_size=2048
r1perf-engine: cell a
#Input tokens: 200
#Output tokens: 300
r1perf-engine: window a 0 Warmup...
[2026-11-30 10:00:02] Entering DeepGEMM JIT Single Kernel Compile session.
r1perf-engine: window-over a 0
half a liner1perf-engine: window a 0 Benchmark...
[2026-11-30 10:00:03] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_token_ratio: 0.5
r1perf-engine: window-over a 0
r1perf-engine: over a
r1perf-engine: cell b
#Input tokens: 20
#Output tokens: 30
r1perf-engine: window b 0 Benchmark...
Traceback (most recent call last):
ValueError: nothing goes
"""


@given(st.lists(st.integers(1, 80), max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_log_is_split_by_cell_however_it_comes(sizes: list[int]) -> None:
    log = EngineLog()
    data = LOG.encode()
    for size in sizes:
        log.feed(data[:size])
        data = data[size:]
    log.feed(data)
    log.close()
    first, second = log.facts("a"), log.facts("b")
    assert first.server_args == second.server_args == {"device": "cpu", "tp_size": 1}
    assert (first.workload_tokens, second.workload_tokens) == ((200, 300), (20, 30))
    assert (first.retracted_reqs, second.retracted_reqs) == (2, 0)
    assert (first.jit_in_benchmark, first.phase) == ((), Phase.BENCHMARK)
    assert any(event.kind is EventKind.JIT for event in first.events)
    assert not any(event.kind is EventKind.JIT for event in second.events)
    assert first.causes == ()
    assert any("nothing goes" in cause.text for cause in second.causes)
    # Lines are counted as an editor shows the whole log.
    assert (log.first_line("a"), log.first_line("b")) == (10, 17)
    assert [cause.line_no for cause in second.causes] == [19]
    assert log.begun("b")
    assert not log.begun("c")
    assert log.facts("c").phase is Phase.READY
    assert (log.place.cell, log.place.ended) == ("b", False)


def test_after_the_end_nothing_belongs_to_a_cell() -> None:
    log = EngineLog()
    log.feed(b"r1perf-engine: cell a\nr1perf-engine: over a\nr1perf-engine: end\nValueError: too late\n")
    log.close()
    assert log.place.ended
    assert log.place.cell is None
    assert log.facts("a").causes == ()


# -- the driver itself ---------------------------------------------------------------------------------------


class Drive:
    """Runs the driver with the fake SGLang."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "control.json").write_text(json.dumps({}))
        self.python = make_environment(root / "env", control=root / "control.json") / "bin" / "python"
        (root / "model").mkdir()
        (root / "model" / "tokenizer.json").write_text("{}")
        (root / "data.json").write_text(sharegpt(20))
        (root / SCRIPT).write_text(driver_source())

    def run(self, *cells: Line, argv: tuple[str, ...] = (SCRIPT,)) -> subprocess.CompletedProcess[str]:
        base = {
            "model": str(self.root / "model"),
            "dataset": str(self.root / "data.json"),
            "seed": 1,
            "output_len": None,
            "context_len": None,
            "windows": 1,
            "discard": 0,
            "ids": None,
        }
        plan = {"results": RESULTS, "cells": [{"id": f"c{n}", **base, **one} for n, one in enumerate(cells)]}
        server = ("--model-path", base["model"], "--device", "cpu")
        command = [str(self.python), *argv, json.dumps(plan), *map(str, server)]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False, timeout=60)

    def lines(self) -> list[Line]:
        return [json.loads(line) for line in (self.root / RESULTS).read_text().splitlines()]

    def kinds(self) -> list[str]:
        return [line["kind"] for line in self.lines()]


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    return Drive(tmp_path)


def test_lines_and_marks_in_their_order(drive: Drive) -> None:
    done = drive.run({"num_prompts": 3, "windows": 2, "discard": 1}, {"num_prompts": 2, "output_len": 7})
    assert done.returncode == 0, done.stderr
    assert drive.kinds() == ["ready", "cell", *["window"] * 3, "cell_done", "cell", "window", "cell_done", "end"]
    marks = [line.removeprefix("r1perf-engine: ") for line in done.stdout.splitlines() if "r1perf-engine" in line]
    assert marks == [
        "cell c0",
        "window c0 0 Warmup...",
        "window-over c0 0",
        "window c0 0 Benchmark...",
        "window-over c0 0",
        "window c0 1 Benchmark...",
        "window-over c0 1",
        "over c0",
        "cell c1",
        "window c1 0 Benchmark...",
        "window-over c1 0",
        "over c1",
        "end",
    ]
    assert "kill_process_tree" in done.stdout.splitlines()[-2]
    told = [line for line in drive.lines() if line["kind"] == "cell"]
    assert [line["output_tokens"] for line in told] == [3 * 30, 2 * 7]


def test_as_an_argument_it_does_the_same(drive: Drive) -> None:
    """On another host there is no file beside it."""
    (drive.root / SCRIPT).unlink()
    done = drive.run({"num_prompts": 3}, argv=("-c", driver_source()))
    assert done.returncode == 0, done.stderr
    assert drive.kinds() == ["ready", "cell", "window", "cell_done", "end"]


def test_a_cell_without_a_data_set_fails_alone(drive: Drive) -> None:
    done = drive.run({"num_prompts": 3, "dataset": "/no/such/file"}, {"num_prompts": 3})
    assert done.returncode == 0, done.stderr
    assert drive.kinds() == ["ready", "cell_failed", "cell", "window", "cell_done", "end"]
    failed = drive.lines()[1]
    assert failed["reason"] == "error"
    assert "/no/such/file" in failed["error"]
    assert "Traceback" in done.stderr


def test_what_prompts_have_in_common(drive: Drive) -> None:
    """The upper bound of honest cache hits, on requests whose shared beginnings are known."""
    requests = [[[1, 2, 3, 4], 2], [[9, 9], 2], [[1, 2, 7], 2], [[1, 2, 3, 5, 6], 2], [[8], 2]]
    # 1 2 3 4 and 1 2 3 5 6 share three, 1 2 7 shares two with them, the others none.
    ids = drive.root / "ids.json"
    ids.write_text(json.dumps(requests))
    drive.run({"num_prompts": 5, "ids": str(ids)})
    (told,) = [line for line in drive.lines() if line["kind"] == "cell"]
    assert told["shared_tokens"] == 3 + 3 + 2
    assert told["input_tokens"] == 15
    assert [one["ids"] for one in map(json.loads, (drive.root / "windows.jsonl").read_text().splitlines())] == [
        [ids for ids, _ in requests]
    ]


def test_a_flag_that_sglang_refuses(drive: Drive) -> None:
    plan = json.dumps({"results": RESULTS, "cells": []})
    command = [str(drive.python), SCRIPT, plan, "--model-path", "m", "--no-such-flag"]
    done = subprocess.run(command, cwd=drive.root, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "unrecognized arguments: --no-such-flag" in done.stderr
    assert not (drive.root / RESULTS).exists()


def test_an_engine_that_is_wedged_is_given_up(drive: Drive) -> None:
    (drive.root / "control.json").write_text(json.dumps({"cells": {"n3": {"mode": "wedge"}}}))
    done = drive.run({"num_prompts": 3}, {"num_prompts": 4})
    assert done.returncode == 3
    assert drive.kinds() == ["ready", "cell", "cell_failed", "broken"]
    assert "does not answer" in drive.lines()[-1]["error"]


def test_it_is_small_enough_for_a_command_line() -> None:
    """Linux takes 128 KiB an argument."""
    assert len(os.fsencode(driver_source())) < 32 << 10
