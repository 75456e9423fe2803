"""The other hosts of a platform, each looked at through the platform's launcher."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pytest_r1perf.devices import lease_directory
from pytest_r1perf.doctor.check import Check
from pytest_r1perf.doctor.host import node_checks
from pytest_r1perf.doctor.local import Questions
from pytest_r1perf.doctor.network import meeting_checks
from pytest_r1perf.launchers import launcher_for
from pytest_r1perf.site import Session
from pytest_r1perf.siteplace import agent_python
from pytest_r1perf.sites import inspect


def is_elsewhere(asked: Questions) -> bool:
    """Whether the platform's ranks run on other hosts than this one."""
    return asked.platform.launch.chosen(asked.platform.nodes, os.environ) != "local"


def examine_elsewhere(asked: Questions, waiting: Callable[[str], None]) -> tuple[list[Check], list[str]]:
    """The checks of every host of the platform, and how they would meet; with the hosts' names.

    Nothing is leased: a session that measures there is not disturbed by more than a look. Raises
    ``LaunchError`` when a host can't be reached.
    """
    platform = asked.platform
    by = platform.launch.chosen(platform.nodes, os.environ)
    python = agent_python(platform, asked.sglang)
    with tempfile.TemporaryDirectory(prefix="r1perf-doctor-") as folder:
        session = Session("doctor", lease_directory(asked.lease_dir), Path(folder))
        with launcher_for(platform, by, session).allocate(platform.nodes, waiting) as allocation:
            infos = [inspect(platform, allocation, node, python, session) for node in allocation.nodes]
            hosts = [node.host for node in allocation.nodes]
    checks = meeting_checks(infos, platform.env)
    for host, info in zip(hosts, infos, strict=True):
        checks += [
            replace(check, name=f"{host}: {check.name}")
            for check in node_checks(
                info, platform, env=platform.env, our_pids=[], http_port=asked.http_port, dist_port=asked.dist_port
            )
        ]
    return checks, hosts
