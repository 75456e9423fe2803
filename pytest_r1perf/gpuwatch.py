"""The GPUs of a run on this host, around it: free before, watched during, judged after."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.gpu.judge import Watched, judge
from pytest_r1perf.gpu.nvml import Nvml, NvmlAbsent, NvmlError
from pytest_r1perf.gpu.occupancy import before_launch, unfit
from pytest_r1perf.gpu.telemetry import Telemetry

TELEMETRY = "telemetry.jsonl"
"""All readings of a round, in its folder."""


@dataclass
class GpuWatch:
    """Watches ``uuids``; on a CPU, or where NVML can't be asked, it says so and lets everything pass."""

    nvml: Nvml | NvmlAbsent
    uuids: tuple[str, ...]
    waiting: Callable[[str], None]
    _telemetry: Telemetry | None = None

    def not_free(self) -> str | None:
        """Wait for the memory of earlier runs to return; why the GPUs can't be used after that, in one sentence."""
        if not self.uuids or isinstance(self.nvml, NvmlAbsent):
            return None
        try:
            reason = unfit(self.nvml, self.uuids)
            dirty = None if reason is not None else before_launch(self.nvml, self.uuids, waiting=self.waiting)
        except NvmlError as error:
            return f"the GPUs cannot be asked ({error}): is the driver well? nvidia-smi on this host shows it"
        return reason if dirty is None else str(dirty)

    @contextlib.contextmanager
    def during(self, folder: Path) -> Iterator[None]:
        """Read the GPUs once a second until the block is left, and keep the readings in ``folder``."""
        with Telemetry(self.nvml, self.uuids) as self._telemetry:
            yield
        if self.uuids and not isinstance(self.nvml, NvmlAbsent):
            with contextlib.suppress(OSError):
                self._telemetry.recorded().save(folder / TELEMETRY)

    def seen(self, start: float | None, seconds: float) -> Watched:
        """What was seen from ``start`` (monotonic clock; ``None`` if the log never showed it) for ``seconds``."""
        if not self.uuids or self._telemetry is None:
            return Watched()
        if start is None:
            return Watched(remarks=("telemetry: the timed window was not seen in the log",))
        summary = self._telemetry.window(start, start + seconds)
        throttled, remarks = judge(summary)
        return Watched(dict(summary.as_record()), tuple(throttled), tuple(remarks))
