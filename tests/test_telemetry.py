"""`gpu`: NVML's readings over a timed window, and which throttling spoils a sample."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.gpu.judge import judge
from pytest_r1perf.gpu.nvml import Gpu, Memory, NvmlAbsent, NvmlError, Process, Reading, open_nvml, within
from pytest_r1perf.gpu.reasons import reasons_in
from pytest_r1perf.gpu.summary import Replay, TelemetrySummary, TimedReading
from pytest_r1perf.gpu.telemetry import Telemetry
from tests.gpus import GPU_A, GPU_B, MIB, RESERVED_MIB, host_with
from tests.processes import wait_until

H200 = Gpu(GPU_A, "NVIDIA H200", 0, max_sm_mhz=1980, power_limit_w=700.0)
FAST_S = 0.005

# nvml.h
IDLE, APPLICATIONS_CLOCKS, POWER_CAP, HW_SLOWDOWN, SYNC_BOOST = 0x1, 0x2, 0x4, 0x8, 0x10
SW_THERMAL, HW_THERMAL, POWER_BRAKE, DISPLAY = 0x20, 0x40, 0x80, 0x100


def seen(masks: Sequence[int | None], clocks: Sequence[int] = (), uuid: str = GPU_A) -> TelemetrySummary:
    """A window with one reading a second, these throttle reasons, and these SM clocks (else 1980)."""
    readings = [
        TimedReading(float(at), uuid, Reading(sm_mhz=clocks[at] if clocks else 1980, reasons=mask))
        for at, mask in enumerate(masks)
    ]
    return Replay((H200,), tuple(readings)).window(0.0, float(len(masks) - 1))


# -- nvml
# --------------------------------------------------------------------------------------------------------


def test_without_the_library_there_is_a_reason(tmp_path: Path) -> None:
    """A Python whose `pynvml` can't be found: the reason says what to install."""
    code = (
        "import sys; sys.modules['pynvml'] = None\n"
        "from pytest_r1perf.gpu.nvml import open_nvml; print(open_nvml().reason)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "pip install 'pytest-r1perf[gpu]'" in done.stdout


def test_a_broken_library_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text("raise OSError('ELF header')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    absent = open_nvml()
    assert isinstance(absent, NvmlAbsent)
    assert "ELF header" in absent.reason


def test_the_real_library_answers_or_gives_a_reason() -> None:
    """On a host without a driver a reason, on one with GPUs plausible readings of each."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (extra gpu)")
    nvml = open_nvml()
    if isinstance(nvml, NvmlAbsent):
        assert "driver" in nvml.reason
        return
    for uuid in nvml.uuids():
        gpu, reading, memory = nvml.describe(uuid), nvml.read(uuid), nvml.memory(uuid)
        assert gpu.name.startswith(("NVIDIA", "Tesla", "Quadro", "GeForce", "GRID"))
        assert reading.reasons is not None
        assert reading.sm_mhz is not None
        assert gpu.max_sm_mhz is not None
        assert 0 < reading.sm_mhz <= gpu.max_sm_mhz
        assert reading.temperature_c is not None
        assert 0 < reading.temperature_c < 120
        assert 0 <= memory.allocated < memory.total
        assert all(process.pid > 0 for process in nvml.processes(uuid))


def test_without_a_driver_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host_with(tmp_path, monkeypatch, GPU_A, init_error="Driver Not Loaded")
    absent = open_nvml()
    assert isinstance(absent, NvmlAbsent)
    assert "Driver Not Loaded" in absent.reason


def test_without_a_gpu_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host_with(tmp_path, monkeypatch)
    absent = open_nvml()
    assert isinstance(absent, NvmlAbsent)
    assert "no GPU" in absent.reason


NEW_NAMES = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTemperatureV")
OLD_NAMES = ("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetTemperature")


@pytest.mark.parametrize("absent", [NEW_NAMES, OLD_NAMES, ()], ids=["older", "CUDA 14", "today"])
def test_units_and_both_names_of_the_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: tuple[str, ...]
) -> None:
    host = host_with(tmp_path, monkeypatch, GPU_A, absent=absent)
    host.gpus[0].update(sm_mhz=1755, mem_mhz=3201, power_mw=698_250, temperature_c=64, utilization_pct=99, reasons=4)
    host.write(absent=absent)
    host.hold(GPU_A, 1000, (4242, 900), (4243, None))
    nvml = host.open()
    assert nvml.uuids() == (GPU_A,)
    assert nvml.read(GPU_A) == Reading(1755, 3201, 698.25, 64, 99, 1000 * MIB, POWER_CAP)
    assert nvml.describe(GPU_A) == Gpu(GPU_A, "NVIDIA H200", 0, 1980, 3201, 700.0, persistence=True, mig=False)
    assert nvml.processes(GPU_A) == (Process(4242, 900 * MIB), Process(4243, None))


def test_a_driver_newer_than_the_library_and_the_reverse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver lacks is asked in the old way; what it can't tell is left out."""
    host = host_with(tmp_path, monkeypatch, GPU_A)
    host.hold(GPU_A, 1000, (4242, 900))
    lacks = (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetMigMode",
    )
    host.change(GPU_A, reasons=4, errors=dict.fromkeys(lacks, "Function Not Found"))
    nvml = host.open()
    reading = nvml.read(GPU_A)
    assert reading.reasons == POWER_CAP
    assert reading.utilization_pct is None
    # Version 1 counts the reserved part as taken.
    assert reading.memory_bytes == (1000 + RESERVED_MIB) * MIB
    assert nvml.processes(GPU_A) == (Process(4242, 900 * MIB),)
    assert nvml.describe(GPU_A).mig is False


def test_one_lost_gpu_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_with(tmp_path, monkeypatch, GPU_A, GPU_B)
    host.change(GPU_A, errors={"nvmlDeviceGetUUID": "GPU is lost"})
    assert host.open().uuids() == (GPU_B,)


def test_a_gpu_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = host_with(tmp_path, monkeypatch, GPU_A).open()
    with pytest.raises(NvmlError, match="Not Found"):
        nvml.read(GPU_B)


def test_a_question_that_hangs_is_given_up() -> None:
    never = threading.Event()
    try:
        with pytest.raises(NvmlError, match="no answer"):
            within(never.wait, timeout_s=0.01)
    finally:
        never.set()


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_allocated_is_what_is_neither_free_nor_reserved(free: int, reserved: int, allocated: int) -> None:
    assert Memory(free + reserved + allocated, free, reserved).allocated == allocated


# -- reading
# --------------------------------------------------------------------------------------------------------


def test_readings_are_taken_while_entered_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_with(tmp_path, monkeypatch, GPU_A, GPU_B)
    host.change(GPU_B, sm_mhz=1500)
    with Telemetry(host.open(), [GPU_A, GPU_B], period_s=FAST_S) as telemetry:
        wait_until(lambda: len(telemetry.recorded().readings) >= 8, "some readings")
    readings = telemetry.recorded().readings
    threads = [thread for thread in threading.enumerate() if thread.name == "r1perf-telemetry"]
    assert threads == []
    summary = telemetry.window(readings[0].at, readings[-1].at)
    a, b = summary.gpus
    assert a.figures.samples + b.figures.samples == len(readings)
    assert a.figures.sm_mhz is not None
    assert b.figures.sm_mhz is not None
    assert summary.overall.sm_mhz is not None
    assert (a.figures.sm_mhz.median, b.figures.sm_mhz.median) == (1980, 1500)
    assert (summary.overall.sm_mhz.min, summary.overall.sm_mhz.max) == (1500, 1980)
    assert a.gpu.name == "NVIDIA H200"


def test_memory_is_bounded_and_the_newest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_with(tmp_path, monkeypatch, GPU_A)
    host.change(GPU_A, power_mw=[n * 1000 for n in range(10_000)])
    with Telemetry(host.open(), [GPU_A], period_s=FAST_S, keep_s=5 * FAST_S) as telemetry:

        def newest() -> float:
            readings = telemetry.recorded().readings
            last = readings[-1].reading if readings else None
            return last.power_w or 0.0 if last is not None else 0.0

        wait_until(lambda: newest() > 12, "more readings than are kept")
    assert len(telemetry.recorded().readings) == 5


def test_a_failing_reading_costs_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_with(tmp_path, monkeypatch, GPU_A, GPU_B)
    nvml = host.open()
    nvml.describe(GPU_A)
    host.gpus = [gpu for gpu in host.gpus if gpu["uuid"] == GPU_B]  # A is lost
    host.write()
    with Telemetry(nvml, [GPU_A, GPU_B], period_s=FAST_S) as telemetry:
        wait_until(lambda: len(telemetry.recorded().readings) >= 6, "some readings")
    readings = telemetry.recorded().readings
    summary = telemetry.window(readings[0].at, readings[-1].at)
    lost, well = summary.gpus
    assert (lost.figures.samples, lost.error) == (0, "nvmlDeviceGetClockInfo: GPU is lost")
    assert lost.failed >= 3
    assert well.failed == 0
    invalid, remarks = judge(summary)
    assert invalid == []
    assert [remark for remark in remarks if GPU_A in remark and "GPU is lost" in remark]


def test_a_reading_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`with` ends although the driver hangs, and what comes back later isn't kept; a second run is fresh."""
    host = host_with(tmp_path, monkeypatch, GPU_A)
    monkeypatch.setattr("pytest_r1perf.gpu.telemetry.LEAVE_S", 0.05)
    nvml = host.open()
    with Telemetry(nvml, [GPU_A], period_s=FAST_S) as telemetry:
        wait_until(lambda: telemetry.recorded().readings, "a reading")
        host.change(GPU_A, hangs=True)
        thread = next(thread for thread in threading.enumerate() if thread.name == "r1perf-telemetry")
        wait_until(host.hung.exists, "the call that hangs")
        count = len(telemetry.recorded().readings)
        last = telemetry.recorded().readings[-1].at
    assert thread.is_alive()
    host.change(GPU_A, hangs=False)
    thread.join(60)
    assert not thread.is_alive()
    assert len(telemetry.recorded().readings) == count
    _, remarks = judge(telemetry.window(last + 1, last + 61))
    assert len(remarks) == 1
    assert f"no reading of {GPU_A}" in remarks[0]
    with telemetry:
        wait_until(lambda: len(telemetry.recorded().readings) > count, "readings again")


def test_nothing_runs_where_there_is_nothing_to_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    with Telemetry(NvmlAbsent("it is not installed"), [GPU_A]) as telemetry:
        assert threading.active_count() == before
    invalid, remarks = judge(telemetry.window(0, 10))
    assert invalid == []
    assert remarks == ["telemetry: none, since it is not installed"]
    with Telemetry(host_with(tmp_path, monkeypatch, GPU_A).open(), []) as cpu:
        assert threading.active_count() == before
    assert judge(cpu.window(0, 10)) == ([], [])
    assert cpu.window(0, 10).as_record() == {}


def test_a_forked_child_can_look_and_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread isn't in the child: what was read is, and the child's end of `with` stops nothing here."""
    host = host_with(tmp_path, monkeypatch, GPU_A)
    with Telemetry(host.open(), [GPU_A], period_s=FAST_S) as telemetry:
        wait_until(lambda: telemetry.recorded().readings, "a reading")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                telemetry.__exit__(None, None, None)
                status = 0 if telemetry.recorded().readings else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        count = len(telemetry.recorded().readings)
        wait_until(lambda: len(telemetry.recorded().readings) > count, "readings after the fork")


# -- the window
# --------------------------------------------------------------------------------------------------------


def test_only_what_lies_in_the_window_counts() -> None:
    readings = [TimedReading(float(at), GPU_A, Reading(sm_mhz=1000 + at, power_w=at * 10.0)) for at in range(60)]
    summary = Replay((H200,), tuple(readings)).window(9.9, 14.0)
    figures = summary.gpus[0].figures
    assert figures.samples == 5
    assert figures.sm_mhz is not None
    assert figures.power_w is not None
    assert (figures.sm_mhz.min, figures.sm_mhz.median, figures.sm_mhz.max) == (1010, 1012, 1014)
    assert (figures.power_w.median, figures.power_w.max) == (120.0, 140.0)


@pytest.mark.parametrize(
    ("times", "window", "gaps", "longest"),
    [
        ([0, 1, 2, 3], (0, 3), 0, 1.0),
        ([0, 1, 2, 3], (0, 30), 1, 27.0),
        ([5, 6, 20, 21], (0, 21), 2, 14.0),
        ([], (0, 10), 1, 10.0),
        ([0.4], (0, 0.9), 0, 0.5),
    ],
)
def test_gaps_are_counted_at_the_edges_too(
    times: list[float], window: tuple[float, float], gaps: int, longest: float
) -> None:
    replay = Replay((H200,), tuple(TimedReading(at, GPU_A, Reading(reasons=0)) for at in times))
    summary = replay.window(*window)
    assert summary.gpus[0].gaps == gaps
    assert summary.gpus[0].longest_gap_s == pytest.approx(longest)
    invalid, remarks = judge(summary)
    assert invalid == []
    assert bool(remarks) == bool(gaps)


def test_the_record_is_plain_json() -> None:
    mib = 131072 * MIB
    readings = [
        TimedReading(0.0, GPU_A, Reading(1980, 3201, 500.0, 60, 90, mib, POWER_CAP)),
        TimedReading(1.0, GPU_A, Reading(1700, 3201, 699.5, 66, 100, mib, POWER_CAP | SW_THERMAL)),
        TimedReading(2.0, GPU_A, None, "timeout"),
        TimedReading(3.0, GPU_A, Reading(1900, 3201, 650.0, 65, 98, mib, 0)),
    ]
    record = Replay((H200,), tuple(readings)).window(0.0, 3.5).as_record()
    figures = {
        "samples": 3,
        "sm_mhz": {"min": 1700, "median": 1900, "max": 1980},
        "mem_mhz": {"min": 3201, "median": 3201, "max": 3201},
        "power_w": {"median": 650.0, "max": 699.5},
        "temperature_c": {"max": 66},
        "utilization_pct": {"median": 98},
        "memory_mib": {"max": 131072},
        "reasons": {"sw_power_cap": 0.6667, "sw_thermal_slowdown": 0.3333},
    }
    gpu = {"name": "NVIDIA H200", "index": 0, "max_sm_mhz": 1980, "power_limit_w": 700.0, "mig": False}
    holes = {"failed": 1, "gaps": 0, "longest_gap_s": 2.0, "error": "timeout"}
    assert json.loads(json.dumps(record, allow_nan=False)) == {
        "window_s": 3.5,
        "period_s": 1.0,
        "overall": figures,
        "gpus": {GPU_A: {**gpu, **figures, **holes}},
    }


readings_strategy = st.lists(
    st.builds(
        TimedReading,
        st.floats(0, 1e6, allow_nan=False),
        st.just(GPU_A),
        st.builds(
            Reading,
            st.none() | st.integers(0, 3000),
            st.none() | st.integers(0, 5000),
            st.none() | st.floats(0, 1500, allow_nan=False),
            st.none() | st.integers(0, 120),
            st.none() | st.integers(0, 100),
            st.none() | st.integers(0, 2**38),
            st.none() | st.integers(0, 2**64 - 1),
        ),
    )
    | st.builds(TimedReading, st.floats(0, 1e6, allow_nan=False), st.just(GPU_A), st.none(), st.text(max_size=20)),
    max_size=20,
)


@given(readings_strategy)
def test_saved_telemetry_is_judged_as_before(
    tmp_path_factory: pytest.TempPathFactory, readings: list[TimedReading]
) -> None:
    path = tmp_path_factory.mktemp("t") / "telemetry.jsonl"
    replay = Replay((H200,), tuple(readings), note="of a test")
    replay.save(path)
    again = Replay.load(path)
    assert again == replay
    assert judge(again.window(0.0, 5e5)) == judge(replay.window(0.0, 5e5))
    json.dumps(again.window(0.0, 5e5).as_record(), allow_nan=False)


def test_a_cut_file_is_read_up_to_the_cut_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    replay = Replay((H200,), tuple(TimedReading(float(at), GPU_A, Reading(sm_mhz=1980)) for at in range(3)))
    replay.save(path)
    path.write_text(path.read_text()[:-9])
    assert [item.at for item in Replay.load(path).readings] == [0.0, 1.0]
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(R1PerfError, match="newer pytest-r1perf"):
        Replay.load(path)
    path.write_text("timestamp, clocks.sm\n")
    with pytest.raises(R1PerfError, match="is no recorded telemetry"):
        Replay.load(path)
    with pytest.raises(R1PerfError, match="No such file"):
        Replay.load(tmp_path / "missing")


# -- the verdict
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "key"),
    [
        (HW_SLOWDOWN, "hw_slowdown"),
        (SW_THERMAL, "sw_thermal_slowdown"),
        (HW_THERMAL | HW_SLOWDOWN, "hw_thermal_slowdown"),
        (POWER_BRAKE | HW_SLOWDOWN, "hw_power_brake_slowdown"),
    ],
)
@pytest.mark.parametrize(("length", "share"), [(5, "20%"), (100, "1%")])
def test_throttling_seen_once_is_invalid(mask: int, key: str, length: int, share: str) -> None:
    """However long the window: the sentence names the GPU, the reason once, how often, and the clock."""
    masks, clocks = [POWER_CAP] * length, [1755] * length
    masks[2], clocks[2] = mask, 345
    invalid, _ = judge(seen(masks, clocks))
    assert len(invalid) == 1
    for part in (GPU_A, f"({key})", f"1 of {length} readings ({share})", "down to 345 of 1980 MHz"):
        assert part in invalid[0]


@pytest.mark.parametrize("mask", [SW_THERMAL, HW_THERMAL, POWER_BRAKE])
def test_a_named_cause_is_invalid_at_any_clock(mask: int) -> None:
    invalid, _ = judge(seen([0, 0, mask, 0, 0]))
    assert len(invalid) == 1


def test_a_change_of_clocks_is_a_remark() -> None:
    """The general bit, once, with no cause and a usual clock: NVML may set it when clocks change."""
    invalid, remarks = judge(seen([0, HW_SLOWDOWN, 0, 0], [1980, 1905, 1980, 1980]))
    assert invalid == []
    assert len(remarks) == 1
    assert "hw_slowdown" in remarks[0]


@pytest.mark.parametrize(
    ("masks", "clocks"),
    [
        ([0, HW_SLOWDOWN, 0, HW_SLOWDOWN, 0], [1980] * 5),
        ([0, HW_SLOWDOWN, 0, 0, 0], [1980, 990, 1980, 1980, 1980]),
        ([HW_SLOWDOWN], [1980]),
        ([HW_SLOWDOWN, 0], [1980, 1980]),
    ],
    ids=["twice", "clock halved", "the only reading", "of two"],
)
def test_a_hardware_slowdown_is_no_change_of_clocks(masks: list[int], clocks: list[int]) -> None:
    invalid, _ = judge(seen(masks, clocks))
    assert len(invalid) == 1


def test_a_software_power_cap_is_normal() -> None:
    masks = [POWER_CAP, POWER_CAP, POWER_CAP, IDLE]
    readings = [
        TimedReading(float(at), uuid, Reading(sm_mhz=1700, reasons=mask))
        for uuid in (GPU_A, GPU_B)
        for at, mask in enumerate(masks)
    ]
    invalid, remarks = judge(Replay((H200, Gpu(GPU_B, "NVIDIA H200")), tuple(readings)).window(0, 3))
    assert invalid == []
    words = "its software power cap (sw_power_cap) on 2 of 2 GPUs, in up to 75% of the readings"
    assert remarks == [f"clocks limited by {words}"]


@pytest.mark.parametrize(
    ("mask", "key"),
    [
        (APPLICATIONS_CLOCKS, "applications_clocks_setting"),
        (SYNC_BOOST, "sync_boost"),
        (DISPLAY, "display_clock_setting"),
        (1 << 33, "bit_0x200000000"),
    ],
)
def test_other_limits_are_recorded(mask: int, key: str) -> None:
    summary = seen([mask] * 4)
    invalid, remarks = judge(summary)
    assert invalid == []
    assert len(remarks) == 1
    assert f"({key})" in remarks[0]
    assert summary.overall.share(key) == 1.0


def test_idle_says_nothing() -> None:
    assert judge(seen([IDLE] * 4)) == ([], [])


def test_reasons_that_cannot_be_read_are_said() -> None:
    invalid, remarks = judge(seen([None] * 4))
    assert invalid == []
    assert remarks == [f"telemetry: the driver does not tell the throttle reasons of {GPU_A}"]


def test_the_share_is_of_the_readings_that_told_their_reasons() -> None:
    invalid, _ = judge(seen([None, SW_THERMAL, 0, None]))
    assert len(invalid) == 1
    assert "in 1 of 2 readings (50%)" in invalid[0]


def test_one_throttled_gpu_of_many_is_named() -> None:
    readings = [
        TimedReading(float(at), uuid, Reading(sm_mhz=1980, reasons=HW_THERMAL if uuid == GPU_B else 0))
        for uuid in (GPU_A, GPU_B)
        for at in range(4)
    ]
    invalid, _ = judge(Replay((H200, Gpu(GPU_B, "NVIDIA H200")), tuple(readings)).window(0, 3))
    assert len(invalid) == 1
    assert GPU_B in invalid[0]
    assert GPU_A not in invalid[0]


@given(st.integers(0, 2**64 - 1))
def test_every_bit_is_named_unless_its_cause_is(mask: int) -> None:
    keys = [reason.key for reason in reasons_in(mask)]
    assert len(keys) == len(set(keys))
    hidden = bool(mask & HW_SLOWDOWN and mask & (HW_THERMAL | POWER_BRAKE))
    assert len(keys) == bin(mask).count("1") - hidden


def test_a_live_throttled_gpu_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the library to the sentence; the same run without throttling is valid."""
    host = host_with(tmp_path, monkeypatch, GPU_A)
    for mask, count in ((HW_THERMAL | HW_SLOWDOWN, 1), (POWER_CAP, 0)):
        host.change(GPU_A, reasons=mask)
        with Telemetry(host.open(), [GPU_A], period_s=FAST_S) as telemetry:
            wait_until(lambda: len(telemetry.recorded().readings) >= 4, "some readings")
        readings = telemetry.recorded().readings
        invalid, _ = judge(telemetry.window(readings[0].at, readings[-1].at))
        assert len(invalid) == count


def test_importing_the_plugin_does_not_import_nvml() -> None:
    code = "import sys, pytest_r1perf.plugin, pytest_r1perf.gpu.telemetry; print('pynvml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
