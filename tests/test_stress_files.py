"""Reading and writing result files, the guide's format, and the report on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.stress.cases import BATCH_SIZES, INPUT_LENS, OUTPUT_LENS, Case, grid
from pytest_r1perf.stress.commands import stress_command
from pytest_r1perf.stress.document import convert
from pytest_r1perf.stress.folder import contents
from pytest_r1perf.stress.rows import Fault, read_case_file
from tests.stresses import guide_row, write_rows

ONE = Case(1, 128, 256)

# The example of the private-deployment guide.
EXAMPLE: dict[str, Any] = {
    "run_name": "default",
    "batch_size": 1,
    "input_len": 128,
    "output_len": 256,
    "latency": 8.6279,
    "output_throughput": 29.67,
    "overall_throughput": 44.51,
}
# SGLang 0.5.20 on a CPU: its output_throughput divides by the latency less the time to the first token.
NEWER: dict[str, Any] = {
    "run_name": "default",
    "batch_size": 4,
    "input_len": 32,
    "output_len": 64,
    "latency": 0.2614,
    "input_throughput": 7918.37,
    "output_throughput": 1043.82,
    "overall_throughput": 1468.91,
    "last_ttft": 0.0162,
    "last_gen_throughput": 465.5,
    "acc_length": -1.0,
    "cache_hit_rate": None,
}


def mark(repeat: int) -> dict[str, Any]:
    return {"r1perf": {"sweep": "5f", "server": "9c", "repeat": repeat}}


def invoke(*arguments: str) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(stress_command, list(arguments))
    return done.exit_code, done.output, done.exception


# --- reading


def test_the_guides_example_is_read_as_it_is(tmp_path: Path) -> None:
    found = read_case_file(write_rows(tmp_path, ONE, EXAMPLE), ONE)
    assert found.flaw is None
    (row,) = found.rows
    assert row.mark is None
    assert row.result.output_throughput == pytest.approx(256 / 8.6279)


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_guides_example_as_it_is_printed(tmp_path: Path, end: str) -> None:
    """Over nine lines."""
    path = tmp_path / "1-128-256.jsonl"
    path.write_text(json.dumps(EXAMPLE, indent=4) + end)
    found = read_case_file(path, ONE)
    assert found.flaw is None
    assert [row.result.latency_s for row in found.rows] == [8.6279]
    for broken in (path.read_text()[:-20], path.read_text().replace("29.67", "31.67")):
        path.write_text(broken)
        assert read_case_file(path, ONE).flaw is not None


def test_rows_with_a_mark_and_without_are_not_of_one_run(tmp_path: Path) -> None:
    found = read_case_file(write_rows(tmp_path, ONE, {**EXAMPLE, **mark(1)}, guide_row(ONE, 9.0)), ONE)
    assert found.flaw is not None
    assert found.flaw.fault is Fault.UNMARKED


def test_files_of_several_sweeps_without_a_manifest_are_not_mixed(tmp_path: Path) -> None:
    write_rows(tmp_path, ONE, {**EXAMPLE, **mark(1)})
    other = Case(1, 128, 512)
    write_rows(tmp_path, other, {**guide_row(other, 17.0), "r1perf": {"sweep": "60", "server": "9c", "repeat": 1}})
    for command in (["report", str(tmp_path)], ["convert", str(tmp_path), str(tmp_path / "to")]):
        _, _, error = invoke(*command)
        assert isinstance(error, R1PerfError)
        assert "rows of sweep 5f and of sweep 60: which belong together is not known" in str(error)
    write_rows(tmp_path, other, guide_row(other, 17.0))
    with pytest.raises(R1PerfError, match="rows of sweep 5f and without a mark"):
        contents(tmp_path)
    write_rows(tmp_path, other, {**guide_row(other, 17.0), **mark(1)})
    assert invoke("report", str(tmp_path))[0] == 0


def test_an_absent_file_is_empty(tmp_path: Path) -> None:
    found = read_case_file(tmp_path / "1-128-256.jsonl", ONE)
    assert (found.rows, found.skip, found.flaw) == ((), None, None)


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("output_throughput", 29.9, Fault.CONTRADICTION),
        ("overall_throughput", 29.67, Fault.CONTRADICTION),
        ("latency", 0, Fault.GARBLED),
        ("batch_size", 2, Fault.OTHER_CASE),
        ("r1perf", {"sweep": "5f"}, Fault.GARBLED),
        ("r1perf", {"sweep": "5f", "server": "9c", "repeat": 0}, Fault.GARBLED),
        ("skipped", "", Fault.GARBLED),
    ],
)
def test_rows_that_do_not_count(tmp_path: Path, key: str, value: object, fault: Fault) -> None:
    found = read_case_file(write_rows(tmp_path, ONE, {**EXAMPLE, key: value}), ONE)
    assert found.flaw is not None
    assert found.flaw.fault is fault


def test_the_same_row_twice_is_a_duplicate(tmp_path: Path) -> None:
    found = read_case_file(write_rows(tmp_path, ONE, EXAMPLE, EXAMPLE), ONE)
    assert found.flaw is not None
    assert found.flaw.fault is Fault.DUPLICATED
    other = guide_row(ONE, 8.7)
    assert read_case_file(write_rows(tmp_path, ONE, EXAMPLE, other), ONE).flaw is None
    skip = {"batch_size": 1, "input_len": 128, "output_len": 256, "skipped": "no room"}
    both = read_case_file(write_rows(tmp_path, ONE, EXAMPLE, skip), ONE)
    assert both.flaw is not None
    assert both.flaw.fault is Fault.DUPLICATED


@given(st.integers(1, 400))
def test_a_file_that_was_cut_anywhere_does_not_count(tmp_path_factory: pytest.TempPathFactory, left: int) -> None:
    path = write_rows(tmp_path_factory.mktemp("cut"), ONE, {**EXAMPLE, **mark(1)}, {**guide_row(ONE, 9.0), **mark(2)})
    data = path.read_bytes()
    first_line = data.index(b"\n") + 1
    path.write_bytes(data[: min(left, len(data) - 1)])
    found = read_case_file(path, ONE)
    assert (found.flaw is None) == (left == first_line)  # cut between two rows, it is one repeat


@given(st.binary(max_size=300))
def test_no_bytes_are_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "1-128-256.jsonl"
    path.write_bytes(data)
    found = read_case_file(path, ONE)
    assert found.flaw is not None
    assert "\n" not in found.flaw.sentence


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from([*EXAMPLE, "last_ttft", "total_output_tokens", "num_early_stopped", "r1perf", "skipped"]), JSON)
def test_no_value_is_a_traceback(tmp_path_factory: pytest.TempPathFactory, key: str, value: object) -> None:
    path = write_rows(tmp_path_factory.mktemp("value"), Case(4, 32, 64), {**NEWER, key: value})
    found = read_case_file(path, Case(4, 32, 64))
    if found.flaw is None and found.skip is None:
        assert found.rows[0].result.case == (4, 32, 64)


# --- the guide's format


def test_newer_rows_are_written_by_the_guides_two_formulas(tmp_path: Path) -> None:
    source, target = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    write_rows(source, Case(4, 32, 64), {**NEWER, **mark(1)})
    write_rows(source, ONE, {**EXAMPLE, **mark(1)})
    assert convert(source, target) == (2, 2, ())
    assert json.loads((target / "1-128-256.jsonl").read_text()) == EXAMPLE
    newer = json.loads((target / "4-32-64.jsonl").read_text())
    assert list(newer) == list(EXAMPLE)
    assert newer["output_throughput"] == 979.34  # 4 * 64 / 0.2614
    assert newer["overall_throughput"] == 1469.01  # 4 * (32 + 64) / 0.2614
    for case in (ONE, Case(4, 32, 64)):
        assert contents(target).files[case].flaw is None


@given(st.integers(1, 64), st.integers(1, 8192), st.integers(1, 8192), st.floats(0.01, 5000))
def test_what_was_converted_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, batch: int, inputs: int, outputs: int, latency: float
) -> None:
    folder = tmp_path_factory.mktemp("convert")
    case = Case(batch, inputs, outputs)
    write_rows(folder, case, guide_row(case, latency))
    assert convert(folder, folder / "to") == (1, 1, ())
    (row,) = contents(folder / "to").files[case].rows
    assert row.result.latency_s == round(latency, 4)


def test_what_is_not_converted_is_said(tmp_path: Path) -> None:
    write_rows(tmp_path, ONE, {**EXAMPLE, **mark(1)}, {**guide_row(ONE, 9.0), **mark(2)})
    write_rows(tmp_path, Case(2, 128, 256), EXAMPLE)
    skipped = {"batch_size": 64, "input_len": 1, "output_len": 1, "skipped": "no room"}
    write_rows(tmp_path, Case(64, 1, 1), {**skipped, **mark(1)})
    files, rows, left = convert(tmp_path, tmp_path / "to", repeat=2)
    assert (files, rows) == (1, 1)
    assert left == ("2-128-256.jsonl line 1 is of another case: 1-128-256", "64-1-1: skipped: no room")
    assert json.loads((tmp_path / "to" / "1-128-256.jsonl").read_text())["latency"] == 9.0
    with pytest.raises(R1PerfError, match="is there already"):
        convert(tmp_path, tmp_path / "to")
    with pytest.raises(R1PerfError, match="no row of repeat 3"):
        convert(tmp_path, tmp_path / "other", repeat=3)
    plain = tmp_path / "plain"
    plain.mkdir()
    write_rows(plain, ONE, EXAMPLE, guide_row(ONE, 9.0))
    assert convert(plain, tmp_path / "second", repeat=2)[:2] == (1, 1)
    assert json.loads((tmp_path / "second" / "1-128-256.jsonl").read_text())["latency"] == 9.0


# --- the report


def guide_folder(folder: Path, *repeats: float) -> Path:
    """90 files of a server with 25 ms a token at batch size 1 and 50 ms at 32, times a factor a repeat."""
    folder.mkdir(exist_ok=True)
    for case in grid(BATCH_SIZES, INPUT_LENS, OUTPUT_LENS):
        latency = case.output_len * (0.0242 + 0.0008 * case.batch_size)
        write_rows(folder, case, *(guide_row(case, latency * factor) for factor in repeats))
    return folder


def test_the_report_of_the_guides_own_files(tmp_path: Path) -> None:
    code, text, _ = invoke("report", str(guide_folder(tmp_path / "guide", 1.0)))
    assert code == 0
    lines = text.splitlines()
    assert lines[0].startswith("server: not known")
    assert lines[1].startswith("90 cases, 1 repeat; bench_one_batch_server: output tokens / latency")
    assert "No intervals: every case was measured once" in text
    assert '"an increase of nearly 12 times from 1 to 32": CAN\'T BE SAID: from batch size 1 to 32' in text
    (row,) = [line.split() for line in lines if line.split()[:2] == ["32", "18"]]
    assert row[2] == "642.6"  # 32 / 0.0498 tok/s
    assert max(map(len, lines)) <= 130


def test_the_report_with_repeats(tmp_path: Path) -> None:
    code, text, _ = invoke("report", str(guide_folder(tmp_path / "guide", 1.0, 1.01, 0.99)), "--pays", "0.5")
    assert code == 0
    assert '"from 16 to 32 only about 25 %": DOES NOT HOLD: from 16 to 32 it is 1.486 [' in text
    assert '"no significant correlation of input length (< 0.01)": HOLDS:' in text
    assert "doubling the batch stops paying at batch size 16: from there it gains less than 50 %" in text
    plot = [line for line in text.splitlines() if "#" in line]
    assert [line.split()[0] for line in plot] == ["1", "4", "8", "16", "32"]
    places = [line.index("#") for line in plot]
    assert places == sorted(set(places))


def test_the_charts_values(tmp_path: Path) -> None:
    code, text, _ = invoke("report", str(guide_folder(tmp_path / "guide", 1.0, 1.02)), "--json")
    assert code == 0
    data = json.loads(text)
    assert len(data["values"]) == 90
    assert [one["batch_size"] for one in data["boxes"]] == [1, 4, 8, 16, 32]
    assert data["boxes"][0]["median"] == pytest.approx(40 / 1.02**0.5, rel=1e-4)
    assert data["effects"][0]["ratio"]["value"] == pytest.approx(0.025 / 0.0498 * 32, rel=1e-4)
    assert data["effects"][0]["ratio"]["low"] <= data["effects"][0]["ratio"]["value"]
    assert (data["knee"]["size"], data["knee"]["pays"]) == (None, 0.25)
    assert {one["holds"] for one in data["conclusions"]} == {"holds", "does not hold", "can't be said"}


def test_the_report_names_what_it_leaves_out(tmp_path: Path) -> None:
    folder = guide_folder(tmp_path / "guide", 1.0)
    (folder / "1-128-256.jsonl").write_text("{")
    (folder / "notes.jsonl").write_text("{}\n")
    code, text, _ = invoke("report", str(folder))
    assert code == 0
    assert "1-128-256.jsonl line 1 has no end: its writer was killed" in text
    assert "notes.jsonl: named as no case is" in text
    assert "89 cases, 1 repeat" in text


def test_lengths_that_one_batch_size_lacks_are_no_effect_of_the_others(tmp_path: Path) -> None:
    """Batches of 32 whose longest answers did not fit: what is left of them are the shorter ones."""
    folder = guide_folder(tmp_path / "guide", 1.0, 1.01)
    for case in grid((32,), INPUT_LENS, (4096, 8192)):
        (folder / f"{case.name}.jsonl").unlink()
    code, text, _ = invoke("report", str(folder))
    assert code == 0
    assert '"no significant correlation of output length (< 0.01)": HOLDS: r of output length' in text
    assert "24 of 84 cases have lengths that not every batch size was measured with" in " ".join(text.split())


def test_converted_rows_no_longer_tell_how_they_were_measured(tmp_path: Path) -> None:
    newer = {"input_throughput": 640.0, "output_throughput": 32.0, "overall_throughput": 46.83, "last_ttft": 0.2}
    answers = {"latency": 8.2, "total_output_tokens": 256, "last_gen_throughput": 1.0, "acc_length": -1.0}
    write_rows(tmp_path, ONE, {**EXAMPLE, **newer, **answers, **mark(1)})
    convert(tmp_path, tmp_path / "to")
    own, there = (" ".join(invoke("report", str(folder))[1].split()) for folder in (tmp_path, tmp_path / "to"))
    assert "streamed answers" in own
    assert "do not tell how they were measured" not in own
    assert "rows of seven keys do not tell how they were measured" in there


def test_a_step_that_no_lengths_tell_of_is_named(tmp_path: Path) -> None:
    folder = guide_folder(tmp_path / "guide", 1.0)
    for case in grid((4,), INPUT_LENS, (1024, 2048, 4096, 8192)):
        (folder / f"{case.name}.jsonl").unlink()
    for case in grid((8,), INPUT_LENS, (256, 512)):
        (folder / f"{case.name}.jsonl").unlink()
    code, text, _ = invoke("report", str(folder))
    assert code == 0
    assert "nothing is known of 4 to 8: no lengths were measured with both sizes" in " ".join(text.split())
    code, text, _ = invoke("report", str(folder), "--json")
    assert json.loads(text)["knee"]["gaps"] == [[4, 8]]


@pytest.mark.parametrize(
    ("make", "says"), [(False, "there is no such folder"), (True, "no case has been measured yet")]
)
def test_a_folder_without_results(tmp_path: Path, make: bool, says: str) -> None:
    folder = tmp_path / "results"
    if make:
        folder.mkdir()
    _, _, error = invoke("report", str(folder))
    assert isinstance(error, R1PerfError)
    assert says in str(error)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name the server: --base-url URL"),
        (["--platform", "cpu"], "name the server"),
        (["--base-url", "h:1", "--topology", "tp1"], "leave --topology and --recipe out"),
        (["--base-url", "h:1", "--batch-sizes", "1,x"], "--batch-sizes '1,x': 'x' is no whole number"),
        (["--base-url", "ftp://h"], "is no address of a server"),
        (["--base-url", "http://127.0.0.1:9"], "the server at http://127.0.0.1:9 is not there: nothing answers"),
    ],
)
def test_mistakes_of_a_run(tmp_path: Path, arguments: list[str], says: str) -> None:
    _, _, error = invoke("run", str(tmp_path / "results"), *arguments)
    assert isinstance(error, R1PerfError)
    assert says in str(error)
    assert not (tmp_path / "results").exists()
