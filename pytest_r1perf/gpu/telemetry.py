"""Watch GPUs while a benchmark runs.

    with Telemetry(nvml, uuids) as telemetry:
        ...                                     # note time.monotonic() where the timed window begins and ends
    summary = telemetry.window(start, end)
    invalid, remarks = judge(summary)

A daemon thread reads each GPU once a second. Nothing here can hold up or break a measurement: an NVML call that
fails leaves a hole in the readings, one that hangs is left behind.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from pytest_r1perf.gpu.judge import judge
from pytest_r1perf.gpu.nvml import Gpu, Nvml, NvmlAbsent
from pytest_r1perf.gpu.summary import Replay, TelemetrySummary, TimedReading

__all__ = ["KEEP_S", "PERIOD_S", "Replay", "Telemetry", "TelemetrySummary", "judge"]

PERIOD_S = 1.0
"""Between two looks. NVML's own utilisation is an average over at most 1 s (its reference)."""

KEEP_S = 7200.0
"""How far back readings are kept: 8 GPUs then take about 20 MB. A window that began earlier shows a gap."""

LEAVE_S = 2.0
"""How long the end of ``with`` waits for a call under way; a thread that hangs longer is left behind."""


class Telemetry:
    """Readings of the given GPUs, taken inside ``with``.

    Where ``nvml`` is absent or ``uuids`` is empty nothing runs, and windows say why. ``period_s`` and ``clock``
    are for tests.
    """

    def __init__(
        self,
        nvml: Nvml | NvmlAbsent,
        uuids: Sequence[str],
        *,
        period_s: float = PERIOD_S,
        keep_s: float = KEEP_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = nvml
        self._uuids = tuple(uuids)
        self._period_s = period_s
        self._clock = clock
        # No lock: one thread appends, which is atomic, and a lock could be held for good in a forked child.
        self._readings: deque[TimedReading] = deque(maxlen=max(1, int(keep_s / period_s)) * max(1, len(self._uuids)))
        self._gpus = {uuid: Gpu(uuid) for uuid in self._uuids}
        self._unstarted = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def __enter__(self) -> Telemetry:
        if isinstance(self._nvml, NvmlAbsent) or not self._uuids or self._thread is not None:
            return self
        self._stop = threading.Event()  # an earlier thread that hung keeps its own
        thread = threading.Thread(
            target=self._watch, args=(self._nvml, self._stop), name="r1perf-telemetry", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the user's limit of threads is reached
            self._unstarted = f"none, since no thread could be started ({error})"
        else:
            self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        # In a forked child the thread doesn't run, and the event's lock may be held for good.
        if thread is not None and os.getpid() == self._pid:
            self._stop.set()
            thread.join(LEAVE_S)

    def window(self, start: float, end: float) -> TelemetrySummary:
        """What was read from ``start`` to ``end`` (monotonic clock), inside ``with`` or after it."""
        return self.recorded().window(start, end)

    def recorded(self) -> Replay:
        """All that is kept, to be saved beside the log."""
        return Replay(
            tuple(self._gpus[uuid] for uuid in self._uuids), self._copy(), period_s=self._period_s, note=self._note()
        )

    def _copy(self) -> tuple[TimedReading, ...]:
        while True:
            try:
                return tuple(self._readings)
            except RuntimeError:  # the thread appended meanwhile, which it does once a second
                continue

    def _note(self) -> str:
        if not self._uuids:
            return ""
        if isinstance(self._nvml, NvmlAbsent):
            return f"none, since {self._nvml.reason}"
        return self._unstarted

    def _watch(self, nvml: Nvml, stop: threading.Event) -> None:
        due = self._clock()
        while not stop.is_set():
            for uuid in self._uuids:
                self._look(nvml, uuid, stop)
            now = self._clock()
            # A tick that was missed is left out: two looks in a row would say nothing new.
            due += self._period_s * max(1, int((now - due) / self._period_s) + 1)
            stop.wait(max(0.0, due - now))

    def _look(self, nvml: Nvml, uuid: str, stop: threading.Event) -> None:
        try:
            if self._gpus[uuid] == Gpu(uuid):
                self._gpus[uuid] = nvml.describe(uuid)
            reading = nvml.read(uuid)
            attempt = TimedReading(self._clock(), uuid, reading)
        except Exception as error:  # whatever a driver's library raises costs one reading and nothing more
            attempt = TimedReading(self._clock(), uuid, None, str(error) or type(error).__name__)
        if not stop.is_set():  # what a call that hung brings back may belong to no run at all
            self._readings.append(attempt)
