"""Counting GPUs both ways, and the hardware key that keeps numbers apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.fit import idle, misfit
from pytest_r1perf.hardware import Hardware, cpu_hardware, gpu_hardware
from pytest_r1perf.topology import Topology

CATALOG = load_catalog()


def h200(count: int, name: str = "NVIDIA H200") -> Hardware:
    return Hardware(name, count, tuple(f"GPU-{n}" for n in range(count)), is_cpu=False)


def cpu(cores: int) -> Hardware:
    return Hardware("Some CPU", cores, ("cpu",), is_cpu=True)


@pytest.mark.parametrize(
    ("topology", "platform", "hardware", "expected"),
    [
        ("tp8", "h200x8", h200(8), None),
        ("tp1", "h200x1", h200(1), None),
        ("tp1", "h200x8", h200(8), None),
        ("pp2", "h200x16", h200(16), None),
        ("tp16", "h200x16", h200(16), None),
        ("pp2", "h200x16", h200(8), "this host has 8, and platform 'h200x16' does not say how to reach other nodes"),
        ("tp4-dp4-pp2", "h200x16", h200(8), None),  # DP attention: 8 GPUs, 4 a node
        ("tp1", "cpu", cpu(2), None),
        ("tp2", "cpu", cpu(2), None),
        (
            "tp8",
            "h200x1",
            h200(1),
            "topology 'tp8' needs 8 GPUs on 1 node; platform 'h200x1' has 1 GPU on each of 1 node",
        ),
        ("tp16", "h200x8", h200(8), "topology 'tp16' needs 16 GPUs on 2 nodes; platform 'h200x8' has 1 node with 8"),
        (
            "pp2",
            "h200x1",
            h200(1),
            "topology 'pp2' needs 16 GPUs on 2 nodes; platform 'h200x1' has 1 node with 1 GPU each",
        ),
        ("tp1", "h200x1", None, "topology 'tp1' needs 1 GPU on 1 node; platform 'h200x1' is NVIDIA H200"),
        ("tp8", "h200x8", h200(4), "topology 'tp8' needs 8 GPUs on 1 node; this host has 4"),
        ("tp8", "h200x8", None, "platform 'h200x8' is NVIDIA H200, and this host has no such GPU"),
        ("tp8", "h200x8", h200(8, "NVIDIA H200 NVL"), "is NVIDIA H200, and this host has 8 x NVIDIA H200 NVL"),
        ("tp2", "cpu", cpu(1), "topology 'tp2' needs 2 cores on 1 node; this host has 1"),
        ("pp2", "cpu", cpu(64), "topology 'pp2' needs 16 cores on 2 nodes; platform 'cpu' has 1 node"),
    ],
)
def test_misfit(topology: str, platform: str, hardware: Hardware | None, expected: str | None) -> None:
    found = misfit(CATALOG.topology(topology), CATALOG.platform(platform), hardware)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert expected in found


@pytest.mark.parametrize(
    ("topology", "platform", "expected"),
    [
        ("tp8", "h200x8", None),
        ("pp2", "h200x16", None),
        ("tp8", "h200x16", None),  # one node is taken, and all of it is used
        ("tp1", "h200x8", "7 of 8 GPUs stay idle: tp1 uses 1"),
        ("tp4-dp4-pp2", "h200x16", "8 of 16 GPUs stay idle: tp4-dp4-pp2 uses 8"),
        ("tp2", "cpu", None),
    ],
)
def test_idle(topology: str, platform: str, expected: str | None) -> None:
    assert idle(CATALOG.topology(topology), CATALOG.platform(platform)) == expected


def test_gpus_used_with_and_without_dp_attention() -> None:
    """sglang-compat.md: GPUs needed are tp*pp with DP attention, tp*pp*dp without."""
    assert Topology("t", tp_size=4, pp_size=2, dp_size=3).gpus_used == 24
    assert Topology("t", tp_size=4, pp_size=2, dp_size=4, enable_dp_attention=True).gpus_used == 8
    assert Topology("t", tp_size=8, ep_size=8).gpus_used == 8


# -- the hardware key ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hardware", "key"),
    [
        (h200(8), "8x-nvidia-h200"),
        (h200(2, "NVIDIA H100 80GB HBM3"), "2x-nvidia-h100-80gb-hbm3"),
        (h200(1, "../../etc/x y"), "1x-..-..-etc-x-y"),  # no path in it
        (
            Hardware("Intel(R) Xeon(R) CPU @ 2.20GHz", 2, ("cpu",), is_cpu=True),
            "cpu-intel-r-xeon-r-cpu-2.20ghz-2c",
        ),
    ],
)
def test_hardware_key(hardware: Hardware, key: str) -> None:
    assert hardware.key == key
    assert "/" not in hardware.key


def test_cpu_hardware(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD  EPYC 7B13 \nprocessor\t: 1\nmodel name\t: other\n")
    found = cpu_hardware(cpuinfo)
    assert (found.name, found.count) == ("AMD EPYC 7B13", len(os.sched_getaffinity(0)))
    assert found.is_cpu
    assert cpu_hardware(tmp_path / "none").name == "unknown CPU"
    cpuinfo.write_bytes(b"model name\t: \xff\n")
    assert cpu_hardware(cpuinfo).name == "\N{REPLACEMENT CHARACTER}"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real ``nvidia-smi`` in PATH that prints the file beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\nwhile read -r line; do echo "$line"; done < "{tmp_path}/out"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    out = tmp_path / "out"
    out.write_text("0, NVIDIA H200, GPU-aaa\n1, NVIDIA H200, GPU-bbb\n2, NVIDIA H200, GPU-ccc\n")
    return out


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, ("GPU-aaa", "GPU-bbb", "GPU-ccc")),
        ("0,2", ("GPU-aaa", "GPU-ccc")),
        ("2", ("GPU-ccc",)),
        ("GPU-bbb", ("GPU-bbb",)),
        ("GPU-b", ("GPU-bbb",)),
        ("", None),
        ("-1", None),
        ("7", None),
    ],
)
@pytest.mark.usefixtures("smi")
def test_visible_gpus(monkeypatch: pytest.MonkeyPatch, visible: str | None, devices: tuple[str, ...] | None) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = gpu_hardware()
    assert (found.devices if found else None) == devices
    if found and devices:
        assert (found.name, found.count) == ("NVIDIA H200", len(devices))
        assert found.indices == tuple("abc".index(device[-1]) for device in devices)


def test_different_gpus_are_refused(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.write_text("0, NVIDIA H200, GPU-aaa\n1, NVIDIA L4, GPU-bbb\n")
    with pytest.raises(R1PerfError, match=r"GPUs differ \(NVIDIA H200, NVIDIA L4\)"):
        gpu_hardware()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = gpu_hardware()
    assert found is not None
    assert found.name == "NVIDIA H200"


def test_no_gpu(smi: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi.write_text("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")
    assert gpu_hardware() is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert gpu_hardware() is None
