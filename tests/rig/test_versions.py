"""The gate of a version bump on two real SGLangs: one recipe, each release's own words, one protocol."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.project import verdicts
from tests.rig.bench import Rig

pytestmark = pytest.mark.rig

ONE = """
@perf(topology="tp1", n=50, rounds="2", timeout=240, tolerance=0.9, flags={flags})
def test_one(): ...
"""
# Said in other words by the two: 0.5.20 has no --cuda-graph-max-bs and no --enable-piecewise-cuda-graph any more.
FLAGS = {"cuda_graph_max_bs": 8, "enable_piecewise_cuda_graph": False, "load_balance_method": "round_robin"}


def argv_of(rig: Rig, session: int) -> list[str]:
    records = sorted(rig.root.glob("out/*/samples-main.jsonl"))[session].read_text().splitlines()
    samples = [line for line in map(json.loads, records) if line["kind"] == "sample"]
    return list(samples[0]["command"])


def test_a_bump_is_comparable_through_both_spellings(rig: Rig, older_rig_python: Path) -> None:
    """The tolerance is wide on purpose: what is tested is that the numbers may be compared, and what is listed."""
    rig.write(ONE.format(flags=FLAGS))
    new, rig.python = rig.python, older_rig_python
    stored = rig.run("--perf-update-new")
    assert verdicts(stored) == ["BASELINE STORED"]
    rig.python = new
    compared = rig.run()
    assert verdicts(compared) == ["PASS"], compared.outlines
    compared.stdout.fnmatch_lines(["*versions: sglang: 0.5.9 -> 0.5.20*"])
    old_argv, new_argv = argv_of(rig, 0), argv_of(rig, 1)
    assert "sglang.bench_offline_throughput" in old_argv
    assert "sglang.benchmark.offline_throughput" in new_argv
    assert old_argv[old_argv.index("--cuda-graph-max-bs") + 1] == "8"
    assert new_argv[new_argv.index("--cuda-graph-max-bs-decode") + 1] == "8"
    assert "--cuda-graph-max-bs" not in new_argv
    assert new_argv[new_argv.index("--cuda-graph-backend-prefill") + 1] == "disabled"


def test_what_a_release_cannot_say_is_refused_before_it_starts(rig: Rig, older_rig_python: Path) -> None:
    rig.write(
        """
@perf(topology="tp1", n=50, flags={"schedule_policy": "shortest-prefill-first"})
def test_choice(): ...

@perf(topology="tp1", n=50, flags={"kv_cache_dtype": "nvfp4"})
def test_dtype(): ...
"""
    )
    rig.python = older_rig_python
    result = rig.run()
    assert verdicts(result) == ["CONFIG", "CONFIG"]
    result.stdout.fnmatch_lines(["*cause: *shortest-prefill-first*0.5.9*"])
    result.stdout.fnmatch_lines(["*cause: *nvfp4*0.5.9*"])
    assert rig.log() == ""


def test_own_defaults_are_named(rig: Rig) -> None:
    rig.write('@perf(topology="tp1", n=50, rounds="1", min_tokps=1, timeout=240)\ndef test_one(): ...\n')
    result = rig.run("--perf-sglang-defaults")
    assert "--random-seed" not in argv_of(rig, 0)
    result.stdout.fnmatch_lines(["*a default of SGLang's own differs from the stated one: random_seed*"])
