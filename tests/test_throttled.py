"""Clocks that fall half-way through a timed window: from recorded telemetry to the verdict of the round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_r1perf.gpu.judge import Watched, judge
from pytest_r1perf.gpu.nvml import Gpu, Reading
from pytest_r1perf.gpu.summary import Replay, TimedReading
from pytest_r1perf.measurement import Discarded, Problem, Sample
from pytest_r1perf.verdict import Verdict
from tests.rounds import finished

BEGAN, SECONDS = 1000.0, 60.0
GPUS = tuple(Gpu(f"GPU-{number}", "NVIDIA H200", number, max_sm_mhz=1980, power_limit_w=700.0) for number in range(8))
SICK = GPUS[3]

# nvml.h
POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80

Slow = Callable[[float], bool]


def recorded(path: Path, mask: int, mhz: int, slow: Slow) -> Replay:
    """100 s of eight power-capped GPUs, one reading a second from 20 s before the window; one is ``slow`` at times."""
    readings = []
    for second in range(100):
        at = BEGAN - 20 + second
        for gpu in GPUS:
            usual = Reading(sm_mhz=1750, power_w=695.0, reasons=POWER_CAP)
            sick = replace(usual, sm_mhz=mhz, power_w=300.0, reasons=mask)
            readings.append(TimedReading(at, gpu.uuid, sick if gpu is SICK and slow(at - BEGAN) else usual))
    Replay(GPUS, tuple(readings)).save(path)
    return Replay.load(path)


def judged(tmp_path: Path, mask: int, mhz: int, slow: Slow) -> Sample | Discarded | Problem:
    """A good result whose timed window is the recording's from ``BEGAN`` on."""
    replay = recorded(tmp_path / "telemetry.jsonl", mask, mhz, slow)

    def watched(seconds: float) -> Watched:
        summary = replay.window(BEGAN, BEGAN + seconds)
        throttled, remarks = judge(summary)
        return Watched(dict(summary.as_record()), tuple(throttled), tuple(remarks))

    return finished(tmp_path / "round", seconds=SECONDS, gpus=watched)


@pytest.mark.parametrize(
    ("mask", "key", "words"),
    [
        (HW_THERMAL | HW_SLOWDOWN, "hw_thermal_slowdown", "hardware thermal throttling"),
        (POWER_BRAKE | HW_SLOWDOWN, "hw_power_brake_slowdown", "the power brake"),
        (SW_THERMAL | POWER_CAP, "sw_thermal_slowdown", "software thermal throttling"),
        (HW_SLOWDOWN, "hw_slowdown", "a hardware slow-down"),
    ],
)
def test_throttling_from_half_way_on_is_invalid(tmp_path: Path, mask: int, key: str, words: str) -> None:
    """Its sentence names the GPU, the reason, its share of the window (31 of the 61 readings) and the clock."""
    problem = judged(tmp_path, mask, 690, lambda at: at >= SECONDS / 2)
    assert isinstance(problem, Problem)
    assert problem.verdict is Verdict.INVALID
    assert problem.cause.startswith("throttled: ")
    assert f"GPU-3 was slowed down by {words} ({key}) in 31 of 61 readings (51%) of the timed window" in problem.cause
    assert "its SM clock down to 690 of 1980 MHz" in problem.cause
    assert "GPU-2" not in problem.cause


def test_throttling_that_is_over_half_way_is_invalid_too(tmp_path: Path) -> None:
    problem = judged(tmp_path, HW_THERMAL, 1200, lambda at: at < SECONDS / 2)
    assert isinstance(problem, Problem)
    assert "in 30 of 61 readings (49%)" in problem.cause


@pytest.mark.parametrize("slow", [lambda at: at < 0, lambda at: at > SECONDS], ids=["before", "after"])
def test_throttling_outside_the_window_is_not_the_measurements(tmp_path: Path, slow: Slow) -> None:
    assert isinstance(judged(tmp_path, HW_THERMAL | HW_SLOWDOWN, 345, slow), Sample)


def test_a_software_power_cap_alone_is_not(tmp_path: Path) -> None:
    """Not even with clocks that fall by it half-way, on one GPU; it is said and recorded."""
    sample = judged(tmp_path, POWER_CAP, 1200, lambda at: at >= SECONDS / 2)
    assert isinstance(sample, Sample)
    assert any("software power cap (sw_power_cap) on 8 of 8 GPUs" in remark for remark in sample.remarks)
    gpus = sample.telemetry["gpus"]
    assert isinstance(gpus, dict)
    assert gpus["GPU-3"]["sm_mhz"]["min"] == 1200
    assert gpus["GPU-3"]["reasons"] == {"sw_power_cap": 1.0}
