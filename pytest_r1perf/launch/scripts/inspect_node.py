"""What a host is and what it is busy with, as one JSON object on standard output.

    python inspect_node.py [--root DIR] [--family N]

Stand-alone, for Python 3.8 and later without any package: it is also sent to other hosts as `python -`. It only
reads, and never fails for what it finds: a thing that is missing or forbidden is null. ``--root`` is put before
/proc, /sys and /dev (for a made-up host, and for the real one seen from a container); ``--family`` is how many
consecutive ports a free family must have.

Units: memory of GPUs in MiB and clocks in MHz as nvidia-smi has them, power in W, all other sizes in bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import fcntl
import ipaddress
import json
import os
import pwd
import re
import resource
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")
if TYPE_CHECKING:
    Json = dict[str, Any]

SCHEMA = 1
GPU_FIELDS = (
    ("index", "index"),
    ("uuid", "uuid"),
    ("name", "name"),
    ("driver", "driver_version"),
    ("bus_id", "pci.bus_id"),
    ("memory_total_mib", "memory.total"),
    ("memory_used_mib", "memory.used"),
    ("sm_clock_mhz", "clocks.sm"),
    ("sm_clock_max_mhz", "clocks.max.sm"),
    ("app_clock_mhz", "clocks.applications.graphics"),
    ("app_clock_default_mhz", "clocks.default_applications.graphics"),
    ("clock_reasons", "clocks_throttle_reasons.active"),
    ("power_limit_w", "power.limit"),
    ("power_default_w", "power.default_limit"),
    ("temperature_c", "temperature.gpu"),
    ("persistence", "persistence_mode"),
    ("mig", "mig.mode.current"),
    ("ecc", "ecc.mode.current"),
    ("ecc_uncorrected", "ecc.errors.uncorrected.volatile.total"),
)
TEXTS = ("uuid", "name", "driver", "bus_id", "clock_reasons", "persistence", "mig", "ecc")
SEGMENT_BYTES = 1 << 20  # smaller files in /dev/shm (semaphores, locks) are left out
FAMILIES = 4


def attempt(read: Callable[..., T], *given: Any) -> T | None:
    """What ``read`` gives, or null: one thing that cannot be read must not cost all others."""
    try:
        return read(*given)
    except Exception:
        return None


def words(path: Path) -> str:
    """A file's text without white space at its ends."""
    return path.read_text(encoding="utf-8", errors="replace").strip()


def number(path: Path) -> int:
    """A file's whole number."""
    return int(words(path))


def owner(path: Path) -> str:
    """The user whom a file, or a process's folder, belongs to."""
    return user_of(path.stat().st_uid)


def user_of(uid: int) -> str:
    """The user's name, or the number where it has none (as in containers)."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of the host in the C locale."""
    env = dict(os.environ, LC_ALL="C")
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True, timeout=60, check=False, env=env
    )


# --- GPUs


def gpus(root: Path) -> list[Json] | None:
    """All GPUs that nvidia-smi shows, MIG or not, whatever CUDA_VISIBLE_DEVICES says."""
    fields = dict(GPU_FIELDS)
    while True:
        done = run("nvidia-smi", "--query-gpu=" + ",".join(fields.values()), "--format=csv,noheader,nounits")
        unknown = re.search(r'Field "([^"]+)" is not a valid field', done.stdout + done.stderr)
        dropped = [name for name, field in fields.items() if unknown and field == unknown.group(1)]
        if not dropped:
            break
        del fields[dropped[0]]  # this driver is older or newer than the field
    if done.returncode != 0:
        return None
    apps = attempt(compute_apps)
    found = []
    for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True):
        if len(row) != len(fields):
            continue
        gpu: Json = dict.fromkeys(name for name, _ in GPU_FIELDS)
        gpu.update((name, value_of(name, text)) for name, text in zip(fields, row))  # noqa: B905 (3.8 has no strict=)
        gpu["numa_node"] = attempt(numa_of, root, gpu["bus_id"])
        gpu["processes"] = None if apps is None else [app for uuid, app in apps if uuid == gpu["uuid"]]
        found.append(gpu)
    return found


