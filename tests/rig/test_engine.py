"""``mode="engine"`` on the real SGLang: two cells in one engine, two releases doing the same work, sudden ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from pytest_r1perf.measurement import Problem, Sample
from pytest_r1perf.rig.home import home
from pytest_r1perf.verdict import Verdict
from tests.engines import Bench, bench
from tests.processes import wait_until
from tests.rig.bench import HOME

pytestmark = [pytest.mark.rig, pytest.mark.usefixtures("at_home")]


def running(made: Bench) -> list[int]:
    """Processes that work in this bench's folders."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if str((entry / "cwd").readlink()).startswith(str(made.folder)) and state != "Z":
                    found.append(int(entry.name))
    return found


def driver(made: Bench) -> int:
    """The driver itself, of the processes that run: the others are its children."""
    found = running(made)
    parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in found}
    (first,) = [pid for pid, parent in parents.items() if parent not in found]
    return first


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R1PERF_HOME", str(HOME))
    assert home() == HOME


def two_cells(made: Bench) -> tuple[dict[str, object], dict[int, Sample]]:
    mode = made.engine([made.cell(6, timeout_s=240)], windows=2, discard=1)
    measurement, outcome = mode.round(mode.prepare(made.cell(12, timeout_s=240)), 1)
    assert isinstance(outcome, Sample), outcome
    ((_, sibling, nodeid),) = made.kept
    assert nodeid == "test_n6"
    assert isinstance(sibling, Sample), sibling
    assert running(made) == []
    assert len(made.logs()) == 1
    return dict(measurement.protocol), {12: outcome, 6: sibling}


def test_two_releases_measure_two_cells_in_one_engine_each(
    rig_python: Path, older_rig_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    new, found = two_cells(bench(tmp_path / "new", rig_python))
    old, _ = two_cells(bench(tmp_path / "old", older_rig_python))
    for number, one in found.items():
        assert len(one.windows) == 2
        assert one.discarded == 1
        assert one.metrics["request_throughput"] == pytest.approx(number / one.metrics["total_latency"])
        assert one.metrics["total_throughput"] > one.metrics["output_throughput"] > 0
    # The very same token ids, and nothing else that would bar a comparison of the two releases.
    assert new["token_ids"] == old["token_ids"]
    assert new == old


def test_a_request_longer_than_the_engine_takes(rig_python: Path, tmp_path: Path) -> None:
    """Of two prompts none is that long, of sixteen one is: one cell goes, the other doesn't."""
    made = bench(tmp_path, rig_python)
    cells = [made.cell(n, timeout_s=240, max_total_tokens=300) for n in (2, 16)]
    mode = made.engine(cells[1:], windows=1, discard=1)
    _, outcome = mode.round(mode.prepare(cells[0]), 1)
    assert isinstance(outcome, Sample), outcome
    ((_, refused, _),) = made.kept
    assert isinstance(refused, Problem)
    assert refused.verdict is Verdict.CONFIG
    assert "has room for 300" in refused.cause


def test_the_driver_killed_in_mid_window(rig_python: Path, tmp_path: Path) -> None:
    made = bench(tmp_path, rig_python)
    seen: list[int] = []

    def kill() -> None:
        wait_until(
            lambda: any("Benchmark..." in log.read_text(errors="replace") for log in made.logs()), "a window", 200
        )
        seen.extend(running(made))
        os.kill(driver(made), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    mode = made.engine([made.cell(6, timeout_s=240)], windows=2, discard=0)
    _, outcome = mode.round(mode.prepare(made.cell(400, timeout_s=240)), 1)
    killer.join()
    assert len(seen) >= 3  # the driver, its scheduler and detokenizer
    assert isinstance(outcome, Problem), outcome
    assert outcome.verdict is Verdict.CRASH
    assert "SIGKILL" in outcome.cause
    assert made.kept == []
    assert running(made) == []
