"""inspect_node.py on made-up hosts and on this one, and the nouns that are read from it."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.nodeinfo import SCRIPT, inspect_here, read_node
from tests.hosts import GPUS, inspected, tools, write_tree

ROUTES = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
ib0 00000000 0101000A 0003 0 0 300 00000000 0 0 0
eth1 00000000 0101010A 0003 0 0 100 00000000 0 0 0
eth1 0001010A 00000000 0001 0 0 0 00FFFFFF 0 0 0
"""
# 0x4E25 = 20005 and 0x7530 = 30000 listen (0A); 20100 is only a client's end (01).
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000 54321        0 1 1 0
   1: 00000000:4E25 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0
   2: 0100007F:4E84 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0
"""
TREE = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: INTEL(R) XEON(R)  PLATINUM 8568Y+\n",
    "proc/meminfo": "MemTotal:       2113392164 kB\nMemFree: 5 kB\nMemAvailable:   2000000000 kB\n",
    "proc/sys/kernel/random/boot_id": "0a0b0c0d-0000-4000-8000-000000000000\n",
    "proc/sys/kernel/numa_balancing": "1\n",
    "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "proc/net/route": ROUTES,
    "proc/net/tcp": TCP,
    "proc/net/if_inet6": "fe800000000000000000000000000001 02 40 20 80     ib0\n",
    "proc/4242/cmdline": "sglang::scheduler_TP0\0\0\0",
    "proc/4242/stat": "4242 (sglang::schedul) S 1 4242 4242 0 -1\n",
    "proc/4243/cmdline": "/opt/sglang/bin/python3\0-m\0sglang.launch_server\0--port\0 30000\0",
    "proc/4243/stat": "4243 (python3) S 99 4243 4243 0 -1\n",
    "proc/4244/cmdline": "vim\0sglang.launch_server.md\0",
    "proc/4244/stat": "4244 (vim) S 99 4244 4244 0 -1\n",
    "proc/4245/cmdline": "sglang::detokenizer\0",
    "proc/4245/stat": "4245 (sglang::detok) Z 1 4245 4245 0 -1\n",
    "sys/devices/system/node/node0/cpulist": "0-63\n",
    "sys/devices/system/node/node1/cpulist": "64-127\n",
    "sys/class/net/eth1/operstate": "up\n",
    "sys/class/net/eth1/type": "1\n",
    "sys/class/net/eth1/mtu": "1500\n",
    "sys/class/net/ib0/operstate": "up\n",
    "sys/class/net/ib0/type": "32\n",
    "sys/class/net/bonding_masters": "\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    "sys/class/infiniband/mlx5_0/device/net/ib0/type": "32\n",
    "sys/class/infiniband/mlx5_3/ports/1/state": "1: DOWN\n",
    "sys/class/infiniband/mlx5_3/ports/1/link_layer": "Ethernet\n",
    "sys/bus/pci/devices/0000:00:06.0/numa_node": "1\n",
    "sys/bus/pci/devices/0000:00:07.0/numa_node": "-1\n",
    "dev/shm/psm_1234": "x" * (1 << 20),
    "dev/shm/sem.mp-abc": "x",
}


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "root", TREE)


def test_a_made_up_host(made_up: Path, tmp_path: Path) -> None:
    path = tools(tmp_path / "bin", addresses={"eth1": "10.1.1.7/24", "ib0": "10.0.0.7/16"}, gpus=GPUS)
    seen = read_node(json.dumps(inspected("--root", str(made_up), path=path)))
    assert seen.cpu == "INTEL(R) XEON(R) PLATINUM 8568Y+"
    assert seen.memory_total == 2113392164 * 1024
    assert seen.memory_available == 2000000000 * 1024
    assert (seen.boot_id, seen.host_id) == ("0a0b0c0d-0000-4000-8000-000000000000",) * 2
    assert (seen.numa_nodes, seen.numa_balancing) == (2, 1)
    assert seen.interfaces is not None
    interfaces = {one.name: one for one in seen.interfaces}
    assert set(interfaces) == {"eth1", "ib0"}
    assert (interfaces["eth1"].ipv4, interfaces["eth1"].mtu) == (("10.1.1.7/24",), 1500)
    assert (interfaces["ib0"].ipv4, interfaces["ib0"].ipv6) == (("10.0.0.7/16",), ("fe80::1/64",))
    assert [one.name for one in seen.interfaces if one.is_infiniband] == ["ib0"]
    assert seen.default_route == "eth1", "the smaller metric"
    assert seen.default_route6 is None
    assert seen.ib_ports is not None
    assert [(str(port), port.is_active, port.gbits, port.interfaces) for port in seen.ib_ports] == [
        ("mlx5_0:1", True, 400.0, ("ib0",)),
        ("mlx5_3:1", False, 0.0, ()),
    ]
    assert seen.listening is not None
    assert [(entry.port, entry.user) for entry in seen.listening] == [(20005, "root"), (30000, "54321")]
    assert seen.sglang_processes is not None
    assert [(one.pid, one.ppid) for one in seen.sglang_processes] == [(4242, 1), (4243, 99)]
    assert seen.shm is not None
    assert [(one.name, one.bytes, one.open) for one in seen.shm.segments] == [("psm_1234", 1 << 20, None)]


def test_the_gpus_of_two_h200(made_up: Path, tmp_path: Path) -> None:
    seen = read_node(json.dumps(inspected("--root", str(made_up), path=tools(tmp_path / "bin", gpus=GPUS))))
    assert seen.gpus is not None
    first, second = seen.gpus
    assert (first.index, first.name, first.driver) == (0, "NVIDIA H200", "580.159.04")
    assert (first.memory_total_mib, first.memory_used_mib) == (143771, 1643)
    assert (first.sm_clock_mhz, second.sm_clock_mhz, second.sm_clock_max_mhz) == (1980, 345, 1980)
    assert (first.power_limit_w, first.power_default_w) == (700, 700)
    assert (first.persistence, first.mig, first.ecc, first.ecc_uncorrected) == ("Enabled", "Disabled", "Enabled", 0)
    assert (first.numa_node, second.numa_node) == (1, None)
    assert second.clock_reasons == "0x0000000000000001"
    assert first.processes is not None
    assert [(one.pid, one.name, one.used_mib) for one in first.processes] == [(610, "python3", 1634)]
    assert second.processes == (), "the process holds memory of the first GPU only"


def test_a_driver_that_lacks_fields_and_values(made_up: Path, tmp_path: Path) -> None:
    gpus = tmp_path / "gpus.csv"
    gpus.write_text(GPUS.read_text().replace("700.00, 700.00, 38", "[N/A], [Not Supported], [Unknown Error]"))
    path = tools(tmp_path / "bin", gpus=gpus, unknown=("clocks_throttle_reasons.active", "mig.mode.current"))
    seen = read_node(json.dumps(inspected("--root", str(made_up), path=path)))
    assert seen.gpus is not None
    assert [gpu.index for gpu in seen.gpus] == [0, 1]
    gpu = seen.gpus[0]
    assert (gpu.clock_reasons, gpu.mig, gpu.power_limit_w, gpu.power_default_w, gpu.temperature_c) == (None,) * 5
    assert (gpu.ecc, gpu.memory_used_mib) == ("Enabled", 1643)


def test_nothing_at_all_is_null_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    answer = inspected("--root", str(tmp_path / "root"), path=tools(tmp_path / "bin"))
    for key in ("gpus", "interfaces", "default_route", "shm", "numa_nodes", "cpu", "memory_total", "boot_id"):
        assert answer[key] is None, key
    assert answer["ib_ports"] == []
    assert answer["hostname"] == os.uname().nodename
    assert read_node(json.dumps(answer)).host_id == os.uname().nodename


@pytest.mark.parametrize("lowest", ["32768", "1024", "25000"])
def test_free_families_avoid_what_listens_and_what_clients_get(tmp_path: Path, lowest: str) -> None:
    lines = "".join(f"   {port}: 00000000:{port:04X} 0:0 0A 0 0 0 0 0 0\n" for port in range(20000, 32768, 16))
    tree = {"proc/net/tcp": "head\n" + lines, "proc/sys/net/ipv4/ip_local_port_range": f"{lowest} 60999\n"}
    root = write_tree(tmp_path / "full", tree)
    path = tools(tmp_path / "bin")
    assert inspected("--root", str(root), path=path)["free_families"] == [], "every family has its first port held"
    (root / "proc/net/tcp").write_text("head\n   0: 00000000:4E25 0:0 0A 0 0 0 0 0 0\n")
    answer = inspected("--root", str(root), "--family", "6", path=path)
    assert len(answer["free_families"]) == 4
    highest = 25000 if lowest == "25000" else 32768
    for first in answer["free_families"]:
        assert not set(range(first, first + 6)) & {20005}
        assert first + 6 <= highest


def test_this_host() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        seen = inspect_here()
        assert seen.listening is not None
        assert port in {entry.port for entry in seen.listening}
    assert seen.hostname == os.uname().nodename
    assert seen.cores == len(os.sched_getaffinity(0))
    assert seen.interfaces is not None
    assert "127.0.0.1/8" in [address for one in seen.interfaces for address in one.ipv4]
    again = inspect_here()
    assert again.host_id == seen.host_id


def test_it_runs_from_standard_input_as_on_another_host(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    answer = inspected(path=tmp_path / "bin", stdin=True)
    assert answer["hostname"] == os.uname().nodename
    assert "127.0.0.1/8" in [address for one in answer["interfaces"] for address in one["ipv4"]], "without iproute2"


def test_it_is_python_3_8_of_the_standard_library() -> None:
    tree = ast.parse(SCRIPT.read_text(), feature_version=(3, 8))
    imported = {alias.name for found in ast.walk(tree) if isinstance(found, ast.Import) for alias in found.names}
    imported |= {found.module or "" for found in ast.walk(tree) if isinstance(found, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_an_sglang_process_is_found_by_its_name() -> None:
    process = subprocess.Popen(["sglang::test_nodeinfo", "120"], executable="/bin/sleep")
    try:
        seen = inspect_here()
        assert seen.sglang_processes is not None
        found = [one for one in seen.sglang_processes if one.pid == process.pid]
        assert [(one.ppid, one.name) for one in found] == [(os.getpid(), "sglang::test_nodeinfo 120")]
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs /dev/shm")
def test_a_segment_that_nobody_has_open_is_told_from_one_in_use() -> None:
    folder = Path("/dev/shm")
    names = [f"r1perf-test-{os.getpid()}-{kind}" for kind in ("left", "held")]
    try:
        for name in names:
            (folder / name).write_bytes(b"x" * (1 << 20))
        with (folder / names[1]).open("rb"):
            seen = inspect_here()
        assert seen.shm is not None
        told = {one.name: one.open for one in seen.shm.segments}
        # A container that has its host's /dev/shm cannot know.
        assert (told[names[0]], told[names[1]]) in ((False, True), (None, None))
    finally:
        for name in names:
            (folder / name).unlink()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "it printed nothing"),
        ("bash: python3: command not found", "command not found"),
        ('{"schema": 99, "hostname": "x"}', "cn07"),
        ('{"schema": 1}', "cn07"),
        ('{"schema": 1, "hostname": "x", "cores": "many"}', "cn07"),
        ('{"schema": 1, "hostname": "x", "gpus": [{"name": "no index"}]}', "cn07"),
        ('{"schema": 1, "hostname": ', "cn07"),
    ],
)
def test_what_is_no_answer_names_the_host(text: str, named: str) -> None:
    with pytest.raises(R1PerfError, match="cn07") as caught:
        read_node(text, "cn07")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_greeting_before_the_answer_and_keys_of_a_newer_script() -> None:
    text = 'Welcome to cn07!\n{"schema": 1, "hostname": "cn07", "time": 5, "cooling": "water"}\n'
    assert (read_node(text).hostname, read_node(text).time) == ("cn07", 5.0)


_ANSWER: dict[str, Any] = {}


def _answer() -> dict[str, Any]:
    if not _ANSWER:
        done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
        _ANSWER.update(json.loads(done.stdout))
    return _ANSWER


@given(st.data())
def test_any_part_may_be_missing(data: st.DataObject) -> None:
    whole = _answer()
    optional = sorted(set(whole) - {"schema", "hostname", "time"})
    gone = data.draw(st.sets(st.sampled_from(optional)))
    null = data.draw(st.sets(st.sampled_from(optional)))
    part = {key: None if key in null else value for key, value in whole.items() if key not in gone}
    seen = read_node(json.dumps(part))
    assert seen.hostname == whole["hostname"]
    for key in gone | null:
        assert getattr(seen, key) is None
