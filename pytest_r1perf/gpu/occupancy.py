"""Wait until GPUs are free before a benchmark starts, or say who holds them.

A lease keeps other sessions of ours away, and our own orphans have been ended by the caller. What is left may
be the driver giving memory back (after SIGKILL of one TP8 run an H200 still held 122 GiB: sgl-project/sglang
PRs 36589 and 39545), or somebody else's process. Both would make the next run end as OOM, which it is not.
"""

from __future__ import annotations

import functools
import os
import pwd
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.gpu.nvml import ANSWER_S, Memory, Nvml, NvmlError, NvmlHangs, within
from pytest_r1perf.launch import proc

ALLOWED_S = 120.0
"""How long memory may take to come back: more than 30 s was seen on H200s after TP8 (the PRs above)."""

IDLE_BYTES = 1 << 30
IDLE_SHARE = 0.02
"""A GPU without compute processes is idle up to the greater of the two: 1 GiB, or 2.8 GiB of an H200.

Not 0: an idle H200 holds 4 MiB beside the driver's reserved part (driver 580), and where the driver doesn't
tell that part apart (912 MB of an A100: Cldfire/nvml-wrapper issue 57) it counts as allocated. 2 % is less
than SGLang leaves free by its own choice (mem-fraction-static 0.8 to 0.9), so such a rest costs no OOM.
"""

_POLL_S = 0.5
_TELL_EVERY_S = 5.0
# PROC_PID_INIT_INO (Linux, include/linux/proc_ns.h): NVML's pids are those of this namespace.
_HOST_PIDS = "pid:[4026531836]"


@dataclass(frozen=True, slots=True)
class Occupant:
    """A process with a compute context. ``user`` and ``name`` are ``None`` when ``/proc`` does not show it."""

    pid: int
    used: int | None
    user: str | None
    name: str | None
    ours: bool

    def __str__(self) -> str:
        size = f"{self.used >> 20} MiB" if self.used is not None else "an unknown amount"
        if self.user is None:
            return f"pid {self.pid} with {size} (not shown by /proc here: of another container, or hidden)"
        return f"pid {self.pid} of {self.user} ({self.name}) with {size}"


@dataclass(frozen=True, slots=True)
class Held:
    """One GPU that is not idle; ``memory`` is ``None`` and ``error`` says why when it could not be asked."""

    uuid: str
    memory: Memory | None
    occupants: tuple[Occupant, ...] = ()
    error: str = ""

    def __str__(self) -> str:
        if self.memory is None:
            return f"{self.uuid} does not answer ({self.error})"
        who = ", ".join(map(str, self.occupants)) or "no process that the driver shows"
        return f"{self.uuid} has {self.memory.allocated >> 20} of {self.memory.total >> 20} MiB taken: {who}"


@dataclass(frozen=True, slots=True)
class Dirty:
    """GPUs that did not become free within ``waited_s`` seconds; ``str()`` is the sentence for INFRA."""

    gpus: tuple[Held, ...]
    waited_s: float

    def __str__(self) -> str:
        count = "1 GPU is" if len(self.gpus) == 1 else f"{len(self.gpus)} GPUs are"
        return f"{count} not free after {self.waited_s:.0f} s: {'; '.join(map(str, self.gpus))}; {self._mend()}"

    def _mend(self) -> str:
        people = {person for gpu in self.gpus for person in gpu.occupants}
        steps = []
        if ours := sorted({person.pid for person in people if person.ours}):
            steps.append(f"end your own (kill {' '.join(map(str, ours))})")
        if users := sorted({person.user for person in people if person.user is not None and not person.ours}):
            steps.append(f"ask {', '.join(users)}")
        if any(person.user is None for person in people):
            steps.append("look for them on the host (nvidia-smi there)")
        if any(gpu.memory is None or not gpu.occupants for gpu in self.gpus):
            steps.append("where no process is left, have the GPU reset by the host's administrator")
        return ", ".join(steps) + ", then run again"


