"""``mode="engine"`` where SGLang is elsewhere: through ssh, and in a container."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.lab import PodmanLab
from tests.cluster.test_real import ours
from tests.project import verdicts
from tests.rig.bench import HOME, Rig

pytestmark = [pytest.mark.cluster, pytest.mark.rig]

SUITE = """
@perf(topology="tp1", n=8, mode="engine", rounds="1", min_tokps=1, timeout=240)
def test_eight(): ...

@perf(topology="tp1", n=4, mode="engine", rounds="1", min_tokps=1, timeout=240)
def test_four(): ...
"""


def check(rig: Rig, launch: dict[str, Any]) -> None:
    """Two cells, one engine, whatever is between us and it."""
    cpu = {
        "launch": launch,
        "model_path": str(HOME / "models" / "r1-tiny"),
        "datasets": {"sharegpt": str(HOME / "datasets" / "sharegpt-like.json")},
    }
    (rig.root / "r1perf.yaml").write_text(yaml.safe_dump({"platforms": {"cpu": cpu}}))
    rig.write(SUITE)
    result = rig.run()
    assert verdicts(result) == ["PASS", "PASS"], result.outlines
    (file,) = rig.root.glob("out/*/samples-main.jsonl")
    samples = [line for line in map(json.loads, file.read_text().splitlines()) if line["kind"] == "sample"]
    assert len({sample["log"] for sample in samples}) == 1
    assert [len(sample["windows"]) for sample in samples] == [3, 3]
    assert len({sample["protocol"]["token_ids"] for sample in samples}) == 2
    assert "r1perf-engine: end" in Path(samples[0]["log"]).read_text(errors="replace")
    assert ours({file.parent.name}) == []


def test_through_ssh(rig: Rig, through: Callable[[str], Any]) -> None:
    check(rig, through("ssh"))


def test_in_a_container(rig: Rig, podman_lab: PodmanLab) -> None:
    container = {
        "engine": "podman",
        "python": str(rig.python),
        "mounts": [f"{path}:{path}:ro" for path in (*podman_lab.mounts, HOME / "rig")],
    }
    rig.python = Path(f"image:{podman_lab.image}")
    check(rig, {"by": "local", "container": container})
    assert podman_lab.containers() == []
