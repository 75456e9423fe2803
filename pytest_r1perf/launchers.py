"""From a platform's ``launch:`` section to its launcher."""

from __future__ import annotations

from pytest_r1perf.launch.launcher import Launcher
from pytest_r1perf.launch.local import LocalLauncher
from pytest_r1perf.launch.pbs import PbsLauncher
from pytest_r1perf.launch.slurm import SlurmLauncher
from pytest_r1perf.launch.ssh import SshLauncher
from pytest_r1perf.platform import Platform
from pytest_r1perf.site import Session


def launcher_for(platform: Platform, by: str, session: Session) -> Launcher:
    """The launcher called ``by``; raises ``LaunchError`` for settings that it can't use.

    Nodes of a job are asked for whole, unless the platform shares hosts: a neighbour changes the numbers.
    """
    settings = platform.launch
    if by == "ssh":
        return SshLauncher(settings.hosts, settings.options)
    if by == "slurm":
        options = settings.options if platform.share_host else ("--exclusive", *settings.options)
        return SlurmLauncher(session.name, session.state_dir, options, settings.step_options)
    if by == "pbs":
        return PbsLauncher(settings.options)
    return LocalLauncher()
