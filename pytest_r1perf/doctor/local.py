"""All checks of this host, in the order in which they are read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.childenv import compose
from pytest_r1perf.doctor.check import Check
from pytest_r1perf.doctor.data import dataset_checks, disk_checks, lease_check, own_check
from pytest_r1perf.doctor.host import node_checks
from pytest_r1perf.doctor.ports import HTTP_PORT
from pytest_r1perf.doctor.processes import our_processes, session_checks
from pytest_r1perf.doctor.sglang import environment_check, model_check
from pytest_r1perf.nodeinfo import NodeInfo
from pytest_r1perf.platform import Platform
from pytest_r1perf.recipe import Recipe
from pytest_r1perf.workload import Workload


@dataclass(frozen=True, slots=True)
class Questions:
    """What a run would use. ``n``: prompts that the data set must hold; ``recipes``: the platform's default ones."""

    platform: Platform
    workload: Workload
    n: int
    home: Path
    sglang: str | None = None
    out: Path = Path(".r1perf")
    lease_dir: Path | None = None
    http_port: int = HTTP_PORT
    dist_port: int | None = None
    recipes: tuple[Recipe, ...] = ()


def examine(node: NodeInfo, asked: Questions) -> list[Check]:
    """Every check of this host, ``node``; it takes the time of the SGLang probe, some seconds."""
    dead, live = our_processes()
    env = compose(asked.platform.env)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [
        own_check(),
        environment_check(asked.platform, asked.sglang, asked.home),
        model_check(asked.platform, asked.home, asked.recipes),
        *dataset_checks(asked.platform, asked.workload.dataset, asked.n, asked.home),
        *session_checks(dead, live),
        *node_checks(
            node,
            asked.platform,
            env=env,
            our_pids=[victim.pid for victim in (*dead, *live)],
            http_port=asked.http_port,
            dist_port=asked.dist_port,
        ),
        *disk_checks(asked.out, caches),
        lease_check(asked.lease_dir),
    ]
