"""One real SGLang run over two nodes: tensor parallel 2 on the CPU engine, through each launcher."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.lab import PodmanLab
from tests.project import verdicts
from tests.rig.bench import HOME, Rig

pytestmark = [pytest.mark.cluster, pytest.mark.rig]


def ours(sessions: set[str]) -> list[int]:
    """Live processes, on whichever node, that carry the mark of one of these sessions."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environ = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0] if environ else "Z"
        except OSError:
            continue
        if state != "Z" and any(f"R1PERF_RUN_ID={name}".encode() in environ for name in sessions):
            found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def check(rig: Rig, launch: dict[str, Any], *args: str) -> None:
    """Run tensor parallel 2 over two nodes and look at what each of them says, and at what is left."""
    two = {
        "extends": "cpu",
        "nodes": 2,
        "launch": launch,
        "source": "two names of one host",
        # As the other host has them: {r1perf_home} would be this one's.
        "model_path": str(HOME / "models" / "r1-tiny"),
        "datasets": {"sharegpt": str(HOME / "datasets" / "sharegpt-like.json")},
    }
    platforms = {"two": two}
    topologies = {"tp2x2": {"tp_size": 2, "nnodes": 2, "source": "the smallest run of two nodes"}}
    (rig.root / "r1perf.yaml").write_text(yaml.safe_dump({"platforms": platforms, "topologies": topologies}))
    rig.write('@perf(topology="tp2x2", n=8, rounds="1", min_tokps=1, timeout=240)\ndef test_two(): ...\n')
    result = rig.run("--perf-platform", "two", *args)
    assert verdicts(result) == ["PASS"], result.outlines
    (file,) = rig.root.glob("out/*/samples-main.jsonl")
    (sample,) = [line for line in map(json.loads, file.read_text().splitlines()) if line["kind"] == "sample"]
    assert (sample["protocol"]["tp_size"], sample["protocol"]["nnodes"]) == (2, 2)
    folder = Path(sample["log"]).parent
    ranks = [(folder / name).read_text(errors="replace") for name in ("log.txt", "log-rank1.txt")]
    assert "TP0" in ranks[0]
    assert "TP1" in ranks[1]
    assert ours({file.parent.name}) == []


@pytest.mark.parametrize("kind", ["local", "ssh", "slurm"])
def test_tp2_over_two_nodes(rig: Rig, through: Callable[[str], Any], kind: str) -> None:
    check(rig, through(kind))


def test_tp2_over_two_containers(rig: Rig, podman_lab: PodmanLab) -> None:
    """The seeds' pair of a master and a worker; the image has no files of its own, so SGLang is mounted."""
    needed = (*podman_lab.mounts, HOME / "rig")
    container = {
        "engine": "podman",
        "python": str(rig.python),
        "mounts": [f"{path}:{path}:ro" for path in needed],
    }
    rig.python = Path(f"image:{podman_lab.image}")
    check(rig, {"by": "local", "container": container})
    assert podman_lab.containers() == []
