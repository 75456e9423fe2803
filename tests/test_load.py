"""A server's load: what the marker's arguments mean, and the mistakes that are errors at collection."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_r1perf import perf
from pytest_r1perf.catalog import Catalog, load_catalog
from pytest_r1perf.cell import cell_of, reference_of
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.load import ARGUMENTS, Batch, Traffic, arguments_of
from pytest_r1perf.marker import check, with_n

BATCH = {"batch_size": 8, "input_len": 128, "output_len": 256}
SERVE = {"topology": "tp1", "mode": "serve"}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def test_one_batch(catalog: Catalog) -> None:
    spec = check({**SERVE, **BATCH}, catalog)
    assert spec.load == Batch(batch_size=8, input_len=128, output_len=256)
    assert (spec.n, spec.num_prompts) == (None, 8)


def test_traffic(catalog: Catalog) -> None:
    slo = {"tpot_ms": 100, "ttft_ms": 2000}
    spec = check({**SERVE, "n": 200, "request_rate": 4, "max_concurrency": 32, "slo": slo}, catalog)
    assert spec.load == Traffic(request_rate=4.0, max_concurrency=32, slo=(("ttft_ms", 2000.0), ("tpot_ms", 100.0)))
    assert spec.num_prompts == 200
    assert check({**SERVE, "n": 200}, catalog).load == Traffic(), "all at once"


def test_a_mode_without_a_server_has_no_load(catalog: Catalog) -> None:
    assert check({"topology": "tp1", "n": 5}, catalog).load is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "offline", "n": 5, "request_rate": 4}, "request_rate belongs to mode='serve'"),
        ({"mode": "engine", **BATCH}, "batch_size belongs to mode='serve', and this test has mode 'engine'"),
        ({"batch_size": 8}, "batch_size=8 means one batch, which needs input_len and output_len as well"),
        ({"n": 5, "output_len": 8}, "output_len=8 means one batch, which needs batch_size and input_len as well"),
        ({**BATCH, "n": 8}, "n=8 and batch_size=8 are two loads"),
        ({**BATCH, "request_rate": 4}, "request_rate is for traffic of n requests, and a batch is sent at once"),
        ({**BATCH, "slo": {"ttft_ms": 5}}, "slo is for traffic of n requests"),
        ({**BATCH, "max_concurrency": 5}, "max_concurrency is for traffic of n requests"),
        ({**BATCH, "input_len": 0}, "input_len must be a whole number above 0, got 0"),
        ({**BATCH, "batch_size": 8.0}, "batch_size must be a whole number above 0, got 8.0"),
        ({**BATCH, "output_len": True}, "output_len must be a whole number above 0, got True"),
        ({"n": 5, "request_rate": 0}, "request_rate must be a number above 0, got 0; leave it out to send all at once"),
        ({"n": 5, "request_rate": math.inf}, "request_rate must be a number above 0, got inf; leave it out"),
        ({"n": 5, "request_rate": "fast"}, "request_rate must be a number above 0, got 'fast'"),
        ({"n": 5, "max_concurrency": -1}, "max_concurrency must be a whole number above 0, got -1"),
        ({"n": 5, "slo": {}}, "slo must map metrics to ms"),
        ({"n": 5, "slo": 2000}, "slo must map metrics to ms"),
        ({"n": 5, "slo": {"ttft": 5}}, "slo['ttft'] is not known; did you mean 'ttft_ms'?"),
        ({"n": 5, "slo": {"ttft_ms": 0}}, "slo['ttft_ms'] must be a number above 0, got 0"),
        ({"n": 5, "slo": {"ttft_ms": None}}, "slo['ttft_ms'] must be a number above 0, got None"),
        ({"n": 5, "metric": "goodput"}, "metric 'goodput' needs slo, the limits in ms"),
        ({"n": 5, "metric": "decode_throughput"}, "metric 'decode_throughput' is measured of one batch"),
        ({**BATCH, "metric": ["output_throughput", "p99_ttft_ms"]}, "metric 'p99_ttft_ms' is measured of traffic"),
        ({"mode": "offline", "n": 5, "metric": "ttft_ms"}, "mode 'offline' has no such number"),
        ({**BATCH, "min_tokps": 5, "metric": "total_latency"}, "min_tokps is a floor"),
    ],
)
def test_mistakes(arguments: dict[str, Any], message: str, catalog: Catalog) -> None:
    with pytest.raises(R1PerfError) as error:
        check({**SERVE, **arguments}, catalog)
    assert str(error.value).startswith(message) or message in str(error.value)


def test_metrics_of_their_load(catalog: Catalog) -> None:
    check({**SERVE, **BATCH, "metric": ["decode_throughput", "output_throughput", "total_latency"]}, catalog)
    check({**SERVE, "n": 5, "metric": ["ttft_ms", "p99_itl_ms", "request_throughput"]}, catalog)
    check({**SERVE, "n": 5, "metric": "goodput", "slo": {"e2e_latency_ms": 900}}, catalog)


def test_a_batch_is_not_swept_by_n(catalog: Catalog) -> None:
    with pytest.raises(R1PerfError, match="parametrize batch_size instead"):
        with_n(check({**SERVE, **BATCH}, catalog), 16)
    swept = with_n(check({**SERVE, "request_rate": 4}, catalog), 16)
    assert (swept.n, swept.load) == (16, Traffic(request_rate=4.0))


@pytest.mark.parametrize(
    "arguments",
    [
        BATCH,
        {"n": 7},
        {"n": 7, "request_rate": 0.5},
        {"n": 7, "request_rate": 12.0, "max_concurrency": 3, "slo": {"ttft_ms": 20.0, "e2e_latency_ms": 900.0}},
    ],
)
def test_back_to_marker_arguments(arguments: dict[str, Any], catalog: Catalog) -> None:
    told = arguments_of(check({**SERVE, **arguments}, catalog).load)
    assert told == {name: value for name, value in arguments.items() if name != "n"}


def test_the_load_is_in_the_cells_name_and_fingerprint(catalog: Catalog) -> None:
    platform = catalog.platform("cpu")
    several: list[dict[str, Any]] = [
        {"n": 8},
        {"n": 8, "request_rate": 4},
        {"n": 8, "request_rate": 4.5},
        {"n": 8, "max_concurrency": 4},
        {"n": 8, "slo": {"ttft_ms": 4}},
        BATCH,
        {**BATCH, "input_len": 129},
        {**BATCH, "output_len": 257},
    ]
    cells = [cell_of(check({**SERVE, **one}, catalog), platform, catalog) for one in several]
    for of in ("key", "label", "fingerprint"):
        assert len({getattr(cell, of) for cell in cells}) == len(cells), of
    assert len({cell.engine_key for cell in cells}) == 1, "one server for all"
    assert cells[5].key.endswith("/n8/serve/one-batch/in=128/out=256")
    assert cells[1].label.endswith("n=8 rate=4")


def test_an_antipatterns_reference_has_the_same_load(catalog: Catalog) -> None:
    platform = catalog.platform("cpu")
    for arguments in (BATCH, {"n": 8, "request_rate": 4}):
        cell = cell_of(check({**SERVE, **arguments, "flags": {"max_running_requests": 2}}, catalog), platform, catalog)
        reference = reference_of(cell, catalog, "a-rule")
        assert (reference.load, reference.num_prompts) == (cell.load, 8)


def test_the_typed_marker_passes_them_on() -> None:
    mark = perf("tp1", mode="serve", batch_size=1, input_len=2, output_len=3).mark
    assert mark.kwargs == {"topology": "tp1", "mode": "serve", "batch_size": 1, "input_len": 2, "output_len": 3}
    mark = perf("tp1", 5, mode="serve", request_rate=1.5, max_concurrency=2, slo={"ttft_ms": 3}).mark
    assert {name: mark.kwargs[name] for name in ("request_rate", "max_concurrency", "slo")} == {
        "request_rate": 1.5,
        "max_concurrency": 2,
        "slo": {"ttft_ms": 3},
    }
    assert set(ARGUMENTS) == {"batch_size", "input_len", "output_len", "request_rate", "max_concurrency", "slo"}
