"""What else the host did meanwhile: beside every number, since another program on the machine changes it."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Since:
    """A moment, to look back to: host CPU seconds by then, and those of our own children that have ended."""

    at: float
    busy_s: float
    stolen_s: float
    ours_s: float

    def line(self) -> str:
        """How many CPUs others had since then, on the mean: programs of this host, and the host's other guests."""
        now = moment()
        wall_s = now.at - self.at
        others = max(0.0, now.busy_s - self.busy_s - (now.ours_s - self.ours_s)) / wall_s
        stolen = (now.stolen_s - self.stolen_s) / wall_s
        return f"meanwhile other programs had {others:.2f} of {os.cpu_count()} CPUs, and {stolen:.2f} were stolen"


def moment() -> Since:
    """Now; children that have not ended yet are counted among the others."""
    first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, stolen = (
        int(one) / os.sysconf("SC_CLK_TCK") for one in first[:8]
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Since(time.monotonic(), user + nice + system + irq + softirq, stolen, used.ru_utime + used.ru_stime)


def load() -> str:
    """The time and the host's load."""
    one, five, fifteen = os.getloadavg()
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')}, load {one:.1f} {five:.1f} {fifteen:.1f} on {os.cpu_count()} CPUs"
