"""The main job on the real SGLang: launch, check, compare, judge, and leave nothing behind.

No verdict here rests on this machine's noise: floors are far away on one side or the other.
"""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest
import yaml

from tests.processes import wait_until
from tests.project import verdicts
from tests.rig.bench import HOME, Rig

pytestmark = pytest.mark.rig

ONE = (
    '@perf(topology="tp1", n=50, rounds="2", min_tokps={floor}, timeout=240)\ndef test_one(perf_result):\n    {body}\n'
)


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
        (
            {"flags": {"attention_backend": "bogus"}},
            "CONFIG",
            "*attention_backend='bogus' cannot be said to SGLang 0.5.20*",
        ),
        ({"flags": {"load_format": "auto"}}, "CONFIG", "*Cannot find any model weights with*"),
        ({"flags": {"max_total_tokens": 64}}, "CONFIG", "*exceeds the maximum allowed length*"),
        ({"timeout_s": {"value": 3}}, "HANG", "*no end in time*"),
    ],
)
def test_how_the_real_one_breaks(rig: Rig, changes: dict[str, object], verdict: str, line: str) -> None:
    bare = rig.root / "bare-model"
    shutil.copytree(HOME / "models" / "r1-tiny", bare, ignore=shutil.ignore_patterns("*.safetensors*"))
    rig.platform(model_path=str(bare), **changes)
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


@pytest.mark.skipif(
    "R1PERF_TWINS" not in os.environ, reason="a minute: `make twins` runs it, and `make perf` asks the same"
)
def test_an_antipattern_of_the_cpu_loses(rig: Rig) -> None:
    rig.write(
        '@perf(topology="tp1", n=50, rounds="3", flags={"max_running_requests": 8})\ndef test_one(antipatterns):\n'
        '    assert [rule.id for rule in antipatterns.matched] == ["cpu-few-running-requests"]\n'
    )
    result = rig.run()
    result.assert_outcomes(xfailed=1)
    assert verdicts(result) == ["XFAIL"]
    result.stdout.fnmatch_lines(["*cpu-few-running-requests: slower than the reference*published -52%*"])
