"""The JSON line and the printed table of the offline benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_r1perf.sglang.log import LogReader, read_log
from pytest_r1perf.sglang.result import ResultLine, Table, read_result_lines

RECORDED = Path(__file__).parent / "recorded"
GOOD: dict[str, object] = {
    "backend": "engine",
    "successful_requests": 50,
    "total_latency": 2.0,
    "total_input_tokens": 4000,
    "total_output_tokens": 3000,
    "request_throughput": 25.0,
    "input_throughput": 2000.0,
    "output_throughput": 1500.0,
    "total_throughput": 3500.0,
    "last_gen_throughput": 700.5,
}


def lines_of(tmp_path: Path, data: str | bytes) -> list[ResultLine]:
    path = tmp_path / "r.jsonl"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_result_lines(path)


def refusal(tmp_path: Path, data: str | bytes) -> str:
    (line,) = lines_of(tmp_path, data)
    assert line.result is None
    (check,) = line.failed
    assert check.sentence
    return check.name


def table_of(text: str) -> Table | None:
    reader = LogReader()
    reader.feed(text.encode())
    reader.close()
    return reader.facts.table


# --- the JSON line


def test_recorded_line() -> None:
    (line,) = read_result_lines(RECORDED / "otp2.jsonl")
    assert (line.number, line.failed) == (1, ())
    result = line.result
    assert result is not None
    assert result.backend == "engine"
    assert (result.successful_requests, result.total_input_tokens, result.total_output_tokens) == (
        50,
        4516,
        3311,
    )
    assert result.total_latency == 3.0608067430002848
    assert result.total_throughput == 2557.168961385574
    assert result.last_gen_throughput == 723.7061297497328
    assert result.extra == {}


def test_several_recorded_lines() -> None:
    lines = read_result_lines(RECORDED / "r1-slice_n1000_fresh_fa3x3_triton.jsonl")
    assert [line.number for line in lines] == [1, 2, 3, 4]
    assert [round(line.result.output_throughput) for line in lines if line.result] == [
        17658,
        26063,
        25594,
        17614,
    ]


def test_another_tools_line_is_refused() -> None:
    (line,) = read_result_lines(RECORDED / "rc.jsonl")
    assert line.result is None
    assert line.failed[0].name == "missing-key"
    assert "successful_requests" in line.failed[0].sentence


def test_no_file_and_empty_file(tmp_path: Path) -> None:
    assert read_result_lines(tmp_path / "none.jsonl") == []
    assert lines_of(tmp_path, "") == []
    assert lines_of(tmp_path, "\n \n") == []


def test_old_and_new_versions(tmp_path: Path) -> None:
    old = {k: v for k, v in GOOD.items() if k != "last_gen_throughput"}  # 0.4.3.post2
    new = {**GOOD, "p99": 1.5, "tags": ["a"]}
    first, second = lines_of(tmp_path, json.dumps(old) + "\n" + json.dumps(new) + "\n")
    assert first.result is not None
    assert first.result.last_gen_throughput is None
    assert second.result is not None
    assert second.result.extra == {"p99": 1.5, "tags": ["a"]}


def test_whole_numbers_are_rates_too(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, json.dumps({**GOOD, "total_latency": 2}) + "\n")
    assert line.result is not None
    assert isinstance(line.result.total_latency, float)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"total_latency": "2.0"}, "wrong-type"),
        ({"total_latency": True}, "wrong-type"),
        ({"total_latency": None}, "wrong-type"),
        ({"successful_requests": 50.0}, "wrong-type"),
        ({"successful_requests": False}, "wrong-type"),
        ({"backend": 1}, "wrong-type"),
        ({"last_gen_throughput": "x"}, "wrong-type"),
        ({"total_throughput": float("nan")}, "not-finite"),
        ({"total_throughput": float("-inf")}, "not-finite"),
        ({"new_key": float("nan")}, "not-finite"),
        ({"last_gen_throughput": float("inf")}, "not-finite"),
        ({"total_throughput": 10**400}, "not-finite"),
    ],
)
def test_refused_values(tmp_path: Path, changes: dict[str, object], name: str) -> None:
    assert refusal(tmp_path, json.dumps({**GOOD, **changes}) + "\n") == name


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (json.dumps(GOOD), "truncated-line"),
        (json.dumps(GOOD)[:-40], "truncated-line"),
        (json.dumps(GOOD)[:-40] + "\n", "not-json"),
        ("[1, 2]\n", "not-object"),
        ("7\n", "not-object"),
        ("not json\n", "not-json"),
        (json.dumps(GOOD) + json.dumps(GOOD) + "\n", "not-json"),
        (b"\xff\xfe{}\n", "not-json"),
        (json.dumps(GOOD)[:-1] + ', "total_latency": 9.0}\n', "duplicate-key"),
        (json.dumps(GOOD).replace("2.0", "2e999") + "\n", "not-finite"),
        ("[" * 100_000 + "\n", "not-json"),
        ('{"a": ' + "1" * 5000 + "}\n", "not-json"),
    ],
)
def test_refused_lines(tmp_path: Path, data: str | bytes, name: str) -> None:
    found = refusal(tmp_path, data)
    if data == '{"a": ' + "1" * 5000 + "}\n":  # Python 3.10 reads numbers of any length
        assert found in ("not-json", "missing-key")
    else:
        assert found == name


def test_missing_key_is_named(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, json.dumps({k: v for k, v in GOOD.items() if k != "total_latency"}) + "\n")
    assert line.failed[0].sentence == "result line 1 has no total_latency"


def test_a_bad_line_beside_a_good_one(tmp_path: Path) -> None:
    good, bad = lines_of(tmp_path, json.dumps(GOOD) + "\n" + json.dumps(GOOD)[:20])
    assert good.result is not None
    assert (bad.number, bad.failed[0].name) == (2, "truncated-line")


# --- the table

TABLE = """
====== Offline Throughput Benchmark Result =======
Backend:                                 engine    
Successful requests:                     50        
Benchmark duration (s):                  3.06      
Total input tokens:                      4516      
Total generated tokens:                  3311      
Last generation throughput (tok/s):      723.71    
Request throughput (req/s):              16.34     
Input token throughput (tok/s):          1475.43   
Output token throughput (tok/s):         1081.74   
Total token throughput (tok/s):          2557.17   
==================================================
"""  # noqa: W291
WHOLE = Table(
    successful_requests=50,
    total_latency=3.06,
    total_input_tokens=4516,
    total_output_tokens=3311,
    last_gen_throughput=723.71,
    request_throughput=16.34,
    input_throughput=1475.43,
    output_throughput=1081.74,
    total_throughput=2557.17,
    complete=True,
)


def test_recorded_table() -> None:
    assert read_log(RECORDED / "log_tp2.log").table == WHOLE
    assert table_of(TABLE) == WHOLE


def test_table_of_0_4_3() -> None:
    text = "\n".join(line for line in TABLE.split("\n") if "Last generation" not in line)
    table = table_of(text)
    assert table is not None
    assert table.complete
    assert table.last_gen_throughput is None


def test_interleaved_but_readable() -> None:
    text = TABLE.replace("Total input", "[2026-11-30 09:36:04 TP0] kill_process_tree calledTotal input")
    text = text.replace("16.34     \n", "16.34     [2026-11-30 09:36:04 TP1] bye\n")
    text = text.replace("1081.74   \n", "1081.74[2026-11-30 09:36:04 TP1] bye\nsomething else\n")
    assert table_of(text) == WHOLE
    assert table_of(TABLE.replace("\n", "\r\n")) == WHOLE


@pytest.mark.parametrize("lines", range(3, 13))
def test_truncated_after_any_line(lines: int) -> None:
    table = table_of("\n".join(TABLE.split("\n")[:lines]))
    assert table is not None
    assert not table.complete


def test_truncated_inside_a_number_is_not_whole() -> None:
    table = table_of(TABLE[: TABLE.index("2557.17") + 5])
    assert table is not None
    assert table.total_throughput is None
    assert table.garbled == ("total_throughput",)


@pytest.mark.parametrize("text", ["16.3x    ", "1[TP0]6.34", "", "16", "16.345"])
def test_garbled_row(text: str) -> None:
    table = table_of(TABLE.replace("16.34     ", text))
    assert table is not None
    assert table.garbled == ("request_throughput",)
    assert not table.complete


def test_the_same_row_twice() -> None:
    again = TABLE.replace("=" * 50, "Successful requests:                     51        \n" + "=" * 50)
    table = table_of(again)
    assert table is not None
    assert table.garbled == ("successful_requests",)


def test_two_tables() -> None:
    table = table_of(TABLE + TABLE)
    assert table is not None
    assert table.headers == 2


def test_unset_values_are_read_as_they_are() -> None:
    table = table_of(TABLE.replace("723.71", "-1.00"))
    assert table is not None
    assert table.last_gen_throughput == -1.0


def test_a_row_is_missing() -> None:
    table = table_of("\n".join(line for line in TABLE.split("\n") if "Total input" not in line))
    assert table is not None
    assert (table.complete, table.garbled, table.total_input_tokens) == (False, (), None)


def test_another_tools_rows_before_the_header() -> None:
    assert table_of("Successful requests:                     7         \n" + TABLE) == WHOLE


def test_rows_without_the_header_are_another_tools() -> None:
    assert table_of(TABLE.replace("Offline Throughput", "Serving")) is None
