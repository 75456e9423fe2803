"""Fixtures of the R1 suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.lab import run_of
from pytest_r1perf.roundrun import translated
from pytest_r1perf.runner import CannotRun
from pytest_r1perf.sglang.translate_nouns import CannotExpress

Say: TypeAlias = Callable[[str], None]
"""Puts a sentence into the report, under the test's latest cell."""


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Say:
    return run_of(request, "say").note


@pytest.fixture
def fp4_spelling(request: pytest.FixtureRequest) -> str:
    """How this SGLang is told the FP4 KV cache; skips where it has none (before 0.5.4.post3)."""
    run = run_of(request, "fp4_spelling")
    runner = run.assessor.runner
    try:
        cell = runner.cell_of(run.spec)
        environment = runner.environment(cell)
        said = translated(cell, environment.options, sglang_defaults=runner.options.sglang_defaults).said
    except CannotExpress as error:
        pytest.skip(str(error))
    except (CannotRun, R1PerfError):
        return "not known"  # the measurement, which comes next, says why
    return str(said.get("kv_cache_dtype"))