def before_launch(
    nvml: Nvml,
    uuids: Sequence[str],
    *,
    waiting: Callable[[str], None],
    allowed_s: float = ALLOWED_S,
    idle_bytes: int | None = None,
) -> Dirty | None:
    """Wait until all of ``uuids`` are idle; ``None`` when they are, else who holds them after ``allowed_s``.

    Idle: no compute process, and no more memory taken than ``idle_bytes`` (default: ``IDLE_BYTES`` and
    ``IDLE_SHARE``). ``waiting`` is told at once and then every 5 s who holds what. Raises nothing: a GPU that
    does not answer is one that isn't free, and one that hangs is not asked again.
    """
    begun = time.monotonic()
    told: float | None = None
    while True:
        try:
            held = tuple(gpu for gpu in (_look(nvml, uuid, idle_bytes) for uuid in uuids) if gpu is not None)
        except _Hangs as error:
            return Dirty((error.gpu,), time.monotonic() - begun)
        now = time.monotonic()
        if not held:
            return None
        if now - begun >= allowed_s:
            return Dirty(held, now - begun)
        if told is None or now - told >= _TELL_EVERY_S:
            told = now
            waiting("; ".join(map(str, held)))
        time.sleep(max(0.0, min(_POLL_S, begun + allowed_s - now)))


def unfit(nvml: Nvml, uuids: Sequence[str]) -> str | None:
    """Why a benchmark can't run on these GPUs at all, in one sentence: gone, or cut into MIG instances."""
    for uuid in uuids:
        try:
            gpu = within(functools.partial(nvml.describe, uuid), ANSWER_S)
        except NvmlError as error:
            return f"{uuid} does not answer ({error}): see what nvidia-smi says of it"
        if gpu.mig:
            return (
                f"{gpu.name} {uuid} is in MIG mode, so a process gets one instance of it at most: "
                f"have MIG turned off, or choose other GPUs with CUDA_VISIBLE_DEVICES"
            )
    return None


def visible(uuids: Sequence[str], host: Sequence[str]) -> dict[str, str]:
    """The variables that give a process these GPUs and no others; ``host`` is :meth:`Nvml.uuids`.

    By NVML's index and not by UUID: SGLang reads the entries as numbers when tensor parallel is on
    (``custom_all_reduce.py``, 0.5.9 to 0.5.20; sgl-project/sglang PR 25996) and takes them for NVML's. CUDA
    counts like NVML once it is told to go by the PCI bus. What the ambient CUDA_VISIBLE_DEVICES says is
    replaced: the indices are the host's in any case.

    Raises :class:`R1PerfError` for a UUID that the host doesn't have.
    """
    missing = [uuid for uuid in uuids if uuid not in host]
    if missing:
        raise R1PerfError(f"no GPU {missing[0]} on this host (known: {', '.join(host) or 'none'}): is it lost?")
    indices = (str(host.index(uuid)) for uuid in uuids)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(indices)}


class _Hangs(Exception):
    def __init__(self, gpu: Held) -> None:
        super().__init__(str(gpu))
        self.gpu = gpu


def _look(nvml: Nvml, uuid: str, idle_bytes: int | None) -> Held | None:
    """The GPU if it is not idle."""
    try:
        memory, processes = within(lambda: (nvml.memory(uuid), nvml.processes(uuid)), ANSWER_S)
    except NvmlHangs as error:
        raise _Hangs(Held(uuid, None, error=str(error))) from None
    except NvmlError as error:
        return Held(uuid, None, error=str(error))
    limit = max(IDLE_BYTES, int(IDLE_SHARE * memory.total)) if idle_bytes is None else idle_bytes
    if not processes and memory.allocated <= limit:
        return None
    occupants = [_occupant(process.pid, process.used) for process in processes]
    return Held(uuid, memory, tuple(sorted(occupants, key=lambda person: (-(person.used or 0), person.pid))))


def _occupant(pid: int, used: int | None) -> Occupant:
    """What ``/proc`` knows of it; where our pids aren't the host's, that would be some other process."""
    folder = Path("/proc") / str(pid)
    if proc.pid_namespace() != _HOST_PIDS and not _holds_gpu(folder):
        return Occupant(pid, used, None, None, ours=False)
    try:
        uid = folder.stat().st_uid
        name = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return Occupant(pid, used, None, None, ours=False)
    argv = proc.command_line(pid)
    # setproctitle writes the title over the arguments; comm keeps but 15 letters of it.
    title = argv[0].split(" ")[0] if argv else name
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid {uid}"
    return Occupant(pid, used, user, Path(title).name or name, ours=uid == os.geteuid())


def _holds_gpu(folder: Path) -> bool:
    """Whether that process has an NVIDIA device open: then it is the one that is meant."""
    try:
        return any(str(entry.readlink()).startswith("/dev/nvidia") for entry in (folder / "fd").iterdir())
    except OSError:
        return False
