"""Rows of bench_serving, brought to one definition."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.load import Traffic
from pytest_r1perf.sglang.bench_serving import not_as_asked, read_serving_lines
from pytest_r1perf.sglang.serving_result import ServingFormat, ServingResult
from pytest_r1perf.workload import SampledWorkload

RECORDED = Path(__file__).parent / "recorded"

Each = tuple[int, int, float, list[float], float]
"""A request: tokens in and out, seconds to the first token, between tokens, and from the last one to the end mark."""


def row_of(requests: list[Each], duration: float, era: str = "0.5.20", **more: Any) -> dict[str, Any]:
    """A row by the client's formulas, written out as its source has them (bench_serving.py, calculate_metrics)."""
    ends = [ttft + sum(gaps) + tail for _, _, ttft, gaps, tail in requests]
    inputs, outputs = sum(each[0] for each in requests), sum(each[1] for each in requests)
    row: dict[str, Any] = {
        "backend": "sglang",
        "dataset_name": "sharegpt",
        "request_rate": math.inf,
        "max_concurrency": None,
        "duration": duration,
        "completed": len(requests),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "total_output_tokens_retokenized": outputs + 3,
        "request_throughput": len(requests) / duration,
        "input_throughput": inputs / duration,
        "output_throughput": outputs / duration,
        "concurrency": sum(ends) / duration,
    }
    series = {
        "ttft": [each[2] for each in requests],
        "tpot": [(end - each[2]) / (each[1] - 1) for each, end in zip(requests, ends, strict=True) if each[1] > 1],
        "itl": [gap for each in requests for gap in each[3]],
        "e2e_latency": ends,
    }
    for name, found in series.items():
        values = found or [0.0]
        row[f"mean_{name}_ms"] = statistics.fmean(values) * 1000
        row[f"median_{name}_ms"] = statistics.median(values) * 1000
        row[f"std_{name}_ms"] = statistics.pstdev(values) * 1000
        row[f"p99_{name}_ms"] = percentile(values, 99) * 1000
        if era == "0.5.20":
            row |= {f"p{at}_{name}_ms": percentile(values, at) * 1000 for at in (90, 95)}
    if era != "0.4.3":
        row["p95_itl_ms"] = percentile(series["itl"] or [0.0], 95) * 1000
    if era == "0.5.20":
        row |= {"total_throughput": (inputs + outputs) / duration, "server_info": {"served_model_name": "ours"}}
        row |= {"total_input_text_tokens": inputs, "total_input_vision_tokens": 0}
        row["input_lens"], row["output_lens"], row["ttfts"], row["itls"] = (
            [each[at] for each in requests] for at in range(4)
        )
        row["errors"], row["generated_texts"] = [""] * len(requests), ["a"] * len(requests)
    return {**row, **more}


def percentile(values: list[float], at: int) -> float:
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[at - 1]


TWO: list[Each] = [(10, 3, 0.1, [0.02, 0.03], 0.001), (30, 5, 0.3, [0.04, 0.04, 0.05, 0.05], 0.002)]
ROW = row_of(TWO, 0.8)
OLD = row_of(TWO, 0.8, era="0.4.3")


def read(tmp_path: Path, *rows: dict[str, Any] | str) -> list[ServingResult | str]:
    path = tmp_path / "result.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    found: list[ServingResult | str] = []
    for line in read_serving_lines(path):
        if line.result is None:
            assert line.failed is not None
            found.append(f"{line.failed.name}: {line.failed.sentence}")
        else:
            assert line.failed is None
            found.append(line.result)
    return found


def result(tmp_path: Path, row: dict[str, Any]) -> ServingResult:
    (found,) = read(tmp_path, row)
    assert isinstance(found, ServingResult), found
    return found


def refusal(tmp_path: Path, row: dict[str, Any] | str) -> str:
    (found,) = read(tmp_path, row)
    assert isinstance(found, str), found
    return found


# --- real rows


