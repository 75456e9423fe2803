"""Baseline files: refusals, the round trip, what an update keeps."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_r1perf.baseline import Baseline, load, other_hardware, path_of, store
from pytest_r1perf.errors import DataError, R1PerfError
from pytest_r1perf.hardware import Hardware

H200 = Hardware("NVIDIA H200", 8, tuple(f"GPU-{n}" for n in range(8)), is_cpu=False)
KEY = "h200x8/tp8-champion/sharegpt/n7000/offline"

GOOD = f"""\
version: 1
hardware: {{name: NVIDIA H200, count: 8}}
topology: tp8
cells:
  {KEY}:
    metrics:
      total_throughput: {{unit: tok/s, samples: [22854.0, 22790, 22901.5]}}
      total_latency: {{unit: s, samples: [133.1, 133.4, 132.9]}}
    tolerance: 0.04
    note: after the driver update
    protocol: {{tp_size: 8, quantization: null}}
    provenance: {{date: '2026-11-01T02:00:00+00:00', versions: {{sglang: 0.5.9}}}}
"""


def write(folder: Path, text: str, name: str = "tp8.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def entry(key: str = KEY, **changes: object) -> Baseline:
    made = Baseline(key, {"total_throughput": (100.0, 101.5)}, {"tp_size": 8}, {"date": "2026-11-01"})
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_good_file(tmp_path: Path) -> None:
    file = load(write(tmp_path, GOOD))
    assert (file.hardware_name, file.hardware_count, file.topology) == ("NVIDIA H200", 8, "tp8")
    cell = file.cells[KEY]
    assert cell.samples["total_throughput"] == (22854.0, 22790.0, 22901.5)
    assert cell.samples["total_latency"] == (133.1, 133.4, 132.9)
    assert cell.tolerance == 0.04
    assert cell.note == "after the driver update"
    assert cell.protocol == {"tp_size": 8, "quantization": None}
    assert cell.provenance["versions"] == {"sglang": "0.5.9"}


SAMPLES = "[22854.0, 22790, 22901.5]"
PLACE = re.escape(f"cells.{KEY}.")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("version: 1", "version: 2", r":1: version: version 2 is not known"),
        ("version: 1\n", "", r":1: file: key 'version' is missing"),
        ("version: 1", "version: true", r":1: version: must be a whole number"),
        ("topology: tp8", "topology: pp2", r":3: topology: is 'pp2', but the file is named tp8.yaml"),
        ("count: 8", "count: 0", r":2: hardware.count: must be a whole number"),
        ("count: 8", "count: 8, extra: 1", r":2: hardware.extra: key is not known"),
        ("unit: tok/s", "unit: tok/min", rf":7: {PLACE}metrics.total_throughput.unit: is 'tok/min'"),
        ("unit: tok/s, ", "", rf":7: {PLACE}metrics.total_throughput: key 'unit' is missing"),
        ("total_throughput", "total_troughput", r":7: .*metric 'total_troughput' is not known"),
        (SAMPLES, "[22854.0, 0, 22901.5]", r":7: .*samples: every sample must be .* above 0, got 0"),
        (SAMPLES, "[22854.0, -22790, 22901.5]", r":7: .*samples: every sample must be .* above 0, got -22790"),
        (SAMPLES, "[22854.0, .nan, 22901.5]", r":7: .*samples: every sample must be a finite number"),
        (SAMPLES, "[22854.0, .inf, 22901.5]", r":7: .*samples: every sample must be a finite number"),
        (SAMPLES, "[22854.0, true, 22901.5]", r":7: .*samples: every sample must be a finite number"),
        (SAMPLES, "[22854.0, '22790', 22901.5]", r":7: .*samples: every sample must be a finite number"),
        (SAMPLES, f"[22854.0, 1{'0' * 400}, 22901.5]", r":7: .*samples: every sample must be a finite number"),
        (SAMPLES, "[]", r":7: .*samples: must be a list of numbers"),
        (SAMPLES, "22854", r":7: .*samples: must be a list of numbers"),
        (SAMPLES, "[22854.0, 22790]", r":6: .*metrics: the metrics have different numbers of samples"),
        ("tolerance: 0.04", "tolerance: 1.0", r":9: .*tolerance: must be above 0 and below 1"),
        ("tolerance: 0.04", "tolerance: -0.1", r":9: .*tolerance: must be above 0"),
        ("tolerance: 0.04", "tolerance: 4 %", r":9: .*tolerance: must be a number"),
        ("tolerance", "tolerence", r":9: .*tolerence: key is not known; did you mean 'tolerance'"),
        ("{tp_size: 8, quantization: null}", "{}", r":11: .*protocol: has no protocol"),
        ("    note:", "    tolerance: 0.05\n    note:", r":10: .*tolerance: key stands twice"),
        ("      total_latency", "      total_throughput", r":8: .*key stands twice"),
    ],
)
def test_refused(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(DataError) as caught:
        load(path)
    assert re.match(re.escape(str(path)) + complaint, str(caught.value)), caught.value


@pytest.mark.parametrize("metrics", ["{}", "null"])
def test_a_cell_without_metrics_is_refused(tmp_path: Path, metrics: str) -> None:
    text = f"version: 1\nhardware: {{name: x, count: 1}}\ntopology: tp8\ncells:\n  k: {{metrics: {metrics}}}\n"
    with pytest.raises(DataError, match=r":5: cells\.k\.metrics: has no metrics"):
        load(write(tmp_path, text))


def test_store_makes_a_file_for_review(tmp_path: Path) -> None:
    path = store(tmp_path, H200, "tp8", {KEY: entry()})
    assert path == tmp_path / "8x-nvidia-h200" / "tp8.yaml" == path_of(tmp_path, H200.key, "tp8")
    assert path.read_text(encoding="utf-8") == (
        "version: 1\n"
        "hardware:\n  name: NVIDIA H200\n  count: 8\n"
        "topology: tp8\n"
        "cells:\n"
        f"  {KEY}:\n"
        "    metrics:\n      total_throughput:\n        unit: tok/s\n        samples: [100.0, 101.5]\n"
        "    tolerance: null\n"
        "    note: ''\n"
        "    protocol:\n      tp_size: 8\n"
        "    provenance:\n      date: '2026-11-01'\n"
    )
    assert [item.name for item in path.parent.iterdir()] == ["tp8.yaml"]  # no temporary file is left


def test_an_update_keeps_the_reviewers_words_and_the_other_cells(tmp_path: Path) -> None:
    folder = tmp_path / H200.key
    folder.mkdir()
    path = write(folder, GOOD)
    before = load(path).cells[KEY]
    store(tmp_path, H200, "tp8", {"other": entry("other")})
    assert load(path).cells == {KEY: before, "other": entry("other")}

    fresh = {"total_throughput": (23000.0,), "total_latency": (130.0,)}
    store(tmp_path, H200, "tp8", {KEY: entry(samples=fresh)})
    after = load(path).cells
    assert after[KEY].samples == fresh
    assert after[KEY].tolerance == 0.04
    assert after[KEY].note == "after the driver update"
    assert after[KEY].provenance == {"date": "2026-11-01"}
    assert after["other"] == entry("other")


def test_a_new_note_replaces_the_old_one_and_a_tolerance_fills_a_gap(tmp_path: Path) -> None:
    store(tmp_path, H200, "tp8", {KEY: entry(note="old")})
    path = store(tmp_path, H200, "tp8", {KEY: entry(note="new", tolerance=0.1)})
    assert load(path).cells[KEY].note == "new"
    assert load(path).cells[KEY].tolerance == 0.1
    store(tmp_path, H200, "tp8", {KEY: entry(tolerance=0.2)})
    assert load(path).cells[KEY].tolerance == 0.1


def test_a_wrong_file_is_not_written_over(tmp_path: Path) -> None:
    folder = tmp_path / H200.key
    folder.mkdir()
    path = write(folder, GOOD.replace("version: 1", "version: 9"))
    before = path.read_bytes()
    with pytest.raises(DataError):
        store(tmp_path, H200, "tp8", {KEY: entry()})
    assert path.read_bytes() == before


def test_small_values_do_not_become_zero(tmp_path: Path) -> None:
    path = store(tmp_path, H200, "tp8", {KEY: entry(samples={"request_throughput": (3.2e-8, 1.23456789012e9)})})
    assert load(path).cells[KEY].samples["request_throughput"] == pytest.approx((3.2e-8, 1.23456789012e9), rel=1e-9)


def test_line_ends_of_unicode_survive(tmp_path: Path) -> None:
    note = "one\x85two\u2028three\u2029four\ufeff\r\nfive µ"
    path = store(tmp_path, H200, "tp8", {KEY: entry(note=note)})
    assert load(path).cells[KEY].note == note


def test_one_object_in_two_places_is_written_out_twice(tmp_path: Path) -> None:
    """An alias would be gone after the next load and store: a diff without a change."""
    shared: Mapping[str, object] = {"sglang": "0.5.9", "list": [1, 2]}
    entries = {key: entry(key, provenance={"versions": shared, "again": shared}) for key in ("a", "b")}
    path = store(tmp_path, H200, "tp8", entries)
    text = path.read_text(encoding="utf-8")
    assert "&" not in text
    assert "*" not in text
    store(tmp_path, H200, "tp8", load(path).cells)
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_an_unwritable_folder_is_one_sentence_and_nothing_lost(tmp_path: Path) -> None:
    path = store(tmp_path, H200, "tp8", {KEY: entry()})
    before = path.read_bytes()
    path.parent.chmod(0o555)
    try:
        with pytest.raises(R1PerfError, match=r"cannot be written \(Permission denied\)"):
            store(tmp_path, H200, "tp8", {KEY: entry(note="x")})
    finally:
        path.parent.chmod(0o755)
    assert path.read_bytes() == before


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / H200.key).write_text("in the way")
    with pytest.raises(R1PerfError, match="cannot be written"):
        store(tmp_path, H200, "tp8", {KEY: entry()})
    assert (tmp_path / H200.key).read_text() == "in the way"


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(tmp_path, H200, "tp8", {KEY: entry()})
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(R1PerfError, match=r"cannot be written \(No space left on device\)"):
        store(tmp_path, H200, "tp8", {KEY: entry(note="x")})
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.iterdir()] == ["tp8.yaml"]


def test_other_hardware(tmp_path: Path) -> None:
    one = Hardware("NVIDIA H200", 1, ("GPU-0",), is_cpu=False)
    store(tmp_path, one, "tp8", {KEY: entry()})
    store(tmp_path, H200, "tp8", {"other": entry("other")})
    assert [file.hardware_count for file in other_hardware(tmp_path, H200.key, "tp8", KEY)] == [1]
    assert other_hardware(tmp_path, one.key, "tp8", KEY) == []
    assert other_hardware(tmp_path, one.key, "pp2", KEY) == []


# -- properties ---------------------------------------------------------------------------------------------

names = st.text(string.ascii_letters + string.digits + "_-./=:# ", min_size=1, max_size=20).filter(str.strip)
texts = st.text(max_size=30)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(-1e9, 1e9), texts)
values = st.floats(min_value=1e-3, max_value=1e9).map(lambda value: float(f"{value:.9g}"))
provenances = st.dictionaries(names, st.one_of(scalars, st.dictionaries(names, texts, max_size=3)), max_size=4)


@st.composite
def baselines(draw: st.DrawFn, key: str) -> Baseline:
    count = draw(st.integers(1, 5))
    metrics = draw(st.lists(st.sampled_from(["total_throughput", "total_latency"]), min_size=1, unique=True))
    samples = {name: tuple(draw(st.lists(values, min_size=count, max_size=count))) for name in metrics}
    protocol = draw(st.dictionaries(names, scalars, min_size=1, max_size=4))
    tolerance = draw(st.one_of(st.none(), st.floats(0.001, 0.999)))
    return Baseline(key, samples, protocol, draw(provenances), tolerance, draw(texts))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), keys=st.lists(names, min_size=2, max_size=4, unique=True))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, keys: list[str]) -> None:
    root = tmp_path_factory.mktemp("baselines")
    entries = {key: data.draw(baselines(key)) for key in keys}
    path = store(root, H200, "tp8", entries)
    first = path.read_bytes()
    assert load(path).cells == entries
    assert list(load(path).cells) == sorted(keys)

    store(root, H200, "tp8", entries)
    assert path.read_bytes() == first
    store(root, H200, "tp8", load(path).cells)
    assert path.read_bytes() == first

    changed = replace(entries[keys[0]], samples={"total_throughput": (1.0, 2.0)}, note="", tolerance=None)
    store(root, H200, "tp8", {keys[0]: changed})
    after = load(path).cells
    assert after[keys[0]].samples == {"total_throughput": (1.0, 2.0)}
    assert after[keys[0]].note == entries[keys[0]].note
    assert after[keys[0]].tolerance == entries[keys[0]].tolerance
    assert all(after[key] == entries[key] for key in keys[1:])