def value_of(name: str, text: str) -> Any:
    """One cell: text, or a number; null for `[N/A]`, `[Not Supported]` and the like."""
    text = text.strip()
    if not text or text.startswith("[") or text == "N/A":
        return None
    if name in TEXTS:
        return text
    value = attempt(float, text)
    return int(value) if value is not None and value.is_integer() else value


def numa_of(root: Path, bus_id: str) -> int | None:
    """The NUMA node of a PCI device; nvidia-smi writes its domain with eight digits, the kernel with four."""
    domain, _, rest = bus_id.lower().partition(":")
    node = int(words(root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node"))
    return node if node >= 0 else None


def compute_apps() -> list[tuple[str, Json]]:
    """(GPU, process that holds memory of it); one of another PID namespace has no user."""
    query = "--query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory"
    done = run("nvidia-smi", query, "--format=csv,noheader,nounits")
    if done.returncode != 0:
        raise OSError(done.stderr)
    found = []
    for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True):
        if len(row) != 4 or not row[1].strip().isdigit():
            continue
        pid = int(row[1])
        app = {
            "pid": pid,
            "name": row[2].strip(),
            "used_mib": value_of("used_mib", row[3]),
            "user": attempt(owner, Path(f"/proc/{pid}")),
        }
        found.append((row[0].strip(), app))
    return found


# --- network


def interfaces(root: Path, real: bool) -> list[Json]:
    """Every interface but those that cannot carry traffic of ours; ``type`` is ARPHRD_*: 1 Ethernet, 32 InfiniBand."""
    by_ip_tool = attempt(ip_addresses) or {}
    ipv6 = attempt(ipv6_addresses, root) or {}
    found = []
    for folder in sorted((root / "sys/class/net").iterdir()):
        if not folder.is_dir():  # bonding_masters is a file
            continue
        name = folder.name
        ipv4 = by_ip_tool.get(name)
        if ipv4 is None and real:
            address = attempt(primary_address, name)
            ipv4 = [address] if address else []
        found.append(
            {
                "name": name,
                "state": attempt(words, folder / "operstate"),
                "type": attempt(number, folder / "type"),
                "mtu": attempt(number, folder / "mtu"),
                "speed_mbits": attempt(number, folder / "speed"),
                "physical": (folder / "device").exists(),
                "ipv4": ipv4 or [],
                "ipv6": ipv6.get(name, []),
            }
        )
    return found


def ip_addresses() -> dict[str, list[str]]:
    """Interface -> IPv4 addresses with prefix length, by iproute2."""
    answer = json.loads(run("ip", "-json", "address", "show").stdout)
    return {
        link["ifname"]: [f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a.get("family") == "inet"]
        for link in answer
        if "ifname" in link
    }


def primary_address(name: str) -> str:
    """The first IPv4 address by ioctl, where there is no iproute2 (SIOCGIFADDR, SIOCGIFNETMASK; netdevice(7))."""
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        address = socket.inet_ntoa(fcntl.ioctl(sock.fileno(), 0x8915, request)[20:24])
        mask = socket.inet_ntoa(fcntl.ioctl(sock.fileno(), 0x891B, request)[20:24])
    return str(ipaddress.ip_interface(f"{address}/{mask}"))


def ipv6_addresses(root: Path) -> dict[str, list[str]]:
    """Interface -> IPv6 addresses with prefix length."""
    found: dict[str, list[str]] = {}
    for line in words(root / "proc/net/if_inet6").splitlines():
        address, _, prefix, _, _, name = line.split()
        text = str(ipaddress.IPv6Address(int(address, 16)))
        found.setdefault(name, []).append(f"{text}/{int(prefix, 16)}")
    return found


def default_route(root: Path) -> str | None:
    """The interface of the IPv4 default route with the smallest metric."""
    rows = [line.split() for line in words(root / "proc/net/route").splitlines()[1:]]
    routes = [(int(r[6]), r[0]) for r in rows if len(r) >= 8 and r[1] == r[7] == "00000000" and int(r[3], 16) & 1]
    return min(routes)[1] if routes else None


def default_route6(root: Path) -> str | None:
    """The interface of the IPv6 default route with the smallest metric; the kernel's own reject route is on lo."""
    rows = [line.split() for line in words(root / "proc/net/ipv6_route").splitlines()]
    routes = [(int(r[5], 16), r[9]) for r in rows if len(r) >= 10 and int(r[0], 16) == int(r[1], 16) == 0]
    routes = [route for route in routes if route[1] != "lo"]
    return min(routes)[1] if routes else None


def ib_ports(root: Path) -> list[Json]:
    """Every port of every InfiniBand or RoCE adapter, under the device's own name."""
    found = []
    for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        device = folder.parent.parent
        found.append(
            {
                "device": device.name,
                "port": int(folder.name),
                "state": (attempt(words, folder / "state") or "").partition(":")[2].strip() or None,
                "link_layer": attempt(words, folder / "link_layer"),
                "rate": attempt(words, folder / "rate"),
                "interfaces": sorted(path.name for path in (device / "device/net").glob("*")),
                "numa_node": attempt(number, device / "device/numa_node"),
            }
        )
    return found


def listening(root: Path) -> list[Json]:
    """TCP ports that somebody listens on, with the user."""
    found: dict[int, Json] = {}
    for name in ("tcp", "tcp6"):
        text = attempt(words, root / "proc/net" / name) or ""
        for line in text.splitlines()[1:]:
            fields = line.split()
            if len(fields) > 7 and fields[3] == "0A":
                port = int(fields[1].rpartition(":")[2], 16)
                found[port] = {"port": port, "user": user_of(int(fields[7]))}
    return [found[port] for port in sorted(found)]


def free_families(root: Path, size: int, real: bool) -> list[int]:
    """First ports of a few free runs of ``size`` consecutive ports.

    Below the range that the kernel hands out to clients (32768 unless it was changed), or a client's socket
    can sit on one. The search starts elsewhere for every process, so that two at once seldom agree.
    """
    taken = {entry["port"] for entry in attempt(listening, root) or []}
    lowest = attempt(lambda: int(words(root / "proc/sys/net/ipv4/ip_local_port_range").split()[0])) or 32768
    low, high, step = 20000, lowest if lowest > 21000 else 32768, 16
    slots = list(range(low, high - size, step))
    turn = os.getpid() * 7 % len(slots)
    found: list[int] = []
    for first in slots[turn:] + slots[:turn]:
        run_of_ports = range(first, first + size)
        if not taken.intersection(run_of_ports) and (not real or all(map(bindable, run_of_ports))):
            found.append(first)
        if len(found) == FAMILIES:
            break
    return found


def bindable(port: int) -> bool:
    """Whether a server could listen there now, on all addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True


# --- memory and processes


def meminfo(root: Path) -> dict[str, int]:
    """MemTotal and MemAvailable in bytes."""
    rows = (line.split() for line in words(root / "proc/meminfo").splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) >= 2}


def shm(root: Path, real: bool) -> Json:
    """/dev/shm: size, free, and its larger files; ``open``: somebody whose files we may see has it open."""
    folder = root / "dev/shm"
    space = os.statvfs(folder)
    held = attempt(open_files, root) if real and not foreign_users(root) else None
    segments = []
    for path in sorted(folder.iterdir()):
        status = attempt(path.lstat)
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_size < SEGMENT_BYTES:
            continue
        ours = status.st_uid == os.geteuid() or os.geteuid() == 0
        is_open = None if held is None else True if str(path) in held else False if ours else None
        segments.append({"name": path.name, "bytes": status.st_size, "user": user_of(status.st_uid), "open": is_open})
    return {
        "total": space.f_blocks * space.f_frsize,
        "free": space.f_bavail * space.f_frsize,
        "segments": segments,
    }


def foreign_users(root: Path) -> bool:
    """Whether processes that we cannot see may use our /dev/shm: in a container that has the host's (--ipc=host).

    The numbers are those of the host's own namespaces (PROC_PID_INIT_INO, PROC_IPC_INIT_INO; proc_ns.h).
    """
    own = root / "proc/self/ns"
    links = [attempt(os.readlink, str(own / name)) for name in ("pid", "ipc")]
    return links[0] != "pid:[4026531836]" and links[1] == "ipc:[4026531839]"


def open_files(root: Path) -> set[str]:
    """Paths under /dev/shm that a process of ours maps or has open."""
    found = set()
    for process in (root / "proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(encoding="utf-8", errors="replace").splitlines():
                if "/dev/shm/" in line:
                    found.add(line[line.index("/dev/shm/") :])
        with contextlib.suppress(OSError):
            for entry in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(str(entry))  # noqa: PTH115 (Path.readlink is 3.9)
                    if target.startswith("/dev/shm/"):
                        found.add(target)
    return found


def sglang_processes(root: Path) -> list[Json]:
    """Processes that are SGLang's by name (`sglang::scheduler_TP0`) or by module (`-m sglang.launch_server`)."""
    found = []
    for process in (root / "proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            argv = (process / "cmdline").read_bytes().split(b"\0")
            line = b" ".join(argv).decode("utf-8", "replace").strip()
            module = Path(os.fsdecode(argv[0])).name.startswith("python") and " -m sglang." in line
            if not (line.startswith("sglang::") or module):
                continue
            fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] in "ZX":
                continue
            found.append(
                {
                    "pid": int(process.name),
                    "ppid": int(fields[1]),
                    "user": owner(process),
                    "name": line[:200],
                }
            )
    return sorted(found, key=lambda entry: int(entry["pid"]))


def limit(which: int) -> list[int]:
    """Soft and hard limit; -1 is unlimited."""
    return [-1 if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which)]