@pytest.mark.parametrize(
    ("version", "output", "ttft", "p99_itl"),
    [("0.5.20", 72.98926481835022, 284.06039100082126, 95.72238782850035), ("0.5.9", 77.4775, 278.2146, 65.6501)],
)
def test_the_recorded_rows(version: str, output: float, ttft: float, p99_itl: float) -> None:
    """Printed by SGLang on a CPU; the expected values are the ones it printed, the tokens those of the data set."""
    first, second = (line.result for line in read_serving_lines(RECORDED / f"serving_{version}.jsonl"))
    assert first is not None
    assert second is not None
    metrics = first.metrics([("e2e_latency_ms", 1e6)])
    assert metrics["output_throughput"] == pytest.approx(output)
    assert metrics["ttft_ms"] == pytest.approx(ttft)
    assert metrics["p99_itl_ms"] == pytest.approx(p99_itl)
    assert metrics["goodput"] == pytest.approx(first.completed / first.duration_s)
    assert (first.completed, first.total_input_tokens, first.total_output_tokens) == (6, 612, 48)
    assert first.retokenized_output_tokens == 54  # the random model's texts are other tokens again
    assert (second.request_rate, second.max_concurrency, second.requests) == (20.0, 2, None)
    workload = SampledWorkload(12, 1353, 925, "digest")
    assert not_as_asked(second, Traffic(request_rate=20.0, max_concurrency=2), n=12, workload=workload) == ()


def test_both_releases_rows_mean_the_same() -> None:
    new, old = (read_serving_lines(RECORDED / f"serving_{version}.jsonl")[0].result for version in ("0.5.20", "0.5.9"))
    assert new is not None
    assert old is not None
    assert new.metrics().keys() == old.metrics().keys()
    assert all(new.definition(name) == old.definition(name) for name in new.metrics())


def test_a_request_that_the_server_refused_counts_as_completed() -> None:
    """Recorded: the third of five prompts is longer than the context; the client says 5 completed, and ends with 0."""
    told, untold = read_serving_lines(RECORDED / "serving_refused_0.5.20.jsonl")
    assert told.failed is not None
    assert told.failed.name == "no-first-token"
    assert "1 of 5 requests were never answered by a text" in told.failed.sentence
    assert untold.result is not None  # without single requests nothing shows it
    assert "no single requests to tell" in untold.result.remarks[0]
    (check,) = not_as_asked(untold.result, Traffic(), n=50)
    assert check.sentence == "completed is 5; 50 was asked for"  # the data set had no more


# --- one definition


def test_the_metrics_by_hand(tmp_path: Path) -> None:
    """Worked out on paper from TWO: 40 tokens in, 8 out, 0.8 s."""
    got = result(tmp_path, ROW)
    metrics = got.metrics()
    assert metrics["total_throughput"] == pytest.approx(60)
    assert metrics["output_throughput"] == pytest.approx(10)
    assert metrics["input_throughput"] == pytest.approx(50)
    assert metrics["request_throughput"] == pytest.approx(2.5)
    assert metrics["total_latency"] == 0.8
    assert metrics["ttft_ms"] == pytest.approx(200)
    assert metrics["tpot_ms"] == pytest.approx((51 / 2 + 182 / 4) / 2)
    assert metrics["itl_ms"] == pytest.approx(40)
    assert metrics["e2e_latency_ms"] == pytest.approx((151 + 482) / 2)
    assert metrics["p99_ttft_ms"] == pytest.approx(298)
    assert metrics["mean_itl_ms"] == pytest.approx(230 / 6)
    assert "goodput" not in metrics
    assert (got.request_rate, got.max_concurrency, got.served_model_name) == (None, None, "ours")


def test_retokenized_counts_are_in_no_metric(tmp_path: Path) -> None:
    other = result(tmp_path, {**ROW, "total_output_tokens_retokenized": 0})
    assert (result(tmp_path, ROW).retokenized_output_tokens, other.retokenized_output_tokens) == (11, 0)
    assert other.metrics() == result(tmp_path, ROW).metrics()


def test_0_4_3_means_other_things_by_itl_and_output(tmp_path: Path) -> None:
    old, new = result(tmp_path, OLD), result(tmp_path, ROW)
    assert (old.format, new.format) == (ServingFormat.ASKED, ServingFormat.COUNTED)
    names = set(old.metrics())
    same = {name for name in names if old.definition(name) == new.definition(name)}
    assert {"ttft_ms", "p99_ttft_ms", "e2e_latency_ms", "input_throughput", "request_throughput"} <= same
    assert not same & {"itl_ms", "p99_itl_ms", "tpot_ms", "output_throughput", "total_throughput"}
    assert new.definition("itl_ms") != new.definition("p99_itl_ms")


