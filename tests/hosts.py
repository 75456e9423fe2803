"""Hosts for the tests of inspection, network and doctor: a made-up /proc and /sys, and nodes by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_r1perf.nodeinfo import SCRIPT, IbPort, Interface, NodeInfo, Shm

RECORDED = Path(__file__).parent / "recorded"
GPUS = RECORDED / "nvidia_smi_gpus_h200x2.csv"
APPS = RECORDED / "nvidia_smi_apps_h200x2.csv"

# The order in which nvidia_smi_gpus_h200x2.csv was recorded.
COLUMNS = [
    "index",
    "uuid",
    "name",
    "driver_version",
    "pci.bus_id",
    "memory.total",
    "memory.used",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.applications.graphics",
    "clocks.default_applications.graphics",
    "clocks_throttle_reasons.active",
    "power.limit",
    "power.default_limit",
    "temperature.gpu",
    "persistence_mode",
    "mig.mode.current",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
]

# Says what the driver said, in the order asked for; what a driver does not know ends it as the real one does.
NVIDIA_SMI = """#!{python}
import csv, sys
unknown, columns = {unknown!r}, {columns!r}
kind, _, names = sys.argv[1].partition("=")
if kind == "--query-compute-apps":
    print(open({apps!r}).read(), end="")
    sys.exit(0)
for name in names.split(","):
    if name in unknown or name not in columns:
        print('Field "%s" is not a valid field to query.\\n' % name)
        sys.exit(2)
for row in csv.reader(open({gpus!r}), skipinitialspace=True):
    cells = dict(zip(columns, row))
    print(", ".join(cells[name] for name in names.split(",")))
"""


def tools(folder: Path, *, addresses: Mapping[str, str] | None = None, gpus: Path | None = None, **smi: Any) -> Path:
    """A folder for PATH: ``ip`` with these addresses, ``nvidia-smi`` with these recorded GPUs."""
    folder.mkdir(exist_ok=True)
    if addresses is not None:
        links = [
            {
                "ifname": name,
                "addr_info": [
                    {"family": "inet", "local": address.partition("/")[0], "prefixlen": int(address.partition("/")[2])}
                ],
            }
            for name, address in addresses.items()
        ]
        _program(folder / "ip", f"#!{sys.executable}\nprint({json.dumps(links)!r})\n")
    if gpus is not None:
        text = NVIDIA_SMI.format(
            python=sys.executable,
            columns=COLUMNS,
            unknown=smi.get("unknown", ()),
            gpus=str(gpus),
            apps=str(smi.get("apps", APPS)),
        )
        _program(folder / "nvidia-smi", text)
    return folder


def inspected(*arguments: str, path: Path, stdin: bool = False) -> dict[str, Any]:
    """What the script prints, run with a PATH of its own; ``stdin``: sent to ``python -`` as to another host."""
    argv = [sys.executable, "-" if stdin else str(SCRIPT), *arguments]
    text = SCRIPT.read_text() if stdin else ""
    env = {"PATH": str(path)}
    done = subprocess.run(argv, input=text, env=env, capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Files below ``root``, with their folders."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def ib(device: str, *, state: str = "ACTIVE", layer: str = "InfiniBand", rate: str = "400 Gb/sec (4X NDR)") -> IbPort:
    """Port 1 of an adapter."""
    return IbPort(device, 1, state, layer, rate)


def node(name: str, addresses: Mapping[str, str], *, route: str | None = "eth0", **more: Any) -> NodeInfo:
    """A host with these addresses; ``ib*`` interfaces are InfiniBand."""
    interfaces = tuple(
        Interface(key, "up", 32 if key.startswith("ib") else 1, ipv4=(address,) if address else ())
        for key, address in addresses.items()
    )
    lo = Interface("lo", "unknown", 772, ipv4=("127.0.0.1/8",))
    given: dict[str, Any] = {
        "boot_id": f"boot of {name}",
        "cores": 64,
        "cpu": "a CPU",
        "memory_total": 1 << 40,
        "memory_available": 1 << 40,
        "shm": Shm(1 << 39, 1 << 39),
        "listening": (),
        "free_families": (20000, 20016),
        "sglang_processes": (),
        "nofile": (1 << 20, 1 << 20),
        "memlock": (-1, -1),
        "ib_ports": (),
        **more,
    }
    return NodeInfo(name, interfaces=(*interfaces, lo), default_route=route, **given)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    os.chmod(path, 0o755)  # noqa: PTH101
