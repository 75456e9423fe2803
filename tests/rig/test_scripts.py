"""A night and a bump on the real SGLang, by the commands that a person and the workflows type.

No outcome here rests on this machine's noise: a first night stores what it finds, and the tolerance is far away.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.bench import HOME, Rig

pytestmark = pytest.mark.rig
SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(rig: Rig, script: str, *arguments: str) -> dict[str, str]:
    """The script's reports as text; it must end with 0, and leave no process."""
    reports = rig.root / f"{script}.reports"
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB_", "SGLANG_"))},
        "R1PERF_HOME": str(HOME),
        "R1PERF_PROJECT": str(rig.root),
        "R1PERF_BIN": str(Path(sys.executable).parent),
        "R1PERF_PLATFORM": "cpu",
        "R1PERF_TOPOLOGY": "tp1",
        "R1PERF_TESTS": "test_perf.py",
        "R1PERF_OUT": "out",
        "R1PERF_REPORTS": str(reports),
        "R1PERF_LOCK": str(rig.root / "host.lock"),
        "R1PERF_DOCTOR": f"--lease-dir {rig.root / 'leases'}",
        "R1PERF_LIMIT": "5m",
    }
    done = subprocess.run(
        ["bash", str(SCRIPTS / script), *arguments], env=env, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout
    assert rig.processes() == []
    return {path.name: path.read_text(encoding="utf-8") for path in reports.iterdir()}


def test_a_night(rig: Rig) -> None:
    rig.write('@perf(topology="tp1", n=50, rounds="1", timeout=240)\ndef test_one(): ...\n')
    reports = run(rig, "nightly.sh", "--perf-update-new")
    assert reports["outcome.txt"] == "green: 1 cells: 1 BASELINE STORED\n"
    assert {"report.md", "report.html", "perf.xml", "trend.txt", "plan.txt", "doctor.txt"} <= set(reports)
    (cell,) = json.loads(reports["report.json"])["cells"]
    assert len(cell["samples"]) == 1


def test_a_bump(rig: Rig, older_rig_python: Path) -> None:
    assert older_rig_python.exists()
    rig.write('@perf(topology="tp1", n=50, rounds="1", timeout=240)\ndef test_one(): ...\n')
    reports = run(rig, "bump.sh", "0.5.9", "0.5.20", "--", "--perf-tolerance", "0.9", "--perf-no-outputs")
    assert reports["outcome.txt"].startswith("green: 1 cells: 1 ")
    told = json.loads(reports["report.json"])["environments"]
    assert {one["side"]: one["versions"]["sglang"] for one in told} == {"old": "0.5.9", "new": "0.5.20"}
