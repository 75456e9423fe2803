"""Removes shared memory that a run of SGLang left in /dev/shm. Standard library only, Python 3.9+.

Argument: a time (seconds since 1970). Only what has one of SGLang's own names, belongs to this user, is younger than
that time, and is neither mapped nor open in any process that can be seen: another SGLang's segments are.
"""

import contextlib
import os
import re
import sys
from pathlib import Path

# 0.5.20: distributed/device_communicators/shm_broadcast.py and managers/load snapshots. With tp 2 each run leaves
# 24 MiB, and every run 16 KiB (seen with 0.5.20 on a CPU).
NAMES = re.compile(r"sgl_shm_mq_\d+_[0-9a-f]+|sglang_loads_[0-9a-f]+_[0-9a-f]+\.shm")


def main(since: float, folder: Path = Path("/dev/shm")) -> None:
    """Remove them; what cannot be removed stays."""
    left = {
        entry.name
        for entry in os.scandir(folder)
        if NAMES.fullmatch(entry.name) and entry.stat().st_uid == os.geteuid() and entry.stat().st_ctime >= since
    }
    if left:
        left -= used(folder)
    for name in left:
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def used(folder: Path) -> "set[str]":
    """Names in the folder that a process has mapped or open."""
    found = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_bytes().splitlines():
                path = os.fsdecode(line.split(None, 5)[-1])
                if path.startswith(f"{folder}/"):
                    found.add(path[len(f"{folder}/") :])
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(descriptor.readlink())
                    if target.startswith(f"{folder}/"):
                        found.add(target[len(f"{folder}/") :])
    return found


if __name__ == "__main__":
    main(float(sys.argv[1]))
