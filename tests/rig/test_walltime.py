"""Wall time, start-up and cold caches of the real SGLang on the CPU rig."""

from __future__ import annotations

import json

import pytest

from tests.project import verdicts
from tests.rig.bench import Rig

pytestmark = pytest.mark.rig


def test_a_cold_process_within_its_limit(rig: Rig) -> None:
    rig.write(
        '@perf(topology="tp1", n=20, rounds="2", min_tokps=1, max_wall_time=1e5, kernel_caches="cold")\n'
        "def test_one(perf_result):\n"
        "    assert perf_result.protocol['cache_state'] == 'fresh process, empty kernel caches'\n"
    )
    result = rig.run()
    result.assert_outcomes(passed=1)
    assert verdicts(result) == ["PASS", "PASS"]
    (path,) = rig.root.glob("out/*/samples-main.jsonl")
    samples = [line for line in map(json.loads, path.read_text().splitlines()) if line["kind"] == "sample"]
    assert len(samples) == 2
    for line in samples:
        metrics = line["metrics"]
        # Seconds of one clock: start-up, then the window by SGLang's own, then the shutdown.
        assert metrics["startup_time"] + metrics["total_latency"] < metrics["wall_time"] + 0.5
        (start,) = [event for event in line["events"] if event["kind"] == "start-up"]
        assert next(iter(start["seconds"])) == "process and imports"
        assert sum(start["seconds"].values()) == pytest.approx(metrics["startup_time"], abs=2.0)
        assert any("cold" in remark for remark in line["remarks"])
    assert not list(rig.root.rglob("kernel-caches"))
    assert rig.processes() == []
