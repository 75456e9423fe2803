"""What the server's driver tells and what is read of it, and the driver itself as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf.sglang.serve import (
    ACCOUNT,
    CLIENTS,
    RESULT,
    RESULTS,
    SCRIPT,
    URL,
    PlannedCell,
    ServeReport,
    ServerInfo,
    addressed,
    driver_source,
    planned,
    read_report,
    server_of,
)
from tests.processes import wait_until
from tests.project import make_environment

Line = dict[str, Any]

READY: Line = {
    "kind": "ready",
    "startup_s": 12.5,
    "name": "r1perf-1",
    "answered": "r1perf-1",
    "port": 20011,
    "version": "0.5.20",
    "max_total_num_tokens": 16384,
    "max_running_requests": None,
    "dp_size": 1,
}
CELLS = [planned(name, ["client", URL, RESULT], windows=2, discard=1) for name in "ab"]


def window(name: str, number: int, **changes: Any) -> Line:
    return {
        "kind": "window",
        "cell": name,
        "index": max(0, number - 1),
        "discarded": number == 0,
        "time": 1.0e9 + number,
        "start": 100.0 + number,
        "end": 100.5 + number,
        "written": 100.4 + number,
        "result": f"row-{name}-{number}.jsonl",
        "flushed": True,
        **changes,
    }


WHOLE: list[Line] = [
    READY,
    {"kind": "cell", "cell": "a"},
    *(window("a", number) for number in range(3)),
    {"kind": "cell_done", "cell": "a", "seconds": 3.5},
    {"kind": "cell", "cell": "b"},
    {"kind": "cell_failed", "cell": "b", "reason": "skipped", "error": "Skip benchmark ..."},
    {"kind": "end"},
]


def read(tmp_path: Path, lines: list[Line | str]) -> ServeReport:
    path = tmp_path / RESULTS
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return read_report(path, CELLS)


def test_a_whole_file(tmp_path: Path) -> None:
    report = read(tmp_path, [*WHOLE])
    assert (report.startup_s, report.ended, report.garbage, report.refused) == (12.5, True, (), None)
    assert server_of(report) == ServerInfo("r1perf-1", 20011, "0.5.20", 16384, None, 1)
    assert [(one.index, one.discarded, one.result) for one in report.cells["a"].windows] == [
        (0, True, "row-a-0.jsonl"),
        (0, False, "row-a-1.jsonl"),
        (1, False, "row-a-2.jsonl"),
    ]
    assert report.cells["b"].failed == ("skipped", "Skip benchmark ...")


def test_the_rows_files_are_those_that_the_driver_names() -> None:
    assert CELLS[0].results == ("row-a-0.jsonl", "row-a-1.jsonl", "row-a-2.jsonl")


def test_a_server_that_was_never_ours(tmp_path: Path) -> None:
    line = {"kind": "refused", "reason": "foreign", "error": "another server answers"}
    report = read(tmp_path, [line, {"kind": "end"}])
    assert report.refused == ("foreign", "another server answers")
    assert report.startup_s is None
    assert "comes after the end" in report.garbage[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({**READY, "answered": "model"}, "of a server that calls itself 'model', and ours is 'r1perf-1'"),
        ({**READY, "name": ""}, "name '', which is no text"),
        ({**READY, "port": "x"}, "port 'x', which is no count"),
        ({**READY, "version": None}, "version None, which is no text"),
        ({"kind": "refused", "reason": "mood", "error": "x"}, "reason 'mood', which is not known"),
        ({"kind": "window", "cell": "a"}, "before the server was ready"),
    ],
)
def test_garbage_before_it_is_ready(tmp_path: Path, line: Line, said: str) -> None:
    report = read(tmp_path, [line])
    assert report.startup_s is None
    assert said in report.garbage[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (window("a", 1, flushed="yes"), "flushed 'yes', which is neither true nor false"),
        (window("a", 1, written="now"), "written 'now', which is no number"),
        (window("a", 1, result=None), "result None, which is no text"),
        (window("a", 2), "window 1 of the cell a, out of its order"),
        (window("a", 1, end=1.0), "which can't be"),
        (window("a", 1, discarded=None), "without discarded"),
        ("{", "is not JSON"),
    ],
)
def test_garbage_spoils_the_cell_it_falls_in(tmp_path: Path, line: Line | str, said: str) -> None:
    lines: list[Line | str] = [*WHOLE]
    lines.insert(3, line)
    (sentence,) = read(tmp_path, lines).cells["a"].garbage
    assert said in sentence
    assert sentence.startswith("line 4 of serve.jsonl")


def test_a_server_that_broke_before_a_cells_first_line(tmp_path: Path) -> None:
    report = read(tmp_path, [READY, {"kind": "broken", "cell": "b", "error": "gone"}, window("b", 0)])
    assert (report.broken, report.last) == ("gone", "b")
    assert "comes after the end" in report.cells["b"].garbage[0]


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("report") / RESULTS
    path.write_bytes("".join(json.dumps(line) + "\n" for line in WHOLE[:3]).encode() + data)
    report = read_report(path, CELLS)
    assert report.cells["a"].windows[0].discarded


# -- the driver as a process ---------------------------------------------------------------------------------


class Drive:
    """The driver with a fake server, in a folder; what stands for a client is a line of shell."""

    def __init__(self, root: Path, server: dict[str, Any] | None = None) -> None:
        self.root = root
        control = root / "fake" / "control.json"
        control.parent.mkdir()
        control.write_text(json.dumps({"cells": {}, "server": server or {}}))
        self.python = str(make_environment(root / "env", control=control) / "bin" / "python")
        self.work = root / "work"
        self.work.mkdir()
        (self.work / SCRIPT).write_text(driver_source())

    def cell(self, name: str, script: str, *, windows: int = 1) -> PlannedCell:
        return planned(name, ["sh", "-c", script, "client", URL, RESULT], windows=windows, discard=0)

    def start(self, *cells: PlannedCell, **plan: Any) -> subprocess.Popen[str]:
        whole = {
            "results": RESULTS,
            "clients": CLIENTS,
            "account": ACCOUNT,
            "server": [self.python, "-m", "sglang.launch_server", "--model-path", "m"],
            "port": None,
            "avoid": [],
            "own_ranks_port": True,
            "cells": [
                {"id": c.id, "argv": c.argv, "result": c.result, "windows": c.windows, "discard": c.discard}
                for c in cells
            ],
            **plan,
        }
        return subprocess.Popen(
            [self.python, SCRIPT, json.dumps(whole)],
            cwd=self.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *cells: PlannedCell, **plan: Any) -> tuple[int, str]:
        process = self.start(*cells, **plan)
        try:
            out, _ = process.communicate(timeout=180)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, out

    def lines(self) -> list[Line]:
        path = self.work / RESULTS
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def kinds(self) -> list[str]:
        return [line["kind"] for line in self.lines()]


def test_the_driver_tells_in_order_and_marks_the_log(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    code, log = drive.run(drive.cell("a", "echo $1 > $2", windows=2), drive.cell("b", "true"))
    assert code == 0
    assert drive.kinds() == ["ready", "cell", "window", "window", "cell_done", "cell", "window", "cell_done", "end"]
    ready, _, first, *_ = drive.lines()
    assert ready["name"] == ready["answered"]
    assert (drive.work / "row-a-1.jsonl").read_text() == f"http://127.0.0.1:{ready['port']}\n"
    assert first["start"] - 0.1 <= first["written"] <= first["end"] + 0.1, "a file's stamp is up to a tick early"
    assert drive.lines()[6]["written"] is None
    marks = [line for line in log.splitlines() if line.startswith("r1perf-serve: ")]
    assert marks == [
        "r1perf-serve: cell a",
        "r1perf-serve: window a 0 Benchmark...",
        "r1perf-serve: window-over a 0",
        "r1perf-serve: window a 1 Benchmark...",
        "r1perf-serve: window-over a 1",
        "r1perf-serve: over a",
        "r1perf-serve: cell b",
        "r1perf-serve: window b 0 Benchmark...",
        "r1perf-serve: window-over b 0",
        "r1perf-serve: over b",
        "r1perf-serve: end",
    ]


def test_every_start_has_another_name(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    drive.run()
    drive.run()
    first, second = (line["name"] for line in drive.lines() if line["kind"] == "ready")
    assert first != second
    assert first.startswith("r1perf-")


def test_a_port_that_another_rank_has_is_not_taken(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    every = [20000 + step * 11 for step in range(1000) if step != 77]
    drive.run(avoid=every)
    (server,) = [json.loads(line) for line in (tmp_path / "fake/servers.jsonl").read_text().splitlines()]
    assert drive.lines()[0]["port"] == server["port"] == 20000 + 77 * 11
    argv = server["argv"]
    assert argv[argv.index("--nccl-port") + 1] == str(20000 + 77 * 11 + 1), "where its ranks meet"


def test_what_clients_print_is_not_in_the_servers_log(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    _, log = drive.run(drive.cell("a", "echo Traceback of a client; exit 3"))
    assert "Traceback of a client" not in log
    assert "Traceback of a client" in (drive.work / CLIENTS).read_text()
    failed = next(line for line in drive.lines() if line["kind"] == "cell_failed")
    assert (failed["reason"], failed["error"]) == ("client", "the client ended with exit code 3: Traceback of a client")


def test_a_client_killed_by_a_signal_is_named(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    drive.run(drive.cell("a", "kill -SEGV $$"))
    failed = next(line for line in drive.lines() if line["kind"] == "cell_failed")
    assert failed["error"] == "the client ended with SIGSEGV: it printed nothing"


def test_a_client_that_can_not_be_started(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    gone = planned("a", ["/no/such/python", URL], windows=1, discard=0)
    assert drive.run(gone, drive.cell("b", "true"))[0] == 0
    assert drive.kinds() == ["ready", "cell", "cell_failed", "cell", "window", "cell_done", "end"]
    assert "No such file" in drive.lines()[2]["error"]


@pytest.mark.parametrize(
    "said",
    [
        "========Skip benchmark batch_size=64 > skip_max_running_requests_threshold=48 due to max running requests "
        "limit.========",
        "========Skip benchmark batch_size=9 * (input_len=1 + output_len=2) = 27 > skip_token_capacity_threshold=20 "
        "due to kv cache limit.========",
    ],
)
def test_a_skipped_case_is_named(tmp_path: Path, said: str) -> None:
    """The lines of one_batch_server.py of SGLang 0.5.20, which ends with 0 after them."""
    drive = Drive(tmp_path)
    drive.run(drive.cell("a", f"echo '{said}'; echo; echo Results are saved to x"))
    failed = next(line for line in drive.lines() if line["kind"] == "cell_failed")
    assert (failed["reason"], failed["error"]) == ("skipped", said.strip("="))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, "127.0.0.1"),
        ({"NO_PROXY": "hub.local", "no_proxy": "10.0.0.1,.corp"}, "hub.local,10.0.0.1,.corp,127.0.0.1"),
        ({"no_proxy": "hub.local"}, "hub.local,127.0.0.1"),
        ({"NO_PROXY": "127.0.0.1"}, "127.0.0.1"),
    ],
)
def test_hosts_that_the_user_meets_without_a_proxy_stay_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], kept: str
) -> None:
    """A client may fetch a tokenizer from a hub in the house."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    drive = Drive(tmp_path)
    drive.run(drive.cell("a", 'echo "$NO_PROXY $no_proxy" > $2'))
    assert (drive.work / "row-a-0.jsonl").read_text().split() == [kept, kept]


