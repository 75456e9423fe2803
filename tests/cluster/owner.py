"""What pytest would be, as a process that a test can kill: nodes, leases, a run that does not end by itself."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_r1perf.launch.launcher import Launcher
from pytest_r1perf.launch.slurm import SlurmLauncher
from pytest_r1perf.launch.ssh import SshLauncher
from tests.cluster.test_ends import Site, go


def main(kind: str, folder: str, session: str, *options: str) -> None:
    site = Site(Path(folder), session)
    launcher: Launcher = (
        SshLauncher(("node1", "node2"), options) if kind == "ssh" else SlurmLauncher(session, site.state)
    )
    with launcher.allocate(2, print) as allocation:
        go(site, allocation, lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
