"""Leases: one session at a time on a GPU, and by default on a host.

    with acquire(uuids, directory=lease_directory(None), share_host=False, timeout_s=None, waiting=tell) as
    lease:
        ...

A lease is a set of ``flock`` locks in a directory of this host, one a device. The kernel frees the locks of
a process that dies, however it dies, so no lease is ever stale. Its orphans may still hold the GPU's memory:
a free lease is not yet a free GPU.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import stat
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launch import proc
from pytest_r1perf.launch.mark import this_place

DEFAULT_DIRECTORY = Path("/tmp/r1perf-leases")
"""The same for all users and jobs: not ``tempfile.gettempdir()``, since TMPDIR differs from job to job."""

HOST = "host"

# flock is missing there, or local to each client, or kept for a dead client; and the question is who
# uses the devices of this host. FUSE and 9p are refused as a kind: most lock within one client only.
_NETWORK = re.compile(
    r"nfs|nfs4|cifs|smb[23s]?|smbfs|ncpfs|afs|lustre|gpfs|mmfs|beegfs(_nodev)?|ceph|glusterfs|ocfs2|gfs2?|pvfs2"
    r"|orangefs|panfs|wekafs|dvs|9p|fuse\.(?!fuse-overlayfs|ext|lxcfs).*"
)
_MEND = "set the ini option perf_lease_dir to a directory of this host, as /run/lock/r1perf"

_POLL_S = 0.2
_TELL_EVERY_S = 5.0
_FILE_MODE = 0o666
_DIRECTORY_MODE = 0o777


class LeaseError(R1PerfError):
    """A device cannot be leased: the directory is unfit, or another session holds it for too long."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who took a lock, by its own words: ``since`` in seconds since 1970, ``start`` in ticks since boot."""

    device: str
    pid: int
    start: int
    place: str
    user: str
    session: str
    test: str
    since: float

    @property
    def stale(self) -> bool:
        """Whether that process is gone and the note a leftover; false when it is in another container."""
        return self.place == this_place() and not proc.is_running(self.pid, self.start)

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        what = f", {self.test}" if self.test else ""
        return f"pid {self.pid} of {self.user}{what}, since {since}" + (", which has ended" if self.stale else "")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of ``/proc/PID/mountinfo`` (proc_pid_mountinfo(5))."""

    point: Path
    fstype: str
    source: str


def mount_of(path: Path, mountinfo: str) -> Mount | None:
    """The mount that the absolute ``path`` lies on, from the text of a mountinfo file."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 2:
            continue
        # The kernel writes space, tab, newline and backslash as \\040, \\011, \\012 and \\134.
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]))
        # Of two mounts on one point the later one is on top.
        if path.is_relative_to(point) and (best is None or len(point.parts) >= len(best.point.parts)):
            best = Mount(point, rest[0], rest[1])
    return best


def refuse_network(path: Path, mountinfo: str) -> None:
    """Raise ``LeaseError`` when ``path`` is on a network file system."""
    mount = mount_of(path, mountinfo)
    if mount is not None and _NETWORK.fullmatch(mount.fstype):
        raise LeaseError(
            f"the lease directory {path} is on the network file system {mount.source} ({mount.fstype}, "
            f"mounted on {mount.point}), where locks do not tell who uses this host's GPUs; {_MEND}"
        )


def lease_directory(configured: Path | None) -> Path:
    """The directory of the lock files, made when missing: writable for all, not sticky, on this host.

    Not sticky, because in a sticky directory (mode 1777, as /tmp) fs.protected_regular keeps every user from
    opening a lock file that another one made (Linux 4.19, Documentation/admin-guide/sysctl/fs.rst). To lease
    among one group only, make a directory of mode 2770 and configure it.

    Raises ``LeaseError``.
    """
    path = (configured if configured is not None else DEFAULT_DIRECTORY).absolute()
    real = path.parent.resolve() / path.name
    with contextlib.suppress(FileNotFoundError):
        refuse_network(real, Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))
    try:
        try:
            real.mkdir()
        except FileExistsError:
            created = False
        else:
            created = True
        status = real.lstat()
        if not stat.S_ISDIR(status.st_mode):
            kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "no directory"
            raise LeaseError(f"the lease directory {path} is {kind}; remove it, or {_MEND}")
        ours = status.st_uid == os.geteuid()
        # mkdir's mode is cut by the umask, chmod's is not. A configured directory that was there is its
        # admin's.
        if ours and (created or configured is None) and stat.S_IMODE(status.st_mode) != _DIRECTORY_MODE:
            real.chmod(_DIRECTORY_MODE)
            status = real.lstat()
    except OSError as error:
        raise LeaseError(f"the lease directory {path} cannot be made ({error.strerror}); {_MEND}") from error
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_ISVTX:
        raise LeaseError(
            f"the lease directory {path} is sticky (mode {mode:o}), so users could not "
            f"open each other's lock files; run chmod -t on it, or {_MEND}"
        )
    for _ in range(10):
        if os.access(real, os.W_OK | os.X_OK):
            return real
        time.sleep(0.05)  # another user may be between mkdir and chmod
    raise LeaseError(
        f"the lease directory {path} (mode {mode:o}, uid {status.st_uid}) is not writable "
        f"for this user; ask its owner for chmod 777, or {_MEND}"
    )


