"""What changed since a baseline was stored, once each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_r1perf.baseline import Baseline
from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.cell import cell_of
from pytest_r1perf.changes import changes_since, command_line
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.measurement import Measurement
from pytest_r1perf.sglang.log import read_log
from pytest_r1perf.sglang.resolved import resolved_of, storable

RECORDED = Path(__file__).parent / "recorded"
COMMAND = ("/opt/venv/bin/python", "-m", "bench", "--mem-fraction-static", "0.8", "--result-filename", "/tmp/x.jsonl")


def measured(**changes: object) -> Measurement:
    catalog = load_catalog()
    cell = cell_of(PerfSpec(topology="tp1", n=50), catalog.platform("cpu"), catalog)
    plain = Measurement(cell, command=COMMAND, env={"X": "1"}, versions={"sglang": "0.5.9"})
    return replace(plain, **changes)  # type: ignore[arg-type]


def stored(measurement: Measurement, **provenance: object) -> Baseline:
    """The baseline of a measurement as `assess` stores it."""
    kept: dict[str, object] = {
        "versions": dict(measurement.versions),
        "env": dict(measurement.env),
        "command": command_line(measurement),
        "resolved": storable(measurement.resolved),
    }
    return Baseline("cell", {}, {}, {**kept, **provenance})


def test_nothing_changed() -> None:
    same = measured(resolved=resolved_of(read_log(RECORDED / "rig_0.5.9.log")))
    assert changes_since(stored(same), same) == []
    assert changes_since(None, same) == []


def test_everything_is_listed_once() -> None:
    """The flag is in the command line and among the resolved arguments; its follower is there only."""
    old = measured(resolved={"mem_fraction_static": 0.8, "max_total_num_tokens": 1000, "random_seed": 1})
    new = measured(
        versions={"sglang": "0.5.20"},
        env={"X": "2", "Y": "3"},
        command=(*COMMAND[:4], "0.7", *COMMAND[5:]),
        resolved={"mem_fraction_static": 0.7, "max_total_num_tokens": 800, "random_seed": 2},
    )
    assert changes_since(stored(old), new) == [
        "versions: sglang: 0.5.9 -> 0.5.20",
        "env: X: 1 -> 2",
        "env: Y: absent -> 3",
        "command: --mem-fraction-static 0.8 -> 0.7",
        "resolved: max_total_num_tokens: 1000 -> 800",
    ]


def test_the_hosts_settings_are_compared_where_the_baseline_has_them() -> None:
    same = measured()
    now = {"gpu driver": "580.159.04", "gpu power_limit_w": "600.0", "kernel": "6.8"}
    then = {"gpu driver": "570.86", "gpu power_limit_w": "600.0", "kernel": "6.8"}
    assert changes_since(stored(same), same, now) == []
    assert changes_since(stored(same, host_settings=then), same, now) == ["host: gpu driver: 570.86 -> 580.159.04"]


def test_a_default_that_moved_is_a_resolved_difference() -> None:
    old = measured(resolved=resolved_of(read_log(RECORDED / "rig_0.5.9.log")))
    new = measured(resolved=resolved_of(read_log(RECORDED / "rig_0.5.20.log")))
    assert changes_since(stored(old), new) == [
        "resolved: effective_max_running_requests_per_dp: 4096 -> 2048",
        "resolved: mem_fraction_static: 0.716 -> 0.713",
        "resolved: set only before: fp4_gemm_runner_backend=flashinfer_cutlass",
        "resolved: set only now: retraction_policy=length",
    ]


def test_a_baseline_of_an_older_file_has_no_resolved_arguments() -> None:
    new = measured(resolved={"mem_fraction_static": 0.7})
    old = stored(new)
    provenance = {key: value for key, value in old.provenance.items() if key != "resolved"}
    assert changes_since(replace(old, provenance=provenance), new) == []
