"""What the GPUs did in a timed window, from readings: pure, so that recorded telemetry is judged alike."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.gpu.nvml import Gpu, Reading
from pytest_r1perf.gpu.reasons import reasons_in

FORMAT = 1
"""Version of a saved telemetry's format; readers refuse a newer one."""


@dataclass(frozen=True, slots=True)
class TimedReading:
    """One attempt to read one GPU, done at ``at`` (seconds of the monotonic clock); or the ``error`` instead."""

    at: float
    uuid: str
    reading: Reading | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the readings in a window."""

    min: float
    median: float
    max: float


@dataclass(frozen=True, slots=True)
class Seen:
    """A throttle reason: in how many readings, and the lowest SM clock (MHz) that went with it."""

    samples: int
    sm_mhz_min: int | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Readings condensed. ``asked`` is how many of ``samples`` told their throttle reasons at all."""

    samples: int = 0
    sm_mhz: Spread | None = None
    mem_mhz: Spread | None = None
    power_w: Spread | None = None
    temperature_c: Spread | None = None
    utilization_pct: Spread | None = None
    memory_bytes: Spread | None = None
    asked: int = 0
    reasons: Mapping[str, Seen] = field(default_factory=dict)

    def share(self, reason: str) -> float:
        """The share of the readings in which a reason was seen, 0 to 1."""
        seen = self.reasons.get(reason)
        return seen.samples / self.asked if seen is not None and self.asked else 0.0


@dataclass(frozen=True, slots=True)
class GpuSummary:
    """One GPU in the window.

    ``failed`` attempts told nothing, the last because of ``error``. ``gaps`` counts the stretches without a
    reading of more than two periods, the window's edges included; ``longest_gap_s`` is the longest stretch,
    gap or not.
    """

    gpu: Gpu
    figures: Figures
    failed: int
    gaps: int
    longest_gap_s: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class TelemetrySummary:
    """All GPUs in the window from ``start`` to ``end`` (monotonic clock); ``note``: why there is less."""

    start: float
    end: float
    period_s: float
    overall: Figures
    gpus: tuple[GpuSummary, ...]
    note: str = ""

    def as_record(self) -> dict[str, object]:
        """For the JSON line of a sample; empty when no GPU was to be watched."""
        if not self.gpus:
            return {"note": self.note} if self.note else {}
        record: dict[str, object] = {
            "window_s": round(self.end - self.start, 3),
            "period_s": self.period_s,
            "overall": _figures_record(self.overall),
            "gpus": {item.gpu.uuid: _gpu_record(item) for item in self.gpus},
        }
        return {**record, "note": self.note} if self.note else record


def summarize(
    readings: Iterable[TimedReading], gpus: Sequence[Gpu], start: float, end: float, *, period_s: float, note: str = ""
) -> TelemetrySummary:
    """Condense the readings of ``gpus`` that were done from ``start`` to ``end``, both included."""
    inside = [item for item in readings if start <= item.at <= end]
    summaries, all_good = [], []
    for gpu in gpus:
        own = sorted((item for item in inside if item.uuid == gpu.uuid), key=lambda item: item.at)
        good = [item.reading for item in own if item.reading is not None]
        all_good += good
        times = [start, *(item.at for item in own if item.reading is not None), end]
        between = [later - earlier for earlier, later in itertools.pairwise(times)]
        gaps = sum(length > 2 * period_s for length in between)
        errors = [item.error for item in own if item.reading is None]
        summaries.append(GpuSummary(gpu, _figures(good), len(errors), gaps, max(between), errors[-1] if errors else ""))
    return TelemetrySummary(start, end, period_s, _figures(all_good), tuple(summaries), note)