def test_answers_of_one_token_have_no_tpot(tmp_path: Path) -> None:
    got = result(tmp_path, row_of([(10, 1, 0.1, [], 0.0), (10, 1, 0.2, [], 0.0)], 0.5))
    assert (got.tpot_ms, got.itl_ms) == (None, None)
    assert "tpot_ms" not in got.metrics()
    assert got.goodput([("tpot_ms", 1.0)]).share == 1.0


def test_tokens_that_come_in_one_chunk_have_fewer_gaps(tmp_path: Path) -> None:
    """The first chunk may hold several tokens."""
    got = result(tmp_path, row_of([(10, 9, 0.1, [0.02, 0.02], 0.0)], 0.5))
    assert got.requests is not None
    assert got.requests[0].tpot_ms == pytest.approx(5)


def test_tokens_that_were_waiting_are_a_remark(tmp_path: Path) -> None:
    """The client reads too late what came long ago."""
    slow = result(tmp_path, row_of([(10, 5, 0.1, [0.02, 5e-6, 5e-6, 0.02], 0.0)], 0.5))
    assert slow.burst_share == 0.5
    (remark,) = slow.remarks
    assert remark.startswith("50% of the tokens were read at once")
    assert result(tmp_path, ROW).remarks == ()
    assert "refused as answered" in result(tmp_path, OLD).remarks[0]


# --- goodput


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        ([("ttft_ms", 100.5)], 1),
        ([("ttft_ms", 301)], 2),
        ([("ttft_ms", 99)], 0),
        ([("tpot_ms", 24.9)], 0),
        ([("tpot_ms", 25.1)], 1),
        ([("e2e_latency_ms", 480.5)], 2),
        ([("e2e_latency_ms", 479.5)], 1),
        ([("ttft_ms", 301), ("e2e_latency_ms", 151)], 1),
        ([("ttft_ms", 99), ("e2e_latency_ms", 1000)], 0),
    ],
)
def test_goodput(tmp_path: Path, slo: list[tuple[str, float]], good: int) -> None:
    got = result(tmp_path, ROW)
    assert got.goodput(slo).per_s == pytest.approx(good / 0.8)
    assert got.goodput(slo).share == good / 2
    assert got.metrics(slo)["goodput"] == pytest.approx(good / 0.8)


def test_each_limits_share(tmp_path: Path) -> None:
    shares = result(tmp_path, ROW).goodput([("ttft_ms", 301), ("e2e_latency_ms", 151)]).by_limit
    assert shares == (("ttft_ms", 1.0), ("e2e_latency_ms", 0.5))


def test_no_goodput_without_single_requests(tmp_path: Path) -> None:
    got = result(tmp_path, OLD)
    assert "goodput" not in got.metrics([("ttft_ms", 1)])
    with pytest.raises(R1PerfError, match=r"the row has no numbers of single requests .*0\.4\.6\.post5"):
        got.goodput([("ttft_ms", 1)])
    assert result(tmp_path, ROW).why_no_goodput is None


def test_an_unknown_limit(tmp_path: Path) -> None:
    with pytest.raises(R1PerfError, match=r"slo\['ttft'\] is not known; did you mean 'ttft_ms'"):
        result(tmp_path, ROW).goodput([("ttft", 1)])


