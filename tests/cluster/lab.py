"""A cluster on one host: sshd, Slurm with two nodes, podman with an image from a tar; all real, all throwaway.

Every daemon runs in the foreground as a child of the test session, and the kernel ends it when that dies
(``setpriv --pdeathsig``). Files lie in one directory under ``/tmp``: Unix sockets have short paths only. Ports
are free ones below the kernel's range for outgoing connections, so several test sessions can run at once.
"""

from __future__ import annotations

import contextlib
import getpass
import io
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SYSTEM_PATH = os.pathsep.join(
    dict.fromkeys([*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/sbin", "/sbin"])
)
IMAGE = "localhost/r1perf-lab:1"


class NoLab(Exception):
    """This part of the lab cannot be had here; the reason."""


def need(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program, path=SYSTEM_PATH) is None]
    if missing:
        raise NoLab(f"{', '.join(missing)} not installed (tests/cluster/install.sh does it)")


def free_port() -> int:
    """A port nobody listens on, out of the way of outgoing connections."""
    for port in random.Random(os.urandom(8)).sample(range(20000, 32000), 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise NoLab("no free port between 20000 and 32000")


class Daemons:
    """Foreground daemons of one lab, ended in the opposite order."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.env = {**os.environ, "PATH": SYSTEM_PATH, **(env or {})}
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, argv: Sequence[str], ready: Callable[[], bool], deadline_s: float = 60) -> None:
        program = shutil.which(argv[0], path=SYSTEM_PATH)
        assert program is not None
        log = self.folder / f"{name}.out"
        with log.open("ab") as out:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", program, *argv[1:]],
                env=self.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._running.append(process)
        until = time.monotonic() + deadline_s
        while not ready():
            if process.poll() is not None or time.monotonic() > until:
                raise NoLab(f"{name} does not start: {log.read_text(errors='replace')[-600:].strip()}")
            time.sleep(0.05)

    def stop(self) -> None:
        for process in reversed(self._running):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True, slots=True)
class SshLab:
    """``config``: for ``ssh -F``; it knows node1 and node2, both this host."""

    folder: Path
    config: Path
    port: int

    @property
    def options(self) -> tuple[str, ...]:
        return ("-F", str(self.config))


@contextlib.contextmanager
def ssh_lab(folder: Path) -> Iterator[SshLab]:
    need("sshd", "ssh", "ssh-keygen", "setpriv")
    folder.mkdir(mode=0o700)
    for name in ("hostkey", "key", "otherkey"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    port = free_port()
    (folder / "authorized_keys").write_bytes((folder / "key.pub").read_bytes())
    (folder / "known_hosts").write_text(f"lab {' '.join((folder / 'hostkey.pub').read_text().split()[:2])}\n")
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/hostkey\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nPermitRootLogin prohibit-password\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nMaxStartups 100\n"
    )
    config = folder / "ssh_config"
    config.write_text(
        f"Host node1 node2\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {folder}/key\n  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n"
        "  HostKeyAlias lab\n  StrictHostKeyChecking yes\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    daemons = Daemons(folder)
    try:
        daemons.start("sshd", ["sshd", "-D", "-e", "-f", str(folder / "sshd_config")], lambda: _listens(port))
        yield SshLab(folder, config, port)
    finally:
        daemons.stop()


@dataclass(frozen=True, slots=True)
class SlurmLab:
    """``env``: what makes srun and the like talk to this Slurm."""

    folder: Path
    env: Mapping[str, str]

    def call(self, *argv: str) -> str:
        done = subprocess.run(argv, env={**os.environ, **self.env}, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def jobs(self) -> list[str]:
        """``ID STATE NAME`` of what has not ended (completing included)."""
        return self.call("squeue", "-h", "-o", "%A %T %j").splitlines()

    def clear(self) -> None:
        """End every job, bring nodes back, and wait until both are idle."""
        until = time.monotonic() + 60
        while True:
            for job in self.jobs():
                self.call("scancel", job.split()[0])
            for state in self.call("sinfo", "-h", "-N", "-p", "debug", "-o", "%N %t").splitlines():
                name, kind = state.split()
                if kind.startswith(("down", "drain")):
                    self.call("scontrol", "update", f"nodename={name}", "state=resume")
            if not self.jobs() and self.call("sinfo", "-h", "-N", "-p", "debug", "-o", "%t").split() == ["idle"] * 2:
                return
            assert time.monotonic() < until, self.call("scontrol", "show", "job") + self.call("sinfo", "-N", "-l")
            time.sleep(0.1)


@contextlib.contextmanager
def slurm_lab(folder: Path) -> Iterator[SlurmLab]:
    need("munged", "slurmctld", "slurmd", "srun", "salloc", "scontrol", "setpriv")
    for name in ("munge", "spool/node1", "spool/node2", "state"):
        (folder / name).mkdir(parents=True, mode=0o755)
    folder.chmod(0o755)
    munge = folder / "munge"
    (munge / "key").touch(mode=0o600)
    (munge / "key").write_bytes(os.urandom(128))
    host = socket.gethostname().partition(".")[0]
    user = getpass.getuser()
    control, node1, node2 = free_port(), free_port(), free_port()
    node = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN"
    conf = folder / "slurm.conf"
    conf.write_text(
        f"ClusterName=lab\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser={user}\nSlurmdUser={user}\n"
        f"AuthType=auth/munge\nAuthInfo=socket={munge}/sock\nCredType=cred/munge\nSlurmctldPort={control}\n"
        f"SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd.%n.pid\n"
        f"SlurmdSpoolDir={folder}/spool/%n\nStateSaveLocation={folder}/state\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n"
        "AccountingStorageType=accounting_storage/none\nSelectType=select/cons_tres\n"
        "SelectTypeParameters=CR_CPU\nSchedulerType=sched/backfill\nMpiDefault=none\nReturnToService=2\n"
        "KillWait=2\nInactiveLimit=0\nSlurmdParameters=config_overrides\nSwitchType=switch/none\n"
        # Debian's own configuration has these; without them a job that is preempted waits.
        "PreemptType=preempt/partition_prio\nPreemptMode=CANCEL\n"
        f"NodeName=node1 Port={node1} {node}\nNodeName=node2 Port={node2} {node}\n"
        "PartitionName=debug Nodes=node1,node2 Default=YES MaxTime=INFINITE PriorityTier=1 State=UP\n"
        "PartitionName=urgent Nodes=node1,node2 MaxTime=INFINITE PriorityTier=10 State=UP\n"
    )
    lab = SlurmLab(folder, {"SLURM_CONF": str(conf)})
    daemons = Daemons(folder, lab.env)
    try:
        daemons.start(
            "munged",
            ["munged", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/sock", f"--pid-file={munge}/pid",
             f"--seed-file={munge}/seed"],
            (munge / "sock").exists,
        )  # fmt: skip
        daemons.start("slurmctld", ["slurmctld", "-D", "-f", str(conf)], lambda: "UP" in lab.call("scontrol", "ping"))
        for name in ("node1", "node2"):
            daemons.start(
                f"slurmd.{name}",
                ["slurmd", "-D", "-f", str(conf), "-N", name],
                lambda name=name: lab.call("sinfo", "-h", "-n", name, "-p", "debug", "-o", "%t").strip() == "idle",  # type: ignore[misc]
            )
        yield lab
        for job in lab.jobs():
            lab.call("scancel", job.split()[0])
    finally:
        daemons.stop()


@dataclass(frozen=True, slots=True)
class PodmanLab:
    """``path``: a directory with a ``podman`` that keeps everything in the lab; ``mounts``: what images need.

    The image is a file system without files: programs and Python come from the host, read-only.
    """

    path: Path
    image: str
    mounts: tuple[Path, ...]
    python: str

    def call(self, *argv: str) -> str:
        done = subprocess.run([str(self.path / "podman"), *argv], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def containers(self) -> list[str]:
        return self.call("ps", "--all", "--format", "{{.Names}}").split()


@contextlib.contextmanager
def podman_lab(folder: Path) -> Iterator[PodmanLab]:
    need("podman", "runc")
    binary = shutil.which("podman", path=SYSTEM_PATH)
    for name in ("bin", "store", "run"):
        (folder / name).mkdir(parents=True)
    # Hosts without the right to raise limits refuse podman's own; cgroupfs and vfs work without systemd and overlay.
    open_files = min(16384, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    wrapper = folder / "bin" / "podman"
    wrapper.write_text(
        f"#!/bin/sh\npodman() {{ exec {binary} --root {folder}/store --runroot {folder}/run --storage-driver vfs"
        ' --cgroup-manager cgroupfs --events-backend file --runtime runc "$@"; }\n'
        "case $1 in\nrun|create) command=$1; shift\n"
        f'  podman "$command" --ulimit nofile={open_files}:{open_files} --ulimit nproc=16384:16384 "$@";;\n'
        '*) podman "$@";;\nesac\n'
    )
    wrapper.chmod(0o755)
    prefix = Path(sys.base_prefix).resolve()
    mounts = [Path("/usr")]
    if not prefix.is_relative_to("/usr"):
        mounts.append(prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    lab = PodmanLab(folder / "bin", IMAGE, tuple(mounts), str(prefix / "bin" / version))
    done = subprocess.run([str(wrapper), "import", "-", IMAGE], input=_empty_image(), capture_output=True)
    if done.returncode:
        raise NoLab(f"podman import: {done.stderr.decode(errors='replace')[-600:].strip()}")
    said = lab.call("run", "--rm", "--network", "host", "-v", "/usr:/usr:ro", IMAGE, "/usr/bin/echo", "it works")
    if said.strip() != "it works":
        raise NoLab(f"podman run: {said[-600:].strip()}")
    try:
        yield lab
    finally:
        for name in lab.containers():
            lab.call("rm", "-f", name)


def _empty_image() -> bytes:
    """A root file system, as a tar: directories, and links to where the host's /usr is mounted."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("usr", "etc", "tmp", "proc", "sys", "dev", "root"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name in ("bin", "lib", "lib64", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
        entry = tarfile.TarInfo("etc/passwd")
        text = b"root:x:0:0:root:/root:/bin/sh\n"
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


def mpi_folders(folder: Path) -> Callable[[str], Path]:
    """``openmpi`` or ``mpich`` -> a directory whose ``mpiexec`` is that one's."""
    need("mpiexec.openmpi", "mpiexec.mpich")
    for kind in ("openmpi", "mpich"):
        (folder / kind).mkdir(parents=True)
        program = shutil.which(f"mpiexec.{kind}", path=SYSTEM_PATH)
        assert program is not None
        # No link: Hydra looks for its helpers beside the name that it was called by.
        wrapper = folder / kind / "mpiexec"
        wrapper.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        wrapper.chmod(0o755)
    return lambda kind: folder / kind
