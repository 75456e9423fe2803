"""``r1perf trend`` on histories with known steps, written as real record files."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.history.commands import trend_command
from pytest_r1perf.report.trend import sparkline
from tests.histories import CELL, HARDWARE, PROTOCOL, RESOLVED, START, nightly, sample, write_nights, write_session

OLD, NEW = {"sglang": "0.5.9", "torch": "2.9.1"}, {"sglang": "0.5.20", "torch": "2.9.1"}


def trend(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(trend_command, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def page(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(trend(*arguments, "--json").stdout)
    return found


def only(*arguments: object) -> dict[str, Any]:
    (one,) = page(*arguments)["trends"]
    assert isinstance(one, dict)
    return one


def day(night: int) -> str:
    return f"{START + datetime.timedelta(days=night):%Y-%m-%d}"


def bumped(night: int) -> Mapping[str, Any]:
    return {"versions": NEW if night >= 20 else OLD}


def test_a_step_between_two_versions_is_named(tmp_path: Path) -> None:
    write_nights(tmp_path, nightly(30, shape=lambda night: -0.06 * (night >= 20)), change=bumped)
    one = only(tmp_path)
    assert (one["state"], one["nights"], one["surely_worse"]) == ("STEP", 30, True)
    (event,) = one["events"]
    assert event["kind"] == "step"
    assert event["before"].startswith(day(19))
    assert event["after"].startswith(day(20))
    assert event["size"]["lower"] < -0.06 < event["size"]["upper"] < 0
    assert event["causes"] == ["sglang 0.5.9 -> 0.5.20"]
    text = trend(tmp_path).stdout
    assert "STEP worse" in text
    assert "sglang 0.5.9 -> 0.5.20" in text
    assert day(20) in text
    assert trend(tmp_path, "--fail", code=1)


def test_resolved_arguments_and_hosts_are_named_too(tmp_path: Path) -> None:
    def change(night: int) -> Mapping[str, Any]:
        if night < 20:
            return {"host": {"hostname": "gpu3", "gpu driver": "570.10"}}
        return {"host": {"hostname": "gpu7", "gpu driver": "580.82"}}

    nights = nightly(30, shape=lambda night: -0.06 * (night >= 20))
    for night, values in enumerate(nights):
        begin = START + datetime.timedelta(days=night)
        lines = [sample(n, value, time=begin.isoformat(), **change(night)) for n, value in enumerate(values, 1)]
        if night >= 20:
            lines[0]["resolved"] = {**RESOLVED, "schedule_policy": "lpm"}
        write_session(tmp_path, f"{begin:%Y%m%d.%H%M%S}.aaaa", lines)
    (event,) = only(tmp_path)["events"]
    assert event["causes"] == [
        "host gpu3 -> gpu7",
        "gpu driver 570.10 -> 580.82",
        "resolved: schedule_policy: fcfs -> lpm",
    ]


def test_a_change_one_night_beside_the_step_is_named_with_its_date(tmp_path: Path) -> None:
    """The night of the bump was a lucky one: the step seems a night late, and may lie where the versions changed."""
    nights = nightly(30, shape=lambda night: -0.06 * (night >= 20), cv=0.012)
    nights[20] = [20000 * 0.974, 20000 * 0.975, 20000 * 0.976]
    write_nights(tmp_path, nights, change=bumped)
    (event,) = only(tmp_path)["events"]
    assert event["after"].startswith(day(21))
    assert event["causes"] == [f"sglang 0.5.9 -> 0.5.20 (on {day(20)}, where the step may lie as well)"]


def test_a_single_bad_night_is_no_step(tmp_path: Path) -> None:
    nights = nightly(30, shape=lambda night: -0.15 * (night == 13))
    write_nights(tmp_path, nights, change=lambda night: {"host": {"hostname": "gpu9" if night == 13 else "gpu3"}})
    one = only(tmp_path)
    assert (one["state"], one["surely_worse"]) == ("steady", False)
    (event,) = one["events"]
    assert (event["kind"], event["causes"]) == ("bad night", ["host gpu3 -> gpu9"])
    assert event["after"].startswith(day(13))
    assert trend(tmp_path, "--fail").exit_code == 0


def test_a_slow_slope_is_a_drift(tmp_path: Path) -> None:
    write_nights(tmp_path, nightly(30, shape=lambda night: 0.997**night - 1))
    one = only(tmp_path)
    assert (one["state"], one["surely_worse"]) == ("DRIFT", True)
    (event,) = one["events"]
    assert event["a_night"]["lower"] < -0.003 < event["a_night"]["upper"] < 0
    assert "a night" in trend(tmp_path, "--fail", code=1).stdout


def test_an_unchanged_history_is_steady(tmp_path: Path) -> None:
    write_nights(tmp_path, nightly(30, shape=lambda night: 0.0), change=bumped)
    one = only(tmp_path)
    assert (one["state"], one["events"], one["notes"]) == ("steady", [], [])
    assert trend(tmp_path, "--fail").exit_code == 0


def test_a_step_for_the_better_does_not_fail(tmp_path: Path) -> None:
    write_nights(tmp_path, nightly(30, shape=lambda night: 0.06 * (night >= 20)))
    assert "STEP better" in trend(tmp_path, "--fail").stdout


@pytest.mark.parametrize(
    ("then", "state", "kinds", "code"),
    [(0.04, "STEP", 2, 1), (0.1, "STEP", 2, 0), (0.16, "STEP", 2, 0)],
    ids=["partly mended", "mended", "more than mended"],
)
def test_a_loss_lasts_until_it_is_mended(tmp_path: Path, then: float, state: str, kinds: int, code: int) -> None:
    shape = [0.0] * 15 + [-0.1] * 15 + [then - 0.1] * 15
    write_nights(tmp_path, nightly(45, shape=lambda night: shape[night], cv=0.005))
    one = only(tmp_path)
    assert (one["state"], len(one["events"])) == (state, kinds)
    assert ("STEP worse" in trend(tmp_path, "--fail", code=code).stdout) == bool(code)


def test_direction_is_the_metrics(tmp_path: Path) -> None:
    """6 % less throughput is 6.4 % more latency: worse, with a larger number."""
    write_nights(tmp_path, nightly(30, shape=lambda night: -0.06 * (night >= 20)))
    one = only(tmp_path, "--metric", "total_latency")
    assert one["surely_worse"]
    assert one["events"][0]["size"]["lower"] < 1 / 0.94 - 1 < one["events"][0]["size"]["upper"]
    assert "less is better" in trend(tmp_path, "--metric", "total_latency").stdout


def test_another_protocol_is_not_joined_and_told(tmp_path: Path) -> None:
    write_nights(
        tmp_path,
        nightly(30, shape=lambda night: -0.1 * (night >= 15)),
        change=lambda night: {"protocol": {**PROTOCOL, "kv_cache_dtype": "auto" if night < 15 else "fp8_e5m2"}},
    )
    before, now = sorted(page(tmp_path)["trends"], key=lambda one: str(one["first"]))
    assert (before["nights"], now["nights"]) == (15, 15)
    assert (before["superseded"], now["superseded"]) == (True, False)
    assert before["events"] == now["events"] == []
    (note,) = before["notes"]
    assert "kv_cache_dtype: auto -> fp8_e5m2" in note
    assert day(15) in note


def test_nights_of_an_older_format_are_one_series_among_themselves(tmp_path: Path) -> None:
    older = {key: value for key, value in PROTOCOL.items() if key != "kv_cache_dtype"}
    write_nights(
        tmp_path,
        nightly(30, shape=lambda night: 0.0),
        change=lambda night: {"protocol": older if night < 15 else PROTOCOL},
    )
    assert [(one["nights"], one["superseded"]) for one in page(tmp_path)["trends"]] == [(15, False), (15, True)]


def test_series_are_by_cell_hardware_and_side(tmp_path: Path) -> None:
    steady = nightly(12, shape=lambda night: 0.0)
    kinds: list[dict[str, Any]] = [
        {"cell": "h200x8/other/sharegpt/n50/offline"},
        {"hardware": "8x-nvidia-h100"},
        {"topology": "tp16"},
        {"side": "old"},
        {"side": "new"},
    ]
    for number, kind in enumerate(kinds):
        write_nights(tmp_path / str(number), steady, change=lambda night, kind=kind: kind)  # type: ignore[misc]
    write_nights(tmp_path / "plain", steady, day=lambda night: 20.0 + night)
    found = page(*(tmp_path / name for name in ("0", "1", "2", "3", "4", "plain")))["trends"]
    counted = {(one["topology"], one["cell"], one["hardware"]): one["nights"] for one in found}
    assert counted == {
        ("tp8", CELL, HARDWARE): 24,
        ("tp8", "h200x8/other/sharegpt/n50/offline", HARDWARE): 12,
        ("tp8", CELL, "8x-nvidia-h100"): 12,
        ("tp16", CELL, HARDWARE): 12,
    }
    (one,) = page(*(tmp_path / name for name in ("0", "plain")), "--cell", "*/n50/*")["trends"]
    assert one["cell"] == "h200x8/other/sharegpt/n50/offline"


def test_alpha_is_shared_over_the_series(tmp_path: Path) -> None:
    """8 nights can show a step of one series at 0.05, not of two: C(8, 4) / 2 = 35 halvings are fewer than 40."""
    for number in range(2):
        cell = {"cell": f"h200x8/r/w/n{number}/offline"}
        nights = nightly(8, shape=lambda night: -0.3 * (night >= 4))
        write_nights(tmp_path / str(number), nights, change=lambda night, cell=cell: cell)  # type: ignore[misc]
    assert only(tmp_path / "0")["state"] == "STEP"
    assert {one["state"] for one in page(tmp_path / "0", tmp_path / "1")["trends"]} == {"too few nights"}


def test_gaps_are_told(tmp_path: Path) -> None:
    write_nights(tmp_path, nightly(20, shape=lambda night: 0.0), day=lambda night: night + 9.0 * (night >= 12))
    assert only(tmp_path)["notes"] == [f"no night between {day(11)} and {day(21)}"]


def test_only_the_latest_nights_are_looked_at(tmp_path: Path) -> None:
    write_nights(tmp_path, nightly(40, shape=lambda night: -0.1 * (night >= 15)))
    assert only(tmp_path)["state"] == "STEP"
    assert only(tmp_path, "--nights", 25)["state"] == "steady"


def test_nights_that_broke_since_are_told(tmp_path: Path) -> None:
    write_nights(tmp_path, nightly(12, shape=lambda night: 0.0))
    for late in (20, 21):
        time = (START + datetime.timedelta(days=late)).isoformat()
        broke = {**sample(1, time=time), "kind": "problem", "verdict": "OOM", "cause": "CUDA out of memory", "log": ""}
        write_session(tmp_path, f"late.{late}", [broke])
    assert only(tmp_path)["notes"] == [f"broke 2 times since the latest night, last on {day(21)}: OOM"]


def stored(root: Path, samples: list[float], **protocol: object) -> Path:
    path = root / HARDWARE / "tp8.yaml"
    path.parent.mkdir(parents=True)
    cell = {
        "metrics": {"total_throughput": {"unit": "tok/s", "samples": samples}},
        "tolerance": None,
        "note": "",
        "protocol": {**PROTOCOL, **protocol},
        "provenance": {"date": "2026-08-01"},
    }
    data = {"version": 1, "hardware": {"name": "NVIDIA H200", "count": 8}, "topology": "tp8", "cells": {CELL: cell}}
    path.write_text(yaml.safe_dump(data))
    return root


def test_the_pinned_baseline_shows_what_every_night_hid(tmp_path: Path) -> None:
    """10 % under a baseline that no step of these nights led to."""
    write_nights(tmp_path / "out", nightly(20, shape=lambda night: -0.1))
    root = stored(tmp_path / "baselines", [19900.0, 20000.0, 20100.0])
    one = only(tmp_path / "out", "--baselines", root)
    assert one["state"] == "steady"
    against = one["against_baseline"]
    assert against["lower"] < 0.9 < against["upper"] < 1
    assert "of baseline" in trend(tmp_path / "out", "--baselines", root).stdout


def test_a_baseline_of_another_protocol_is_not_compared(tmp_path: Path) -> None:
    write_nights(tmp_path / "out", nightly(12, shape=lambda night: 0.0))
    root = stored(tmp_path / "baselines", [20000.0], kv_cache_dtype="fp8_e5m2")
    one = only(tmp_path / "out", "--baselines", root)
    assert one["against_baseline"] is None
    assert one["notes"] == ["baseline: another protocol, not compared: kv_cache_dtype: fp8_e5m2 -> auto"]


def test_a_baseline_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    write_nights(tmp_path / "out", nightly(12, shape=lambda night: 0.0))
    root = stored(tmp_path / "baselines", [-1.0])
    (note,) = only(tmp_path / "out", "--baselines", root)["notes"]
    assert "must be" in note or "finite number above 0" in note


def test_the_worst_come_first(tmp_path: Path) -> None:
    for name, size in (("a", 0.0), ("b", -0.05), ("c", 0.08), ("d", -0.2)):
        cell = {"cell": f"h200x8/{name}/sharegpt/n50/offline"}
        nights = nightly(24, shape=lambda night, size=size: size * (night >= 12))  # type: ignore[misc]
        write_nights(tmp_path / name, nights, change=lambda night, cell=cell: cell)  # type: ignore[misc]
    found = page(*(tmp_path / name for name in "abcd"))["trends"]
    assert [one["cell"].split("/")[1] for one in found] == ["d", "b", "c", "a"]


# Bad input: one sentence each.


def test_one_night(tmp_path: Path) -> None:
    write_nights(tmp_path, [[20000.0, 20100.0]])
    text = trend(tmp_path, "--fail").stdout
    assert "too few nights (1 of 8)" in text
    assert "1 night: a step or a drift can be told from 8 nights on" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["absent"], "absent: cannot be read (No such file or directory)"),
        (["empty"], "no night was found: empty: has no records"),
        (["ended"], "no night was found: measure with"),
        (["out", "--metric", "total_throughputs"], "did you mean 'total_throughput'?"),
        (["out", "--metric", "tokps_per_gpu"], "no night has it (measured: total_latency, total_throughput)"),
        (["out", "--cell", "cpu/*"], f"--cell 'cpu/*' matches no cell (known: {CELL})"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    write_session(Path("ended"), "20260901.023000.aaaa", [])
    write_nights(Path("out"), nightly(3, shape=lambda night: 0.0))
    with pytest.raises(R1PerfError) as error:
        trend(*arguments)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_without_a_path_it_is_the_usual_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(R1PerfError, match=r"\.r1perf: cannot be read"):
        trend()
    write_nights(Path(".r1perf"), nightly(9, shape=lambda night: 0.0))
    assert only()["nights"] == 9


def test_problems_of_the_history_end_the_page(tmp_path: Path) -> None:
    write_nights(tmp_path, nightly(9, shape=lambda night: 0.0))
    path = write_session(tmp_path, "20270101.000000.aaaa", [], ended=False)
    with path.open("a") as file:
        file.write('{"format": 1, "kind": "sam')
    text = trend(tmp_path).stdout.rstrip().splitlines()
    assert text[-2] == "of the history:"
    assert text[-1] == f"  {path}:2: cut short, since its writer was killed: left out"
    assert page(tmp_path)["problems"] == [text[-1].strip()]


def test_sparklines() -> None:
    assert sparkline([5.0, 5.0]) == "▄▄"
    assert sparkline([0.0, 7.0, 3.0]) == "▁█▄"
    assert len(sparkline([float(value) for value in range(200)])) == 60
