"""Twins of the optimisation notes: test_notes.py, and what didn't work for them in test_antipatterns.py."""

from __future__ import annotations

from perf_tests.conftest import Say
from perf_tests.questions import ahead, attempted, per_gpu, side_by_side, sweep
from perf_tests.twins.conftest import Scale, of_r1
from pytest_r1perf import perf
from pytest_r1perf.lab import PerfLab, PerfResult

perf_platform = "cpu"


@perf(topology="twin", n=40)
def test_twin_gain_over_the_baseline(lab: PerfLab, scale: Scale) -> None:
    assert ahead(lab, {}, {"flags": scale.few}, published=of_r1("2.8x")).ratio.estimate > 0


@perf(topology="twin-dp2", n=40)
def test_twin_data_parallel_copies_scale(lab: PerfLab) -> None:
    """'Throughput scales nearly linearly': of a model that fits twice. R1 does so on no platform of the suite."""
    per_gpu(lab, [{"topology": "twin"}, {"topology": "twin-dp2"}], published=of_r1("1x"))


@perf(topology="twin", n=40, metric="wall_time", max_wall_time=420)
def test_twin_wall_time_budget_of_420_s() -> None: ...


@perf(topology="twin", n=40)
def test_twin_memory_pair(lab: PerfLab, scale: Scale) -> None:
    """The low pool of the pair is too small for a prompt (CPU) or for the weights (GPU): a point of the grid."""
    grid = sweep(lab, scale.pair, may_break=("OOM", "CONFIG"))
    assert len(grid.broken) == 2


@perf(topology="twin", n=40)
def test_twin_attention_backends_side_by_side(lab: PerfLab, scale: Scale) -> None:
    cells = [{"flags": {"attention_backend": name}} for name in scale.attention]
    side_by_side(lab, cells, ("CONFIG", "CRASH", "OOM"))


@perf(topology="twin", n=40)
def test_twin_cuda_graphs_on_and_off(lab: PerfLab) -> None:
    """Without effect on a CPU, which has none: the ratio is noise there."""
    ahead(lab, {}, {"flags": {"disable_cuda_graph": True}})


@perf(topology="twin", n=40)
def test_twin_scheduling_policies(lab: PerfLab) -> None:
    side_by_side(lab, [{"flags": {"schedule_policy": name}} for name in ("fcfs", "lof")], ("CONFIG",))


@perf(topology="twin", n=40, metric=["startup_time", "wall_time"])
def test_twin_cold_and_warm_start(lab: PerfLab) -> None:
    cold, warm = lab.in_turn({"kernel_caches": "cold"}, {"kernel_caches": "warm"})
    lab.compare(warm, cold, "startup_time")


@perf(topology="twin-tp2", n=40)
def test_twin_nccl_variables_on_and_off(lab: PerfLab) -> None:
    """A CPU's ranks talk through gloo: the variables are passed and change nothing there."""
    ahead(lab, {"env": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}}, {})


@perf(topology="twin", n=40, min_tokps=100, env={"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"})
def test_twin_nccl_settings_are_confirmed(perf_result: PerfResult, say: Say) -> None:
    say("; ".join(str(remark) for remark in perf_result.samples[0].remarks) or "nothing of NCCL in the log")


@perf(topology="twin", n=40)
def test_twin_torch_compile(lab: PerfLab, say: Say) -> None:
    """On a CPU SGLang 0.5.20 crashes with it: its torch_native backend has no graph to compile for. That is a point."""
    flags = {"enable_torch_compile": True, "torch_compile_max_bs": 4}
    say(attempted(lab, ("CRASH", "CONFIG"), flags=flags))
