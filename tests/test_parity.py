"""Parity: the guide's six items over hand-made and real records; every expected state is written by hand."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf.baseline import load
from pytest_r1perf.parity.check import Item, State, check, check_alone
from pytest_r1perf.parity.checklist import load_checklist
from pytest_r1perf.parity.commands import parity_command
from pytest_r1perf.parity.recorded import Recorded, of_baseline
from pytest_r1perf.parity.sides import read_cells
from pytest_r1perf.report.parity import parity_line
from tests.histories import sample, write_session
from tests.project import Project

ROOT = Path(__file__).parents[1]
RECORDED = Path(__file__).parent / "recorded"
ITEMS = ["topology", "load", "model loading path", "memory fraction", "scheduling and backend stack", "record"]
HELD = dict.fromkeys(ITEMS, "held")

# What a run of the TP8 champion records, by hand from the guide's playbook A.
PROTOCOL: dict[str, object] = {
    "tp_size": 8,
    "pp_size": 1,
    "dp_size": 1,
    "ep_size": 1,
    "nnodes": 1,
    "enable_dp_attention": False,
    "mode": "offline",
    "num_prompts": 7000,
    "workload": "67bb13adba50d579",
    "model_config": "4f2a",
    "load_format": "dummy",
    "dtype": "auto",
    "quantization": "fp8",
    "kv_cache_dtype": "bfloat16",
    "attention_backend": "fa3",
    "prefill_attention_backend": "fa3",
    "decode_attention_backend": "flashinfer",
    "moe_runner_backend": "cutlass",
    "moe_a2a_backend": "none",
    "decode_graph": "full",
    "decode_graph_max_bs": 2048,
    "prefill_graph": "piecewise",
    "chunked_prefill_size": 32768,
    "disable_radix_cache": True,
    "speculative_algorithm": None,
    "page_size": 1,
    "allreduce_fusion": "flashinfer",
}
RESOLVED = {"schedule_policy": "lof", "mem_fraction_static": 0.87, "max_prefill_tokens": 16384}
TP8 = Recorded(
    name="tp8 tp8-champion n=7000",
    topology="tp8",
    key="h200x8/tp8-champion/sharegpt/n7000/offline",
    protocol=PROTOCOL,
    resolved=RESOLVED,
    versions={"sglang": "0.5.9"},
    command="python -m sglang.bench_offline_throughput --tp-size 8",
    env={"NCCL_ALGO": "Ring"},
)


def states(items: tuple[Item, ...]) -> dict[str, str]:
    return {item.name: item.state.value for item in items}


def item(items: tuple[Item, ...], name: str) -> Item:
    return next(one for one in items if one.name == name)


def with_protocol(**changes: object) -> Recorded:
    return replace(TP8, protocol={**PROTOCOL, **changes})


def with_resolved(**changes: object) -> Recorded:
    return replace(TP8, resolved={**RESOLVED, **changes})


PP2 = replace(
    with_protocol(pp_size=2, nnodes=2),
    topology="pp2",
    resolved={**RESOLVED, "mem_fraction_static": 0.83},
)


def test_the_same_twice_holds_all_six_in_the_guides_order() -> None:
    items = check(TP8, replace(TP8))
    assert [one.name for one in items] == ITEMS
    assert states(items) == HELD
    assert parity_line(items) is None
    assert check_alone(TP8) == ()


@pytest.mark.parametrize(
    ("other", "broken", "old", "new"),
    [
        (with_protocol(tp_size=16, nnodes=2), "topology", "tp_size=8, nnodes=1", "tp_size=16, nnodes=2"),
        (with_protocol(num_prompts=5000), "load", "num_prompts=7000", "num_prompts=5000"),
        (with_protocol(workload="other"), "load", "workload=67bb13adba50d579", "workload=other"),
        (with_protocol(load="rate=4"), "load", "load=all at once", "load=rate=4"),
        (with_protocol(load="slo-ttft_ms=900"), "load", "slo=none", "slo=ttft_ms=900"),
        (
            with_resolved(enable_two_batch_overlap=True),
            "scheduling and backend stack",
            "enable_two_batch_overlap=not set",
            "enable_two_batch_overlap=True",
        ),
        (with_protocol(load_format="auto"), "model loading path", "load_format=dummy", "load_format=auto"),
        (
            with_resolved(model_impl="transformers"),
            "model loading path",
            "model_impl=not set",
            "model_impl=transformers",
        ),
        (with_protocol(quantization=None), "model loading path", "quantization=fp8", "quantization=None"),
        (
            with_resolved(mem_fraction_static=0.85),
            "memory fraction",
            "mem_fraction_static=0.87",
            "mem_fraction_static=0.85",
        ),
        (
            with_resolved(schedule_policy="fcfs"),
            "scheduling and backend stack",
            "schedule_policy=lof",
            "schedule_policy=fcfs",
        ),
        (
            with_resolved(max_running_requests=8),
            "scheduling and backend stack",
            "max_running_requests=not set",
            "max_running_requests=8",
        ),
        (
            with_protocol(decode_attention_backend="fa3"),
            "scheduling and backend stack",
            "decode_attention_backend=flashinfer",
            "decode_attention_backend=fa3",
        ),
        (replace(TP8, env={"NCCL_ALGO": "Tree"}), "scheduling and backend stack", "NCCL_ALGO=Ring", "NCCL_ALGO=Tree"),
    ],
)
def test_one_difference_breaks_one_item(other: Recorded, broken: str, old: str, new: str) -> None:
    items = check(TP8, other)
    assert states(items) == {**HELD, broken: "broken"}
    assert (item(items, broken).a, item(items, broken).b) == (old, new)
    line = parity_line(items)
    assert line is not None
    assert line.startswith(f"parity: 5 of 6 held, 1 broken; {broken} broken: {old} -> {new}")


@pytest.mark.parametrize(
    ("a", "b", "old", "new"),
    [
        ("one-batch in=16 out=8", "one-batch in=32 out=8", "load=one-batch in=16 out=8", "load=one-batch in=32 out=8"),
        ("one-batch in=16 out=8", "one-batch in=16 out=4", "load=one-batch in=16 out=8", "load=one-batch in=16 out=4"),
        ("rate=8", "rate=8 concurrency=2", "load=rate=8", "load=rate=8 concurrency=2"),
        (
            "rate=8 slo-ttft_ms=60000 slo-tpot_ms=5000",
            "rate=8 slo-ttft_ms=60000",
            "slo=ttft_ms=60000 tpot_ms=5000",
            "slo=ttft_ms=60000",
        ),
        ("rate=8 slo-ttft_ms=60000", "slo-ttft_ms=60000", "load=rate=8", "load=all at once"),
    ],
)
def test_two_servers_loads_of_one_n(a: str, b: str, old: str, new: str) -> None:
    found = item(check(with_protocol(load=a), with_protocol(load=b)), "load")
    assert (found.state.value, found.a, found.b) == ("broken", old, new)
    assert item(check(with_protocol(load=a), with_protocol(load=a)), "load").held


def test_a_row_of_sglangs_own_does_not_tell_the_slo() -> None:
    """So it breaks nothing: a cell beside the row that its own client wrote (lines as 0.5.20 writes them)."""
    cell = with_protocol(num_prompts=12, load="rate=20 concurrency=2 slo-ttft_ms=60000", mode="serve")
    (row,) = [one for one in read_cells(str(RECORDED / "serving_0.5.20.jsonl")).cells if "rate=20" in one.name]
    for pair in ((cell, row), (row, cell)):
        found = item(check(*pair), "load")
        assert found.state.value == "not known"
        assert {"slo=ttft_ms=60000", "slo=not recorded"} == {
            part for side in (found.a, found.b) for part in side.split(", ") if part.startswith("slo=")
        }


def test_two_topologies_each_with_its_own_memory_fraction() -> None:
    """0.87 for TP8 and 0.83 for PP2 is what the guide asks for; the mixture itself is what is broken."""
    assert states(check(TP8, PP2)) == {**HELD, "topology": "broken"}


def test_a_fraction_that_both_have_and_the_guide_has_not() -> None:
    both = with_resolved(mem_fraction_static=0.85)
    items = check(both, replace(both))
    assert states(items) == {**HELD, "memory fraction": "broken"}
    assert item(items, "memory fraction").why == (
        "A has 0.85, and the guide 0.87 for tp8",
        "B has 0.85, and the guide 0.87 for tp8",
    )
    (alone,) = check_alone(both)
    assert alone.why == ("it has 0.85, and the guide 0.87 for tp8",)


def test_a_layout_that_the_guide_names_no_fraction_for() -> None:
    def tp4(fraction: float, **more: object) -> Recorded:
        return replace(with_resolved(mem_fraction_static=fraction, **more), topology="tp4")

    assert item(check(tp4(0.7), tp4(0.7)), "memory fraction").held
    assert item(check(tp4(0.7), tp4(0.71)), "memory fraction").state is State.BROKEN
    pool = item(check(tp4(0.7, max_total_tokens=16384), tp4(0.71, max_total_tokens=16384)), "memory fraction")
    assert pool.held
    assert pool.why == ("both have a KV pool of 16384 tokens, so the fraction decides nothing",)


def test_a_load_that_is_not_the_guides_is_remarked_on() -> None:
    low = with_protocol(num_prompts=1000)
    found = item(check(low, replace(low)), "load")
    assert found.held
    assert found.why == ("N=1000 is not a load of the guide's (5000 to compare, 7000 for the peak of tp8)",)
    for n in (5000, 7000):
        usual = with_protocol(num_prompts=n)
        assert item(check(usual, replace(usual)), "load").why == ()
    peak = replace(with_protocol(num_prompts=8000, tp_size=16, nnodes=2), topology="tp16")
    assert item(check(peak, replace(peak)), "load").why == ()


@pytest.mark.parametrize(
    ("poor", "expected", "lacking"),
    [
        (replace(TP8, resolved={}), {"memory fraction": "not known", "scheduling and backend stack": "not known"}, ()),
        (replace(TP8, command=""), {"record": "broken"}, ("B has no command line",)),
        (
            replace(TP8, env=None, versions={}),
            {"record": "broken", "scheduling and backend stack": "not known"},
            ("B has no environment and version of SGLang",),
        ),
        (
            replace(TP8, runs_without=2),
            {"record": "broken"},
            ("B has no command line or environment in 2 of its rounds",),
        ),
    ],
)
def test_what_a_record_lacks(poor: Recorded, expected: dict[str, str], lacking: tuple[str, ...]) -> None:
    items = check(TP8, poor)
    assert states(items) == {**HELD, **expected}
    assert item(items, "record").why == lacking


def test_an_unknown_value_is_not_a_difference() -> None:
    assert states(check(with_protocol(prefill_graph="unknown"), TP8)) == {
        **HELD,
        "scheduling and backend stack": "not known",
    }


def test_names_stand_for_layouts_that_are_not_recorded() -> None:
    def bare(topology: str) -> Recorded:
        return replace(TP8, topology=topology, protocol={})

    assert item(check(bare("tp8"), bare("tp8")), "topology").held
    mixed = item(check(bare("tp8"), bare("pp2")), "topology")
    assert (mixed.state, mixed.a, mixed.b) == (State.BROKEN, "topology=tp8", "topology=pp2")
    assert item(check(bare(""), bare("pp2")), "topology").state is State.NOT_KNOWN
    renamed = item(check(TP8, replace(TP8, topology="ours")), "topology")
    assert renamed.held
    assert renamed.why == ("tp8 and ours are one layout",)


@pytest.mark.parametrize("old_first", [True, False])
def test_an_older_files_names_are_todays(old_first: bool) -> None:
    """The repository's own old file has the arguments' names; as it is written today, it is the same measurement."""
    file = load(ROOT / "baselines" / "cpu-amd-epyc-1c" / "tp1.yaml")
    (entry,) = file.cells.values()
    old = replace(of_baseline("tp1", entry), resolved={"schedule_policy": "fcfs", "mem_fraction_static": 0.7})
    today = dict(entry.protocol)
    del today["disable_cuda_graph"]
    today.update(decode_graph="off", decode_graph_max_bs=None, prefill_graph="off", allreduce_fusion="off")
    today["kv_cache_dtype"] = "bfloat16"
    new = replace(old, protocol=today)
    assert states(check(old, new) if old_first else check(new, old)) == HELD
    changed = replace(old, protocol={**today, "decode_graph": "full"})
    items = check(old, changed) if old_first else check(changed, old)
    assert states(items) == {**HELD, "scheduling and backend stack": "broken"}


_VALUES = st.sampled_from([1, 2, "auto", "unknown", None, True])
_RECORDS = st.builds(
    lambda protocol, resolved, topology, env: Recorded("x", topology, "k", protocol, resolved, {}, "python", env),
    protocol=st.dictionaries(st.sampled_from([*PROTOCOL, "load"]), _VALUES, max_size=6),
    resolved=st.dictionaries(
        st.sampled_from([*RESOLVED, "max_total_tokens"]), st.sampled_from([0.5, 1, "lof"]), max_size=3
    ),
    topology=st.sampled_from(["tp8", "pp2", "tp4", ""]),
    env=st.none() | st.dictionaries(st.sampled_from(["NCCL_ALGO", "HF_HOME"]), st.just("1")),
)


@settings(deadline=None, max_examples=150)
@given(a=_RECORDS, b=_RECORDS)
def test_which_side_comes_first_changes_no_state(a: Recorded, b: Recorded) -> None:
    forth, back = check(a, b), check(b, a)
    assert [one.name for one in forth] == ITEMS
    assert states(forth) == states(back)
    for one in check(a, replace(a)):
        assert one.name in ("memory fraction", "record") or one.state is not State.BROKEN


def test_every_item_quotes_the_guide() -> None:
    quoted = {entry.name: entry.says for entry in load_checklist().entries.values()}
    assert quoted["load"] == "Keep load fixed (N=5000 for comparison, N=7000/8000 for peak checks)."
    assert quoted["record"] == "Record command line and environment for every run."
    assert load_checklist().memory_fractions == {"tp8": 0.87, "pp2": 0.83, "tp16": 0.87}
    assert load_checklist().peak_loads == {"tp8": (7000,), "pp2": (7000,), "tp16": (8000,)}


# the command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(parity_command, [str(argument) for argument in arguments])


def checked(*arguments: object) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["checked"]
    return found


def state_of(one: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["state"] for item in one["items"]}


def session(folder: Path, name: str, **changes: Any) -> Path:
    """A session of three rounds of the champion."""
    lines = [
        sample(number, 20000.0 + number, protocol=PROTOCOL, **changes) | ({"resolved": RESOLVED} if number == 1 else {})
        for number in (1, 2, 3)
    ]
    return write_session(folder, name, lines).parent


def test_two_sessions(tmp_path: Path) -> None:
    a, b = session(tmp_path, "a"), session(tmp_path, "b", versions={"sglang": "0.5.20"})
    result = run(a, b)
    assert result.exit_code == 0
    assert "6 of 6 held" in result.stdout
    assert "held: memory fraction" in result.stdout
    assert "A and B: mem_fraction_static=0.87" in result.stdout
    assert "A: command of 3 words, 1 variables, sglang 0.5.9, torch 2.9.1" in result.stdout
    assert "B: command of 3 words, 1 variables, sglang 0.5.20" in result.stdout


def test_a_broken_item_is_exit_status_1_and_both_values_are_printed(tmp_path: Path) -> None:
    a, b = session(tmp_path, "a"), session(tmp_path, "b", env={"NCCL_PROTO": "LL128"})
    result = run(a, b)
    assert result.exit_code == 1
    assert "5 of 6 held, 1 broken" in result.stdout
    assert "A: NCCL_PROTO=not set" in result.stdout
    assert "B: NCCL_PROTO=LL128" in result.stdout


def test_a_session_that_was_resumed_with_another_variable_holds_nothing_by_its_first_round(tmp_path: Path) -> None:
    a = session(tmp_path, "a", env={"NCCL_ALGO": "Ring"})
    lines = [
        sample(number, protocol=PROTOCOL, env={"NCCL_ALGO": "Ring" if number == 1 else "Tree"}) for number in (1, 2)
    ]
    lines[0]["resolved"] = RESOLVED
    result = run(a, write_session(tmp_path, "b", lines).parent)
    assert result.exit_code == 1
    assert "broken: scheduling and backend stack" in result.stdout
    assert "B: NCCL_ALGO=Ring or Tree" in result.stdout


def test_rounds_without_a_command_line_are_counted(tmp_path: Path) -> None:
    a = session(tmp_path, "a")
    lines = [sample(number, protocol=PROTOCOL) for number in (1, 2, 3)]
    del lines[2]["command"]
    b = write_session(tmp_path, "b", lines).parent
    result = run(a, b)
    assert result.exit_code == 1
    # without a fingerprint's command the third round is a cell's second way of being measured
    assert "B has no command line or environment in 1 of its rounds" in result.stdout


def test_two_cells_of_one_session(tmp_path: Path) -> None:
    other = "h200x8/tp8-champion/sharegpt/n5000/offline"
    cell = "h200x8/tp8-champion/sharegpt/n7000/offline"
    lines = [
        sample(1, cell=cell, protocol=PROTOCOL, resolved=RESOLVED),
        sample(1, cell=other, protocol={**PROTOCOL, "num_prompts": 5000}, resolved=RESOLVED),
    ]
    folder = write_session(tmp_path, "s", lines).parent
    (one,) = checked(f"{folder}:{cell}", f"{folder}:*n5000*")
    assert state_of(one) == {**HELD, "load": "broken"}
    (same,) = checked(f"{folder}:tp8/{cell}", f"{folder}:{cell}")
    assert state_of(same) == HELD
    wrong = run(f"{folder}:n9", folder)
    assert wrong.exit_code == 2
    assert f"no cell is called 'n9' (known: tp8/{other}, tp8/{cell})" in wrong.stderr


def test_two_sides_of_one_session(tmp_path: Path) -> None:
    lines = [
        sample(
            1, side=side, protocol=PROTOCOL, resolved={**RESOLVED, "schedule_policy": policy}, env={"NCCL_ALGO": side}
        )
        for side, policy in (("old", "lpm"), ("new", "lof"))
    ]
    folder = write_session(tmp_path, "s", lines).parent
    for arguments in ((folder,), (f"{folder}:old", f"{folder}:new")):
        (one,) = checked(*arguments)
        assert state_of(one) == {**HELD, "scheduling and backend stack": "broken"}
        stack = next(item for item in one["items"] if item["name"] == "scheduling and backend stack")
        assert stack["a"] == "schedule_policy=lpm, NCCL_ALGO=old"  # each side's own variables
        assert stack["b"] == "schedule_policy=lof, NCCL_ALGO=new"
    (alone,) = checked(f"{folder}:old")
    assert alone["b"] is None


def test_nothing_in_common(tmp_path: Path) -> None:
    lines = [sample(1, protocol=PROTOCOL, cell=f"h200x8/tp8-champion/sharegpt/n{n}/offline") for n in (1, 2)]
    folder = write_session(tmp_path, "s", lines).parent
    result = run(session(tmp_path, "a"), folder)
    assert result.exit_code == 2
    assert "no cell is both in" in result.stderr
    assert run(tmp_path / "absent").exit_code == 2


def test_a_real_baseline_by_itself_and_the_gate(tmp_path: Path) -> None:
    """An entry of an older file: no resolved arguments, so two items are not known, and they are named."""
    file = ROOT / "baselines" / "cpu-amd-epyc-1c" / "tp1.yaml"
    result = run(file)
    assert result.exit_code == 0
    assert "memory fraction not known" in result.stdout
    assert "mem_fraction_static=not recorded" in result.stdout
    assert run(file, "--gate").exit_code == 1
    folder = tmp_path / "baselines" / "cpu-amd-epyc-1c"
    folder.mkdir(parents=True)
    text = file.read_text()
    at = text.index("      command: python")
    (folder / "tp1.yaml").write_text(text[:at])  # it has no command line: that breaks the last item
    result = run(tmp_path / "baselines")
    assert result.exit_code == 1
    assert "broken: record: it has no command line" in result.stdout


def test_every_baseline_of_this_repository_records_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = run()
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("file", "load"),
    [("rc.jsonl", "num_prompts"), ("otp2.jsonl", "num_prompts")],
)
def test_a_result_file_of_sglangs_own_has_a_load_and_nothing_else(file: str, load: str, tmp_path: Path) -> None:
    shutil.copy(RECORDED / file, tmp_path / file)
    found = checked(tmp_path / file, tmp_path / file)
    assert found
    for one in found:
        said = state_of(one)
        assert said["load"] == "not known"  # which prompts they were is not in it
        assert said["record"] == "broken"
        assert said["topology"] == said["memory fraction"] == "not known"
        assert any(f"{load}=" in one["a"] for _ in (0,))


def test_real_sessions_of_the_plugin(r1perf_project: Project) -> None:
    """Sessions as the plugin writes them: twice the same, and once with another cap on the running requests."""
    project = r1perf_project
    project.write("""
        @perf(topology="tp1", n=50)
        def test_a(): ...
        """)
    project.perf("--perf-update-new").assert_outcomes(passed=1)
    (first,) = project.out.iterdir()  # names of sessions of one second have no order
    project.perf()
    (second,) = set(project.out.iterdir()) - {first}
    (same,) = checked(first, second)
    assert state_of(same) == HELD, same
    (stored,) = checked(project.baselines, second)
    assert state_of(stored) == HELD, stored
    project.platform(flags={"device": "cpu", "load_format": "dummy", "max_running_requests": 16})
    project.perf()
    (third,) = set(project.out.iterdir()) - {first, second}
    (changed,) = checked(first, third)
    assert state_of(changed)["scheduling and backend stack"] == "broken"


def test_a_result_file_of_bench_serving_says_its_load() -> None:
    """Two lines by hand from the file: 6 requests at once, and 12 at 20 a second, two at a time."""
    result = run(RECORDED / "serving_0.5.20.jsonl")
    assert "serving_0.5.20.jsonl num_prompts=6:" in result.stdout
    assert "serving_0.5.20.jsonl num_prompts=12 load=rate=20 concurrency=2:" in result.stdout


def test_cells_that_do_not_meet_are_named_as_they_can_be_given(tmp_path: Path) -> None:
    h200 = ROOT / "baselines" / "1x-nvidia-h200" / "tp1.yaml"
    result = run(session(tmp_path, "a"), h200)
    assert result.exit_code == 2
    (first, *_) = load(h200).cells
    assert f"tp1/{first}, " in result.stderr
    assert run(h200, f"{h200}:tp1/{first}").exit_code == 0


def test_one_cell_on_two_kinds_of_hardware_is_not_picked_from_by_chance(tmp_path: Path) -> None:
    h200 = ROOT / "baselines" / "1x-nvidia-h200"
    for name in ("1x-nvidia-h200", "1x-nvidia-h100"):
        shutil.copytree(h200, tmp_path / name)
    result = run(h200, tmp_path)
    assert result.exit_code == 2
    assert "is in several of its files (of several hardware): give one file" in result.stderr
