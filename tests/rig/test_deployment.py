"""The closing pass on the real SGLang: weights from a checkpoint and another traffic file, beside dummy weights."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from pytest_r1perf.parity.commands import parity_command
from tests.project import verdicts
from tests.rig.bench import HOME, Rig

pytestmark = [
    pytest.mark.rig,
    pytest.mark.skipif("R1PERF_TWINS" not in os.environ, reason="minutes: `make twins` runs it"),
]

TEST = '@perf(topology="tp1", n=12, rounds="1", min_tokps=1e7, timeout=240)\ndef test_one(): ...\n'
BENCH, OWN = "cpu/default/sharegpt/n12/offline", "cpu/default/sharegpt/n12/offline/deployment"


def test_its_own_weights_traffic_and_baseline(rig: Rig, dataset: Path) -> None:
    rig.platform(
        deployment={"model_path": str(HOME / "models" / "r1-tiny"), "load_format": "auto", "dataset": str(dataset)}
    )
    rig.write(TEST)
    result = rig.run("--perf-deployment", "--perf-update-new")
    assert verdicts(result) == ["BASELINE STORED"]  # a floor of the benchmark would have failed it
    result.stdout.fnmatch_lines(["*closing pass: weights */r1-tiny (auto), traffic */sharegpt-like.json*"])
    rig.write(TEST.replace("1e7", "1"))
    assert verdicts(rig.run("--perf-update-new")) == ["BASELINE STORED"]
    (path,) = (rig.root / "baselines").glob("*/tp1.yaml")
    cells = yaml.safe_load(path.read_text())["cells"]
    assert sorted(cells) == [BENCH, OWN]
    assert [cells[key]["protocol"]["load_format"] for key in (BENCH, OWN)] == ["dummy", "auto"]
    assert cells[BENCH]["protocol"]["workload"] != cells[OWN]["protocol"]["workload"]

    checked = CliRunner().invoke(parity_command, [f"{path}:{BENCH}", f"{path}:{OWN}", "--json"])
    assert checked.exit_code == 1
    (one,) = json.loads(checked.stdout)["checked"]
    assert {item["name"]: item["state"] for item in one["items"]} == {
        "topology": "held",
        "load": "broken",
        "model loading path": "broken",
        "memory fraction": "held",
        "scheduling and backend stack": "held",
        "record": "held",
    }
    assert rig.processes() == []