# --- rows that contradict themselves


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"completed": 1}, "requests-failed: result line 1: completed is 1 of 2 requests"),
        ({"completed": 3}, "contradiction: result line 1: completed is 3, and there are 2 requests"),
        ({"completed": 0, "errors": ["", ""]}, "completed is 0 of 2 requests"),
        (
            {"completed": 1, "errors": ["", "Traceback\nValueError: refused"], "output_lens": [3, 0]},
            "requests-failed: result line 1: completed is 1 of 2 requests; the first: ValueError: refused",
        ),
        ({"total_output_tokens": 9}, "output_throughput is 10"),
        ({"output_throughput": 10.1}, "output_throughput is 10.1, and 8 / 0.8 s is 10"),
        ({"total_throughput": 10.0}, "total_throughput is 10.0"),
        ({"request_throughput": 1.25}, "request_throughput is 1.25"),
        ({"p99_ttft_ms": 150.0}, "p95_ttft_ms"),
        ({"p90_ttft_ms": 150.0}, "p90_ttft_ms 150.0 is below median_ttft_ms 200"),
        ({"mean_ttft_ms": 320.0}, "are further apart than std_ttft_ms"),
        ({"std_ttft_ms": -1.0}, "not-positive: result line 1: std_ttft_ms is -1.0"),
        ({"median_ttft_ms": 201.0}, "median_ttft_ms is 201.0, and that of its requests is 200"),
        ({"mean_itl_ms": 38.0}, "mean_itl_ms is 38.0, and that of its requests is 38.3"),
        ({"median_tpot_ms": 30.0}, "is at least 35"),
        ({"concurrency": 1.9}, "concurrency is 1.9, and the requests' latencies / duration are 0.79"),
        ({"output_lens": [3, 6]}, "total_output_tokens is 8, and its requests have 9"),
        ({"output_lens": [2, 6]}, "request 0 has 2 gaps between 2 tokens"),
        ({"ttfts": [0.0, 0.3]}, "no-first-token: result line 1: 1 of 2 requests were never answered by a text"),
        ({"ttfts": [-0.1, 0.3]}, "ttfts of request 0 is -0.1 s"),
        ({"ttfts": [0.1]}, "ttfts does not hold one entry a request"),
        ({"itls": [[0.02, 0.03], None]}, "wrong-type: result line 1: 'None' is a NoneType, not a list"),
        ({"itls": [[0.02, -0.03], [0.04, 0.04, 0.05, 0.05]]}, "itls of request 0 has -0.03 s"),
        ({"total_input_vision_tokens": 5}, "total_input_tokens is 40, and its parts are 45"),
        ({"duration": 0.3}, "request_throughput is 2.5"),
        ({"mean_e2e_latency_ms": -1}, "not-positive: result line 1: mean_e2e_latency_ms is -1"),
        ({"median_ttft_ms": 0.0}, "not-positive: result line 1: median_ttft_ms is 0.0"),
        ({"median_itl_ms": 0.0}, "not-positive: result line 1: median_itl_ms is 0.0"),
        ({"p99_tpot_ms": math.nan}, "not-finite: result line 1: p99_tpot_ms is nan"),
        ({"mean_ttft_ms": math.inf}, "not-finite: result line 1: mean_ttft_ms is inf"),
        ({"duration": 0}, "not-positive: result line 1: duration is 0"),
        ({"duration": "0.8"}, "wrong-type: result line 1: duration is '0.8', not a number"),
        ({"completed": True}, "wrong-type: result line 1: completed is True"),
        ({"total_output_tokens": 0}, "wrong-type: result line 1: total_output_tokens is 0"),
        ({"request_rate": "trace"}, "request_rate is 'trace'"),
    ],
)
def test_contradictions(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    assert says in refusal(tmp_path, {**ROW, **change})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"p99_ttft_ms": 150.0}, "p99_ttft_ms 150.0 is below median_ttft_ms 200"),
        ({"median_ttft_ms": 260.0, "p99_ttft_ms": 483.0}, "p99_ttft_ms 483.0 is above p99_e2e_latency_ms"),
        ({"p99_e2e_latency_ms": 900.0}, "p99_e2e_latency_ms 900.0 is above the duration 0.8 s"),
        ({"completed": 0}, "requests-failed: result line 1: completed is 0: every request failed"),
        ({"total_output_tokens": 1, "output_throughput": 1.25}, "1 output tokens of 2 requests"),
    ],
)
def test_contradictions_without_single_requests(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    assert says in refusal(tmp_path, {**OLD, **change})


def test_more_in_flight_than_the_client_lets(tmp_path: Path) -> None:
    requests: list[Each] = [(10, 2, 0.2, [0.1], 0.0)] * 4
    assert result(tmp_path, row_of(requests, 0.35, max_concurrency=4)).max_concurrency == 4
    assert "is above max_concurrency 3" in refusal(tmp_path, row_of(requests, 0.35, max_concurrency=3))


@pytest.mark.parametrize(
    "key", ["completed", "duration", "median_ttft_ms", "p99_itl_ms", "concurrency", "request_rate"]
)
def test_missing_keys(tmp_path: Path, key: str) -> None:
    row = {name: value for name, value in ROW.items() if name != key}
    assert refusal(tmp_path, row) == f"missing-key: result line 1: has no {key}"


def test_lines(tmp_path: Path) -> None:
    assert read_serving_lines(tmp_path / "none.jsonl") == []
    twice = json.dumps(OLD)[:-1] + ', "completed": 2}'
    good, cut, other, double = read(tmp_path, ROW, json.dumps(ROW)[:100], "[1]", twice)
    assert isinstance(good, ServingResult)
    assert str(cut).startswith("not-json: result line 2: ")
    assert other == "not-object: result line 3: is a list, not an object"
    assert double == "duplicate-key: result line 4: has the key 'completed' more than once"


# --- what was asked for


def test_as_asked(tmp_path: Path) -> None:
    got = result(tmp_path, {**ROW, "request_rate": 4.0, "max_concurrency": 2})
    traffic = Traffic(request_rate=4.0, max_concurrency=2)
    workload = SampledWorkload(2, 40, 8, "digest")
    assert not_as_asked(got, traffic, n=2, workload=workload, served_model_name="ours") == ()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"n": 3}, ["completed is 2; 3 was asked for", "requests is 2; 3 was asked for"]),
        ({"workload": SampledWorkload(2, 41, 8, "digest")}, ["total_input_tokens is 40; 41 was asked for"]),
        ({"workload": SampledWorkload(2, 40, 9, "digest")}, ["total_output_tokens is 8; 9 was asked for"]),
        ({"traffic": Traffic(request_rate=2.0)}, ["request_rate is None; 2.0 was asked for"]),
        ({"traffic": Traffic(max_concurrency=2)}, ["max_concurrency is None; 2 was asked for"]),
        ({"served_model_name": "mine"}, ["served_model_name is ours; mine was asked for"]),
    ],
)
def test_not_as_asked(tmp_path: Path, asked: dict[str, Any], says: list[str]) -> None:
    given: dict[str, Any] = {"traffic": Traffic(), "n": 2, **asked}
    checks = not_as_asked(result(tmp_path, ROW), given.pop("traffic"), **given)
    assert [check.sentence for check in checks] == says


