"""The load that ``mode="serve"`` puts on a server: one batch at once, or traffic of many requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_r1perf.errors import R1PerfError, did_you_mean

if TYPE_CHECKING:
    from pytest_r1perf.metrics import Metric
    from pytest_r1perf.workload import SampledWorkload

_BATCH = ("batch_size", "input_len", "output_len")
_TRAFFIC = ("request_rate", "max_concurrency", "slo")

ARGUMENTS = (*_BATCH, *_TRAFFIC)
"""The marker's arguments that only a server's load has."""

LIMITS = ("ttft_ms", "tpot_ms", "e2e_latency_ms")
"""What an slo may limit, of every request, in ms: the names that SGLang's own ``--goodput`` knows (0.5.23)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """``batch_size`` requests at once, each of ``input_len`` tokens and answered by ``output_len`` tokens.

    Measured by SGLang's ``bench_one_batch_server``.
    """

    batch_size: int
    input_len: int
    output_len: int

    @property
    def parts(self) -> tuple[str, ...]:
        """As a cell's key and label have it, beside its N."""
        return ("one-batch", f"in={self.input_len}", f"out={self.output_len}")


@dataclass(frozen=True, slots=True)
class Traffic:
    """N requests of a workload, ``request_rate`` a second (``None``: all at once), at most so many at a time.

    ``max_concurrency`` is what the client keeps in flight (``None``: no limit). ``slo`` are the limits in ms that a
    request must keep to count as good, by metric, in the order of :data:`LIMITS`. Measured by SGLang's
    ``bench_serving``.
    """

    request_rate: float | None = None
    max_concurrency: int | None = None
    slo: tuple[tuple[str, float], ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """As a cell's key and label have it, beside its N: only what is given."""
        rate = () if self.request_rate is None else (f"rate={self.request_rate:g}",)
        limit = () if self.max_concurrency is None else (f"concurrency={self.max_concurrency}",)
        return (*rate, *limit, *(f"slo-{name}={value:g}" for name, value in self.slo))


Load: TypeAlias = Batch | Traffic


def load_of(given: Mapping[str, Any], mode: str) -> Load | None:
    """The load that a marker's arguments mean; ``None`` in the modes that have no server.

    ``given`` are the marker's arguments that are not None. Raises :class:`R1PerfError` with one sentence for
    arguments that contradict each other.
    """
    named = [name for name in ARGUMENTS if name in given]
    if mode != "serve":
        if named:
            raise R1PerfError(f"{named[0]} belongs to mode='serve', and this test has mode {mode!r}")
        return None
    batch = [name for name in _BATCH if name in given]
    if not batch:
        return Traffic(
            request_rate=_positive(given, "request_rate"),
            max_concurrency=_whole(given, "max_concurrency") if "max_concurrency" in given else None,
            slo=_slo(given["slo"]) if "slo" in given else (),
        )
    missing = [name for name in _BATCH if name not in given]
    if missing:
        raise R1PerfError(
            f"{batch[0]}={given[batch[0]]!r} means one batch, which needs {' and '.join(missing)} as well"
        )
    if "n" in given:
        raise R1PerfError(
            f"n={given['n']!r} and batch_size={given['batch_size']!r} are two loads: a batch is batch_size requests, "
            f"so leave n out"
        )
    other = [name for name in _TRAFFIC if name in given]
    if other:
        raise R1PerfError(f"{other[0]} is for traffic of n requests, and a batch is sent at once: leave it out")
    return Batch(*(_whole(given, name) for name in _BATCH))


def batch_workload(batch: Batch, drawn: Sequence[object]) -> SampledWorkload:
    """What a batch comes to, known beforehand; ``drawn`` says of what its prompts are drawn (data set, seed)."""
    import hashlib
    import json

    from pytest_r1perf.workload import SampledWorkload

    told = json.dumps([*drawn, batch.batch_size, batch.input_len, batch.output_len])
    return SampledWorkload(
        num_prompts=batch.batch_size,
        total_input_tokens=batch.batch_size * batch.input_len,
        total_output_tokens=batch.batch_size * batch.output_len,
        digest=hashlib.sha256(told.encode()).hexdigest()[:16],
        longest_tokens=batch.input_len + batch.output_len,
    )


def arguments_of(load: Load | None) -> dict[str, Any]:
    """The load back as marker arguments."""
    if isinstance(load, Batch):
        return {name: getattr(load, name) for name in _BATCH}
    if isinstance(load, Traffic):
        given = {"request_rate": load.request_rate, "max_concurrency": load.max_concurrency, "slo": dict(load.slo)}
        return {name: value for name, value in given.items() if value}
    return {}


def refuse_unmeasured(metric: Metric, mode: str, load: Load | None) -> None:
    """Raise :class:`R1PerfError` for a metric that this mode does not measure of this load."""
    needs = metric.needs
    if needs == "batch" and not isinstance(load, Batch):
        raise R1PerfError(
            f"metric {metric.name!r} is measured of one batch: mode='serve' with batch_size, input_len and output_len"
        )
    if needs in ("traffic", "slo") and not isinstance(load, Traffic):
        where = "a batch has no such number" if isinstance(load, Batch) else f"mode {mode!r} has no such number"
        raise R1PerfError(f"metric {metric.name!r} is measured of traffic (mode='serve' with n): {where}")
    if needs == "slo" and isinstance(load, Traffic) and not load.slo:
        raise R1PerfError(f"metric {metric.name!r} needs slo, the limits in ms, e.g. slo={{'ttft_ms': 2000}}")


def _slo(value: object) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
        raise R1PerfError(f"slo must map metrics to ms, e.g. {{'ttft_ms': 2000, 'tpot_ms': 100}}, got {value!r}")
    for name in value:
        if name not in LIMITS:
            raise R1PerfError(f"slo[{name!r}] is not known; {did_you_mean(name, LIMITS)}")
    limits = ((name, _positive(value, name, f"slo[{name!r}]")) for name in LIMITS)
    return tuple((name, limit) for name, limit in limits if limit is not None)


def _positive(given: Mapping[str, Any], name: str, called: str | None = None) -> float | None:
    from pytest_r1perf.datafile import is_finite_number

    if name not in given:
        return None
    value = given[name]
    if not is_finite_number(value) or value <= 0:
        hint = "; leave it out to send all at once" if name == "request_rate" else ""
        raise R1PerfError(f"{called or name} must be a number above 0, got {value!r}{hint}")
    return float(value)


def _whole(given: Mapping[str, Any], name: str) -> int:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise R1PerfError(f"{name} must be a whole number above 0, got {value!r}")
    return value