def _figures(readings: Sequence[Reading]) -> Figures:
    seen: dict[str, Seen] = {}
    for reading in readings:
        for reason in reasons_in(reading.reasons or 0):
            before = seen.get(reason.key, Seen(0, None))
            clocks = [clock for clock in (before.sm_mhz_min, reading.sm_mhz) if clock is not None]
            seen[reason.key] = Seen(before.samples + 1, min(clocks, default=None))
    return Figures(
        samples=len(readings),
        sm_mhz=_spread([reading.sm_mhz for reading in readings]),
        mem_mhz=_spread([reading.mem_mhz for reading in readings]),
        power_w=_spread([reading.power_w for reading in readings]),
        temperature_c=_spread([reading.temperature_c for reading in readings]),
        utilization_pct=_spread([reading.utilization_pct for reading in readings]),
        memory_bytes=_spread([reading.memory_bytes for reading in readings]),
        asked=sum(reading.reasons is not None for reading in readings),
        reasons=seen,
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(min(known), statistics.median(known), max(known)) if known else None


def _figures_record(figures: Figures) -> dict[str, object]:
    record: dict[str, object] = {"samples": figures.samples}
    if figures.sm_mhz is not None:
        record["sm_mhz"] = asdict(figures.sm_mhz)
    if figures.mem_mhz is not None:
        record["mem_mhz"] = asdict(figures.mem_mhz)
    if figures.power_w is not None:
        record["power_w"] = {"median": figures.power_w.median, "max": figures.power_w.max}
    if figures.temperature_c is not None:
        record["temperature_c"] = {"max": figures.temperature_c.max}
    if figures.utilization_pct is not None:
        record["utilization_pct"] = {"median": figures.utilization_pct.median}
    if figures.memory_bytes is not None:
        record["memory_mib"] = {"max": int(figures.memory_bytes.max) >> 20}
    if figures.asked:
        record["reasons"] = {key: round(figures.share(key), 4) for key in sorted(figures.reasons)}
    return record


def _gpu_record(item: GpuSummary) -> dict[str, object]:
    fixed = {key: value for key, value in asdict(item.gpu).items() if value is not None and key != "uuid"}
    gaps = {"failed": item.failed, "gaps": item.gaps, "longest_gap_s": round(item.longest_gap_s, 3)}
    return {**fixed, **_figures_record(item.figures), **gaps, **({"error": item.error} if item.error else {})}


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded telemetry, which answers like the live one."""

    gpus: tuple[Gpu, ...]
    readings: tuple[TimedReading, ...]
    period_s: float = 1.0
    note: str = ""

    def window(self, start: float, end: float) -> TelemetrySummary:
        """The same summary as when it was recorded."""
        return summarize(self.readings, self.gpus, start, end, period_s=self.period_s, note=self.note)

    def save(self, path: Path) -> None:
        """Write it as JSON lines: a head, then a line a reading; raises :class:`OSError`."""
        head = {"format": FORMAT, "period_s": self.period_s, "note": self.note}
        with path.open("w", encoding="utf-8") as file:
            file.write(json.dumps({**head, "gpus": [asdict(gpu) for gpu in self.gpus]}) + "\n")
            for item in self.readings:
                file.write(json.dumps({"at": item.at, "uuid": item.uuid, **_told(item)}) + "\n")

    @classmethod
    def load(cls, path: Path) -> Replay:
        """Read what ``save`` wrote, also cut short; raises :class:`R1PerfError`."""
        try:
            head, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
            told = json.loads(head)
            if told["format"] > FORMAT:
                raise R1PerfError(
                    f"{path}: written by a newer pytest-r1perf (format {told['format']}): update this one"
                )
            gpus = tuple(Gpu(**gpu) for gpu in told["gpus"])
            return cls(gpus, tuple(_timed(line) for line in _whole(lines)), float(told["period_s"]), told["note"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise R1PerfError(f"{path}: is no recorded telemetry ({error}); give one that a round has saved") from None


def _told(item: TimedReading) -> dict[str, object]:
    if item.reading is None:
        return {"error": item.error}
    return {key: value for key, value in asdict(item.reading).items() if value is not None}


def _timed(line: str) -> TimedReading:
    values = json.loads(line)
    at, uuid = float(values.pop("at")), str(values.pop("uuid"))
    error = values.pop("error", None)
    return TimedReading(at, uuid, Reading(**values)) if error is None else TimedReading(at, uuid, None, str(error))


def _whole(lines: list[str]) -> list[str]:
    """Without a last line that was cut short when its writer was killed."""
    return lines[:-1] if lines and not lines[-1].endswith("}") else lines
