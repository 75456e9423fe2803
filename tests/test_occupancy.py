"""`gpu.occupancy`: a run starts on free GPUs only, and who holds them is said. The processes are real."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
import uuid as uuids
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.devices import acquire, lease_directory
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.gpu.occupancy import Dirty, before_launch, unfit, visible
from pytest_r1perf.launch import proc
from tests.gpus import GPU_A, GPU_B, TOTAL_MIB, FakeHost, host_with
from tests.processes import wait_until

HOST_PIDS = proc.pid_namespace() == "pid:[4026531836]"
GONE = 2**22 + 1
"""A pid that no Linux gives (PID_MAX_LIMIT is 2**22)."""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    return host_with(tmp_path, monkeypatch, GPU_A, GPU_B)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that has renamed itself as SGLang's do (the title stands over the arguments)."""
    argv = ["sglang::scheduler_TP0", "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(argv, executable=sys.executable)
    try:
        wait_until(lambda: proc.command_line(process.pid)[:1] == (argv[0],), "the process")
        yield process
    finally:
        process.kill()
        process.wait()


def look(host: FakeHost, *wanted: str, allowed_s: float = 0.0, idle_bytes: int | None = None) -> Dirty | None:
    return before_launch(
        host.open(), wanted or (GPU_A, GPU_B), allowed_s=allowed_s, idle_bytes=idle_bytes, waiting=lambda _: None
    )


def test_idle_gpus_are_taken_at_once(host: FakeHost) -> None:
    host.hold(GPU_A, 4)
    told: list[str] = []
    assert before_launch(host.open(), [GPU_A, GPU_B], waiting=told.append) is None
    assert told == []


@pytest.mark.parametrize(
    ("allocated_mib", "free"),
    [(TOTAL_MIB * 2 // 100 - 1, True), (TOTAL_MIB * 2 // 100 + 1, False)],
    ids=["below 2 %", "above 2 %"],
)
def test_the_rest_without_a_process_may_be_small(host: FakeHost, allocated_mib: int, free: bool) -> None:
    host.hold(GPU_A, allocated_mib)
    assert (look(host) is None) == free


def test_a_small_gpu_may_hold_1_gib(host: FakeHost) -> None:
    total = 16384
    for allocated, free in ((1023, True), (1025, False)):
        host.change(GPU_A, total=total << 20, reserved=0, free=(total - allocated) << 20)
        assert (look(host) is None) == free


def test_the_threshold_can_be_given(host: FakeHost) -> None:
    host.hold(GPU_A, 100)
    assert look(host, idle_bytes=100 << 20) is None
    assert look(host, idle_bytes=(100 << 20) - 1) is not None


def test_a_driver_that_does_not_tell_the_reserved_part_apart(host: FakeHost) -> None:
    """Version 1 of the question counts the reserved 600 MiB as taken: still idle."""
    host.change(GPU_A, errors={"nvmlDeviceGetMemoryInfo_v2": "Function Not Found"})
    assert look(host) is None


def test_any_compute_process_makes_it_dirty(host: FakeHost) -> None:
    host.hold(GPU_A, 10, (GONE, 10))
    dirty = look(host)
    assert dirty is not None
    assert [gpu.uuid for gpu in dirty.gpus] == [GPU_A]


def test_only_the_wanted_gpus_count(host: FakeHost) -> None:
    host.hold(GPU_B, 90000, (GONE, 90000))
    assert look(host, GPU_A) is None
    assert look(host, GPU_B) is not None


def test_memory_that_comes_back_is_waited_for(host: FakeHost) -> None:
    """The test's host gives it back while it is being waited for, and says what was held until then."""
    host.hold(GPU_A, 124928)
    told: list[str] = []

    def waiting(text: str) -> None:
        told.append(text)
        host.hold(GPU_A, 4)

    assert before_launch(host.open(), [GPU_A, GPU_B], waiting=waiting, allowed_s=600) is None
    assert told == [f"{GPU_A} has 124928 of {TOTAL_MIB} MiB taken: no process that the driver shows"]


def test_memory_of_no_process_is_named_as_such(host: FakeHost) -> None:
    host.hold(GPU_A, 29840)
    text = str(look(host))
    assert f"{GPU_A} has 29840 of {TOTAL_MIB} MiB taken: no process that the driver shows" in text
    assert "reset by the host's administrator" in text


@pytest.mark.skipif(not HOST_PIDS, reason="in a container /proc's pids are not NVML's")
def test_our_own_process_is_named_with_how_to_end_it(host: FakeHost, sleeper: subprocess.Popen[bytes]) -> None:
    host.hold(GPU_A, 30000, (sleeper.pid, 29840))
    host.hold(GPU_B, 100, (sleeper.pid, None))
    text = str(look(host))
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert text.startswith("2 GPUs are not free after 0 s: ")
    assert f"pid {sleeper.pid} of {me} (sglang::scheduler_TP0) with 29840 MiB" in text
    assert f"pid {sleeper.pid} of {me} (sglang::scheduler_TP0) with an unknown amount" in text
    assert text.count(f"kill {sleeper.pid}") == 1
    assert "\n" not in text


@pytest.mark.skipif(not HOST_PIDS, reason="in a container /proc's pids are not NVML's")
@pytest.mark.skipif(os.geteuid() == 0, reason="root sees its own process 1")
def test_a_process_of_another_user_is_to_be_asked_for(host: FakeHost) -> None:
    host.hold(GPU_A, 5000, (1, 5000))
    text = str(look(host))
    assert "pid 1 of root" in text
    assert "ask root" in text
    assert "kill" not in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")
@pytest.mark.skipif(not HOST_PIDS, reason="in a container /proc's pids are not NVML's")
def test_a_process_of_a_user_that_root_does_not_share(host: FakeHost) -> None:
    with subprocess.Popen(["sleep", "600"], user=54321) as process:
        try:
            wait_until(lambda: proc.command_line(process.pid)[:1] == ("sleep",), "the process")
            host.hold(GPU_A, 5000, (process.pid, 5000))
            text = str(look(host))
        finally:
            process.kill()
    assert f"pid {process.pid} of uid 54321 (sleep) with 5000 MiB" in text
    assert "ask uid 54321" in text
    assert "kill" not in text


def test_a_process_that_is_not_visible_from_here(host: FakeHost) -> None:
    host.hold(GPU_A, 5000, (GONE, 5000))
    text = str(look(host))
    assert f"pid {GONE} with 5000 MiB (not shown by /proc here: of another container, or hidden)" in text
    assert "nvidia-smi there" in text


def test_a_gpu_that_does_not_answer_is_not_free(host: FakeHost) -> None:
    host.change(GPU_A, errors={"nvmlDeviceGetMemoryInfo": "GPU is lost", "nvmlDeviceGetMemoryInfo_v2": "GPU is lost"})
    text = str(look(host))
    assert text.startswith("1 GPU is not free")
    assert f"{GPU_A} does not answer (nvmlDeviceGetMemoryInfo: GPU is lost)" in text


def test_a_driver_that_hangs_is_not_waited_for_for_ever(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = host.open()
    monkeypatch.setattr("pytest_r1perf.gpu.occupancy.ANSWER_S", 0.05)
    host.change(GPU_A, hangs=True)
    try:
        dirty = before_launch(nvml, [GPU_A, GPU_B], allowed_s=600, waiting=lambda _: None)
    finally:
        host.change(GPU_A, hangs=False)
    assert dirty is not None
    assert [gpu.uuid for gpu in dirty.gpus] == [GPU_A]
    assert "no answer within 0.05 s" in str(dirty)


# -- fitness and visibility
# --------------------------------------------------------------------------------------------------------


def test_a_gpu_in_mig_mode_is_unfit(host: FakeHost) -> None:
    assert unfit(host.open(), [GPU_A, GPU_B]) is None
    host.change(GPU_B, mig=True)
    reason = unfit(host.open(), [GPU_A, GPU_B])
    assert reason is not None
    assert GPU_B in reason
    assert "MIG" in reason


def test_a_gpu_that_is_gone_is_unfit(host: FakeHost) -> None:
    nvml = host.open()
    host.gpus.pop(0)
    host.write()
    reason = unfit(nvml, [GPU_A, GPU_B])
    assert reason is not None
    assert f"{GPU_A} does not answer" in reason


def test_a_run_sees_its_gpus_by_the_hosts_own_order(host: FakeHost) -> None:
    """SGLang reads CUDA_VISIBLE_DEVICES as numbers and takes them for NVML's."""
    known = host.open().uuids()
    assert visible([GPU_B], known) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
    assert visible([GPU_B, GPU_A], known)["CUDA_VISIBLE_DEVICES"] == "1,0"
    with pytest.raises(R1PerfError, match="no GPU GPU-none on this host"):
        visible(["GPU-none"], known)


@given(st.uuids(), st.uuids(), st.sampled_from(["GPU", "MIG"]))
def test_a_uuid_makes_a_safe_lock_file_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, one: uuids.UUID, other: uuids.UUID, kind: str
) -> None:
    directory = lease_directory(tmp_path_factory.mktemp("leases") / "l")
    devices = sorted({f"{kind}-{one}", f"{kind}-{other}"})
    with acquire(devices, directory=directory, share_host=True, timeout_s=0, waiting=lambda _: None) as lease:
        assert lease.devices == tuple(devices)
        locks = sorted(path.name for path in directory.glob("*.lock"))
        assert locks == [f"{device}.lock" for device in devices]
    assert all(re.fullmatch(r"[A-Za-z0-9-]+\.lock", name) for name in locks)


def test_an_old_form_of_mig_device_stays_in_the_lease_directory(tmp_path: Path) -> None:
    """Before driver 470 a MIG device was MIG-GPU-<uuid>/<gi>/<ci>: no folder is made of the slashes."""
    directory = lease_directory(tmp_path / "l")
    devices = [f"MIG-{GPU_A}/1/0", f"MIG-{GPU_A}/2/0"]
    with acquire(devices, directory=directory, share_host=True, timeout_s=0, waiting=lambda _: None):
        assert len(list(directory.glob("*.lock"))) == 2
    assert [path for path in tmp_path.rglob("*") if path.is_dir()] == [directory]
