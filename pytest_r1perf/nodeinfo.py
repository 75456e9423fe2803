"""What a host is, as ``launch/scripts/inspect_node.py`` printed it there; what it could not read is ``None``."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_r1perf.errors import R1PerfError

SCRIPT = Path(__file__).parent / "launch" / "scripts" / "inspect_node.py"
"""Stand-alone; on another host it is sent over standard input to ``python3 -``."""

SCHEMA = 1
_PATIENCE_S = 300  # nvidia-smi takes up to 60 s a call there


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU; ``user`` is ``None`` in another PID namespace."""

    pid: int
    name: str
    used_mib: int | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One row of nvidia-smi: MiB, MHz, W, degrees Celsius; ``processes`` is ``None`` when it would not list them.

    ``clock_reasons`` is the hexadecimal mask of why the clocks are where they are (nvml.h, ``nvmlClocksEventReason*``).
    """

    index: int
    uuid: str
    name: str
    driver: str | None = None
    bus_id: str | None = None
    memory_total_mib: float | None = None
    memory_used_mib: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    app_clock_mhz: float | None = None
    app_clock_default_mhz: float | None = None
    clock_reasons: str | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: float | None = None
    persistence: str | None = None
    mig: str | None = None
    ecc: str | None = None
    ecc_uncorrected: int | None = None
    numa_node: int | None = None
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface. ``type``: 1 Ethernet, 32 InfiniBand, 772 loopback; addresses as ``10.0.0.1/24``."""

    name: str
    state: str | None = None
    type: int | None = None
    mtu: int | None = None
    speed_mbits: int | None = None
    physical: bool = False
    ipv4: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()

    @property
    def is_up(self) -> bool:
        """Whether traffic can pass; loopback and some tunnels say ``unknown``."""
        return self.state in ("up", "unknown", None)

    @property
    def is_infiniband(self) -> bool:
        """IP over InfiniBand."""
        return self.type == 32


@dataclass(frozen=True, slots=True)
class IbPort:
    """A port of an InfiniBand or RoCE adapter; ``rate`` as the kernel writes it: ``400 Gb/sec (4X NDR)``."""

    device: str
    port: int
    state: str | None = None
    link_layer: str | None = None
    rate: str | None = None
    interfaces: tuple[str, ...] = ()
    numa_node: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether the link is up."""
        return self.state == "ACTIVE"

    @property
    def gbits(self) -> float:
        """Gbit/s, 0 when unknown."""
        first = (self.rate or "").partition(" ")[0]
        return float(first) if first.replace(".", "", 1).isdigit() else 0.0

    def __str__(self) -> str:
        return f"{self.device}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listening:
    """A TCP port that somebody listens on."""

    port: int
    user: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of 1 MiB or more in /dev/shm; ``open`` is ``None`` where it cannot be told."""

    name: str
    bytes: int
    user: str
    open: bool | None = None


@dataclass(frozen=True, slots=True)
class Shm:
    """/dev/shm, in bytes."""

    total: int
    free: int
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class SglangProcess:
    """A process that is SGLang's by its name or module."""

    pid: int
    ppid: int
    user: str
    name: str


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One host. Sizes in bytes; limits as (soft, hard), -1 for unlimited; ``time`` in seconds since 1970.

    ``free_families``: first ports of runs of free consecutive ports, one of which a rendezvous can take.
    """

    hostname: str
    time: float = 0.0
    python: str | None = None
    slurm_node: str | None = None
    kernel: str | None = None
    boot_id: str | None = None
    cpu: str | None = None
    cores: int | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    shm: Shm | None = None
    numa_nodes: int | None = None
    numa_balancing: int | None = None
    gpus: tuple[Gpu, ...] | None = None
    cuda_visible_devices: str | None = None
    interfaces: tuple[Interface, ...] | None = None
    default_route: str | None = None
    default_route6: str | None = None
    ib_ports: tuple[IbPort, ...] | None = None
    listening: tuple[Listening, ...] | None = None
    free_families: tuple[int, ...] | None = None
    sglang_processes: tuple[SglangProcess, ...] | None = None
    nofile: tuple[int, ...] | None = None
    memlock: tuple[int, ...] | None = None

    @property
    def host_id(self) -> str:
        """The same for two looks at one host, also from two of its containers."""
        return self.boot_id or self.hostname


def read_node(text: str, where: str = "this host") -> NodeInfo:
    """The node that ``inspect_node.py`` printed; lines before its JSON (a login's greeting) are skipped.

    Raises :class:`R1PerfError` naming ``where`` when there is none in ``text``.
    """
    for line in reversed(text.splitlines()):
        if not line.startswith('{"schema":'):
            continue
        try:
            data = json.loads(line)
            if data.pop("schema") != SCHEMA:
                break
            return typing.cast(NodeInfo, _build(NodeInfo, data))
        except (ValueError, TypeError, KeyError):
            break
    said = text.strip().splitlines()
    raise R1PerfError(
        f"{where} could not be inspected: {said[-1][:200] if said else 'it printed nothing'!r} is no answer of "
        f"inspect_node.py; run `python3 - < {SCRIPT}` there by hand to see why"
    )


def inspect_here(root: Path | None = None) -> NodeInfo:
    """This host, seen by a process of its own."""
    argv = [sys.executable, str(SCRIPT), *(["--root", str(root)] if root is not None else [])]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise R1PerfError(
            f"this host could not be inspected within {_PATIENCE_S} s: does nvidia-smi or a file system hang?"
        ) from None
    return read_node(done.stdout or done.stderr)


def _build(kind: Any, data: Any) -> Any:
    """``data`` as the annotated type: nested dataclasses, and tuples of them. Unknown keys are left out."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{key: _build(hints[key], value) for key, value in data.items() if key in hints})  # type: ignore[operator]
    if data is None:
        return None
    if isinstance(kind, types.UnionType):
        return _build(typing.get_args(kind)[0], data)
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        return tuple(_build(item, value) for value in data)
    if kind is float:
        return float(data)
    if not isinstance(data, kind):
        raise TypeError(f"{data!r} is no {kind.__name__}")
    return data
