"""``perf_lab`` in engine mode: cells that can share an engine do, a round of all of them in each."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.project import Project, verdicts


@pytest.fixture
def project(r1perf_project: Project) -> Project:
    # Without a common first word no prompt finds another's in the cache.
    rows = [[f"p{number} " + "word " * (9 + number % 7), "word " * (20 + number % 5)] for number in range(120)]
    talks = [[{"from": "human", "value": human}, {"from": "gpt", "value": gpt}] for human, gpt in rows]
    r1perf_project.dataset.write_text(
        json.dumps([{"id": str(n), "conversations": talk} for n, talk in enumerate(talks)])
    )
    r1perf_project.platform(engine={"windows": 2, "source": "test"})
    return r1perf_project


def lab(project: Project, *body: str) -> None:
    lines = "\n".join(f"    {line}" for line in body)
    project.write(f'@perf(topology="tp1", n=50, mode="engine", rounds="2:2")\ndef test_lab(perf_lab):\n{lines}\n')


def started(project: Project, what: str) -> list[dict[str, Any]]:
    """Engines or windows of the fake SGLang, in their order."""
    path = project.fake / f"{what}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def by_engine(project: Project) -> list[list[str]]:
    """The cells of each engine, in the order in which it measured them."""
    return [
        list(dict.fromkeys(window["cell"] for window in started(project, "windows") if window["pid"] == engine["pid"]))
        for engine in started(project, "engines")
    ]


def test_cells_that_differ_in_n_share_an_engine_a_round(project: Project) -> None:
    lab(
        project,
        'cells = perf_lab.in_turn({}, {"n": 60}, {"n": 70})',
        "assert [one.num_prompts for one in cells] == [50, 60, 70]",
        "assert [len(one.samples) for one in cells] == [2, 2, 2]",
    )
    result = project.perf()
    result.assert_outcomes(passed=1)
    assert verdicts(result) == ["MEASURED"] * 3
    # There and back again, within an engine too.
    assert by_engine(project) == [["n50", "n60", "n70"], ["n70", "n60", "n50"]]
    assert Counter(sample["round"] for sample in project.samples()) == {1: 3, 2: 3}
    assert {sample["nodeid"] for sample in project.samples()} == {"test_perf.py::test_lab"}


def test_a_curve_over_the_load_takes_an_engine_a_side(project: Project) -> None:
    lab(
        project,
        'flags = {"max_running_requests": 9}',
        'cells = perf_lab.in_turn(*({"n": n, "flags": own} for n in (50, 60) for own in (flags, {})))',
        "perf_lab.by_load(list(zip(cells[::2], cells[1::2])))",
    )
    project.perf().assert_outcomes(passed=1)
    few = "+max_running_requests=9"
    assert by_engine(project) == [
        [f"n50{few}", f"n60{few}"],
        ["n50", "n60"],
        ["n60", "n50"],
        [f"n60{few}", f"n50{few}"],
    ]


def test_a_sweep_over_n_shares_one_too(project: Project) -> None:
    lab(project, 'assert perf_lab.grid({"n": [50, 60, 70]}).best is not None')
    project.perf().assert_outcomes(passed=1)
    assert len(by_engine(project)) == 2


def test_a_cell_that_breaks_the_engine_is_a_point_and_the_others_are_whole(project: Project) -> None:
    project.control(n60={"mode": "die"})
    lab(
        project,
        'first, broken, last = perf_lab.attempt_in_turn({}, {"n": 60}, {"n": 70}, may_break=["CRASH"])',
        'assert broken.verdict == "CRASH"',
        "assert len(first.samples) == len(last.samples) == 2",
    )
    result = project.perf()
    result.assert_outcomes(passed=1)
    assert sorted(verdicts(result)) == ["CRASH", "MEASURED", "MEASURED"]
    assert Counter(window["cell"] for window in started(project, "windows"))["n60"] == 1  # never tried again


def test_the_session_goes_back_to_its_own_tests_to_come(project: Project) -> None:
    """What a lab was to measure is over with it, whether it failed or not."""
    project.write("""
        @perf(topology="tp1", n=50, mode="engine", rounds="2:2")
        def test_lab(perf_lab):
            perf_lab.in_turn({}, {"n": 60})
            assert False

        @perf(topology="tp1", n=70, mode="engine", rounds="2:2", min_tokps=1, flags={"max_running_requests": 9})
        def test_other(): ...
        """)
    project.perf().assert_outcomes(passed=1, failed=1)
    few = "n70+max_running_requests=9"
    assert by_engine(project) == [["n50", "n60"], ["n60", "n50"], [few], [few]]
