"""What a baseline keeps of the resolved arguments, and which differences are listed beside a verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.sglang.log import read_log
from pytest_r1perf.sglang.resolved import differences, resolved_of, storable
from pytest_r1perf.sglang.server_args import resolved_from_server_info

RECORDED = Path(__file__).parent / "recorded"
LOGS = ("rig_0.5.9.log", "rig_0.5.20.log", "r1-slice_n1000_fa3_fresh2.log", "r1-mini_n500_triton_0.5.11.log")


def resolved(name: str) -> dict[str, object]:
    return resolved_of(read_log(RECORDED / name))


@pytest.mark.parametrize("name", LOGS)
def test_what_is_kept_can_be_reviewed(name: str) -> None:
    """Of 328 to 499 arguments; the logs' paths, ports, seeds and hosts were looked up by hand."""
    whole, kept = resolved(name), storable(resolved(name))
    assert len(whole) > 320
    assert 10 <= len(kept) <= 30
    assert storable(kept) == kept
    text = json.dumps(kept)
    for value in ("/opt/", "30000", "127.0.0.1", str(whole["random_seed"]), "x-custom-labels", "sglang_storage"):
        assert value not in text
    assert kept["mem_fraction_static"] == whole["mem_fraction_static"]
    assert kept["schedule_policy"] == "fcfs"


def test_between_two_releases_on_one_machine() -> None:
    """The same command, by the real 0.5.9 and 0.5.20: of some 180 differences these are worth a line."""
    assert differences(resolved("rig_0.5.9.log"), resolved("rig_0.5.20.log")) == [
        "effective_max_running_requests_per_dp: 4096 -> 2048",
        "mem_fraction_static: 0.716 -> 0.713",
        "set only before: fp4_gemm_runner_backend=flashinfer_cutlass",
        "set only now: retraction_policy=length",
    ]


def test_a_stored_part_compares_like_the_whole() -> None:
    old, new = resolved("r1-slice_n1000_fa3_fresh2.log"), resolved("r1-mini_n500_triton_0.5.11.log")
    assert (
        differences(storable(old), new)
        == differences(old, new)
        == [
            "max_total_num_tokens: 19728350 -> 19252829",
            "mem_fraction_static: 0.87 -> 0.896",
            "set only now: disable_shared_experts_fusion=True, prefill_graph_compiler=eager, "
            "prefill_graph_max_tokens=2048",
        ]
    )
    assert differences(old, old) == []


def test_what_the_protocol_holds_is_not_repeated() -> None:
    old = {"attention_backend": "fa3", "chunked_prefill_size": 8192, "disable_cuda_graph": True, "tp_size": 8}
    new = {"attention_backend": "triton", "chunked_prefill_size": 4096, "cuda_graph_config": {"decode": {}}}
    assert differences(old, new) == []


def test_prefill_sizes_under_one_name() -> None:
    old = {"disable_piecewise_cuda_graph": False, "piecewise_cuda_graph_max_tokens": 2048}
    text = "CudaGraphConfig(decode=PhaseConfig(backend='full'), prefill=PhaseConfig(backend='breakable', max_bs=8192))"
    assert differences(old, {"cuda_graph_config": text}) == ["prefill_graph_max_tokens: 2048 -> 8192"]
    off = {"disable_piecewise_cuda_graph": True, "piecewise_cuda_graph_max_tokens": 4096}
    assert storable(off) == {}


def test_a_features_arguments_count_where_it_is_on() -> None:
    old = {"hicache_ratio": 2.0, "enable_hierarchical_cache": False}
    assert differences(old, {**old, "hicache_ratio": 3.0}) == []
    on = {**old, "enable_hierarchical_cache": True}
    assert differences(on, {**on, "hicache_ratio": 3.0}) == ["hicache_ratio: 2.0 -> 3.0"]


def test_a_feature_whose_switch_is_in_the_protocol_is_kept() -> None:
    on = {
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 3,
        "moe_a2a_backend": "deepep",
        "deepep_mode": "ll",
    }
    kept = storable(on)
    assert kept == storable(kept) == {"speculative_num_steps": 3, "deepep_mode": "ll"}
    assert differences(kept, {**on, "speculative_num_steps": 5}) == ["speculative_num_steps: 3 -> 5"]
    assert storable({**on, "speculative_algorithm": None, "moe_a2a_backend": "none"}) == {}


def test_no_secret_is_kept() -> None:
    assert storable({"api_key": "sk-verysecret", "admin_api_key": "x", "hf_token": "y", "max_prefill_tokens": 9}) == {
        "max_prefill_tokens": 9
    }


def test_free_memory_moves_a_little() -> None:
    assert differences({"max_total_num_tokens": 1_000_000}, {"max_total_num_tokens": 1_004_000}) == []
    assert differences({"max_total_num_tokens": 1_000_000}, {"max_total_num_tokens": 1_040_000}) == [
        "max_total_num_tokens: 1000000 -> 1040000"
    ]


def test_many_differences_are_bounded() -> None:
    old = {f"knob_{number:02}": number + 1 for number in range(40)}
    lines = differences(old, {name: 100 + value for name, value in old.items()})
    assert lines[0] == "knob_00: 1 -> 101"
    assert len(lines) == 13
    assert lines[-1] == "... and 28 more"
    (line,) = differences({}, old)
    assert line.startswith("set only now: knob_00=1, ")
    assert line.endswith("knob_11=12, ... and 28 more")


def test_a_server_and_a_log_of_one_release_agree() -> None:
    """The server was asked for 64 running requests and a seed."""
    for version in ("0.5.9", "0.5.20"):
        info = json.loads((RECORDED / f"server_info_{version}.json").read_text(encoding="utf-8"))
        lines = differences(resolved(f"rig_{version}.log"), resolved_from_server_info(info))
        assert [line for line in lines if line.startswith("set only before")] == []
        assert {line.partition(":")[0] for line in lines} <= {
            "effective_max_running_requests_per_dp",
            "mem_fraction_static",
            "set only now",
        }


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80) | st.lists(st.integers())
ARGUMENTS = st.dictionaries(st.from_regex(r"[a-z_]{1,12}(_size|_port)?", fullmatch=True), VALUES, max_size=8)


@given(ARGUMENTS, ARGUMENTS)
def test_any_arguments_are_kept_in_a_plain_stable_form(old: dict[str, object], new: dict[str, object]) -> None:
    kept = storable(old)
    assert storable(kept) == kept
    assert json.loads(json.dumps(kept)) == kept
    assert differences(old, old) == differences(kept, old) == []
    assert len(differences(old, new)) <= 15
