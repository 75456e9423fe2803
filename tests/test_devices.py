"""`devices`: no two sessions on one GPU, and a dead session's lease is free. Real processes hold locks."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_r1perf import devices
from pytest_r1perf.devices import (
    Holder,
    Lease,
    LeaseError,
    acquire,
    lease_directory,
    mount_of,
    refuse_network,
)
from pytest_r1perf.launch.mark import this_place
from tests.processes import identity, noted, started, wait_until

GPU_A = "GPU-0b1f2c3d-0000-0000-0000-00000000000a"
GPU_B = "GPU-0b1f2c3d-0000-0000-0000-00000000000b"


def take(directory: Path, *names: str, share_host: bool = True, timeout_s: float | None = 0) -> Lease:
    return acquire(
        names,
        directory=directory,
        share_host=share_host,
        timeout_s=timeout_s,
        waiting=lambda _: None,
        test="t",
    )


@contextmanager
def holding(
    directory: Path, notes: Path, *names: str, share_host: bool = True, more: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Another process with the lease, until the end of the block."""
    body = f"""
from pytest_r1perf.devices import acquire
lease = acquire({names!r}, directory=Path({str(directory)!r}), share_host={share_host}, timeout_s=0,
                waiting=print, session="night", test="test_r1.py::test_tp8")
{more}
note("holder")
time.sleep(600)
"""
    with started(body, notes) as process:
        wait_until(lambda: "holder" in noted(notes), "the holder")
        yield process


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return lease_directory(tmp_path / "leases")


# -- leases
# --------------------------------------------------------------------------------------------------------


def test_two_processes_exclude_each_other(directory: Path, notes: Path) -> None:
    with holding(directory, notes, GPU_A):
        with pytest.raises(LeaseError, match=r"test_r1.py::test_tp8") as caught:
            take(directory, GPU_A)
        assert f"pid {noted(notes)['holder'][0]}" in str(caught.value)
        with take(directory, GPU_B) as lease:
            assert lease.devices == (GPU_B,)


def test_the_host_is_leased_too_unless_it_is_shared(directory: Path, notes: Path) -> None:
    with holding(directory, notes, GPU_A, share_host=False):
        with pytest.raises(LeaseError, match="host is leased by pid"):
            take(directory, GPU_B, share_host=False)
        take(directory, GPU_B, share_host=True).release()


def test_nothing_stays_locked_when_one_device_is_not_free(directory: Path, notes: Path) -> None:
    with holding(directory, notes, GPU_B):
        # The error is kept, and with it all that its traceback refers to: the garbage collector must not help.
        with pytest.raises(LeaseError) as caught:
            take(directory, GPU_B, GPU_A, share_host=False)
        assert take(directory, GPU_A, share_host=False).devices == ("host", GPU_A)
        assert GPU_B in str(caught.value)


def test_the_order_of_locking_does_not_depend_on_the_order_of_asking(directory: Path) -> None:
    with take(directory, GPU_B, GPU_A, GPU_B, share_host=False) as lease:
        assert lease.devices == ("host", GPU_A, GPU_B)


def test_a_killed_holders_lease_is_taken_over(directory: Path, notes: Path) -> None:
    with holding(directory, notes, GPU_A, share_host=False) as process:
        process.kill()
        process.wait()
        holder = devices.read_holder(directory, GPU_A)
        assert holder is not None
        assert holder.stale
        assert "has ended" in str(holder)
        told: list[Holder | None] = []
        lease = acquire(
            [GPU_A], directory=directory, share_host=False, timeout_s=0, waiting=told.append, session="next"
        )
        assert told == []
        now = devices.read_holder(directory, GPU_A)
        assert now is not None
        assert (now.pid, now.session, now.stale) == (os.getpid(), "next", False)
        lease.release()


def test_who_waits_is_told_by_whom_and_gets_it_when_it_is_free(directory: Path, notes: Path) -> None:
    with holding(directory, notes, GPU_A) as process:
        told: list[Holder | None] = []

        def tell(holder: Holder | None) -> None:
            told.append(holder)
            process.send_signal(signal.SIGKILL)

        with acquire([GPU_A], directory=directory, share_host=True, timeout_s=None, waiting=tell) as lease:
            assert lease.devices == (GPU_A,)
        (holder,) = told
        assert holder is not None
        pid, start = noted(notes)["holder"]
        assert (holder.pid, holder.start, holder.place) == (pid, start, this_place())
        assert (holder.session, holder.test, holder.device) == ("night", "test_r1.py::test_tp8", GPU_A)


def test_ctrl_c_while_waiting_gives_back_what_was_locked(directory: Path, notes: Path) -> None:
    def interrupt(_: Holder | None) -> None:
        raise KeyboardInterrupt

    with holding(directory, notes, GPU_B):
        with pytest.raises(KeyboardInterrupt):
            acquire([GPU_A, GPU_B], directory=directory, share_host=False, timeout_s=None, waiting=interrupt)
        take(directory, GPU_A, share_host=False).release()


