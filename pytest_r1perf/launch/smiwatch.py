"""The GPUs of a command on another node: free before it, read once a second beside it.

What was read goes back as a file of JSON lines: a head, then readings, and ``{"at", "output"}``: how many bytes the
command had written by then. The log here is those bytes, so a place in it is a time there, by one clock.
``gpu/elsewhere.py`` reads it.

Standard library only: shipped to other nodes (``bundle.py``).
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from pytest_r1perf.launch.smi import Fields, Idle, Row, Smi, SmiAbsent, end, not_free, start

FORMAT = 1
"""Version of the file; readers refuse a newer one."""

PERIOD_S = 1
"""``nvidia-smi -l`` takes whole seconds. As ``gpu/telemetry.py``."""

KEEP_S = 7200
"""How far back readings are kept, as in ``gpu/telemetry.py``: of 8 GPUs that is a file of some 12 MB."""

_MARK_S = 0.1
_LEAVE_S = 2.0


class SmiWatch:
    """Of the GPUs ``uuids``; without any it does nothing.

    ``env``: of ``nvidia-smi``, with a mark that is not the command's: it is none of what that left running.
    """

    def __init__(self, uuids: tuple[str, ...], env: Mapping[str, str], wanted: Callable[[], bool]) -> None:
        self._began = time.time()
        self._clock = self._began - time.monotonic()  # a clock that is set meanwhile moves nothing
        self._smi = Smi(uuids, env, wanted)
        self._gpus: dict[str, Row] = {}
        self._note = ""
        self._readings: deque[str] = deque(maxlen=KEEP_S // PERIOD_S * max(1, len(uuids)))
        self._marks: deque[tuple[float, int]] = deque(maxlen=int(KEEP_S / _MARK_S))
        self._child: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._over = False

    def not_free(self, idle: Idle, waiting: Callable[[str], None]) -> str | None:
        """Wait until they are; why they can't be used after that, in one sentence. As ``smi.not_free``."""
        if not self._smi.uuids:
            return None
        try:
            dirty = not_free(self._smi, idle, waiting)
            self._gpus = self._smi.gpus() if dirty is None and self._smi.wanted() else {}
        except SmiAbsent as error:
            self._note = str(error)
            return None
        return dirty

    def __enter__(self) -> SmiWatch:
        if self._smi.uuids and not self._note:
            thread = threading.Thread(target=self._watch, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the user's limit of threads is reached
                self._note = f"no thread could be started there ({error})"
            else:
                self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if self._child is not None:
            end(self._child)
        if self._thread is not None:
            self._thread.join(_LEAVE_S)

    def mark(self, size: int) -> None:
        """The command has written ``size`` bytes by now."""
        if not self._smi.uuids:
            return
        at = self._now()
        if self._marks and at - self._marks[-1][0] < _MARK_S:  # a flood comes in many pieces
            at, _ = self._marks.pop()
        self._marks.append((at, size))

    def text(self) -> bytes:
        """The file, once it is over; empty without GPUs."""
        if not self._smi.uuids:
            return b""
        known = {"name", "index", "max_sm_mhz", "max_mem_mhz", "power_limit_w"}
        head: dict[str, Any] = {
            "format": FORMAT,
            "host": socket.gethostname(),
            "began": self._began,
            "period_s": PERIOD_S,
            "note": self._note,
            "gpus": [
                {
                    "uuid": uuid,
                    **{name: value for name, value in self._gpus.get(uuid, {}).items() if name in known},
                    **_switch("persistence", self._gpus.get(uuid, {})),
                }
                for uuid in self._smi.uuids
            ],
        }
        marks = (json.dumps({"at": round(at, 3), "output": size}) for at, size in self._marks)
        return "".join(f"{line}\n" for line in (json.dumps(head), *marks, *self._readings)).encode("ascii")

    def _now(self) -> float:
        return self._clock + time.monotonic()

    def _watch(self) -> None:
        fields = Fields.read()
        try:
            while self._read(fields):
                pass
        except SmiAbsent as error:
            self._failed(str(error))

    def _read(self, fields: Fields) -> bool:
        """Take rows until it ends; whether it is to be started again, with other columns."""
        self._child = child = start(
            self._smi.env, fields.option(), f"--id={','.join(self._smi.uuids)}", "-l", str(PERIOD_S)
        )
        if self._over:  # before the child was known
            end(child)
        assert child.stdout is not None
        last = ""
        for raw in child.stdout:
            line = raw.decode("utf-8", "replace").strip()
            if fields.refused(line):
                end(child)
                return not self._over
            row = fields.row(line)
            if row is None:
                last = line or last
            elif not self._over:
                self._readings.append(json.dumps({"at": round(self._now(), 3), **row}))
        if not self._over:
            self._failed(f"nvidia-smi there ended{f' ({last[:200]})' if last else ''}")
        return False

    def _failed(self, why: str) -> None:
        for uuid in self._smi.uuids:
            self._readings.append(json.dumps({"at": round(self._now(), 3), "uuid": uuid, "error": why}))


def _switch(name: str, row: Row) -> dict[str, bool]:
    return {name: row[name] == "Enabled"} if name in row else {}
