"""What ``nvidia-smi`` says of the GPUs of the node that an agent is on.

NVML's Python package is not there, but its program is wherever the driver is. As seen with driver 580 on an H200: a
call takes 0.04 s, ``-l 1`` writes its rows at once also into a pipe, each second after the last to the millisecond,
and a field that the driver doesn't know ends it with ``Field "..." is not a valid field to query.``

Standard library only: shipped to other nodes (``bundle.py``).
"""

from __future__ import annotations

import contextlib
import csv
import pwd
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_r1perf.launch import proc

ANSWER_S = 60.0
"""How long one call may take: without persistence mode it starts the GPUs, seconds each."""

PROGRAM = "nvidia-smi"
FORMAT = "--format=csv,noheader,nounits"

# Our name: the driver's, and its older name.
_FIXED = {
    "uuid": ("uuid",),
    "name": ("name",),
    "index": ("index",),
    "max_sm_mhz": ("clocks.max.sm",),
    "max_mem_mhz": ("clocks.max.mem",),
    "power_limit_w": ("enforced.power.limit", "power.limit"),
    "persistence": ("persistence_mode",),
    "mig": ("mig.mode.current",),
    "total": ("memory.total",),
    "free": ("memory.free",),
    "reserved": ("memory.reserved",),
}
_READ = {
    "uuid": ("uuid",),
    "sm_mhz": ("clocks.sm",),
    "mem_mhz": ("clocks.mem",),
    "power_w": ("power.draw",),
    "temperature_c": ("temperature.gpu",),
    "utilization_pct": ("utilization.gpu",),
    "memory_mib": ("memory.used",),
    "reasons": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
}
_TEXTS = ("uuid", "name", "persistence", "mig")
_REFUSED = re.compile(r'Field "([^"]+)" is not a valid field')
# PROC_PID_INIT_INO (Linux, include/linux/proc_ns.h): nvidia-smi's pids are those of this namespace.
_HOST_PIDS = "pid:[4026531836]"

_POLL_S = 0.5

Row = dict[str, Any]


class SmiAbsent(Exception):
    """There is no ``nvidia-smi``, or it does not work; in words that go on after "since"."""


class SmiHangs(SmiAbsent):
    """It gave no answer."""


class Fields:
    """The columns of a query, of which those go that the driver does not know."""

    def __init__(self, wanted: Mapping[str, Sequence[str]]) -> None:
        self._spellings = {name: list(spellings) for name, spellings in wanted.items()}

    @classmethod
    def read(cls) -> Fields:
        """Those of what changes while a command runs."""
        return cls(_READ)

    def option(self) -> str:
        """For the command line."""
        return "--query-gpu=" + ",".join(spellings[0] for spellings in self._spellings.values())

    def refused(self, text: str) -> bool:
        """Whether ``text`` refuses a column, which from now on has its older name or is left out."""
        match = _REFUSED.search(text)
        for name, spellings in list(self._spellings.items()):
            if match is not None and spellings[0] == match[1]:
                del spellings[0]
                if not spellings:
                    del self._spellings[name]
                return True
        return False

    def row(self, line: str) -> Row | None:
        """One line's values, those that the driver tells; ``None`` for what is no row of a GPU."""
        cells = next(csv.reader([line], skipinitialspace=True), [])
        if len(cells) != len(self._spellings):
            return None
        values = {name: _value(name, cell.strip()) for name, cell in zip(self._spellings, cells, strict=True)}
        known = {name: value for name, value in values.items() if value is not None}
        return known if str(known.get("uuid", "")).startswith(("GPU-", "MIG-")) else None


def _value(name: str, cell: str) -> Any:
    if not cell or cell.startswith("[") or cell == "N/A":
        return None
    if name in _TEXTS:
        return cell
    try:
        value = int(cell, 16) if name == "reasons" else float(cell)
    except ValueError:
        return None
    return int(value) if value == int(value) else value


@dataclass(frozen=True, slots=True)
class Idle:
    """When a GPU is idle: no compute process, and no more taken than the greater of ``bytes`` and ``share`` of it.

    That is waited for, ``wait_s`` at most. The numbers and their sources are ``gpu/occupancy.py``'s.
    """

    wait_s: float
    bytes: int
    share: float


@dataclass(frozen=True, slots=True)
class Occupant:
    """A process with a compute context; ``user`` is ``None`` where ``/proc`` here does not show it."""

    pid: int
    name: str
    mib: int | None
    user: str | None

    def __str__(self) -> str:
        size = f"{self.mib} MiB" if self.mib is not None else "an unknown amount"
        owner = f" of {self.user}" if self.user is not None else ""
        return f"pid {self.pid}{owner} ({self.name}) with {size}"


