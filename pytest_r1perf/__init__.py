"""pytest-r1perf: performance regression tests of DeepSeek-R1 on SGLang.

A marked test launches SGLang's own benchmark, checks that the number is a measurement at all, compares it
with a stored baseline, and its verdict is the test's outcome::

    from pytest_r1perf import perf

    @perf(topology="tp8", n=7000, min_tokps=22000)
    def test_tp8_champion(): ...
"""

from __future__ import annotations

from pytest_r1perf.marker import perf

__all__ = ["perf"]
