"""The main job on the real SGLang: launch, check, compare, judge, and leave nothing behind.

No verdict here rests on this machine's noise: floors are far away on one side or the other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from pytest_r1perf.rig.home import home
from tests.processes import wait_until
from tests.project import verdicts

pytestmark = pytest.mark.rig

HOME = home()
"""Where the rig lies; pytester gives every test a home of its own."""

QUIET = ("-p", "no:randomly", "-p", "no:cacheprovider", "--perf", "-rs")
ONE = (
    '@perf(topology="tp1", n=50, rounds="2", min_tokps={floor}, timeout=240)\ndef test_one(perf_result):\n    {body}\n'
)


class Rig:
    """A project on the real rig."""

    def __init__(self, pytester: pytest.Pytester, python: Path) -> None:
        self.pytester = pytester
        self.root = pytester.path
        self.python = python
        (self.root / "pytest.ini").write_text("[pytest]\nperf_lease_dir = leases\nperf_out = out\n")

    def write(self, text: str) -> None:
        (self.root / "test_perf.py").write_text("import pytest\nfrom pytest_r1perf import perf\n\n" + text)

    def platform(self, **changes: object) -> None:
        (self.root / "r1perf.yaml").write_text(yaml.safe_dump({"platforms": {"cpu": changes}}))

    def run(self, *args: str) -> pytest.RunResult:
        return self.pytester.runpytest_subprocess(*QUIET, "--sglang", str(self.python), *args, timeout=500)

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "pytest", *QUIET, "--sglang", str(self.python)]
        process = subprocess.Popen(command, cwd=self.root, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.root.glob("out/*/*/round-*/log.txt"))

    def processes(self) -> list[int]:
        """SGLang processes of this project: by their working directory, which a renamed process keeps."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    folder = str((entry / "cwd").readlink())
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    continue
                if folder.startswith(str(self.root / "out")) and state != "Z":
                    found.append(int(entry.name))
        return found


@pytest.fixture
def rig(pytester: pytest.Pytester, rig_python: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setenv("R1PERF_HOME", str(HOME))
    monkeypatch.setenv("COLUMNS", "600")
    return Rig(pytester, rig_python)


def test_stored_compared_and_incomparable(rig: Rig) -> None:
    rig.write(ONE.format(floor=1, body="assert perf_result.resolved['device'] == 'cpu'"))
    stored = rig.run("--perf-update-new")
    stored.assert_outcomes(passed=1)
    assert verdicts(stored) == ["BASELINE STORED"]
    (path,) = (rig.root / "baselines").glob("*/tp1.yaml")
    data = yaml.safe_load(path.read_text())
    (cell,) = data["cells"].values()
    assert cell["protocol"]["attention_backend"] == "torch_native"
    assert cell["provenance"]["versions"]["sglang"] == "0.5.20"
    samples = [json.loads(line) for line in next(rig.root.glob("out/*/samples-main.jsonl")).read_text().splitlines()]
    assert [line["round"] for line in samples if line["kind"] == "sample"] == [1, 2]
    assert rig.processes() == []

    data["cells"]["cpu/default/sharegpt/n50/offline"]["protocol"]["chunked_prefill_size"] = 4096
    path.write_text(yaml.safe_dump(data))
    barred = rig.run("--perf-rounds", "1")
    barred.assert_outcomes(skipped=1)
    assert verdicts(barred) == ["INCOMPARABLE"]
    assert barred.ret == 1
    barred.stdout.fnmatch_lines(["*protocol: chunked_prefill_size: 4096 -> *"])


def test_a_floor_out_of_reach_is_a_regression(rig: Rig) -> None:
    rig.write(ONE.format(floor=1e7, body="pass"))
    result = rig.run()
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["REGRESSED"]
    result.stdout.fnmatch_lines(["REGRESSED: tp1 default n=50 on cpu", "*reproduce: pytest *test_perf.py::test_one*"])


@pytest.mark.parametrize(
    ("changes", "verdict", "line"),
    [
        ({"flags": {"attention_backend": "bogus"}}, "CONFIG", "*invalid choice: 'bogus'*"),
        ({"flags": {"load_format": "auto"}}, "CONFIG", "*Cannot find any model weights with*"),
        ({"flags": {"max_total_tokens": 64}}, "CONFIG", "*exceeds the maximum allowed length*"),
        ({"timeout_s": {"value": 3}}, "HANG", "*no end in time*"),
    ],
)
def test_how_the_real_one_breaks(rig: Rig, changes: dict[str, object], verdict: str, line: str) -> None:
    rig.platform(**changes)
    rig.write('@perf(topology="tp1", n=50, rounds="1", min_tokps=1)\ndef test_one(): ...\n')
    result = rig.run()
    result.assert_outcomes(failed=1)
    assert verdicts(result) == [verdict]
    result.stdout.fnmatch_lines([line])
    assert rig.processes() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_pytest_killed_in_the_benchmark(rig: Rig, number: signal.Signals) -> None:
    rig.write('@perf(topology="tp1", n=400, rounds="1", min_tokps=1)\ndef test_one(): ...\n')
    with rig.started() as process:
        wait_until(lambda: "Benchmark..." in rig.log(), "the benchmark", 120)
        assert len(rig.processes()) >= 3  # the benchmark, its scheduler and detokenizer
        process.send_signal(number)
        process.wait()
        wait_until(lambda: rig.processes() == [], "the end of every process of the benchmark", 30)


def test_an_antipattern_of_the_cpu_loses(rig: Rig) -> None:
    rig.write(
        '@perf(topology="tp1", n=50, rounds="3", flags={"max_running_requests": 8})\ndef test_one(antipatterns):\n'
        '    assert [rule.id for rule in antipatterns.matched] == ["cpu-few-running-requests"]\n'
    )
    result = rig.run()
    result.assert_outcomes(xfailed=1)
    assert verdicts(result) == ["XFAIL"]
    result.stdout.fnmatch_lines(["*cpu-few-running-requests: slower than the reference*published -52%*"])