def test_a_server_killed_under_a_client(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    process = drive.start(drive.cell("a", "sleep 60"))
    try:
        wait_until(lambda: "cell" in drive.kinds(), "the cell", 120)
        (server,) = [json.loads(line) for line in (tmp_path / "fake/servers.jsonl").read_text().splitlines()]
        os.kill(server["pid"], signal.SIGKILL)
        process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 137
    assert drive.lines()[-1] == {
        "kind": "broken",
        "cell": "a",
        "error": "the server ended with SIGKILL while a client was running",
    }


def test_the_drivers_exit_code_is_the_servers(tmp_path: Path) -> None:
    drive = Drive(tmp_path, {"mode": "argparse"})
    code, log = drive.run(drive.cell("a", "true"))
    assert code == 2
    assert "unrecognized arguments" in log
    assert drive.lines() == [
        {"kind": "refused", "reason": "died", "error": "the server ended with exit code 2 before it was ready"}
    ]


def test_the_servers_secrets_are_not_told(tmp_path: Path) -> None:
    drive = Drive(tmp_path)
    _, log = drive.run(drive.cell("a", "true"))
    account = (drive.work / ACCOUNT).read_text()
    assert "hunter2" not in log + (drive.work / RESULTS).read_text() + account
    assert json.loads(account)["max_total_num_tokens"] == 16384


@pytest.mark.parametrize(
    ("info", "running", "ranks"),
    [
        ({}, 64, 1),
        ({"dp_size": 4}, 64, 4),
        ({"dp_size": 1, "attn_dp_size": 8}, 64, 8),  # as 0.5.22 says DP attention
        ({"internal_states": [], "max_running_requests": 48}, 48, 1),  # before 0.5.6
        ({"internal_states": None}, None, 1),
    ],
)
def test_how_much_the_server_runs_at_once(
    tmp_path: Path, info: dict[str, Any], running: int | None, ranks: int
) -> None:
    drive = Drive(tmp_path, {"info": info})
    drive.run()
    ready = drive.lines()[0]
    assert (ready["max_running_requests"], ready["dp_size"]) == (running, ranks)


def test_addresses() -> None:
    assert addressed(("x",), 5, "n") == ("x", "--host", "127.0.0.1", "--port", "5", "--served-model-name", "n")
    assert addressed(("x",), 5) == ("x", "--host", "127.0.0.1", "--port", "5")
