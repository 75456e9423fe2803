"""A host with GPUs for the tests: the real `pytest_r1perf.gpu` over a stand-in for NVIDIA's library."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_r1perf.gpu.nvml import Nvml, NvmlAbsent, open_nvml

GPU_A = "GPU-0b1f2c3d-0000-0000-0000-00000000000a"
GPU_B = "GPU-0b1f2c3d-0000-0000-0000-00000000000b"
MIB = 1 << 20
TOTAL_MIB = 143771
RESERVED_MIB = 600


@dataclass
class FakeHost:
    """What the stand-in shows; `gpus` may be changed, then `write()`."""

    path: Path
    gpus: list[dict[str, Any]]

    @property
    def hung(self) -> Path:
        """There once a call hangs."""
        return self.path.with_name(self.path.name + ".hung")

    def write(self, **more: object) -> None:
        scratch = self.path.with_suffix(".new")
        scratch.write_text(json.dumps({"gpus": self.gpus, **more}))
        scratch.replace(self.path)

    def change(self, uuid: str, **values: object) -> None:
        next(gpu for gpu in self.gpus if gpu["uuid"] == uuid).update(values)
        self.write()

    def hold(self, uuid: str, allocated_mib: int, *processes: tuple[int, int | None]) -> None:
        """That much memory is taken, by these processes (pid, MiB or unknown)."""
        self.change(
            uuid,
            free=(TOTAL_MIB - RESERVED_MIB - allocated_mib) * MIB,
            processes=[[pid, None if mib is None else mib * MIB] for pid, mib in processes],
        )

    def open(self) -> Nvml:
        nvml = open_nvml()
        assert not isinstance(nvml, NvmlAbsent), nvml.reason
        return nvml


def host_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *uuids: str, absent: tuple[str, ...] = (), **more: object
) -> FakeHost:
    """A host with these GPUs, from the next `open_nvml()` on."""
    host = FakeHost(tmp_path / "nvml.json", [{"uuid": uuid} for uuid in uuids])
    host.write(absent=absent, **more)
    monkeypatch.setenv("R1PERF_FAKE_NVML", str(host.path))
    monkeypatch.syspath_prepend(Path(__file__).with_name("fake_nvml"))
    # Set first, so that the end of the test takes out the stand-in, whatever was there before.
    monkeypatch.setitem(sys.modules, "pynvml", None)
    del sys.modules["pynvml"]
    return host
