"""``r1perf compare``: two result files, judged outside pytest."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf.baseline import Baseline, store
from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.compare.cells import Conditions, Measured, Side, compare, compare_cell
from pytest_r1perf.compare.commands import compare_command
from pytest_r1perf.hardware import Hardware
from pytest_r1perf.verdict import Verdict

CELL = "cpu/default/sharegpt/n50/offline"
CPU = Hardware("AMD EPYC", 2, ("cpu",), is_cpu=True)
PROTOCOL = {"tp_size": 1, "device": "cpu", "workload": "3da9", "decode_graph": "off", "attention_backend": "triton"}
CATALOG = load_catalog()
FAST = (4500.0, 4509.0, 4491.0, 4504.5, 4495.5)
SLOW = tuple(value / 2 for value in FAST)
SAME = (4498.0, 4502.0, 4494.0, 4507.0, 4500.0)


def sample(value: float, number: int, **changes: Any) -> dict[str, Any]:
    """A line of a record."""
    line = {
        "format": 1,
        "kind": "sample",
        "time": f"2026-11-30T10:{number:02}:00.000+00:00",
        "nodeid": "perf_tests/test_cpu.py::test_x",
        "topology": "tp1",
        "cell": CELL,
        "fingerprint": "dcc7",
        "workload": "3da9",
        "hardware": CPU.key,
        "versions": {"python": "3.11.7", "sglang": "0.5.20"},
        "env": {},
        "command": ["python", "-m", "sglang"],
        "round": number,
        "metrics": {"total_throughput": value, "total_latency": 2500 / value if value else 0.0},
        "wall_s": 1.0,
        "log": "",
        "remarks": [],
        "protocol": PROTOCOL,
    }
    if number == 1:
        line["resolved"] = {"max_running_requests": 8, "schedule_policy": "fcfs"}
    return {**line, **changes}


def lines_of(values: Sequence[float], **changes: Any) -> list[dict[str, Any]]:
    return [sample(value, number, **changes) for number, value in enumerate(values, 1)]


def write(folder: Path, *parts: Sequence[Mapping[str, Any]]) -> Path:
    """A session's folder."""
    folder.mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for part in parts for line in part)
    (folder / "samples-main.jsonl").write_text(text)
    return folder


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform without noise between sessions, 10 % tolerance."""
    monkeypatch.chdir(tmp_path)
    cpu = {"noise": None, "tolerance": {"value": 0.1}}
    (tmp_path / "r1perf.yaml").write_text(yaml.safe_dump({"platforms": {"cpu": cpu}}))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(compare_command, [str(argument) for argument in arguments])


def verdict(result: Result) -> list[str]:
    """The last column of the tables."""
    return [line.split("  ")[-1].strip() for line in result.stdout.splitlines() if line.startswith("tp")]


def as_json(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    data: dict[str, Any] = json.loads(result.stdout, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert data["exit_status"] == result.exit_code
    return data


# verdicts


@pytest.mark.parametrize(
    ("new", "says", "status"),
    [(SAME, "PASS", 0), (SLOW, "REGRESSED", 1), (tuple(2 * value for value in FAST), "IMPROVED", 0)],
)
def test_unchanged_halved_and_doubled(tmp_path: Path, new: Sequence[float], says: str, status: int) -> None:
    a, b = write(tmp_path / "a", lines_of(FAST)), write(tmp_path / "b", lines_of(new))
    result = run(a, b)
    assert verdict(result) == [says]
    assert result.exit_code == status
    assert "total_throughput in tok/s" in result.stdout
    assert f"1 cell in both: 1 {says}" in result.stdout


def test_the_reference_comes_first(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", lines_of(SLOW)), write(tmp_path / "b", lines_of(FAST))
    assert verdict(run(a, b)) == ["IMPROVED"]
    assert verdict(run(b, a)) == ["REGRESSED"]


def test_less_is_better_where_the_metric_says_so(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", lines_of(FAST)), write(tmp_path / "b", lines_of(SLOW))
    result = run(a, b, "--metric", "total_latency")
    assert verdict(result) == ["REGRESSED"]
    assert "total_latency in s" in result.stdout
    assert "total_throughput" not in result.stdout
    assert verdict(run(b, a, "--metric", "total_latency")) == ["IMPROVED"]


def test_the_metrics_and_the_level_of_the_session_are_used_again(tmp_path: Path) -> None:
    """A session that had looked several times had less of its error rate left than one look has."""
    ratio = {"estimate": 1.0, "lower": 0.9, "upper": 1.1, "log_se": 0.1, "df": 8, "alpha": 1e-9, "beta": 1e-9}
    judged = {"metric": "total_latency", "verdict": "PASS", "ratio": ratio, "mean": None}
    said = {"kind": "verdict", "result": {"key": CELL, "topology": "tp1", "verdict": "PASS", "judgements": [judged]}}
    a = write(tmp_path / "a", lines_of(FAST))
    b = write(tmp_path / "b", lines_of(tuple(value * 0.97 for value in FAST)), [said])
    data = as_json(a, b)
    (judgement,) = data["results"][0]["judgements"]
    assert judgement["metric"] == "total_latency"
    assert judgement["ratio"]["alpha"] == judgement["ratio"]["beta"] == 1e-9
    narrow = as_json(a, b, "--metric", "total_throughput")["results"][0]["judgements"][0]["ratio"]
    assert narrow["alpha"] == 1e-9  # the same rounds, stopped by the same looks


def test_noise_between_sessions_counts_unless_they_are_one(tmp_path: Path) -> None:
    noise = {"run_cv": 0.002, "runs": 20, "session_cv": 0.08, "sessions": 10, "source": "a test"}
    (tmp_path / "r1perf.yaml").write_text(
        yaml.safe_dump({"platforms": {"cpu": {"noise": noise, "tolerance": {"value": 0.1}}}})
    )
    a, b = write(tmp_path / "a", lines_of(FAST)), write(tmp_path / "b", lines_of(SAME))
    apart = run(a, b)
    assert verdict(apart) == ["UNDECIDED"]
    assert apart.exit_code == 3
    assert verdict(run(a, b, "--same-session")) == ["PASS"]


def test_undecided_is_3_and_under_the_gate_1(tmp_path: Path) -> None:
    a = write(tmp_path / "a", lines_of((4500.0, 4000.0)))
    b = write(tmp_path / "b", lines_of((4100.0, 4600.0)))
    result = run(a, b)
    assert verdict(result) == ["UNDECIDED"]
    assert result.exit_code == 3
    assert "rounds" in result.stdout
    assert run(a, b, "--gate").exit_code == 1


def test_one_decided_cell_is_enough_without_the_gate(tmp_path: Path) -> None:
    other = CELL.replace("n50", "n100")
    a = write(tmp_path / "a", lines_of(FAST), lines_of((4500.0, 4000.0), cell=other))
    b = write(tmp_path / "b", lines_of(SAME), lines_of((4100.0, 4600.0), cell=other))
    assert run(a, b).exit_code == 0
    assert run(a, b, "--gate").exit_code == 1


def test_one_round_a_side_decides_nothing(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", lines_of(FAST[:1])), write(tmp_path / "b", lines_of(SLOW[:1]))
    data = as_json(a, b)
    assert [result["verdict"] for result in data["results"]] == ["UNDECIDED"]
    assert data["exit_status"] == 3


def test_two_rounds_a_side_give_json_without_infinities(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", lines_of((4500.0, 400.0))), write(tmp_path / "b", lines_of((4100.0, 46.0)))
    as_json(a, b)


def test_tolerance_by_option_then_baseline_then_platform(tmp_path: Path) -> None:
    lower = tuple(value * 0.85 for value in FAST)
    a, b = write(tmp_path / "a", lines_of(FAST)), write(tmp_path / "b", lines_of(lower))
    assert verdict(run(a, b)) == ["REGRESSED"]
    assert verdict(run(a, b, "--tolerance", 0.3)) == ["PASS"]
    stored = store(
        tmp_path / "baselines", CPU, "tp1", {CELL: Baseline(CELL, {"total_throughput": FAST}, PROTOCOL, {}, 0.3)}
    )
    assert verdict(run(stored, b)) == ["PASS"]
    assert verdict(run(stored, b, "--tolerance", 0.1)) == ["REGRESSED"]


# what may not be compared


def test_protocol_differences_are_listed_key_by_key(tmp_path: Path) -> None:
    a = write(tmp_path / "a", lines_of(FAST))
    b = write(tmp_path / "b", lines_of(SLOW, protocol={**PROTOCOL, "attention_backend": "fa3", "tp_size": 2}))
    result = run(a, b)
    assert verdict(result) == ["INCOMPARABLE"]
    assert "attention_backend: triton -> fa3" in " ".join(result.stdout.split())
    assert "tp_size: 1 -> 2" in " ".join(result.stdout.split())
    assert result.exit_code == 3
    assert run(a, b, "--gate").exit_code == 1


def test_other_hardware_is_not_compared(tmp_path: Path) -> None:
    a = write(tmp_path / "a", lines_of(FAST))
    b = write(tmp_path / "b", lines_of(SLOW, hardware="8x-nvidia-h200"))
    result = run(a, b)
    assert verdict(result) == ["INCOMPARABLE"]
    assert f"hardware: {CPU.key} -> 8x-nvidia-h200" in result.stdout


def test_cells_that_only_one_side_has_are_listed(tmp_path: Path) -> None:
    other = CELL.replace("n50", "n100")
    a = write(tmp_path / "a", lines_of(FAST), lines_of(FAST, topology="tp2"))
    b = write(tmp_path / "b", lines_of(SAME), lines_of(SAME, cell=other))
    data = as_json(a, b)
    assert [(cell["topology"], cell["key"]) for cell in data["only_in_reference"]] == [("tp2", CELL)]
    assert [(cell["topology"], cell["key"]) for cell in data["only_in_new"]] == [("tp1", other)]
    assert data["exit_status"] == 0
    text = run(a, b).stdout
    assert "only in A\n  tp2 default n=50\n" in text
    assert "only in B\n  tp1 default n=100\n" in text
    assert run(a, b, "--gate").exit_code == 1  # a cell without a reference was not decided


def test_nothing_in_common_is_3(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", lines_of(FAST)), write(tmp_path / "b", lines_of(FAST, topology="tp2"))
    result = run(a, b)
    assert result.exit_code == 3
    assert "nothing could be compared" in result.stdout


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0, math.inf])
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_cell_with_a_line_that_is_no_measurement_is_invalid(tmp_path: Path, bad: float, side: str) -> None:
    spoilt = [*lines_of(FAST), sample(4500.0, 6, metrics={"total_throughput": bad, "total_latency": 1.0})]
    a = write(tmp_path / "a", spoilt if side == "a" else lines_of(FAST))
    b = write(tmp_path / "b", spoilt if side == "b" else lines_of(SAME))
    result = run(a, b)
    assert verdict(result) == ["INVALID"]
    assert "round 6: total_throughput is" in " ".join(result.stdout.split())
    assert result.exit_code == 1


def problem(**changes: Any) -> dict[str, Any]:
    line = {**sample(1.0, 2), "kind": "problem", "verdict": "OOM", "cause": "out of memory", "hint": "", "log": ""}
    del line["metrics"]
    return {**line, **changes}


def test_a_cell_that_broke_in_the_new_session_fails(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", lines_of(FAST)), write(tmp_path / "b", lines_of(FAST[:1]), [problem()])
    result = run(a, b)
    assert verdict(result) == ["OOM"]
    assert "out of memory" in result.stdout
    assert result.exit_code == 1


def test_a_cell_that_never_ran_in_the_new_session_fails_too(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", lines_of(FAST)), write(tmp_path / "b", [problem()])
    assert verdict(run(a, b)) == ["OOM"]
    broken_alone = run(write(tmp_path / "c", lines_of(FAST, topology="tp2")), b)
    assert broken_alone.exit_code == 1
    assert "only in B\n  tp1 default n=50: OOM: out of memory" in broken_alone.stdout


def test_a_reference_that_broke_is_none(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", lines_of(FAST), [problem()]), write(tmp_path / "b", lines_of(SLOW))
    result = run(a, b)
    assert verdict(result) == ["NO BASELINE"]
    assert result.exit_code == 3


def test_a_cell_that_one_session_measured_in_two_ways_is_not_used(tmp_path: Path) -> None:
    twice = lines_of(SLOW, versions={"sglang": "0.5.9"})
    a, b = write(tmp_path / "a", lines_of(FAST)), write(tmp_path / "b", lines_of(FAST), twice)
    result = run(a, b)
    assert verdict(result) == ["INVALID"]
    assert "two ways" in result.stdout


def test_a_metric_that_one_side_lacks_is_not_compared(tmp_path: Path) -> None:
    a = write(tmp_path / "a", lines_of(FAST))
    b = write(tmp_path / "b", lines_of(SLOW))
    result = run(a, b, "--metric", "output_throughput")
    assert verdict(result) == ["INCOMPARABLE"]
    assert "output_throughput is missing" in result.stdout


# what differs beside it


def test_versions_and_resolved_arguments_that_differ_are_listed_once(tmp_path: Path) -> None:
    other = CELL.replace("n50", "n100")
    changed: dict[str, Any] = {
        "versions": {"python": "3.11.7", "sglang": "0.5.21", "torch": "2.10"},
        "resolved": {"max_running_requests": 16, "schedule_policy": "fcfs"},
    }
    a = write(tmp_path / "a", lines_of(FAST), lines_of(FAST, cell=other))
    b = write(tmp_path / "b", lines_of(SAME, **changed), lines_of(SAME, cell=other, **changed))
    result = run(a, b)
    assert verdict(result) == ["PASS", "PASS"]
    for line in (
        "versions: sglang: 0.5.20 -> 0.5.21",
        "versions: torch: absent -> 2.10",
        "resolved: max_running_requests: 8 -> 16",
    ):
        assert result.stdout.count(line) == 1
    assert "python: " not in result.stdout
    assert "schedule_policy" not in result.stdout
    assert "sglang 0.5.20" in result.stdout.splitlines()[0]
    assert "sglang 0.5.21" in result.stdout.splitlines()[1]


def test_a_difference_that_some_cells_have_names_them(tmp_path: Path) -> None:
    other = CELL.replace("n50", "n100")
    a = write(tmp_path / "a", lines_of(FAST), lines_of(FAST, cell=other))
    b = write(tmp_path / "b", lines_of(SAME), lines_of(SAME, cell=other, versions={"sglang": "0.5.21"}))
    assert "versions: sglang: 0.5.20 -> 0.5.21 (tp1 default n=100)" in run(a, b).stdout


# inputs


def test_an_output_directory_is_its_newest_session(tmp_path: Path) -> None:
    write(tmp_path / "out" / "20261129.100000.aaaa", lines_of(SLOW))
    write(tmp_path / "out" / "20261130.100000.aaaa", lines_of(FAST))
    a = write(tmp_path / "a", lines_of(SAME))
    assert verdict(run(a, tmp_path / "out")) == ["PASS"]
    assert verdict(run(a, tmp_path / "out" / "20261129.100000.aaaa")) == ["REGRESSED"]


def test_a_single_file_and_the_files_of_several_workers(tmp_path: Path) -> None:
    a = write(tmp_path / "a", lines_of(FAST))
    (a / "samples-gw0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines_of(FAST, topology="tp2")))
    b = write(tmp_path / "b", lines_of(SAME), lines_of(SLOW, topology="tp2"))
    assert sorted(verdict(run(a, b))) == ["PASS", "REGRESSED"]
    assert verdict(run(a / "samples-main.jsonl", b / "samples-main.jsonl")) == ["PASS"]


def stored(tmp_path: Path, folder: str = "baselines", hardware: Hardware = CPU) -> Path:
    provenance = {"versions": {"sglang": "0.5.9"}, "resolved": {"max_running_requests": 4}}
    return store(
        tmp_path / folder, hardware, "tp1", {CELL: Baseline(CELL, {"total_throughput": FAST}, PROTOCOL, provenance)}
    )


def test_a_baseline_file_is_a_side(tmp_path: Path) -> None:
    b = write(tmp_path / "b", lines_of(SLOW))
    result = run(stored(tmp_path), b)
    assert verdict(result) == ["REGRESSED"]
    assert "versions: sglang: 0.5.9 -> 0.5.20" in result.stdout
    assert "resolved: max_running_requests: 4 -> 8" in result.stdout


def test_a_baseline_file_taken_out_of_its_folder_keeps_its_hardware(tmp_path: Path) -> None:
    path = stored(tmp_path)
    away = tmp_path / "away" / "tp1.yaml"
    away.parent.mkdir()
    path.rename(away)
    b = write(tmp_path / "b", lines_of(SAME))
    assert verdict(run(away, b)) == ["PASS"]
    other = write(tmp_path / "c", lines_of(SAME, hardware="cpu-intel-xeon-2c"))
    assert verdict(run(away, other)) == ["INCOMPARABLE"]


def test_the_two_sides_of_one_session(tmp_path: Path) -> None:
    """Interleaved: no noise between sessions is added, though the platform states a large one."""
    noise = {"run_cv": 0.002, "runs": 20, "session_cv": 0.3, "sessions": 10, "source": "a test"}
    (tmp_path / "r1perf.yaml").write_text(
        yaml.safe_dump({"platforms": {"cpu": {"noise": noise, "tolerance": {"value": 0.1}}}})
    )
    new = {"side": "new", "versions": {"sglang": "0.5.21"}}
    both = write(tmp_path / "out" / "s1", lines_of(FAST, side="old"), lines_of(SLOW, **new))
    result = run(both)
    assert verdict(result) == ["REGRESSED"]
    assert result.exit_code == 1
    assert verdict(run(tmp_path / "out")) == ["REGRESSED"]
    assert verdict(run(f"{both}:new", f"{both}:old")) == ["IMPROVED"]
    assert verdict(run(write(tmp_path / "a", lines_of(FAST)), f"{both}:new")) == ["UNDECIDED"]  # another session


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.output
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def test_inputs_that_cannot_be_read_are_2(tmp_path: Path) -> None:
    a = write(tmp_path / "a", lines_of(FAST))
    sided = write(tmp_path / "sided", lines_of(FAST, side="old"), lines_of(SLOW, side="new"))
    empty = tmp_path / "empty"
    empty.mkdir()
    garbage = tmp_path / "garbage.jsonl"
    garbage.write_bytes(b"\x00\xff not a record\n{}\n[]\n")
    wrong = tmp_path / "tp1.yaml"
    wrong.write_text("version: 1\n")
    newer = write(tmp_path / "newer", lines_of(FAST, format=99))
    assert "does not exist" in refused(a, tmp_path / "nowhere")
    assert "holds no session" in refused(a, empty)
    assert "garbage.jsonl" in refused(a, garbage)
    assert "tp1.yaml" in refused(wrong, a)
    assert "newer" in refused(a, newer)
    assert "newer" in refused(a, newer / "samples-main.jsonl")
    assert "two sides" in refused(a, sided)
    assert "doesn't hold two sides" in refused(a)
    assert "no side 'old'" in refused(f"{a}:old", a)
    assert "metric 'speed' is not known" in refused(a, a, "--metric", "speed")
    assert "platform 'h2oo' is not known" in refused(a, a, "--platform", "h2oo")
    assert refused(stored(tmp_path)).count("second input")


def test_a_platform_that_is_not_known_here_is_named_by_option(tmp_path: Path) -> None:
    cell = "lab/default/sharegpt/n50/offline"
    a, b = write(tmp_path / "a", lines_of(FAST, cell=cell)), write(tmp_path / "b", lines_of(SLOW, cell=cell))
    assert "platform 'lab' is not known" in refused(a, b)
    assert verdict(run(a, b, "--platform", "cpu")) == ["REGRESSED"]
    more = tmp_path / "lab.yaml"
    more.write_text(yaml.safe_dump({"platforms": {"lab": {"extends": "cpu", "tolerance": {"value": 0.6}}}}))
    assert verdict(run(a, b, "--data", more)) == ["PASS"]


def test_a_truncated_last_line_and_a_doubled_one_are_left_out(tmp_path: Path) -> None:
    a = write(tmp_path / "a", lines_of(FAST))
    b = write(tmp_path / "b", lines_of(SAME))
    path = b / "samples-main.jsonl"
    text = path.read_text()
    path.write_text(text + text.splitlines()[0] + "\n" + text.splitlines()[1][:200])
    data = as_json(a, b)
    assert data["results"][0]["verdict"] == "PASS"
    assert data["results"][0]["rounds"] == len(SAME)
    assert len(data["problems"]) == 2


# the judge itself


def measured(values: Sequence[float], **changes: Any) -> Measured:
    plain: dict[str, Any] = {
        "topology": "tp1",
        "key": CELL,
        "platform": "cpu",
        "hardware": CPU.key,
        "samples": {"total_throughput": tuple(values)},
        "protocol": PROTOCOL,
        **changes,
    }
    return Measured(**plain)


throughputs = st.lists(st.floats(100, 10_000), min_size=2, max_size=8)


@given(throughputs, throughputs)
@settings(max_examples=60, deadline=None)
def test_two_sides_never_both_regress_against_each_other(old: list[float], new: list[float]) -> None:
    conditions = Conditions(lambda cell: CATALOG.platform(cell.platform), tolerance=0.05)
    one = compare_cell(measured(old), measured(new), conditions).verdict
    other = compare_cell(measured(new), measured(old), conditions).verdict
    assert {one, other} <= {Verdict.PASS, Verdict.IMPROVED, Verdict.REGRESSED, Verdict.UNDECIDED}
    assert (one, other) != (Verdict.REGRESSED, Verdict.REGRESSED)
    assert (one, other) != (Verdict.IMPROVED, Verdict.IMPROVED)


@given(throughputs)
@settings(max_examples=30, deadline=None)
def test_a_side_never_regresses_against_itself(values: list[float]) -> None:
    conditions = Conditions(lambda cell: CATALOG.platform(cell.platform))
    assert compare_cell(measured(values), measured(values), conditions).verdict in (Verdict.PASS, Verdict.UNDECIDED)


def test_rounds_of_another_host_of_the_same_model_are_less_sure(tmp_path: Path) -> None:
    noise = {
        "run_cv": 0.002, "runs": 20, "session_cv": 0.001, "sessions": 50, "host_cv": 0.09, "hosts": 20, "source": "t",
    }  # fmt: skip
    (tmp_path / "r1perf.yaml").write_text(
        yaml.safe_dump({"platforms": {"cpu": {"noise": noise, "tolerance": {"value": 0.1}}}})
    )
    a = write(tmp_path / "a", lines_of(FAST, host={"hostname": "n1"}))
    b = write(tmp_path / "b", lines_of(SAME, host={"hostname": "n1"}))
    c = write(tmp_path / "c", lines_of(SAME, host={"hostname": "n2"}))
    assert verdict(run(a, b)) == ["PASS"]
    assert verdict(run(a, c)) == ["UNDECIDED"]


def test_the_cells_of_a_comparison_are_those_of_both(tmp_path: Path) -> None:  # noqa: ARG001
    old = Side("a", "s1", {("tp1", CELL): measured(FAST), ("tp2", CELL): measured(FAST, topology="tp2")})
    new = Side("b", "s2", {("tp1", CELL): measured(SLOW)})
    done = compare(old, new, Conditions(lambda cell: CATALOG.platform(cell.platform), tolerance=0.1))
    assert [(result.topology, result.verdict) for result in done.results] == [("tp1", Verdict.REGRESSED)]
    assert [cell.topology for cell in done.only_reference] == ["tp2"]
    assert done.only_new == ()
    assert (done.exit_status(gate=False), done.exit_status(gate=True)) == (1, 1)


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("h200x8/tp8-champion/sharegpt/n5000/offline", "tp1 tp8-champion n=5000"),
        (f"{CELL}/max_running_requests=8", "tp1 default n=50 max_running_requests=8"),
        ("odd", "tp1 odd"),
    ],
)
def test_labels_are_those_of_a_session(key: str, label: str) -> None:
    assert measured(FAST, key=key).label == label
