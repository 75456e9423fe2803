"""Rows of bench_one_batch_server, brought to one definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.sglang.one_batch import (
    OneBatchResult,
    RowFormat,
    differs_from_guide,
    guide_row,
    not_as_asked,
    read_one_batch_lines,
)

RECORDED = Path(__file__).parent / "recorded"

# The example of the private-deployment guide, SGLang 0.4.3.post2 on two H100 servers.
GUIDE: dict[str, Any] = {
    "run_name": "default",
    "batch_size": 1,
    "input_len": 128,
    "output_len": 256,
    "latency": 8.6279,
    "output_throughput": 29.67,
    "overall_throughput": 44.51,
}
# Printed by SGLang 0.5.9 and 0.5.20 on a CPU with the tiny model.
FROM_0_5_9: list[dict[str, Any]] = [
    {
        "run_name": "default",
        "batch_size": 1,
        "input_len": 16,
        "output_len": 8,
        "latency": 0.0378,
        "input_throughput": 1022.36,
        "output_throughput": 360.85,
        "overall_throughput": 634.59,
        "last_ttft": 0.0157,
        "last_gen_throughput": -1.0,
        "acc_length": -1.0,
        "cache_hit_rate": None,
    },
    {
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
    },
]
FROM_0_5_20: dict[str, Any] = {
    "run_name": "default",
    "batch_size": 4,
    "input_len": 32,
    "output_len": 64,
    "latency": 0.2825,
    "input_throughput": 8319.88,
    "output_throughput": 958.28,
    "overall_throughput": 1359.15,
    "last_ttft": 0.0154,
    "last_gen_throughput": 445.01,
    "acc_length": -1.0,
    "total_output_tokens": 256,
    "num_early_stopped": 0,
    "steady_state_output_throughput": 944.07,
    "steady_state_window_s": 0.2668,
    "cache_hit_rate": None,
}
# Made by the formula of 0.4.6.post5 (line 185): 4 * 64 / (2.0 - 0.4) and 4 * (32 + 64) / 2.0; its keys are recorded.
LIKE_0_5_3: dict[str, Any] = {
    "run_name": "default",
    "batch_size": 4,
    "input_len": 32,
    "output_len": 64,
    "latency": 2.0,
    "output_throughput": 160.0,
    "overall_throughput": 192.0,
    "last_gen_throughput": 158.2,
}


def read(tmp_path: Path, *rows: dict[str, Any] | str) -> list[OneBatchResult | str]:
    """Results, and the name of the check and the sentence where a row is refused."""
    path = tmp_path / "result.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    found: list[OneBatchResult | str] = []
    for line in read_one_batch_lines(path):
        if line.result is None:
            assert line.failed is not None
            found.append(f"{line.failed.name}: {line.failed.sentence}")
        else:
            assert line.failed is None
            found.append(line.result)
    return found


def result(tmp_path: Path, row: dict[str, Any]) -> OneBatchResult:
    (found,) = read(tmp_path, row)
    assert isinstance(found, OneBatchResult), found
    return found


def refusal(tmp_path: Path, row: dict[str, Any] | str) -> str:
    (found,) = read(tmp_path, row)
    assert isinstance(found, str), found
    return found


# --- real rows


def test_the_guides_row(tmp_path: Path) -> None:
    got = result(tmp_path, GUIDE)
    assert got.case == (1, 128, 256)
    assert got.output_throughput == pytest.approx(256 / 8.6279)
    assert got.overall_throughput == pytest.approx(384 / 8.6279)
    assert (got.total_output_tokens, got.decode_throughput, got.last_ttft_s, got.early_stopped) == (
        256,
        None,
        None,
        None,
    )
    assert got.format is RowFormat.WHOLE


def test_the_guides_row_without_a_run_name(tmp_path: Path) -> None:
    assert result(tmp_path, {k: v for k, v in GUIDE.items() if k != "run_name"}) == result(tmp_path, GUIDE)


def test_the_recorded_row_of_0_5_20() -> None:
    (line,) = read_one_batch_lines(RECORDED / "rc.jsonl")
    got = line.result
    assert got is not None
    assert got.output_throughput == pytest.approx(16 / 0.0813)  # its own output_throughput is 255.44
    assert got.decode_throughput == pytest.approx(16 / (0.0813 - 0.0187))
    assert got.overall_throughput == pytest.approx(32 / 0.0813)
    assert (got.total_output_tokens, got.early_stopped, got.format) == (16, 0, RowFormat.COUNTED)


def test_rows_of_both_rigs(tmp_path: Path) -> None:
    first, second, third = read(tmp_path, *FROM_0_5_9, FROM_0_5_20)
    assert isinstance(first, OneBatchResult)
    assert isinstance(second, OneBatchResult)
    assert isinstance(third, OneBatchResult)
    assert first.output_throughput == pytest.approx(8 / 0.0378)
    assert second.output_throughput == pytest.approx(256 / 0.2614)
    assert second.decode_throughput == pytest.approx(256 / (0.2614 - 0.0162))
    assert (second.early_stopped, third.early_stopped) == (None, 0)
    assert third.output_throughput == pytest.approx(256 / 0.2825)
    for metric in ("output_throughput", "overall_throughput", "decode_throughput"):
        assert second.definition(metric) == third.definition(metric)


def test_a_row_whose_first_token_time_is_left_out(tmp_path: Path) -> None:
    got = result(tmp_path, LIKE_0_5_3)
    assert got.format is RowFormat.STREAMED
    assert got.output_throughput == 128.0
    assert got.decode_throughput is None
    assert got.definition("output_throughput") == result(tmp_path, FROM_0_5_20).definition("output_throughput")


def test_0_4_3_is_another_definition(tmp_path: Path) -> None:
    """Not streamed, other prompts: its values are INCOMPARABLE with those of every later release."""
    old, new = result(tmp_path, GUIDE), result(tmp_path, LIKE_0_5_3)
    assert old.definition("output_throughput") != new.definition("output_throughput")


def test_an_early_stop_is_counted(tmp_path: Path) -> None:
    row = {**FROM_0_5_20, "total_output_tokens": 200, "num_early_stopped": 2}
    row |= {"output_throughput": 700.0, "overall_throughput": round(328 / 0.2825, 2)}
    got = result(tmp_path, row)
    assert (got.total_output_tokens, got.early_stopped) == (200, 2)
    assert got.output_throughput == pytest.approx(200 / 0.2825)


def test_a_replayed_text_has_its_own_input_length(tmp_path: Path) -> None:
    """0.5.20 with --dataset-name sharegpt: the row's rate counts the texts' real lengths, here 1000 tokens."""
    own = round((1000 + 256) / 0.2825, 2)
    assert result(tmp_path, {**FROM_0_5_20, "overall_throughput": own}).overall_throughput == own


def test_one_output_token_has_no_decode_rate(tmp_path: Path) -> None:
    row = {**FROM_0_5_9[0], "output_len": 1, "last_ttft": 0.0378, "output_throughput": 81234.5}
    row["overall_throughput"] = round(17 / 0.0378, 2)
    assert result(tmp_path, row).decode_throughput is None


# --- rows that contradict themselves


@pytest.mark.parametrize(
    ("row", "change", "says"),
    [
        (
            GUIDE,
            {"output_throughput": 29.9},
            "output_throughput is 29.9, and batch_size * output_len / latency is 29.67",
        ),
        (GUIDE, {"overall_throughput": 44.6}, "overall_throughput is 44.6"),
        (GUIDE, {"batch_size": 2}, "output_throughput is 29.67"),
        (GUIDE, {"output_throughput": 44.51}, "output_throughput is 44.51"),
        (LIKE_0_5_3, {"output_throughput": 127.0}, "output_throughput 127.0 is below 256 tokens / latency 2.0"),
        (LIKE_0_5_3, {"overall_throughput": 200.0}, "overall_throughput is 200.0"),
        (FROM_0_5_9[1], {"output_throughput": 979.3}, "batch_size * output_len / (latency - last_ttft) is 1044.05"),
        (FROM_0_5_9[1], {"last_ttft": 0.3}, "last_ttft 0.3 is not within the latency 0.2614"),
        (FROM_0_5_9[1], {"last_ttft": -0.1}, "last_ttft -0.1 is not within"),
        (FROM_0_5_20, {"output_throughput": 990.0}, "output_throughput 990.0 is above 256 tokens"),
        (FROM_0_5_20, {"overall_throughput": 800.0}, "overall_throughput 800.0 is below 256 output tokens"),
        (FROM_0_5_20, {"total_output_tokens": 300}, "300 output tokens, 256 asked for"),
        (FROM_0_5_20, {"num_early_stopped": 5}, "5 requests stopped early, 4 sent"),
        (FROM_0_5_20, {"num_early_stopped": 1}, "yet all 256 output tokens are there"),
    ],
)
def test_contradictions(tmp_path: Path, row: dict[str, Any], change: dict[str, Any], says: str) -> None:
    sentence = refusal(tmp_path, {**row, **change})
    assert sentence.startswith("contradiction: result line 1: ")
    assert says in sentence


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"latency": 0}, "not-positive"),
        ({"latency": -1.0}, "not-positive"),
        ({"latency": float("nan")}, "not-finite"),
        ({"output_throughput": float("inf")}, "not-finite"),
        ({"latency": "8.6"}, "wrong-type"),
        ({"latency": True}, "wrong-type"),
        ({"batch_size": 1.0}, "wrong-type"),
        ({"batch_size": 0}, "wrong-type"),
        ({"output_len": True}, "wrong-type"),
        ({"total_output_tokens": "256"}, "wrong-type"),
        ({"latency": 10**400}, "not-finite"),
    ],
)
def test_malformed_values(tmp_path: Path, change: dict[str, Any], name: str) -> None:
    assert refusal(tmp_path, {**GUIDE, **change}).startswith(f"{name}: ")


@pytest.mark.parametrize("key", ["batch_size", "input_len", "output_len", "latency", "output_throughput"])
def test_missing_keys(tmp_path: Path, key: str) -> None:
    row = {name: value for name, value in GUIDE.items() if name != key}
    assert refusal(tmp_path, row) == f"missing-key: result line 1: has no {key}"


def test_lines(tmp_path: Path) -> None:
    assert read_one_batch_lines(tmp_path / "none.jsonl") == []
    good, cut, other = read(tmp_path, GUIDE, json.dumps(GUIDE)[:40], "[1]")
    assert isinstance(good, OneBatchResult)
    assert isinstance(cut, str)
    assert cut.startswith("not-json: result line 2: ")
    assert other == "not-object: result line 3: is a list, not an object"


def test_skipped_and_unasked_cases(tmp_path: Path) -> None:
    """SGLang ends with 0 and says 'Results are saved' when it skipped a case."""
    got = [row for row in read(tmp_path, GUIDE, GUIDE, FROM_0_5_20) if isinstance(row, OneBatchResult)]
    assert not_as_asked(got[1:], [(1, 128, 256), (4, 32, 64)]) == ()
    stale, skipped = not_as_asked(got[:2], [(1, 128, 256), (64, 32, 64)])
    assert stale.sentence == "batch size 1, input 128, output 256: 2 rows, 1 asked for"
    assert skipped.sentence.startswith("batch size 64, input 32, output 64: 0 rows, 1 asked for; SGLang skips")


# --- the guide's format


def test_the_guides_own_row_is_written_as_it_was_read(tmp_path: Path) -> None:
    assert list(guide_row(result(tmp_path, GUIDE)).items()) == list(GUIDE.items())


def test_the_guides_row_over_several_lines(tmp_path: Path) -> None:
    """As the guide prints it."""
    assert result(tmp_path, GUIDE) == read(tmp_path, json.dumps(GUIDE, indent=4))[0]


def test_a_row_of_a_later_release_in_the_guides_format(tmp_path: Path) -> None:
    """The two formulas by hand: 4 * 64 / 0.2825 and 4 * (32 + 64) / 0.2825, not the row's own 958.28."""
    written = guide_row(result(tmp_path, {**FROM_0_5_20, "run_name": "nightly"}))
    assert written == {
        "run_name": "nightly",
        "batch_size": 4,
        "input_len": 32,
        "output_len": 64,
        "latency": 0.2825,
        "output_throughput": 906.19,
        "overall_throughput": 1359.29,
    }
    again = result(tmp_path, written)
    assert again.format is RowFormat.WHOLE  # seven keys say no more
    assert again.run_name == "nightly"


