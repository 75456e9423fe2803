"""Twins of the private-deployment guide: test_serving.py."""

from __future__ import annotations

import pytest

from pytest_r1perf import perf

perf_platform = "cpu"

SLO = {"ttft_ms": 60000, "tpot_ms": 5000}
"""Limits that a CPU keeps."""


@pytest.mark.parametrize("batch_size", [1, 4])
@perf(topology="twin", mode="serve", min_tokps=1, input_len=16, output_len=8, timeout=1200)
def test_twin_server_stress() -> None: ...


@pytest.mark.parametrize("request_rate", [8, None])
@perf(topology="twin", n=12, mode="serve", min_tokps=1, slo=SLO, timeout=1200)
def test_twin_server_by_request_rate() -> None: ...
