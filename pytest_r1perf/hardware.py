"""The hardware key: what keeps one machine's numbers apart from another's."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_r1perf.errors import R1PerfError


class NamedHardware(Protocol):
    """What a baseline file says of the hardware: its folder's name, the model, and how many."""

    @property
    def key(self) -> str:
        """The folder's name."""
        ...

    @property
    def name(self) -> str:
        """The GPU's or CPU's."""
        ...

    @property
    def count(self) -> int:
        """GPUs, or cores of a CPU."""
        ...


@dataclass(frozen=True, slots=True)
class Hardware:
    """Exact GPU name and count on this host, or CPU model and the cores this process may use.

    ``devices`` are what a lease is taken on: GPU UUIDs, or ``cpu``. ``indices`` are the same GPUs' numbers in
    PCI bus order, as nvidia-smi counts: SGLang reads CUDA_VISIBLE_DEVICES as whole numbers (0.5.9
    custom_all_reduce.py:128, 0.5.20 custom_all_reduce_utils.py:477), so UUIDs won't do there.
    """

    name: str
    count: int
    devices: tuple[str, ...]
    is_cpu: bool
    indices: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """The folder's name under ``baselines/``, e.g. ``8x-nvidia-h200`` or ``cpu-intel-xeon-2c``."""
        slug = re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-")
        return f"cpu-{slug}-{self.count}c" if self.is_cpu else f"{self.count}x-{slug}"

    def __str__(self) -> str:
        return f"{self.name}, {self.count} cores" if self.is_cpu else f"{self.count} x {self.name}"


def cpu_hardware(cpuinfo: Path = Path("/proc/cpuinfo")) -> Hardware:
    """This host's CPU; the cores are those that the process may run on (taskset, cgroup cpuset)."""
    name = "unknown CPU"
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            field, _, value = line.partition(":")
            if field.strip() in ("model name", "Model", "cpu model"):
                name = re.sub(r"\s+", " ", value.strip()) or name
                break
    except OSError:
        pass
    return Hardware(name, len(os.sched_getaffinity(0)), ("cpu",), is_cpu=True)


def gpu_hardware() -> Hardware | None:
    """This host's NVIDIA GPUs by ``nvidia-smi``, or ``None`` where there are none.

    Raises :class:`R1PerfError` when they are not all of one name.
    """
    query = ["nvidia-smi", "--query-gpu=index,name,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = [line.split(", ") for line in done.stdout.splitlines() if "GPU-" in line]
    if done.returncode != 0 or not rows:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [(int(row[0]), ", ".join(row[1:-1]).strip(), row[-1].strip()) for row in rows]
    if visible is not None:
        gpus = _visible(gpus, visible)
    names = {name for _, name, _ in gpus}
    if len(names) > 1:
        raise R1PerfError(
            f"this host's GPUs differ ({', '.join(sorted(names))}): choose equal ones with CUDA_VISIBLE_DEVICES"
        )
    if not gpus:
        return None
    devices, indices = tuple(uuid for _, _, uuid in gpus), tuple(index for index, _, _ in gpus)
    return Hardware(names.pop(), len(gpus), devices, is_cpu=False, indices=indices)


def hardware_for(*, is_cpu: bool) -> Hardware | None:
    """This host's hardware of a kind."""
    return cpu_hardware() if is_cpu else gpu_hardware()


def _visible(gpus: list[tuple[int, str, str]], visible: str) -> list[tuple[int, str, str]]:
    chosen = []
    for entry in filter(None, (part.strip() for part in visible.split(","))):
        if entry.isdigit():
            chosen += gpus[int(entry) : int(entry) + 1]
        else:
            chosen += [gpu for gpu in gpus if gpu[2].startswith(entry)]
    return chosen
