"""The whole process as a metric and as a gate: against the fake, and by hand where numbers must be exact."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.marker import check
from pytest_r1perf.measurement import Sample
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.platform import Platform
from pytest_r1perf.sglang.facts import LogFacts, Phase, PhaseMark
from pytest_r1perf.startup import Startup
from pytest_r1perf.verdict import Judgement, Verdict, judge, judge_gates, terms_for, worst
from tests.project import Project, lines_with, verdicts
from tests.rounds import finished

ONE = '@perf(topology="tp1", n=50{})\ndef test_one(): ...\n'


# --- measured


def test_every_sample_has_both_and_they_hang_together(r1perf_project: Project) -> None:
    r1perf_project.write(ONE.format(', min_tokps=1, metric=["total_throughput", "startup_time", "wall_time"]'))
    r1perf_project.perf("--perf-update-new").assert_outcomes(passed=1)
    samples = r1perf_project.samples()
    assert len(samples) == 2
    for line in samples:
        assert 0 < line["metrics"]["startup_time"] <= line["metrics"]["wall_time"]
        assert line["metrics"]["wall_time"] == pytest.approx(line["wall_s"], abs=0.001)
    (cell,) = r1perf_project.stored()["cells"].values()
    assert cell["metrics"]["wall_time"]["unit"] == cell["metrics"]["startup_time"]["unit"] == "s"
    assert cell["metrics"]["wall_time"]["samples"] == pytest.approx([line["metrics"]["wall_time"] for line in samples])


@pytest.mark.parametrize(("stored", "verdict"), [(1e-6, "REGRESSED"), (1e6, "IMPROVED")])
def test_longer_than_the_baseline_is_worse(r1perf_project: Project, stored: float, verdict: str) -> None:
    r1perf_project.platform(rounds={"min": 4, "max": 4})
    r1perf_project.write(ONE.format(', metric="wall_time"'))
    r1perf_project.perf("--perf-update-new")
    _stored_as(r1perf_project, "wall_time", [stored, stored * 1.001, stored * 0.999, stored])
    assert verdicts(r1perf_project.perf()) == [verdict]


def _stored_as(project: Project, metric: str, samples: list[float] | None) -> None:
    """Change a metric of the stored baseline, or take it out: a file of before it was measured."""
    data = project.stored()
    for cell in data["cells"].values():
        if samples is None:
            del cell["metrics"][metric]
        else:
            cell["metrics"][metric]["samples"] = samples
    project.baseline_file().write_text(yaml.safe_dump(data))


def test_an_older_baseline_has_no_such_metric_and_the_others_are_compared(r1perf_project: Project) -> None:
    r1perf_project.write(ONE.format(""))
    r1perf_project.perf("--perf-update-new")
    for metric in ("wall_time", "startup_time"):
        _stored_as(r1perf_project, metric, None)
    assert verdicts(r1perf_project.perf()) == ["PASS"]
    r1perf_project.write(ONE.format(', metric=["total_throughput", "wall_time"]'))
    result = r1perf_project.perf()
    result.assert_outcomes(skipped=1)
    assert verdicts(result) == ["PASS", "NO BASELINE"]
    assert lines_with(result, "the baseline has no wall_time: store it anew with --perf-update")


def test_where_the_window_was_not_seen_the_rest_of_the_process_is_the_start(tmp_path: Path) -> None:
    round_ = finished(tmp_path / "round", seconds=2.0)  # a process of 12 s
    assert isinstance(round_, Sample)
    assert (round_.metrics["wall_time"], round_.metrics["startup_time"]) == (12.0, 10.0)


def facts_of(*phases: Phase) -> LogFacts:
    marks = tuple(PhaseMark(phase, line, None) for line, phase in enumerate((Phase.START, *phases), start=1))
    return LogFacts(phase=marks[-1].phase, phases=marks)


def test_the_steps_of_a_start_up() -> None:
    began = {
        Phase.START: 100.4,
        Phase.ARGUMENTS: 109.8,
        Phase.LOAD_WEIGHTS: 112.0,
        Phase.KV_CACHE: 112.1,
        Phase.READY: 140.0,
        Phase.BENCHMARK: 141.5,
        Phase.RESULT: 199.0,
    }
    startup = Startup(100.0, began)
    assert startup.metrics(100.0, 57.0) == {"wall_time": 100.0, "startup_time": 41.5}
    assert startup.steps() == {
        "process and imports": 9.8,
        "workers and model": 2.2,
        "KV cache": 27.9,
        "workload": 1.5,
    }
    (event,) = startup.events(LogFacts())
    assert event["kind"] == "start-up"
    assert event["text"] == "process and imports 9.8 s, workers and model 2.2 s, KV cache 27.9 s, workload 1.5 s"
    assert Startup(100.0, {Phase.START: 100.4, Phase.ARGUMENTS: 109.8}).events(LogFacts()) == []


def test_a_window_that_is_over_by_the_next_look_was_not_seen() -> None:
    missed, seen = Startup(), Startup()
    missed.seen(facts_of(Phase.READY, Phase.BENCHMARK, Phase.RESULT))
    seen.seen(facts_of(Phase.READY, Phase.BENCHMARK))
    seen.seen(facts_of(Phase.READY, Phase.BENCHMARK, Phase.RESULT))
    assert missed.window is None
    assert seen.window == seen.began[Phase.BENCHMARK] <= seen.began[Phase.RESULT]
    assert 0 < missed.metrics(5.0, 2.0)["startup_time"] <= 5.0


# --- the gate


def test_a_limit_that_holds(r1perf_project: Project) -> None:
    r1perf_project.platform(rounds={"min": 4, "max": 4})
    r1perf_project.write(ONE.format(", max_wall_time=1e6"))
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    assert verdicts(result) == ["NO BASELINE", "PASS"]  # of the throughput, of the gate; the test passed
    assert lines_with(result, "limit  verdict")
    assert lines_with(result, "1,000,000 s  PASS")


def test_a_limit_that_is_broken_beside_a_floor_that_holds(r1perf_project: Project) -> None:
    r1perf_project.platform(rounds={"min": 4, "max": 4})
    r1perf_project.write(ONE.format(", min_tokps=1, max_wall_time=1e-4"))
    result = r1perf_project.perf()
    result.assert_outcomes(failed=1)
    assert verdicts(result) == ["PASS", "REGRESSED"]
    (line,) = lines_with(result, "wall_time REGRESSED: median")[:1]
    assert "limit 0.0001 s, mean " in line
    assert "surely above the limit" in line


def test_neither_holds_nor_broken_without_a_spread(r1perf_project: Project) -> None:
    r1perf_project.write(ONE.format(', min_tokps=1, max_wall_time=1e6, rounds="1"'))
    result = r1perf_project.perf()
    result.assert_outcomes(skipped=1)
    assert verdicts(result) == ["UNDECIDED", "UNDECIDED"]


def test_a_broken_limit_is_not_stored_as_a_baseline(r1perf_project: Project) -> None:
    r1perf_project.platform(rounds={"min": 4, "max": 4})
    r1perf_project.write(ONE.format(", max_wall_time=1e-4"))
    result = r1perf_project.perf("--perf-update")
    result.assert_outcomes(failed=1)
    assert not list(r1perf_project.baselines.glob("*/*.yaml"))
    r1perf_project.write(ONE.format(", max_wall_time=1e6"))
    r1perf_project.perf("--perf-update").assert_outcomes(passed=1)
    assert r1perf_project.stored()["cells"]


def test_the_metric_can_have_a_baseline_and_the_limit(r1perf_project: Project) -> None:
    r1perf_project.platform(rounds={"min": 4, "max": 4}, tolerance={"value": 0.9, "source": "a busy machine"})
    r1perf_project.write(ONE.format(', metric="wall_time"'))
    r1perf_project.perf("--perf-update-new")
    r1perf_project.write(ONE.format(', metric="wall_time", max_wall_time=1e-4'))
    result = r1perf_project.perf()
    assert verdicts(result) == ["REGRESSED"]  # one row, for both
    (line,) = lines_with(result, "wall_time REGRESSED: median")[:1]
    assert "baseline " in line
    assert "limit 0.0001 s" in line


def test_a_limit_holds_on_the_platform_of_its_file(r1perf_project: Project) -> None:
    r1perf_project.write('perf_platform = "h200x8"\n' + ONE.format(", max_wall_time=1e-4"))
    result = r1perf_project.perf()
    assert verdicts(result) == ["NO BASELINE"]
    assert lines_with(result, "the limit 0.0001 s is for platform 'h200x8': not applied here")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_wall_time": 0}, "max_wall_time must be above 0, got 0"),
        ({"max_wall_time": "7 min"}, "max_wall_time must be a number, got '7 min'"),
        ({"max_wall_time": 420, "timeout": 420}, "timeout=420 ends a process before it can be above max_wall_time=420"),
        (
            {"max_wall_time": 420, "mode": "engine"},
            "max_wall_time needs a process of the cell's own, and mode 'engine' has none: mode='offline'",
        ),
        ({"metric": ["total_throughput", "startup_time"], "mode": "engine"}, "metric 'startup_time' needs a process"),
        ({"metric": "wall_time", "mode": "serve"}, "metric 'wall_time' needs a process of the cell's own"),
        ({"kernel_caches": "cold", "mode": "engine"}, "kernel_caches='cold' needs a process of the cell's own"),
        ({"kernel_caches": "icy"}, "kernel_caches='icy' is not known; (known: cold, warm)"),
        ({"kernel_caches": True}, "kernel_caches must be a name in quotes, got True"),
    ],
)
def test_mistakes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(R1PerfError) as error:
        check({"topology": "tp1", "n": 50, **changes}, load_catalog())
    assert message in str(error.value)


def test_the_arguments_arrive() -> None:
    spec = check(
        {"topology": "tp1", "n": 50, "max_wall_time": 420, "timeout": 600, "kernel_caches": "cold"}, load_catalog()
    )
    assert (spec.max_wall_time, spec.kernel_caches) == (420.0, "cold")


# --- judged


@pytest.fixture(scope="module")
def platform() -> Platform:
    return replace(load_catalog().platform("cpu"), noise=None)


def judged(platform: Platform, seconds: list[float], limit: float = 420.0) -> Judgement:
    terms = terms_for(platform, tolerance=0.05, floor=None, limits=[("wall_time", limit)], metrics=2)
    (judgement,) = judge_gates(lambda metric: seconds, ("total_throughput",), terms)
    return judgement


@pytest.mark.parametrize(
    ("seconds", "verdict", "reason"),
    [
        ([398.0, 401.0, 400.0, 402.0], Verdict.PASS, "shown to hold the limit"),
        ([440.0, 439.0, 442.0, 441.0], Verdict.REGRESSED, "surely above the limit"),
        ([380.0, 460.0, 410.0, 445.0], Verdict.UNDECIDED, "the interval of the mean reaches across the limit"),
        ([400.0], Verdict.UNDECIDED, "one round a side says nothing about the spread: measure at least two"),
    ],
)
def test_seconds_against_a_limit(platform: Platform, seconds: list[float], verdict: Verdict, reason: str) -> None:
    judgement = judged(platform, seconds)
    assert (judgement.verdict, judgement.reason, judgement.gate) == (verdict, reason, True)
    assert (judgement.metric, judgement.floor, judgement.rounds) == ("wall_time", 420.0, len(seconds))
    assert judgement.out_of_bounds is (verdict is Verdict.REGRESSED)
    if judgement.mean is not None:
        geometric = math.exp(sum(map(math.log, seconds)) / len(seconds))
        assert judgement.mean.estimate == pytest.approx(geometric)
        assert judgement.mean.lower < geometric < judgement.mean.upper


@given(
    st.lists(st.floats(1.0, 1e4), min_size=2, max_size=6),
    st.floats(1.0, 1e4),
    st.floats(0.01, 100.0),
)
def test_a_limit_is_a_floor_seen_in_a_mirror(seconds: list[float], limit: float, scale: float) -> None:
    """Of 1 / s a limit is a floor: the same verdict at the same error rates, in whatever unit."""
    cpu = replace(load_catalog().platform("cpu"), noise=None)
    terms = replace(terms_for(cpu, tolerance=0.05, floor=scale / limit), looks=(2, 3, 4, 5, 6))
    assert METRICS["total_throughput"].better == -METRICS["wall_time"].better
    floor = judge("total_throughput", [scale / value for value in seconds], None, terms)
    mirror = judge("wall_time", seconds, None, replace(terms, floor=limit))
    assert mirror.verdict is floor.verdict or _on_the_edge(mirror)
    assert floor.mean is not None
    assert mirror.mean is not None
    assert mirror.mean.estimate == pytest.approx(scale / floor.mean.estimate)
    assert mirror.rounds_needed == floor.rounds_needed or _on_the_edge(mirror)


def _on_the_edge(item: Judgement) -> bool:
    """Where a limit of the interval is the bound but for its last digits."""
    assert item.mean is not None
    assert item.floor is not None
    return any(
        math.isclose(limit, item.floor, rel_tol=1e-9)
        for limit in (item.mean.lower, item.mean.upper, item.mean.estimate)
    )


def test_a_gate_closes_no_question_but_that_of_a_missing_baseline(platform: Platform) -> None:
    terms = terms_for(platform, tolerance=0.05, floor=None)
    open_ = judge("total_throughput", [100.0, 101.0, 99.0], None, terms)
    floored = judge("total_throughput", [100.0, 130.0, 80.0], None, replace(terms, floor=100.0))
    held, broken = (judged(platform, [value, value * 1.001, value * 0.999]) for value in (300.0, 600.0))
    assert (open_.verdict, floored.verdict) == (Verdict.NO_BASELINE, Verdict.UNDECIDED)
    assert worst([open_]).verdict is Verdict.NO_BASELINE
    assert worst([open_, held]).verdict is Verdict.PASS
    assert worst([floored, held]).verdict is Verdict.UNDECIDED
    assert worst([floored, broken]).verdict is Verdict.REGRESSED
