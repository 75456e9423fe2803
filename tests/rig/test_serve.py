"""``mode="serve"`` on the real SGLang: its server, its two clients, two releases, and what they do when it breaks."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.rig.home import home
from pytest_r1perf.site import free_port
from pytest_r1perf.verdict import Verdict
from tests.engines import bench
from tests.processes import wait_until
from tests.rig.bench import HOME
from tests.rig.test_engine import running
from tests.serves import cell, serve_mode

pytestmark = [pytest.mark.rig, pytest.mark.usefixtures("at_home")]

BATCH: Mapping[str, Any] = {"batch_size": 2, "input_len": 64, "output_len": 8}


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R1PERF_HOME", str(HOME))
    assert home() == HOME


def a_batch_and_traffic(root: Path, python: Path) -> tuple[Measurement, Sample, Sample, list[str]]:
    """A cell of each load in one server, a window each; and what was said while it ran."""
    root.mkdir()
    made = bench(root, python)
    traffic = cell(made, n=8, request_rate=50, slo={"e2e_latency_ms": 1e6}, timeout_s=300)
    mode = serve_mode(made, [traffic], windows=1, discard=0)
    measurement, outcome = mode.round(mode.prepare(cell(made, **BATCH, timeout_s=300)), 1)
    assert isinstance(outcome, Sample), outcome
    ((served, sibling, _),) = made.kept
    assert isinstance(sibling, Sample), sibling
    assert running(made) == []
    assert len(made.logs()) == 1
    assert measurement.workload is not None
    assert served.workload is not None
    return measurement, outcome, sibling, [path.read_text(errors="replace") for path in made.logs()]


@pytest.mark.parametrize("release", ["0.5.20", "0.5.9"])
def test_a_batch_and_traffic_in_one_server(
    release: str, rig_python: Path, older_rig_python: Path, tmp_path: Path
) -> None:
    python = rig_python if release == "0.5.20" else older_rig_python
    measurement, batch, traffic, (log,) = a_batch_and_traffic(tmp_path / "round", python)
    seconds = batch.metrics["total_latency"]
    assert batch.metrics["total_throughput"] == pytest.approx(2 * (64 + 8) / seconds)
    assert batch.metrics["output_throughput"] == pytest.approx(2 * 8 / seconds)
    assert batch.metrics["decode_throughput"] > batch.metrics["output_throughput"]
    # The requests are sent over time, and all are good.
    assert traffic.metrics["goodput"] == traffic.metrics["request_throughput"]
    assert 0 < traffic.metrics["ttft_ms"] <= traffic.metrics["p99_ttft_ms"]
    assert traffic.metrics["ttft_ms"] < traffic.metrics["e2e_latency_ms"]
    assert measurement.resolved["max_total_num_tokens"] == 16384
    assert measurement.protocol["cache_state"] == "flushed before each window"
    assert log.count("Cache flushed successfully!") >= 2


def test_a_batch_above_max_running_requests_is_skipped(rig_python: Path, tmp_path: Path) -> None:
    made = bench(tmp_path, rig_python)
    asked = cell(made, **{**BATCH, "batch_size": 5}, timeout_s=300, flags={"max_running_requests": 4})
    mode = serve_mode(made, windows=1, discard=0)
    _, outcome = mode.round(mode.prepare(asked), 1)
    assert isinstance(outcome, Problem), outcome
    assert outcome.verdict is Verdict.CONFIG
    assert "SGLang's client skipped the case: Skip benchmark batch_size=5 >" in outcome.cause
    assert running(made) == []


def test_the_server_killed_under_a_client(rig_python: Path, tmp_path: Path) -> None:
    made = bench(tmp_path, rig_python)

    def kill() -> None:
        def begun() -> bool:
            return any("Benchmark..." in log.read_text(errors="replace") for log in made.logs())

        wait_until(begun, "a client", 200)
        for pid in running(made):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"sglang.launch_server" in words and b"serve_driver.py" not in words:
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    mode = serve_mode(made, windows=1, discard=0)
    _, outcome = mode.round(mode.prepare(cell(made, **BATCH, timeout_s=300)), 1)
    killer.join()
    assert isinstance(outcome, Problem), outcome
    assert outcome.verdict is Verdict.CRASH
    assert "SIGKILL" in outcome.cause
    assert running(made) == []


@pytest.mark.skipif("R1PERF_TWINS" not in os.environ, reason="two minutes: `make twins` runs it")
def test_two_servers_on_one_port(rig_python: Path, tmp_path: Path) -> None:
    """What answers there is no SGLang at all; ours says that it is ready, and ends."""
    port = free_port()
    made = bench(tmp_path, rig_python)
    argv = [str(rig_python), "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path) as there:
        try:
            mode = serve_mode(made, windows=1, discard=0, port=port)
            _, outcome = mode.round(mode.prepare(cell(made, **BATCH, timeout_s=300)), 1)
        finally:
            there.kill()
    assert isinstance(outcome, Problem), outcome
    assert outcome.verdict is Verdict.INFRA
    assert f"another server answers on port {port} of this host (one that does not say its name)" in outcome.cause
    assert running(made) == []