def test_it_is_exclusive_within_one_process_too(directory: Path) -> None:
    with take(directory, GPU_A), pytest.raises(LeaseError):
        take(directory, GPU_A)


def test_threads_exclude_each_other_and_any_thread_may_release(directory: Path) -> None:
    lease = take(directory, GPU_A)
    errors: list[LeaseError] = []

    def other() -> None:
        try:
            take(directory, GPU_A)
        except LeaseError as error:
            errors.append(error)
        lease.release()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(errors) == 1
    take(directory, GPU_A).release()


def test_release_twice_is_release_once_and_the_note_goes(directory: Path) -> None:
    lease = take(directory, "cpu", share_host=False)
    assert {path.name for path in directory.iterdir()} == {"cpu.json", "cpu.lock", "host.json", "host.lock"}
    lease.release()
    lease.release()
    assert {path.name for path in directory.iterdir()} == {"cpu.lock", "host.lock"}
    assert lease.devices == ()


def test_a_child_does_not_inherit_the_lease(directory: Path, notes: Path) -> None:
    more = """
subprocess.Popen(["sleep", "600"], close_fds=False, start_new_session=True)
note("sleeper-of")
Path(NOTES + ".pid").write_text(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text())
"""
    with holding(directory, notes, GPU_A, more=more) as process:
        (child,) = map(int, Path(f"{notes}.pid").read_text().split())
        try:
            process.kill()
            process.wait()
            assert Path(f"/proc/{child}").exists()
            take(directory, GPU_A).release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_cannot_release_its_parents_lease(directory: Path, notes: Path) -> None:
    more = """
if os.fork() == 0:
    lease.release()
    os._exit(0)
os.wait()
"""
    with holding(directory, notes, GPU_A, more=more), pytest.raises(LeaseError, match="leased by pid"):
        take(directory, GPU_A)


def test_a_forked_child_that_is_never_executed_does_not_keep_the_lease(directory: Path, notes: Path) -> None:
    more = """
if os.fork() == 0:
    note("copy")
    time.sleep(600)
wait_for("copy")
"""
    with holding(directory, notes, GPU_A, more=more) as process:
        process.kill()
        process.wait()
        try:
            take(directory, GPU_A).release()
        finally:
            os.kill(noted(notes)["copy"][0], signal.SIGKILL)


def test_the_end_of_a_forked_child_does_not_free_its_parents_lease(directory: Path, notes: Path) -> None:
    more = """
if os.fork() == 0:
    del lease  # and whatever else the interpreter destroys when it ends in the usual way
    sys.exit()
os.wait()
"""
    with holding(directory, notes, GPU_A, more=more), pytest.raises(LeaseError, match="leased by pid"):
        take(directory, GPU_A)


@pytest.mark.parametrize("names", [(), "GPU-1"])
def test_devices_are_a_list_that_is_not_empty(directory: Path, names: tuple[str, ...] | str) -> None:
    with pytest.raises(TypeError, match="list of GPU UUIDs"):
        acquire(names, directory=directory, share_host=True, timeout_s=0, waiting=lambda _: None)


def test_a_device_name_stays_within_the_directory(directory: Path) -> None:
    with take(directory, "../../x y"):
        assert all(path.parent == directory for path in directory.iterdir())
        assert not (directory.parent.parent / "x y.lock").exists()
    assert {path.name for path in directory.iterdir()} == {"_.._x_y.lock"}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"pid": 1}', json.dumps(dict.fromkeys(["pid", "start", "since", "place"], "x"))],
)
def test_a_damaged_note_is_nobodys(directory: Path, text: str) -> None:
    (directory / "cpu.json").write_text(text)
    assert devices.read_holder(directory, "cpu") is None


def test_a_note_is_not_followed_nor_waited_for_and_cannot_write_to_the_terminal(directory: Path) -> None:
    note = directory / "cpu.json"
    note.symlink_to("/etc/passwd")
    assert devices.read_holder(directory, "cpu") is None
    note.unlink()
    os.mkfifo(note)
    assert devices.read_holder(directory, "cpu") is None
    note.unlink()
    words = {"pid": 1, "start": 1, "place": "0", "user": "\x1b[2J\n", "session": "", "test": "", "since": 0}
    note.write_text(json.dumps(words))
    holder = devices.read_holder(directory, "cpu")
    assert holder is not None
    assert str(holder).isprintable()


