"""The scaled twins of the R1 suite on the real SGLang: every procedure is run, none is code that never ran.

One process a cell, and one session, so that twins that mean the same cell share it: what is asked is whether the
procedures work, not what they find.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.rig.bench import QUIET, Rig

pytestmark = [
    pytest.mark.rig,
    pytest.mark.skipif("R1PERF_TWINS" not in os.environ, reason="ten minutes: `make twins` runs it"),
]

SUITE = Path(__file__).parents[2] / "perf_tests"
WIDE = ("twin-tp2", "twin-pp2", "twin-dp2")
"""Topologies of two ranks, each of which takes a core."""


def test_every_twin_runs(rig: Rig) -> None:
    shutil.copytree(SUITE, rig.root / "perf_tests", ignore=shutil.ignore_patterns("__pycache__"))
    topologies = ["twin", "twin-dpa1", *(WIDE if (os.cpu_count() or 1) > 1 else ())]
    result = rig.pytester.runpytest_subprocess(
        *QUIET,
        *("--sglang", str(rig.python), "--perf-platform", "cpu", "--perf-rounds", "1"),
        *("--perf-windows", "1", "--perf-discard", "1", "--topology", ",".join(topologies), "perf_tests/twins"),
        timeout=2400,
    )
    outcomes = result.parseoutcomes()
    selected = re.search(r"(\d+) selected", result.stdout.str()) or re.search(r"collected (\d+)", result.stdout.str())
    assert selected is not None
    expected = {"passed": int(selected[1]) - 1, "xfailed": 1}  # a conclusion from low loads only
    assert {name: count for name, count in outcomes.items() if name != "deselected"} == expected
    for said in (  # what the lab found stands in the report under each test's name, published figures beside it
        "test_twin_stacked_path_one_step_at_a_time",
        "test_twin_pp2_against_tp2_by_load",
        "published: ",
        "is a data point of this test",
    ):
        assert said in result.stdout.str()
    assert rig.processes() == []
