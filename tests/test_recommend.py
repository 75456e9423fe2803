"""The decision matrix over stored baselines and published figures; every number here is typed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_r1perf.baseline import Baseline, store
from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.hardware import Hardware
from pytest_r1perf.recommend.answer import Answer, Basis, recommend
from pytest_r1perf.recommend.commands import recommend_command
from tests.project import make_environment

CATALOG = load_catalog()
H200 = Hardware("NVIDIA H200", 8, (), is_cpu=False)
H100 = Hardware("NVIDIA H100 80GB HBM3", 8, (), is_cpu=False)
ONE = Hardware("NVIDIA H200", 1, (), is_cpu=False)
CPU = Hardware("AMD EPYC", 8, ("cpu",), is_cpu=True)
SPREAD = (0.99, 1.0, 1.01)
GPUS = {"tp8": 8, "pp2": 16, "tp16": 16, "tp1": 1}


def measured(
    root: Path,
    topology: str,
    recipe: str,
    tokps: float,
    *,
    n: int = 7000,
    hardware: Hardware = H200,
    platform: str = "h200x16",
    mode: str = "offline",
    spread: Sequence[float] = SPREAD,
    tail: str = "",
    **protocol: object,
) -> None:
    """Store one baseline: the total throughput, and what that is a GPU."""
    values = tuple(tokps * one for one in spread)
    entry = Baseline(
        key=f"{platform}/{recipe}/sharegpt/n{n}/{mode}{tail}",
        samples={"total_throughput": values, "tokps_per_gpu": tuple(value / GPUS[topology] for value in values)},
        protocol={"num_prompts": n, "model_config": "r1", "load_format": "dummy", **protocol},
        provenance={
            "date": "2026-11-29T02:30:00+00:00",
            "session": f"night-{topology}",
            "versions": {"sglang": "0.5.17", "torch": "2.11.0"},
            "command": f"python -m sglang.benchmark.offline_throughput --for {topology}",
        },
    )
    store(root, hardware, topology, {entry.key: entry})


def one(root: Path, goal: str, gpus: int) -> Answer:
    (answer,) = recommend(goal, gpus, CATALOG, root)
    return answer


def run(root: Path, goal: str, gpus: int, *more: str) -> tuple[int, str]:
    arguments = ["--goal", goal, "--gpus", str(gpus), "--baselines", str(root), *more]
    result = CliRunner().invoke(recommend_command, arguments)
    return result.exit_code, result.output or str(result.exception)


# published


@pytest.mark.parametrize(
    ("goal", "gpus", "recipe", "figure", "a_gpu"),
    [
        ("efficiency", 8, "tp8-champion (topology tp8)", "22,854 tok/s at N = 7000", "2,857 a GPU"),
        ("throughput", 16, "pp2-champion (topology pp2)", "29,426 tok/s at N = 7000", "1,839 a GPU"),
        ("reference", 16, "tp16-reference (topology tp16)", "21,416 tok/s at N = 8000", "1,338 a GPU"),
        ("efficiency", 16, "tp8-champion (topology tp8)", "22,854 tok/s at N = 7000", "2,857 a GPU"),
    ],
)
def test_the_guides_matrix(goal: str, gpus: int, recipe: str, figure: str, a_gpu: str, tmp_path: Path) -> None:
    status, out = run(tmp_path, goal, gpus)
    assert status == 0
    assert f"on {gpus} GPUs: {recipe}" in out
    flat = " ".join(out.split())
    assert f"published, not measured here: total_throughput {figure}, {a_gpu}" in flat
    assert "assumed: the guide writes 'tok/s' only" in flat


def test_the_published_commands(tmp_path: Path) -> None:
    """As the guide has them, with what its prose adds: the data set, the seed, dummy weights."""
    _, out = run(tmp_path, "throughput", 16)
    (command,) = [line.strip() for line in out.splitlines() if "-m sglang" in line]
    assert command.startswith(
        "SGLANG_PP_LAYER_PARTITION=32,29 python -m sglang.bench_offline_throughput --model-path $MODEL"
    )
    for words in ("--tp-size 8", "--pp-size 2", "--nnodes 2", "--mem-fraction-static 0.83", "--disable-radix-cache"):
        assert words in command
    for words in ("--chunked-prefill-size 32768", "--num-prompts 7000", "--seed 2025", "--load-format dummy"):
        assert words in command
    assert "r1perf plan --topology pp2 --perf-platform h200x16" in out
    assert "pytest -m perf --topology pp2 --perf-platform h200x16 --perf-update-new" in out
    _, out = run(tmp_path, "efficiency", 8)
    assert "--cuda-graph-max-bs 2048 --disable-radix-cache --tp-size 8" in out
    assert "--perf-platform h200x8" in out


def test_the_command_in_a_releases_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R1PERF_HOME", str(tmp_path / "home"))
    control = tmp_path / "control.json"
    control.write_text('{"default": {}, "cells": {}}')
    new = make_environment(tmp_path / "env", control=control, version="0.5.20")
    status, out = run(tmp_path / "none", "efficiency", 8, "--sglang", str(new))
    assert status == 0, out
    assert "--cuda-graph-max-bs-decode 2048" in out
    assert "--enable-piecewise-cuda-graph" not in out


@pytest.mark.parametrize(
    ("goal", "gpus", "word"), [("throughput", 8, "PP2, takes two nodes"), ("reference", 8, "spans two nodes")]
)
def test_what_cannot_be_answered_is_one_sentence(goal: str, gpus: int, word: str, tmp_path: Path) -> None:
    with pytest.raises(R1PerfError) as refused:
        recommend(goal, gpus, CATALOG, tmp_path)
    assert str(refused.value).startswith(f"--goal {goal} --gpus {gpus}: ")
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)


# measured


def test_measured_baselines_answer_first(tmp_path: Path) -> None:
    measured(tmp_path, "pp2", "pp2-champion", 28000)
    measured(tmp_path, "tp16", "tp16-reference", 20000)
    answer = one(tmp_path, "throughput", 16)
    assert (answer.basis, answer.recipe, answer.agrees) == (Basis.MEASURED, "pp2-champion", True)
    (rival,) = answer.rivals
    assert rival.candidate.recipe == "tp16-reference"
    assert rival.ratio is not None
    assert rival.ratio.estimate == pytest.approx(1.4)
    assert rival.ratio.lower > 1
    status, out = run(tmp_path, "throughput", 16)
    flat = " ".join(out.split())
    assert status == 0
    assert "measured: total_throughput 27,999 [27,3" in flat  # the geometric mean of 27,720, 28,000 and 28,280
    assert "tok/s at N = 7000 (3 rounds, 95 %), 2026-11-29, sglang 0.5.17, torch 2.11.0" in flat
    assert "surely less" in flat
    assert "the guide says the same" in flat
    assert "published for pp2-champion: total_throughput 29,426 tok/s at N = 7000" in flat
    assert "run it, as its baseline was recorded:" in out
    assert "  python -m sglang.benchmark.offline_throughput --for pp2" in out


def test_a_measurement_may_contradict_the_guide(tmp_path: Path) -> None:
    measured(tmp_path, "pp2", "pp2-champion", 20000)
    measured(tmp_path, "tp16", "tp16-reference", 25000)
    _, out = run(tmp_path, "throughput", 16)
    assert "on 16 GPUs: tp16-reference (topology tp16)" in out
    assert "the guide says pp2-champion, and that was measured too" in " ".join(out.split())


def test_efficiency_is_tokens_a_gpu(tmp_path: Path) -> None:
    """22,000 on 8 GPUs against 28,000 on 16: PP2 makes more, TP8 makes more of each GPU."""
    measured(tmp_path, "tp8", "tp8-champion", 22000)
    measured(tmp_path, "pp2", "pp2-champion", 28000)
    assert one(tmp_path, "efficiency", 16).recipe == "tp8-champion"
    assert one(tmp_path, "throughput", 16).recipe == "pp2-champion"
    assert one(tmp_path, "efficiency", 8).rivals == ()  # PP2 does not fit on one node


def test_what_was_measured_cannot_answer_without_the_guides_own_stack(tmp_path: Path) -> None:
    measured(tmp_path, "tp16", "tp16-reference", 25000)
    answer = one(tmp_path, "throughput", 16)
    assert (answer.basis, answer.recipe) == (Basis.PUBLISHED, "pp2-champion")
    assert one(tmp_path, "reference", 16).basis is Basis.MEASURED


def test_where_the_guide_has_no_line_the_best_measured_stack_answers(tmp_path: Path) -> None:
    measured(tmp_path, "tp8", "tp8-champion", 22000)
    measured(tmp_path, "tp8", "tp8-baseline", 12000)
    answer = one(tmp_path, "throughput", 8)
    assert (answer.recipe, answer.decision) == ("tp8-champion", None)
    _, out = run(tmp_path, "throughput", 8)
    assert "the guide has no line for this goal" in out


def test_the_reference_is_tensor_parallel_whatever_else_is_faster(tmp_path: Path) -> None:
    measured(tmp_path, "tp16", "tp16-reference", 20000)
    measured(tmp_path, "pp2", "pp2-champion", 28000)
    answer = one(tmp_path, "reference", 16)
    assert (answer.basis, answer.recipe, answer.rivals) == (Basis.MEASURED, "tp16-reference", ())


def test_a_closing_pass_answers_nothing_even_where_the_guide_is_silent(tmp_path: Path) -> None:
    measured(tmp_path, "tp8", "tp8-champion", 30000, tail="/deployment")
    with pytest.raises(R1PerfError, match="no baseline under"):
        recommend("throughput", 8, CATALOG, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 1000},  # below min_conclusive_n
        {"hardware": ONE, "platform": "h200x1"},  # eight nodes of one GPU are neither one node nor two
        {"hardware": CPU},
        {"platform": "unknown"},
        {"mode": "serve"},
        {"tail": "/deployment"},
    ],
)
def test_baselines_that_do_not_fit(changes: dict[str, object], tmp_path: Path) -> None:
    measured(tmp_path, "tp8", "tp8-champion", 1e6, **changes)  # type: ignore[arg-type]
    assert one(tmp_path, "efficiency", 8).basis is Basis.PUBLISHED


def test_only_what_may_be_compared_is_ranked(tmp_path: Path) -> None:
    """Another load, other weights or another model is no rival, however fast."""
    measured(tmp_path, "pp2", "pp2-champion", 28000)
    measured(tmp_path, "tp16", "tp16-reference", 90000, n=8000)
    measured(tmp_path, "tp16", "tp16-baseline", 90000, load_format="auto")
    measured(tmp_path, "tp8", "tp8-champion", 90000, model_config="r1-slice")
    measured(tmp_path, "tp16", "tp16-reference", 90000, workload="other prompts of the same name")
    answer = one(tmp_path, "throughput", 16)
    assert (answer.recipe, answer.rivals) == ("pp2-champion", ())


def test_the_load_with_the_most_topologies_then_the_highest(tmp_path: Path) -> None:
    measured(tmp_path, "pp2", "pp2-champion", 28000, n=7000)
    measured(tmp_path, "pp2", "pp2-champion", 26000, n=5000)
    best = one(tmp_path, "throughput", 16).best
    assert best is not None
    assert best.n == 7000
    measured(tmp_path, "tp16", "tp16-reference", 19000, n=5000)
    best = one(tmp_path, "throughput", 16).best
    assert best is not None
    assert best.n == 5000


def test_one_round_has_no_interval_and_settles_nothing(tmp_path: Path) -> None:
    measured(tmp_path, "pp2", "pp2-champion", 28000, spread=(1.0,))
    measured(tmp_path, "tp16", "tp16-reference", 20000, spread=(1.0,))
    _, out = run(tmp_path, "throughput", 16)
    flat = " ".join(out.split())
    assert "total_throughput 28,000 tok/s at N = 7000 (1 round)" in flat
    assert "one round a side says nothing about the spread" in flat


def test_close_stacks_are_not_called_less(tmp_path: Path) -> None:
    measured(tmp_path, "pp2", "pp2-champion", 28000, spread=(0.9, 1.0, 1.1))
    measured(tmp_path, "tp16", "tp16-reference", 27000, spread=(0.9, 1.0, 1.1))
    _, out = run(tmp_path, "throughput", 16)
    assert "not shown to be less" in " ".join(out.split())


def test_each_hardware_has_its_own_answer(tmp_path: Path) -> None:
    measured(tmp_path, "tp8", "tp8-champion", 22000)
    measured(tmp_path, "tp8", "tp8-champion", 15000, hardware=H100, platform="h100x16")
    answers = recommend("efficiency", 8, CATALOG, tmp_path)
    assert [answer.best.hardware for answer in answers if answer.best] == ["8x-nvidia-h100-80gb-hbm3", "8x-nvidia-h200"]


def test_a_broken_baseline_file_is_named(tmp_path: Path) -> None:
    measured(tmp_path, "tp8", "tp8-champion", 22000)
    path = tmp_path / "8x-nvidia-h200" / "tp8.yaml"
    path.write_text(path.read_text().replace("version: 1", "version: 9"))
    with pytest.raises(R1PerfError, match=r"tp8.yaml:1: version"):
        recommend("efficiency", 8, CATALOG, tmp_path)


def test_the_guides_recipe_on_another_topology_is_not_its_stack(tmp_path: Path) -> None:
    measured(tmp_path, "tp16", "pp2-champion", 90000)
    answer = one(tmp_path, "throughput", 16)
    assert (answer.basis, answer.topology.name) == (Basis.PUBLISHED, "pp2")
    measured(tmp_path, "pp2", "pp2-champion", 28000)
    answer = one(tmp_path, "throughput", 16)
    assert (answer.topology.name, answer.agrees) == ("tp16", False)


def test_a_rival_on_half_of_the_gpus_and_of_another_release_is_told_as_such(tmp_path: Path) -> None:
    measured(tmp_path, "pp2", "pp2-champion", 28000)
    measured(tmp_path, "tp8", "tp8-champion", 22000)
    path = tmp_path / "8x-nvidia-h200" / "tp8.yaml"
    path.write_text(path.read_text().replace("sglang: 0.5.17", "sglang: 0.5.9"))
    flat = " ".join(run(tmp_path, "throughput", 16)[1].split())
    (rival,) = [line for line in flat.split(" at the same load: ")[1:] if line.startswith("tp8 tp8-champion")]
    assert " on 8 of the 16 GPUs, with SGLang 0.5.9;" in rival
    assert "of the 16 GPUs" not in flat.partition("at the same load")[0]


def test_a_measured_stack_without_a_recorded_command(tmp_path: Path) -> None:
    """The command is then its recipe's at its own N, not at the published one; flags of a test make no recipe."""
    measured(tmp_path, "pp2", "pp2-champion", 26000, n=5000)
    path = tmp_path / "8x-nvidia-h200" / "pp2.yaml"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "command:" not in line))
    assert "--num-prompts 5000" in run(tmp_path, "throughput", 16)[1]
    measured(tmp_path, "pp2", "pp2-champion", 27000, n=5000, tail="/max_running_requests=8")
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "command:" not in line))
    out = run(tmp_path, "throughput", 16)[1]
    assert "its baseline has no command line, and no recipe is called so: run its test" in out
    assert "run it:" not in out
