"""What ``benchmarks/cost`` makes of recorded lines: rounds and verdicts, windows in A B B A, seconds a verdict."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))  # a folder of scripts, not a package

from cost import plugin
from cost.blocks import Switch, Window, difference, paired, state_of, usable, windows
from cost.modes import OFFLINE, ONE_START, Cost, ratio
from cost.project import Session, parse

# From a session of three cells in one engine of SGLang 0.5.20 on the CPU, shortened; one verdict was changed.
ENGINE_RECORD = [
    '{"format": 1, "kind": "start", "session": "20261130.190508.7d38", "owner": "x"}',
    '{"kind": "sample", "cell": "cpu/default/sharegpt/n40/engine", "round": 1, "wall_s": 14.595,'
    ' "metrics": {"total_throughput": 2052.6, "total_latency": 3.1475},'
    ' "windows": [{"total_throughput": 1470.1}, {"total_throughput": 2158.5},'
    ' {"total_throughput": 2725.7}]}',
    '{"kind": "sample", "cell": "cpu/default/sharegpt/n24/engine", "round": 1, "wall_s": 40.774,'
    ' "metrics": {"total_throughput": 1790.8, "total_latency": 2.2283},'
    ' "windows": [{"total_throughput": 2076.4}, {"total_throughput": 2083.0},'
    ' {"total_throughput": 1328.4}]}',
    '{"kind": "verdict", "result": {"key": "cpu/default/sharegpt/n40/engine", "verdict": "PASS"}}',
    '{"kind": "verdict", "result": {"key": "cpu/default/sharegpt/n24/engine", "verdict": "UNDECIDED"}}',
    '{"kind": "end"}',
]
OFFLINE_RECORD = [
    '{"kind": "sample", "cell": "cpu/default/sharegpt/n24", "round": 1, "wall_s": 13.0,'
    ' "metrics": {"total_throughput": 2400.0, "total_latency": 1.66}, "windows": []}',
    '{"kind": "sample", "cell": "cpu/default/sharegpt/n24", "round": 2, "wall_s": 15.0,'
    ' "metrics": {"total_throughput": 2500.0, "total_latency": 1.60}}',
    '{"kind": "problem", "cell": "cpu/default/sharegpt/n40", "verdict": "CRASH", "cause": "no cause in the log"}',
    '{"kind": "verdict", "result": {"key": "cpu/default/sharegpt/n24", "verdict": "PASS"}}',
    '{"kind": "verdict", "result": {"key": "cpu/default/sharegpt/n40", "verdict": "CRASH"}}',
]
# Of the same run, from the driver's file.
DRIVER_LINES = [
    '{"kind": "ready", "startup_s": 27.6, "max_total_num_tokens": 16384, "context_len": 4096}\n',
    '{"kind": "window", "cell": "dc70", "index": 0, "discarded": true, "start": 28304.907951966,'
    ' "end": 28308.475783011, "total_latency": 3.567828872000973, "total_input_tokens": 2289,'
    ' "total_output_tokens": 1702}\n',
    '{"kind": "window", "cell": "dc70", "index": 0, "discarded": false, "start": 28309.403643516,'
    ' "end": 28311.325734471, "total_latency": 1.9220886120019713, "total_input_tokens": 2289,'
    ' "total_output_tokens": 1702}\n',
    '{"kind": "window", "cell": "dc70", "index": 1, "discarded": false, "start": 28311.6730',
]


def at(number: int, tokps: float = 1000.0) -> Window:
    """One window of a second in every two."""
    return Window(2.0 * number, 2.0 * number + 1.0, tokps)


def between(number: int, running: bool) -> Switch:
    """A switch in the pause before that window."""
    return Switch(running, 2.0 * number - 0.5, 2.0 * number - 0.4)


def switches_of(count: int, block: int) -> list[Switch]:
    states = [state_of(number, block) for number in range(count)]
    return [between(number, states[number]) for number in range(1, count) if states[number] != states[number - 1]]


def test_a_record_is_read() -> None:
    record = parse(ENGINE_RECORD)
    assert [(one.cell[-10:], one.windows, one.tokps) for one in record.rounds] == [
        ("n40/engine", 3, 2052.6),
        ("n24/engine", 3, 1790.8),
    ]
    assert record.verdicts == {
        "cpu/default/sharegpt/n40/engine": "PASS",
        "cpu/default/sharegpt/n24/engine": "UNDECIDED",
    }
    assert record.problems == ()


def test_a_round_without_windows_is_one_window() -> None:
    record = parse(OFFLINE_RECORD)
    assert [one.windows for one in record.rounds] == [1, 1]
    assert record.problems == ("cpu/default/sharegpt/n40: CRASH: no cause in the log",)


def test_seconds_are_shared_by_what_was_decided_only() -> None:
    engine = Cost(ONE_START, Session(60.0, parse(ENGINE_RECORD), ""), whole=2)
    offline = Cost(OFFLINE, Session(330.0, parse(OFFLINE_RECORD), ""), whole=2)
    assert engine.per_verdict_s == 60.0  # UNDECIDED and CRASH are no answers
    assert offline.per_verdict_s == 330.0
    assert ratio([offline], [engine]).startswith("5.50 ")
    assert "3 samples a cell" in engine.lines()[0]
    assert engine.lines()[1] == "  a window: median 2.69 s, 2.23 to 3.15 s"
    assert "SGLang's processes 55.4 s, the rest of pytest 4.6 s" in engine.lines()[0]


def test_what_is_extrapolated_says_so() -> None:
    part = Cost(OFFLINE, Session(28.5, parse(OFFLINE_RECORD), ""), whole=15)
    assert any("EXTRAPOLATED to 15 cells: 428 s" in line for line in part.lines())
    whole = Cost(OFFLINE, Session(28.5, parse(OFFLINE_RECORD), ""), whole=1)
    assert not any("EXTRAPOLATED" in line for line in whole.lines())


def test_a_session_that_waited_for_the_lease_is_marked() -> None:
    waited = Session(90.0, parse(ENGINE_RECORD), "r1perf: waiting for the device, held by ...\n")
    assert any("WAITED" in line for line in Cost(ONE_START, waited, whole=2).lines())


def test_timed_windows_of_the_drivers_file() -> None:
    (only,) = windows(DRIVER_LINES)
    assert (only.start, only.end) == (28309.403643516, 28311.325734471)
    assert only.tokps == pytest.approx(3991 / 1.92209, rel=1e-5)


def test_the_order_is_abba() -> None:
    assert ["BA"[state_of(number, 1)] for number in range(8)] == list("ABBAABBA")
    assert ["BA"[state_of(number, 2)] for number in range(8)] == list("AABBBBAA")


@pytest.mark.parametrize(
    ("begun", "done", "expected"),
    [
        (0.5, 0.6, True),  # in the pause before the window
        (1.9, 2.1, False),  # done after it had begun
        (2.5, 2.6, False),  # in the middle of it
        (2.9, 3.1, False),  # begun before its end
        (3.1, 3.2, False),  # after it: it ran in the other state
    ],
)
def test_a_window_with_a_switch_in_it_is_thrown_away(begun: float, done: float, expected: bool) -> None:
    assert usable(at(1), False, [Switch(False, begun, done)]) is expected


def test_a_switch_after_a_window_does_not_spoil_it() -> None:
    assert usable(at(1), True, [Switch(False, 3.1, 3.2)])


@pytest.mark.parametrize("block", [1, 2, 3])
def test_a_loss_is_found_whatever_the_drift(block: int) -> None:
    """The plugin takes 2 %, and the machine loses 0.1 % a window: A B B A takes the drift out."""
    count = 8 * block
    found = [at(number, 1000.0 * 0.999**number * (0.98 if state_of(number, block) else 1.0)) for number in range(count)]
    values = paired(found, switches_of(count, block), block)
    assert len(values) == 4
    assert difference(values).mean == pytest.approx(math.log(0.98), abs=1e-12)


def test_a_pair_goes_with_its_only_usable_window() -> None:
    found = [at(number) for number in range(8)]
    late = [
        Switch(one.running, one.begun + 1.0, one.done + 1.0) if n == 1 else one
        for n, one in enumerate(switches_of(8, 1))
    ]
    assert len(paired(found, switches_of(8, 1), 1)) == 4
    assert len(paired(found, late, 1)) == 3


def test_the_interval_is_students() -> None:
    """Four differences with mean -1 % and standard deviation 1 %: t(0.975, 3) is 3.182, t(0.95, 3) 2.353."""
    low, high = -0.01 - 0.01 * math.sqrt(0.75), -0.01 + 0.01 * math.sqrt(0.75)
    told = difference([low, high, high, low])
    assert told.mean == pytest.approx(-0.01)
    assert told.error == pytest.approx(0.005)
    assert told.half_width == pytest.approx(3.182 * 0.005, rel=1e-3)
    assert told.most == pytest.approx(1 - math.exp(-0.01 - 2.353 * 0.005), rel=1e-3)
    assert "+1.00 % lost" in told.line()


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="2 pairs of blocks tell no spread"):
        difference([0.0, 0.1])


def test_a_process_is_stopped_and_goes_on() -> None:
    script = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        stopped = plugin.switch([child.pid], False)
        assert Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        assert not stopped.running
        assert stopped.begun <= stopped.done
        plugin.switch([child.pid], True)
        child.stdin.write("still here\n")
        assert child.stdout.readline() == "still here\n"
        child.stdin.close()


def test_cpu_time_is_that_of_the_processes_named() -> None:
    before = plugin.cpu_seconds([os.getpid()])
    sum(number * number for number in range(300_000))
    assert plugin.cpu_seconds([os.getpid()]) > before
    assert plugin.cpu_seconds([]) == 0


def test_what_carries_a_sessions_mark_is_found() -> None:
    mark = f"20200101.000000.test{os.getpid()}"
    sleep = [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        sleep, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "SOME_MARK": f"{mark}-1"}
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert plugin.left_over(mark) == [child.pid]
        child.communicate()
    assert plugin.left_over(mark) == []


def test_the_commands_say_what_they_do() -> None:
    folder = Path(__file__).parents[1] / "benchmarks" / "cost"
    for command, option in (("modes", "--offline-cells"), ("plugin", "--block"), ("bare", "--pairs")):
        done = subprocess.run([sys.executable, folder, command, "--help"], capture_output=True, text=True, check=True)
        assert option in done.stdout
        assert "--quick" in done.stdout