# --- properties

SECONDS = st.floats(1e-4, 50)


@st.composite
def requests(draw: st.DrawFn) -> list[Each]:
    each = []
    for _ in range(draw(st.integers(1, 12))):
        gaps = draw(st.lists(SECONDS, max_size=8))
        tokens = len(gaps) + draw(st.integers(1, 3))
        if len(gaps) == 0:
            tokens = 1  # several tokens in one chunk alone have no gap: refused, see below
        each.append((draw(st.integers(1, 4096)), tokens, draw(SECONDS), gaps, draw(st.floats(0, 0.01))))
    return each


@given(each=requests(), longer=st.floats(1.0001, 10), era=st.sampled_from(["0.4.3", "0.5.3", "0.5.20"]))
def test_what_sglang_computes_is_accepted(
    tmp_path_factory: pytest.TempPathFactory, each: list[Each], longer: float, era: str
) -> None:
    duration = longer * max(ttft + sum(gaps) + tail for _, _, ttft, gaps, tail in each)
    row = row_of(each, duration, era)
    got = result(tmp_path_factory.mktemp("row"), row)
    metrics = got.metrics()
    for name in ("output_throughput", "input_throughput", "request_throughput", "p99_ttft_ms", "p99_e2e_latency_ms"):
        assert metrics[name] == pytest.approx(row[name])
    assert metrics["ttft_ms"] == pytest.approx(row["median_ttft_ms"])
    if era == "0.5.20":
        limit = statistics.median([request[2] for request in each]) * 1000
        within = sum(request[2] * 1000 <= limit for request in each)
        assert got.goodput([("ttft_ms", limit)]).per_s == pytest.approx(within / duration)


@given(
    each=requests(),
    key=st.sampled_from([*OLD, "total_throughput", "ttfts", "output_lens"]),
    value=st.one_of(st.none(), st.just(-1), st.just(0), st.just(math.nan), st.just("7"), st.just([]), st.just(True)),
)
def test_a_spoilt_value_is_never_taken(
    tmp_path_factory: pytest.TempPathFactory, each: list[Each], key: str, value: Any
) -> None:
    """Whatever of these stands where a measured value belongs, there is no result with it."""
    row = row_of(each, 1000.0)
    if key in ("backend", "dataset_name", "max_concurrency", "total_output_tokens_retokenized"):
        return  # what was asked for, or for the eye only
    if "std" in key and value == 0 and not isinstance(value, bool):
        return  # requests that are all alike
    if ("tpot" in key or "itl" in key) and row["total_output_tokens"] == row["completed"]:
        return  # not read: one token each
    assert isinstance(read(tmp_path_factory.mktemp("row"), {**row, key: value})[0], str)
