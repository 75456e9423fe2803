"""Every rule of validity once held and once broken, on a recorded result and on changed copies of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_r1perf.sglang.events import Event, EventKind
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.log import read_log
from pytest_r1perf.sglang.result import Check, OfflineResult, ResultLine, Table, read_result_lines
from pytest_r1perf.validity import ExpectedWorkload, Validity, check_offline

RECORDED = Path(__file__).parent / "recorded"
EXPECTED = ExpectedWorkload(50, 4516, 3311)
# The recorded run's numbers with a round latency, so that every quotient can be checked by hand.
RESULT = OfflineResult(
    backend="engine",
    successful_requests=50,
    total_latency=2.0,
    total_input_tokens=4516,
    total_output_tokens=3311,
    request_throughput=25.0,
    input_throughput=2258.0,
    output_throughput=1655.5,
    total_throughput=3913.5,
    last_gen_throughput=723.706,
)
TABLE = Table(
    successful_requests=50,
    total_latency=2.0,
    total_input_tokens=4516,
    total_output_tokens=3311,
    last_gen_throughput=723.71,
    request_throughput=25.0,
    input_throughput=2258.0,
    output_throughput=1655.5,
    total_throughput=3913.5,
    complete=True,
)
FACTS = LogFacts(workload_tokens=(4516, 3311))


def check(
    result: OfflineResult | None = RESULT,
    table: Table | None = TABLE,
    *,
    lines: list[ResultLine] | None = None,
    expected: ExpectedWorkload = EXPECTED,
    facts: LogFacts = FACTS,
    returncode: int | None = 0,
    ceilings: dict[str, float] | None = None,
    lines_before: int = 0,
) -> Validity:
    if lines is None:
        lines = [ResultLine(1, result, ())] if result else []
    return check_offline(
        lines,
        table,
        expected=expected,
        facts=facts,
        returncode=returncode,
        ceilings=ceilings or {},
        lines_before=lines_before,
    )


def names(validity: Validity) -> list[str]:
    return [failed.name for failed in validity.failed]


def test_recorded_run_is_valid() -> None:
    facts = read_log(RECORDED / "log_tp2.log")
    lines = read_result_lines(RECORDED / "otp2.jsonl")
    validity = check_offline(
        lines, facts.table, expected=EXPECTED, facts=facts, returncode=0, ceilings={"total_throughput": 1e5}
    )
    assert validity.ok
    assert (validity.failed, validity.remarks) == ((), ())
    assert validity.result is not None
    assert validity.result.output_throughput == 1081.7409519800224


def test_the_base_case_is_valid() -> None:
    validity = check()
    assert (validity.ok, validity.failed, validity.remarks) == (True, (), ())


# --- one new line from this process


def test_table_without_jsonl() -> None:
    validity = check(None)
    assert names(validity) == ["table-without-jsonl"]
    assert not validity.ok


def test_nothing_at_all() -> None:
    assert names(check(None, None)) == ["one-result-line"]


def test_two_lines() -> None:
    validity = check(lines=[ResultLine(1, RESULT, ()), ResultLine(2, RESULT, ())])
    assert names(validity) == ["one-result-line"]
    assert "2 new lines" in validity.failed[0].sentence
    assert validity.result is None


def test_lines_that_were_there_before() -> None:
    both = [ResultLine(1, replace(RESULT, successful_requests=1), ()), ResultLine(2, RESULT, ())]
    assert check(lines=both, lines_before=1).ok
    assert names(check(lines=both[:1], lines_before=1)) == ["table-without-jsonl"]


def test_a_line_that_could_not_be_read() -> None:
    bad = ResultLine(1, None, (Check("not-finite", "result line 1 holds NaN"),))
    validity = check(lines=[bad])
    assert names(validity) == ["not-finite"]
    assert not validity.ok


# --- values


@pytest.mark.parametrize("value", [0, -1, -1.0, float("nan"), float("inf"), float("-inf")])
def test_each_value_must_be_positive(value: float) -> None:
    for key in ("total_latency", "request_throughput", "total_throughput"):
        validity = check(replace(RESULT, **{key: value}), None)  # type: ignore[arg-type]
        assert "positive" in names(validity)
        assert any(c.sentence.startswith(f"{key} is {value}") for c in validity.failed)


def test_all_requests_failed() -> None:
    zero = replace(
        RESULT,
        successful_requests=0,
        total_output_tokens=0,
        request_throughput=0.0,
        output_throughput=0.0,
    )
    assert {"positive", "num-prompts", "total-output-tokens"} <= set(names(check(zero)))


def test_fewer_requests_than_prompts() -> None:
    few = replace(RESULT, successful_requests=48, request_throughput=24.0)
    validity = check(few, replace(TABLE, successful_requests=48, request_throughput=24.0))
    assert names(validity) == ["num-prompts"]
    assert validity.failed[0].sentence == "successful_requests is 48; num_prompts is 50"


@pytest.mark.parametrize(
    ("key", "name"),
    [("total_input_tokens", "total-input-tokens"), ("total_output_tokens", "total-output-tokens")],
)
def test_token_counts(key: str, name: str) -> None:
    other = replace(EXPECTED, **{key: 4000})  # type: ignore[arg-type]
    assert names(check(expected=other)) == [name]
    unknown = replace(EXPECTED, **{key: None})  # type: ignore[arg-type]
    assert check(expected=unknown).ok


def test_the_logs_own_token_counts() -> None:
    assert names(check(facts=LogFacts(workload_tokens=(4516, 3400)))) == ["logged-total-output-tokens"]
    assert names(check(facts=LogFacts(workload_tokens=(4500, 3311)))) == ["logged-total-input-tokens"]
    assert check(facts=LogFacts()).ok


def test_early_stops_when_eos_is_honoured() -> None:
    honoured = ExpectedWorkload(50, 4516, 4000, ignore_eos=False)
    assert check(expected=honoured, facts=LogFacts(workload_tokens=(4516, 4000))).ok
    too_many = ExpectedWorkload(50, 4516, 3000, ignore_eos=False)
    assert names(check(expected=too_many)) == ["total-output-tokens"]


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("request_throughput", 25.00001, 25.0001),
        ("input_throughput", 2258.001, 2258.01),
        ("output_throughput", 1655.501, 1655.51),
        ("total_throughput", 3913.503, 3913.51),
    ],
)
def test_quotients(key: str, good: float, bad: float) -> None:
    near, far = replace(RESULT, **{key: good}), replace(RESULT, **{key: bad})  # type: ignore[arg-type]
    assert key.replace("_", "-") not in names(check(near))
    assert key.replace("_", "-") in names(check(far))


def test_ceiling() -> None:
    assert check(ceilings={"total_throughput": 3913.5}).ok
    validity = check(ceilings={"total_throughput": 3913.4, "output_throughput": 9e9})
    assert names(validity) == ["ceiling"]
    assert validity.failed[0].sentence == "total_throughput is 3913.5; the hardware's ceiling is 3913.4"
    assert names(check(ceilings={"total_throughput": float("nan")})) == ["ceiling"]
    with pytest.raises(ValueError, match="no metric 'tokps'"):
        check(ceilings={"tokps": 1.0})


# --- the table


def test_jsonl_without_table() -> None:
    assert names(check(table=None)) == ["jsonl-without-table"]


@pytest.mark.parametrize(
    "change",
    [
        {"successful_requests": 49},
        {"total_input_tokens": 4515},
        {"total_output_tokens": 3312},
        {"total_latency": 2.01},
        {"last_gen_throughput": 723.70},
        {"request_throughput": 25.01},
        {"input_throughput": 2258.01},
        {"output_throughput": 1655.51},
        {"total_throughput": 3913.49},
    ],
)
def test_each_row_must_agree(change: dict[str, float]) -> None:
    validity = check(table=replace(TABLE, **change))  # type: ignore[arg-type]
    assert names(validity) == ["table-differs"]
    assert next(iter(change)) in validity.failed[0].sentence


def test_a_row_that_the_json_line_has_not() -> None:
    assert names(check(replace(RESULT, last_gen_throughput=None))) == ["table-differs"]
    assert check(replace(RESULT, last_gen_throughput=None), replace(TABLE, last_gen_throughput=None)).ok


def test_truncated_table() -> None:
    validity = check(table=replace(TABLE, complete=False, total_throughput=None))
    assert names(validity) == ["table-truncated"]
    assert validity.failed[0].sentence == "the table is not whole: it has no total_throughput"
    assert "closing rule" in check(table=replace(TABLE, complete=False)).failed[0].sentence


def test_garbled_and_doubled_table() -> None:
    garbled = replace(TABLE, complete=False, total_latency=None, garbled=("total_latency",))
    assert names(check(table=garbled)) == ["table-garbled"]
    assert names(check(table=replace(TABLE, headers=2))) == ["one-table"]


# --- how it ended


def test_teardown_failed_is_a_remark() -> None:
    validity = check(returncode=-9)
    assert validity.ok
    assert validity.remarks == ("teardown failed (rc -9)",)


def test_a_bad_end_without_a_table_is_no_measurement() -> None:
    validity = check(table=None, returncode=1)
    assert names(validity) == ["jsonl-without-table"]
    assert validity.remarks == ()
    truncated = check(table=replace(TABLE, complete=False), returncode=1)
    assert (names(truncated), truncated.remarks) == (["table-truncated"], ())


def test_compilation_in_the_window() -> None:
    jit = Event(EventKind.JIT, "Entering DeepGEMM JIT Pre-Compile session.", 77)
    validity = check(facts=replace(FACTS, jit_in_benchmark=(jit,)))
    assert names(validity) == ["compilation"]
    assert "line 77" in validity.failed[0].sentence


def test_remarks_do_not_spoil_the_number() -> None:
    validity = check(
        replace(RESULT, last_gen_throughput=-1.0),
        replace(TABLE, last_gen_throughput=-1.0),
        facts=replace(FACTS, retracted_reqs=13, retractions=3),
        returncode=None,
    )
    assert validity.ok
    assert len(validity.remarks) == 3
    assert "13 requests were retracted, in 3 events" in validity.remarks[1]
    assert "last_gen_throughput is -1.0" in validity.remarks[2]


def test_every_failure_is_listed() -> None:
    validity = check(
        replace(RESULT, successful_requests=49, total_throughput=1.0),
        replace(TABLE, complete=False),
        ceilings={"output_throughput": 1.0},
    )
    assert set(names(validity)) == {
        "table-truncated",
        "num-prompts",
        "request-throughput",
        "total-throughput",
        "ceiling",
        "table-differs",
    }