@pytest.mark.parametrize("row", [GUIDE, LIKE_0_5_3, *FROM_0_5_9, FROM_0_5_20])
def test_both_formulas_hold_after_recomputing(tmp_path: Path, row: dict[str, Any]) -> None:
    assert differs_from_guide(result(tmp_path, row)) == ()


def test_an_early_stop_does_not_fit_the_guides_format(tmp_path: Path) -> None:
    row = {**FROM_0_5_20, "total_output_tokens": 200, "num_early_stopped": 2}
    row |= {"output_throughput": 700.0, "overall_throughput": round(328 / 0.2825, 2)}
    got = result(tmp_path, row)
    first, second = differs_from_guide(got)
    assert first.sentence == "output_throughput is 707.96, and batch_size * output_len / latency is 906.19"
    assert second.sentence.startswith(
        "overall_throughput is 1161.06, and batch_size * (input_len + output_len) / latency"
    )
    with pytest.raises(R1PerfError, match=r"batch size 4, input 32, output 64 cannot be written in the guide's format"):
        guide_row(got)


def test_replayed_texts_do_not_fit_the_guides_format(tmp_path: Path) -> None:
    own = round((1000 + 256) / 0.2825, 2)
    (check,) = differs_from_guide(result(tmp_path, {**FROM_0_5_20, "overall_throughput": own}))
    assert (check.name, check.sentence[:29]) == ("guide-formula", f"overall_throughput is {own:.2f}")


