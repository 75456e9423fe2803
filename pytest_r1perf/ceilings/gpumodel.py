"""GPU models: what one of a name can do at most, by its data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_r1perf.datafile import Section

PRECISIONS = ("bf16", "fp8")
"""Whose dense tensor rates are needed: what weights are multiplied in."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU by its exact name.

    ``memory_bytes`` as nvidia-smi has it, ``hbm_bytes_per_s`` and ``flops`` (by precision, a second, dense) by the
    data sheet, ``l2_bytes`` is its cache. Each number's source is in the YAML.
    """

    name: str
    memory_bytes: int
    hbm_bytes_per_s: float
    l2_bytes: float
    flops: Mapping[str, float]
    source: str

    @property
    def fastest(self) -> float:
        """The highest dense rate of any precision, FLOP a second."""
        return max(self.flops.values())


def load_gpu(name: str, data: Section) -> GpuModel:
    """One entry of ``gpus:``."""
    data.need("tflops")
    rates = data.section("tflops")
    for precision in rates:
        if precision not in PRECISIONS:
            rates.fail(f"precision {precision!r} is not known (known: {', '.join(PRECISIONS)})", precision)
    gpu = GpuModel(
        name=name,
        memory_bytes=int(_sourced(data, "memory_mib")) << 20,
        hbm_bytes_per_s=_sourced(data, "hbm_tb_per_s") * 1e12,
        l2_bytes=_sourced(data, "l2_mb") * 1e6,
        flops={precision: _sourced(rates, precision) * 1e12 for precision in PRECISIONS},
        source=data.text("source"),
    )
    data.done()
    return gpu


def _sourced(data: Section, key: str) -> float:
    data.need(key)
    entry = data.section(key)
    value = entry.number("value")
    entry.text("source")
    entry.done()
    return value