def read_holder(directory: Path, device: str) -> Holder | None:
    """Who says to hold ``device``, or ``None``. For people: only the lock decides."""
    try:
        # Anybody may have put anything there: no link is followed, no FIFO waited for.
        descriptor = os.open(_note(directory, device), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            data = json.loads(file.read(8192))
        words = {
            key: re.sub(r"[^\x20-\x7e]", "?", str(data[key]))[:200] for key in ("place", "user", "session", "test")
        }
        return Holder(device, int(data["pid"]), int(data["start"]), since=float(data["since"]), **words)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _stem(device: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", device).lstrip(".") or "_"


def _note(directory: Path, device: str) -> Path:
    return directory / f"{_stem(device)}.json"


class Lease:
    """Locks on devices, held until ``release()``, the end of ``with``, or the death of this process.

    Keep a reference to it: the locks of a lease that nobody refers to are freed with it.
    """

    def __init__(self, directory: Path, holder: Holder) -> None:
        self._directory = directory
        self._holder = holder
        self._locks: list[tuple[str, FileLock]] = []
        _leases.add(self)

    @property
    def devices(self) -> tuple[str, ...]:
        """What is locked, ``"host"`` included, in the order of locking."""
        return tuple(device for device, lock in self._locks if lock.is_locked)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give everything back; a second call does nothing. In a forked child it does nothing either."""
        if os.getpid() != self._holder.pid:
            return
        while self._locks:
            device, lock = self._locks[-1]
            if lock.is_locked:
                with contextlib.suppress(OSError):
                    _note(self._directory, device).unlink()
                # The file stays: who removes a lock file lets a waiter lock a file that nobody else can find.
                lock.release(force=True)
            self._locks.pop()

    def _disown(self) -> None:
        """In a forked child: let go of the descriptors, which would keep (or, when closed, undo) the parent's locks.

        filelock does so itself from 4.3, which Python 3.10 does not get.
        """
        ours = {os.fspath(self._directory / f"{_stem(device)}.lock") for device, _ in self._locks}
        for entry in list(Path("/proc/self/fd").iterdir()):
            with contextlib.suppress(OSError):
                if os.fspath(entry.readlink()) in ours:
                    # Not closed but replaced: an older filelock unlocks and closes this number once more.
                    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                    os.dup2(null, int(entry.name), inheritable=False)
                    os.close(null)

    def _take(self, device: str, deadline: float | None, waiting: Callable[[Holder | None], None]) -> None:
        path = self._directory / f"{_stem(device)}.lock"
        if path.is_symlink():
            raise LeaseError(f"the lock file {path} is a symbolic link, which no session makes; remove it")
        # The descriptor is close-on-exec (PEP 446): a child that is executed does not keep the lock.
        lock = FileLock(path, mode=_FILE_MODE, thread_local=False)
        # Listed before it is locked, so that an interrupt in between cannot lose it.
        self._locks.append((device, lock))
        told: float | None = None
        while True:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                pass
            except (OSError, NotImplementedError) as error:
                reason = getattr(error, "strerror", None) or error
                raise LeaseError(f"cannot lock {path} ({reason}); make it writable, or {_MEND}") from None
            else:
                break
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                holder = read_holder(self._directory, device)
                raise LeaseError(
                    f"{device} is leased by {holder or 'an unknown session'}; wait for it or allow more time"
                )
            if told is None or now - told >= _TELL_EVERY_S:
                told = now
                waiting(read_holder(self._directory, device))
            time.sleep(_POLL_S if deadline is None else max(0.0, min(_POLL_S, deadline - now)))
        with contextlib.suppress(OSError):
            # systemd-tmpfiles removes from /tmp what nobody touched for 10 days, locked or not.
            os.utime(path)
        self._write_note(device)

    def _write_note(self, device: str) -> None:
        """Say who holds it. For people only: a full disk does not cost the lease."""
        holder = self._holder
        text = json.dumps(
            {
                "pid": holder.pid,
                "start": holder.start,
                "place": holder.place,
                "user": holder.user,
                "session": holder.session,
                "test": holder.test,
                "since": time.time(),
            }
        )
        note = _note(self._directory, device)
        scratch = note.with_name(f".{note.name}.{this_place()}.{holder.pid}")
        try:
            scratch.write_text(text, encoding="utf-8")
            scratch.chmod(_FILE_MODE)
            scratch.replace(note)
        except OSError:
            with contextlib.suppress(OSError):
                scratch.unlink()


_leases: weakref.WeakSet[Lease] = weakref.WeakSet()


def _disown_all() -> None:
    for lease in list(_leases):
        lease._disown()


os.register_at_fork(after_in_child=_disown_all)


def acquire(
    devices: Sequence[str],
    *,
    directory: Path,
    share_host: bool,
    timeout_s: float | None,
    waiting: Callable[[Holder | None], None],
    session: str = "",
    test: str = "",
) -> Lease:
    """Lease ``devices`` (GPU UUIDs, or ``"cpu"``), all of them, and the host unless ``share_host``.

    While another session holds one, ``waiting`` is told at once and then every 5 s who that is.
    ``timeout_s`` is for everything together; ``None`` waits for ever, 0 tries once. ``session`` and ``test``
    are shown to those who wait.

    Raises ``LeaseError``; on any exception nothing stays locked.
    """
    if isinstance(devices, str) or not devices:
        raise TypeError(f"devices is a list of GPU UUIDs or ['cpu'], not {devices!r}")
    pid = os.getpid()
    status = proc.read_stat(pid)
    start = status.start if status is not None else 0
    lease = Lease(directory, Holder("", pid, start, this_place(), _user(), session, test, time.time()))
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        # The host first, then sorted: sessions that want the same devices queue up and never wait in a
        # circle.
        for device in [*([] if share_host else [HOST]), *sorted(set(devices))]:
            lease._take(device, deadline, waiting)
    except BaseException:
        lease.release()
        raise
    return lease


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in containers
        return f"uid {os.getuid()}"
