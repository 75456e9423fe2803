"""A flag that SGLang replaced in silence is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_r1perf.sglang.downgrade import silently_downgraded
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.log import LogReader, read_log

RECORDED = Path(__file__).parent / "recorded"


def test_on_a_recorded_run() -> None:
    facts = read_log(RECORDED / "r1-slice_n1000_fa3_fresh2.log")
    assert facts.server_args["attention_backend"] == "fa3"
    assert silently_downgraded({"attention_backend": "fa3", "disable_radix_cache": True, "dtype": "auto"}, facts) == ()
    (check,) = silently_downgraded({"attention_backend": "flashinfer"}, facts)
    assert check.sentence == "attention_backend was asked for as 'flashinfer', and SGLang resolved 'fa3'"


def test_adjusted_in_the_normal_course() -> None:
    facts = replace(LogFacts(), server_args={"chunked_prefill_size": 1024, "max_running_requests": 64})
    assert silently_downgraded({"chunked_prefill_size": 8192, "max_running_requests": 128}, facts) == ()


def test_the_fp4_cache_falls_back_after_the_arguments() -> None:
    reader = LogReader()
    reader.feed(
        b"server_args=ServerArgs(kv_cache_dtype='fp4_e2m1')\n"
        b"[2026-11-30 10:00:00] --kv-cache-dtype falls back to 'auto' because this torch version does not support "
        b"torch.float4_e2m1fn_x2\n"
    )
    reader.close()
    (check,) = silently_downgraded({"kv_cache_dtype": "fp4_e2m1"}, reader.facts)
    assert check.name == "silent-downgrade"