# -- the directory
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_every_user_can_lock_whatever_the_umask(tmp_path: Path) -> None:
    directory = lease_directory(tmp_path / "leases")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o777
    with take(directory, GPU_A):
        assert {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {
            ".lock": 0o666,
            ".json": 0o666,
        }


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to lock as another user")
def test_another_users_lock_file_can_be_locked_and_excludes() -> None:
    # Under /tmp itself: pytest's own temporary directory is closed to other users.
    outside = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        outside.chmod(0o755)
        directory = lease_directory(outside / "leases")
        take(directory, GPU_A).release()
        lock = f"exec 9<>{directory}/{GPU_A}.lock && flock -n 9 && echo locked && exec sleep 600"
        other = subprocess.Popen(["sh", "-c", lock], user=65534, stdout=subprocess.PIPE)
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(LeaseError):
            take(directory, GPU_A)
        other.kill()
        other.wait()
        other.stdout.close()
        take(directory, GPU_A).release()
    finally:
        subprocess.run(["rm", "-r", str(outside)], check=True)


def test_an_administrators_directory_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases").chmod(0o2770)
    assert stat.S_IMODE(lease_directory(tmp_path / "leases").stat().st_mode) == 0o2770


def test_a_sticky_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases").chmod(0o1777)
    with pytest.raises(LeaseError, match=r"sticky \(mode 1777\).*chmod -t"):
        lease_directory(tmp_path / "leases")


def test_the_default_is_the_same_for_every_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path("/tmp/r1perf-leases") == devices.DEFAULT_DIRECTORY
    monkeypatch.setattr(devices, "DEFAULT_DIRECTORY", tmp_path / "leases")
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases").chmod(0o755)
    assert stat.S_IMODE(lease_directory(None).stat().st_mode) == 0o777


def test_a_link_or_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    (tmp_path / "file").touch()
    link = "a symbolic link"
    for name, kind in (("link", link), ("dangling", link), ("file", "no directory")):
        with pytest.raises(LeaseError, match=f"is {kind}.*perf_lease_dir"):
            lease_directory(tmp_path / name)
    assert not (tmp_path / "none").exists()


def test_a_parent_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LeaseError, match="No such file"):
        lease_directory(tmp_path / "none" / "leases")


def test_a_lock_file_that_is_a_link_is_refused(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")
    (directory / f"{GPU_A}.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(LeaseError, match="symbolic link"):
        take(directory, GPU_A)
    assert (tmp_path / "precious").read_text() == "text"


def test_a_lock_file_that_cannot_be_opened(directory: Path) -> None:
    (directory / f"{GPU_A}.lock").mkdir()
    with pytest.raises(LeaseError, match=r"cannot lock .*perf_lease_dir"):
        take(directory, GPU_A)


MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 27 0:25 / /home rw,relatime shared:5 master:1 - nfs4 filer:/home rw,vers=4.2
31 30 0:26 / /home/local rw,relatime - xfs /dev/sdb rw
32 27 0:27 / /mnt/with\\040space rw - lustre 10.0.0.1@o2ib:/fs rw,flock
33 27 0:28 / /over rw - ext4 /dev/sdc rw
34 27 0:29 / /over rw - fuse.sshfs me@host:/ rw
35 27 0:30 / /merged rw - fuse.fuse-overlayfs fuse-overlayfs rw
36 27 0:31 / /run rw - tmpfs tmpfs rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "fstype"),
    [
        ("/tmp/r1perf-leases", "ext4"),
        ("/home/me/leases", "nfs4"),
        ("/home", "nfs4"),
        ("/homework", "ext4"),
        ("/home/local/leases", "xfs"),
        ("/mnt/with space/leases", "lustre"),
        ("/over/leases", "fuse.sshfs"),
        ("/merged/leases", "fuse.fuse-overlayfs"),
        ("/run/lock/r1perf", "tmpfs"),
    ],
)
def test_a_network_file_system_is_refused(path: str, fstype: str) -> None:
    mount = mount_of(Path(path), MOUNTINFO)
    assert mount is not None
    assert mount.fstype == fstype
    if fstype in {"nfs4", "lustre", "fuse.sshfs"}:
        with pytest.raises(LeaseError, match="perf_lease_dir") as caught:
            refuse_network(Path(path), MOUNTINFO)
        assert all(word in str(caught.value) for word in (path, fstype, mount.source, str(mount.point)))
    else:
        refuse_network(Path(path), MOUNTINFO)


@pytest.mark.parametrize(
    "fstype",
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "glusterfs",
        "9p",
        "fuse.sshfs",
        "fuse.s3fs",
    ],
)
def test_each_network_file_system_is_known(fstype: str) -> None:
    with pytest.raises(LeaseError, match=fstype):
        refuse_network(Path("/x"), f"1 0 0:1 / / rw - {fstype} source rw")


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "virtiofs", "fuseblk", "f2fs"])
def test_a_local_file_system_is_accepted(fstype: str) -> None:
    refuse_network(Path("/x"), f"1 0 0:1 / / rw - {fstype} source rw")


def test_no_mountinfo_is_no_reason_to_refuse() -> None:
    assert mount_of(Path("/x"), "") is None
    refuse_network(Path("/x"), "")


def test_the_identity_of_a_holder_is_pid_and_start_time() -> None:
    pid, start = identity(os.getpid())

    def holder(start: int, place: str) -> Holder:
        return Holder("cpu", pid, start, place, user="u", session="s", test="", since=0.0)

    assert not holder(start, this_place()).stale
    assert holder(start - 1, this_place()).stale
    assert not holder(start - 1, "another").stale
