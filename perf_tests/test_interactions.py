"""What the best-practice guide says of parameters together: interaction signals, and one topology against another."""

from __future__ import annotations

from perf_tests.questions import Cells, factorial, movers, neighbours, per_gpu, sides_by_load
from pytest_r1perf import perf
from pytest_r1perf.lab import PerfLab

PERTURBATIONS: Cells = (
    {},
    {"flags": {"chunked_prefill_size": 16384}},
    {"flags": {"schedule_conservativeness": 0.8}},
    {"flags": {"max_prefill_tokens": 32768}},
)
"""Small ones, ours: the guide does not say which it tried."""


@perf(topology="tp8", n=7000, recipe="tp8-stack-mf", platform="h200x8")
def test_lof_x_flashinfer_is_super_additive(perf_lab: PerfLab) -> None:
    """Published: +7.5 % together against +2.9 % expected of the two alone."""
    factorial(
        perf_lab,
        {"schedule_policy": "lof"},
        {"decode_attention_backend": "flashinfer"},
        published={"ab": "+7.5 %", "expected": "+2.9 %"},
    )


@perf(topology="tp8", n=7000, recipe="tp8-stack-chunk", platform="h200x8")
def test_cgbs_2048_x_radix_cache_off(perf_lab: PerfLab) -> None:
    """Published: CGBS 2048 'can unlock the largest single-step TP8 gains'; with NRC +15.8 %."""
    factorial(perf_lab, {"cuda_graph_max_bs": 2048}, {"disable_radix_cache": True}, published={"ab": "+15.8 %"})


@perf(topology="tp8", n=7000, recipe="tp8-champion", platform="h200x8")
def test_mem_fraction_is_the_first_order_control_variable(perf_lab: PerfLab) -> None:
    """Published: 'mem-fraction-static is the first-order control variable': it should move throughput the most."""
    movers(
        perf_lab,
        {
            "mem_fraction_static": (0.79, 0.83, 0.87),
            "chunked_prefill_size": (8192, 16384, 32768),
            "schedule_policy": ("fcfs", "lof"),
            "moe_runner_backend": ("auto", "cutlass"),
        },
    )


@perf(topology="pp2", n=7000, recipe="pp2-champion", platform="h200x16")
def test_pp2_tolerates_small_perturbations(perf_lab: PerfLab) -> None:
    """Published: 'PP2 is more tolerant than TP8 to small parameter perturbations'; the other half is TP8's."""
    neighbours(perf_lab, PERTURBATIONS)


@perf(topology="tp8", n=7000, recipe="tp8-champion", platform="h200x16")
def test_tp8_under_the_same_perturbations(perf_lab: PerfLab) -> None:
    """To be read beside PP2's: the same perturbations, the same nodes."""
    neighbours(perf_lab, PERTURBATIONS)


@perf(topology="pp2", n=7000, platform="h200x16")
def test_pp2_against_tp16_at_every_load(perf_lab: PerfLab) -> None:
    """Published: 'PP2 wins 36-43% at every load'. The loads are ours: the guide's three and N = 8000."""
    sides = ({"topology": "pp2", "recipe": "pp2-champion"}, {"topology": "tp16", "recipe": "tp16-reference"})
    loads = (1000, 5000, 7000, 8000)
    sides_by_load(perf_lab, *sides, loads, published={str(n): "36 to 43 %" for n in loads})


@perf(topology="tp8", n=7000, platform="h200x16")
def test_throughput_and_efficiency_by_topology(perf_lab: PerfLab) -> None:
    """Published, each at its peak load: 22,854, 29,426 and 21,416 tok/s; 2,857, 1,839 and 1,338 tok/s/GPU."""
    champions = (("tp8", "tp8-champion", 7000), ("pp2", "pp2-champion", 7000), ("tp16", "tp16-reference", 8000))
    per_gpu(perf_lab, [{"topology": topology, "recipe": recipe, "n": n} for topology, recipe, n in champions])