@dataclass(frozen=True, slots=True)
class Smi:
    """Asks of ``uuids``, in the environment ``env``, for as long as we are ``wanted``."""

    uuids: tuple[str, ...]
    env: Mapping[str, str]
    wanted: Callable[[], bool]

    def gpus(self) -> dict[str, Row]:
        """What stays as it is, and memory in MiB; only those that it knows. Raises :class:`SmiAbsent`."""
        fields = Fields(_FIXED)
        while True:
            code, text = self._ask(fields.option(), f"--id={','.join(self.uuids)}")
            if not fields.refused(text):
                break
        rows = [row for row in map(fields.row, text.splitlines()) if row is not None]
        if code != 0 or not rows:
            last = (text.strip().splitlines() or ["it printed nothing"])[-1][:200]
            raise SmiAbsent(f"{PROGRAM} there ended with {code} ({last})")
        return {row["uuid"]: row for row in rows}

    def occupants(self) -> dict[str, list[Occupant]]:
        """Who computes, by GPU; nobody where it does not tell."""
        code, text = self._ask("--query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory")
        found: dict[str, list[Occupant]] = {}
        for cells in csv.reader(text.splitlines() if code == 0 else (), skipinitialspace=True):
            if len(cells) == 4 and cells[1].strip().isdigit():
                pid, mib = int(cells[1]), _value("mib", cells[3].strip())
                user, name = _identity(pid)
                shown = cells[2].strip()
                if not shown or shown.startswith("["):  # [Not Found]
                    shown = name or "no name"
                found.setdefault(cells[0].strip(), []).append(Occupant(pid, Path(shown).name or shown, mib, user))
        return found

    def _ask(self, *options: str) -> tuple[int, str]:
        """Exit code and all output."""
        child = start(self.env, *options)
        until = time.monotonic() + ANSWER_S
        while True:
            try:
                text, _ = child.communicate(timeout=0.2)
            except subprocess.TimeoutExpired:
                if time.monotonic() < until and self.wanted():
                    continue
                end(child)
                raise SmiHangs(f"{PROGRAM} there gave no answer within {ANSWER_S:g} s") from None
            return child.returncode, text.decode("utf-8", "replace")


def start(env: Mapping[str, str], *options: str) -> subprocess.Popen[bytes]:
    """Start it, all output in a pipe. Raises :class:`SmiAbsent`."""
    try:
        return subprocess.Popen(
            [PROGRAM, *options, FORMAT],
            env={**env, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except FileNotFoundError:
        raise SmiAbsent(f"there is no {PROGRAM} on the PATH there") from None
    except OSError as error:
        raise SmiAbsent(f"{PROGRAM} there cannot be started ({error.strerror})") from None


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill it: it only reads. One that hangs in the driver is left to what ends all of the run."""
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1.0)


def not_free(smi: Smi, idle: Idle, waiting: Callable[[str], None]) -> str | None:
    """Wait until all GPUs are idle; why they can't be used after that, in one sentence.

    ``None`` too when we are not wanted any more. ``waiting`` is told once who holds what. Raises
    :class:`SmiAbsent` when it cannot be known.
    """
    begun = time.monotonic()
    told = False
    while True:
        try:
            rows, people = smi.gpus(), smi.occupants()
        except SmiHangs as error:
            return f"{error}: is the driver well?" if smi.wanted() else None
        for row in rows.values():
            if row.get("mig") == "Enabled":
                return (
                    f"{row.get('name', 'GPU')} {row['uuid']} is in MIG mode: have MIG turned off, or take another node"
                )
        held = {uuid: text for uuid in smi.uuids if (text := _held(uuid, rows.get(uuid), people.get(uuid, []), idle))}
        waited_s = time.monotonic() - begun
        if not held or not smi.wanted():
            return None
        if waited_s >= idle.wait_s:
            count = "1 GPU is" if len(held) == 1 else f"{len(held)} GPUs are"
            who = [person for uuid in held for person in people.get(uuid, [])]
            return f"{count} not free after {waited_s:.0f} s: {'; '.join(held.values())}; {_mend(who)}, then run again"
        if not told:
            told = True
            waiting("; ".join(held.values()))
        _nap(smi.wanted, min(_POLL_S, idle.wait_s - waited_s))


def _nap(wanted: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while wanted() and (left := until - time.monotonic()) > 0:
        time.sleep(min(0.2, left))


def _held(uuid: str, row: Row | None, people: Sequence[Occupant], idle: Idle) -> str:
    """Who holds a GPU; empty when it is idle."""
    if row is None:
        return f"{uuid} is not shown by {PROGRAM} there"
    total, free = row.get("total"), row.get("free")
    if total is None or free is None:
        taken, size = 0, "memory of unknown size"
    else:
        # As gpu/nvml.py has it: what nvidia-smi calls used did hold the reserved part in older drivers.
        taken = max(0, total - free - row.get("reserved", 0))
        size = f"{taken} of {total} MiB"
    if not people and taken << 20 <= max(idle.bytes, int(idle.share * ((total or 0) << 20))):
        return ""
    ordered = sorted(people, key=lambda person: (-(person.mib or 0), person.pid))
    return f"{uuid} has {size} taken: {', '.join(map(str, ordered)) or 'no process that the driver shows'}"


def _mend(people: Sequence[Occupant]) -> str:
    if not people:
        return "where no process is left, have the GPU reset by the host's administrator"
    if users := sorted({person.user for person in people if person.user is not None}):
        return f"end it there, or ask {', '.join(users)}"
    return "end it there, or ask whose it is"


def _identity(pid: int) -> tuple[str | None, str | None]:
    """User and name of a process; neither where our pids aren't the host's, since that would be another."""
    folder = Path("/proc") / str(pid)
    try:
        if proc.pid_namespace() != _HOST_PIDS and not _holds_gpu(folder):
            return None, None
        uid, name = folder.stat().st_uid, (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None, None
    try:
        return pwd.getpwuid(uid).pw_name, name
    except KeyError:
        return f"uid {uid}", name


def _holds_gpu(folder: Path) -> bool:
    """Whether that process has an NVIDIA device open: then it is the one that is meant."""
    return any(str(entry.readlink()).startswith("/dev/nvidia") for entry in (folder / "fd").iterdir())
