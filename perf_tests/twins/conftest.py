"""What the twins measure, by platform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from perf_tests.questions import Flags
from pytest_r1perf.lab import PerfLab, arguments_from, run_of
from pytest_r1perf.published import Published, published_from


def of_r1(figure: str) -> Published:
    """A figure of the documents, printed beside a toy model's, and not compared with it."""
    return replace(published_from(figure), aside="of R1 on GPUs: not compared with this model")


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes that a platform can run: ``n`` and ``low`` prompts, and changes that move something there.

    ``pair`` is the memory pair, one of whose combinations breaks; ``partitions`` split the layers of the twin's model.
    """

    n: int
    low: int
    few: Flags
    chunks: tuple[int, int]
    pair: Mapping[str, Sequence[Any]]
    attention: tuple[str, ...]
    partitions: tuple[str, str]


CPU = Scale(
    n=40,  # the platform's min_conclusive_n
    low=8,
    few={"max_running_requests": 4},
    chunks=(256, 1024),
    pair={"max_total_tokens": (64, 16384), "max_running_requests": (4, 16)},
    attention=("torch_native", "fa3"),  # intel_amx falls back without a word where there is no AMX: INVALID
    partitions=("2,1", "1,2"),  # r1-tiny has 3 layers
)
GPU = Scale(
    n=1000,  # 20 s on one H200 with r1-slice (docs/measurements.md)
    low=100,
    few={"max_running_requests": 64},
    chunks=(4096, 32768),
    pair={"mem_fraction_static": (0.1, 0.85), "cuda_graph_max_bs": (64, 256)},
    attention=("fa3", "triton", "flashinfer"),
    partitions=("2,2", "3,1"),  # r1-slice has 4 layers
)


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> Scale:
    run = run_of(request, "scale")
    return CPU if run.assessor.runner.platform_of(run.spec).is_cpu else GPU


@pytest.fixture
def lab(perf_lab: PerfLab, scale: Scale, request: pytest.FixtureRequest) -> PerfLab:
    """The lab of the test, at the platform's N."""
    del perf_lab  # asked for so that the plugin leaves the measuring to the body
    run = run_of(request, "lab")
    return PerfLab(run, {**arguments_from(run.spec), "n": scale.n})