def test_a_key_that_is_there_twice(tmp_path: Path) -> None:
    twice = json.dumps(GUIDE)[:-1] + ', "latency": 1.0}'
    assert refusal(tmp_path, twice) == "duplicate-key: result line 1: has the key 'latency' more than once"


def test_metrics_by_our_names(tmp_path: Path) -> None:
    metrics = result(tmp_path, FROM_0_5_20).metrics
    assert metrics["total_throughput"] == pytest.approx(384 / 0.2825)
    assert metrics["input_throughput"] == pytest.approx(128 / 0.2825)
    assert metrics["request_throughput"] == pytest.approx(4 / 0.2825)
    assert metrics["decode_throughput"] == pytest.approx(256 / (0.2825 - 0.0154))
    assert "decode_throughput" not in result(tmp_path, GUIDE).metrics


# --- properties


@given(
    batch=st.integers(1, 512),
    inputs=st.integers(1, 8192),
    outputs=st.integers(1, 4096),
    latency=st.floats(0.01, 1000),
    share=st.floats(0.01, 0.9),
    era=st.sampled_from(RowFormat),
)
def test_what_sglang_rounds_is_accepted(
    tmp_path_factory: pytest.TempPathFactory,
    batch: int,
    inputs: int,
    outputs: int,
    latency: float,
    share: float,
    era: RowFormat,
) -> None:
    """Each release's own formulas and rounding, written out as its source has them: never a contradiction."""
    ttft = latency * share
    row: dict[str, Any] = {"batch_size": batch, "input_len": inputs, "output_len": outputs}
    row["latency"] = round(latency, 4)
    row["overall_throughput"] = round(batch * (inputs + outputs) / latency, 2)
    row["output_throughput"] = round(batch * outputs / (latency if era is RowFormat.WHOLE else latency - ttft), 2)
    if era is not RowFormat.WHOLE:
        row["last_gen_throughput"] = 1.0
    if era in (RowFormat.LAST_TTFT, RowFormat.COUNTED):
        row["last_ttft"] = round(ttft, 4)
    if era is RowFormat.COUNTED:
        row |= {"total_output_tokens": batch * outputs, "num_early_stopped": 0}
    got = result(tmp_path_factory.mktemp("row"), row)
    assert got.format is era
    assert got.output_throughput == pytest.approx(batch * outputs / latency, rel=0.006)  # latency is rounded at 0.01 s
    written = guide_row(got)
    assert list(written) == list(GUIDE)
    again = result(tmp_path_factory.mktemp("guide"), written)  # the reader checks both formulas
    assert again.case == got.case
    assert again.output_throughput == pytest.approx(got.output_throughput)