def cpu_model(root: Path) -> str:
    """The processor's name."""
    found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", words(root / "proc/cpuinfo"), re.MULTILINE)
    return re.sub(r"\s+", " ", found.group(1)) if found else ""


def inspect(root: Path, family: int) -> Json:
    """Everything; null for what could not be read."""
    real = root == Path("/")
    memory = attempt(meminfo, root) or {}
    uname = os.uname()
    return {
        "schema": SCHEMA,
        "time": time.time(),
        "python": sys.version.split()[0],
        "hostname": uname.nodename,
        "slurm_node": os.environ.get("SLURMD_NODENAME"),
        "kernel": uname.release,
        "boot_id": attempt(words, root / "proc/sys/kernel/random/boot_id"),
        "cpu": attempt(cpu_model, root) or None,
        "cores": attempt(lambda: len(os.sched_getaffinity(0))),
        "memory_total": memory.get("MemTotal"),
        "memory_available": memory.get("MemAvailable"),
        "shm": attempt(shm, root, real),
        "numa_nodes": attempt(lambda: len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None),
        "numa_balancing": attempt(number, root / "proc/sys/kernel/numa_balancing"),
        "gpus": attempt(gpus, root),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "interfaces": attempt(interfaces, root, real),
        "default_route": attempt(default_route, root),
        "default_route6": attempt(default_route6, root),
        "ib_ports": attempt(ib_ports, root),
        "listening": attempt(listening, root),
        "free_families": attempt(free_families, root, family, real),
        "sglang_processes": attempt(sglang_processes, root),
        "nofile": attempt(limit, resource.RLIMIT_NOFILE),
        "memlock": attempt(limit, resource.RLIMIT_MEMLOCK),
    }


def main() -> None:
    """Print the object."""
    parser = argparse.ArgumentParser(description="What this host is, as JSON.")
    parser.add_argument("--root", type=Path, default=Path("/"))
    parser.add_argument("--family", type=int, default=6)
    given = parser.parse_args()
    print(json.dumps(inspect(given.root, given.family)))


if __name__ == "__main__":
    main()
