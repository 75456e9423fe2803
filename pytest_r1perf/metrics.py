"""The metrics: one schema entry each, with SGLang's own names.

A metric's better direction, unit and divisor live here and nowhere else: no code infers them from a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pytest_r1perf.errors import R1PerfError, did_you_mean


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured quantity.

    ``better`` is ``+1`` where a larger value is better and ``-1`` where a smaller one is;
    ``meaning`` says in words what is divided by what.
    """

    name: str
    unit: str
    better: int
    meaning: str

    def ratio(self, new: float, reference: float) -> float:
        """``new`` against ``reference`` in the better direction: above 1 is an improvement."""
        return new / reference if self.better > 0 else reference / new


_OFFLINE = (
    Metric("total_throughput", "tok/s", +1, "input + output tokens / the whole timed window"),
    Metric("output_throughput", "tok/s", +1, "output tokens / the whole timed window"),
    Metric("input_throughput", "tok/s", +1, "input tokens / the whole timed window (not prefill speed)"),
    Metric("request_throughput", "req/s", +1, "requests / the whole timed window"),
    Metric("tokps_per_gpu", "tok/s/GPU", +1, "total_throughput / GPUs that the topology uses"),
    Metric("total_latency", "s", -1, "the whole timed window, first request to last token"),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _OFFLINE})
"""Every metric that ``mode="offline"`` measures, by name.

Source of the definitions: ``bench_offline_throughput`` of SGLang 0.4.3 to 0.5.23 (its JSONL keys);
``tokps_per_gpu`` is the best-practice guide's "tok/s/GPU".
"""


def metric_named(name: str) -> Metric:
    """The schema entry of ``name``; :class:`R1PerfError` names the nearest one otherwise."""
    try:
        return METRICS[name]
    except KeyError:
        raise R1PerfError(f"metric {name!r} is not known; {did_you_mean(name, METRICS)}") from None
