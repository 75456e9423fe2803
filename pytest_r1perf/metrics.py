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
    ``meaning`` says in words what is divided by what. ``needs`` is the load of a server that it is measured of:
    ``"batch"``, ``"traffic"``, ``"slo"`` (traffic with limits), or empty where every mode measures it; ``"process"``
    is measured of a process of its own (``mode="offline"``).
    """

    name: str
    unit: str
    better: int
    meaning: str
    needs: str = ""

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

_PROCESS = (
    Metric("wall_time", "s", -1, "the whole benchmark process, from its start to its end", "process"),
    Metric("startup_time", "s", -1, "from the start of the benchmark process to its timed window", "process"),
)

_SERVE = (
    Metric("decode_throughput", "tok/s", +1, "output tokens / from the batch's last first token on", "batch"),
    Metric("ttft_ms", "ms", -1, "from sending to the first token, median of the requests", "traffic"),
    Metric("tpot_ms", "ms", -1, "(end - first token) / (output tokens - 1), median of the requests", "traffic"),
    Metric("itl_ms", "ms", -1, "between two tokens of a request, median of all", "traffic"),
    Metric("e2e_latency_ms", "ms", -1, "from sending to the last token, median of the requests", "traffic"),
    Metric("p99_ttft_ms", "ms", -1, "from sending to the first token, 99th percentile of the requests", "traffic"),
    Metric("p99_tpot_ms", "ms", -1, "(end - first token) / (output tokens - 1), 99th percentile", "traffic"),
    Metric("p99_itl_ms", "ms", -1, "between two tokens of a request, 99th percentile of all", "traffic"),
    Metric("goodput", "req/s", +1, "requests within every limit of the slo / the whole timed window", "slo"),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in (*_OFFLINE, *_PROCESS, *_SERVE)})
"""Every metric, by name.

Source of the definitions: ``bench_offline_throughput`` of SGLang 0.4.3 to 0.5.23 (its JSONL keys);
``tokps_per_gpu`` is the best-practice guide's "tok/s/GPU". Those of a server: ``bench_serving`` (medians and
percentiles, goodput of 0.5.23) and ``bench_one_batch_server`` from 0.4.6 on (its ``output_throughput`` is what
``decode_throughput`` is here).
"""


def metric_named(name: str) -> Metric:
    """The schema entry of ``name``; :class:`R1PerfError` names the nearest one otherwise."""
    try:
        return METRICS[name]
    except KeyError:
        raise R1PerfError(f"metric {name!r} is not known; {did_you_mean(name, METRICS)}") from None
