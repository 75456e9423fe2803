"""``perf_lab`` through pytest, against a real process that prints what it is told to."""

from __future__ import annotations

import pytest

from pytest_r1perf.labcells import over
from tests.project import Project, lines_with, verdicts

EIGHT = '{"flags": {"max_running_requests": 8}}'


def said(result: pytest.RunResult) -> str:
    """All of the output as one line: what is wrapped in it is whole again."""
    return " ".join(line.strip() for line in result.outlines)


def lab(project: Project, body: str, *, marker: str = 'topology="tp1", n=50') -> None:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    project.write(f"@perf({marker})\ndef test_lab(perf_lab):\n{lines}\n")


def test_cells_are_measured_in_turn(r1perf_project: Project) -> None:
    lab(
        r1perf_project,
        f"""
one, two, three = perf_lab.in_turn({{}}, {{"n": 60}}, {EIGHT})
assert [one.num_prompts, two.num_prompts, three.num_prompts] == [50, 60, 50]
assert [len(cell.samples) for cell in (one, two, three)] == [3, 3, 3]
assert three.cell.flags["max_running_requests"] == 8
""",
        marker='topology="tp1", n=50, rounds="3"',
    )
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    assert verdicts(result) == ["MEASURED"] * 3
    # There and back again: a host that drifts does so for all of them.
    names = ["n50", "n60", "n50+max_running_requests=8"]
    assert [call["cell"] for call in r1perf_project.calls()] == [*names, *reversed(names), *names]


def test_rounds_that_another_test_went_on_for_do_not_count(r1perf_project: Project) -> None:
    r1perf_project.write("""
        @perf(topology="tp1", n=50, rounds="3", min_tokps=100)
        def test_first(): ...

        @perf(topology="tp1", n=50, rounds="2")
        def test_lab(perf_lab):
            assert [sample.round for sample in perf_lab.measure().samples] == [1, 2]
        """)
    r1perf_project.perf().assert_outcomes(passed=2)
    assert len(r1perf_project.calls()) == 3


def test_in_turn_of_a_cell_that_breaks_fails_under_its_name(r1perf_project: Project) -> None:
    r1perf_project.control({}, n60={"mode": ["ok", "oom"]})
    lab(r1perf_project, 'perf_lab.in_turn({}, {"n": 60})\nraise AssertionError("never here")')
    result = r1perf_project.perf()
    result.assert_outcomes(failed=1)
    assert sorted(verdicts(result)) == ["MEASURED", "OOM"]
    assert lines_with(result, "never here") == []


def test_a_misfit_in_turn_skips_before_anything_is_measured(r1perf_project: Project) -> None:
    lab(r1perf_project, 'perf_lab.in_turn({"topology": "tp8", "platform": "h200x8"}, {})')
    result = r1perf_project.perf("-rs")
    result.assert_outcomes(skipped=1)
    assert lines_with(result, "topology 'tp8' needs 8 GPUs on 1 node")


def test_an_oom_is_a_data_point(r1perf_project: Project) -> None:
    r1perf_project.control({}, n60={"mode": "oom"})
    lab(
        r1perf_project,
        """
assert perf_lab.attempt()
broken = perf_lab.attempt(n=60)
assert not broken
assert broken.verdict == "OOM"
assert "out of memory" in broken.cause
assert broken.label == "tp1 default n=60"
assert broken.log.endswith("log.txt")
assert broken.rounds == 0
assert str(broken).startswith("tp1 default n=60: OOM: ")
whole = perf_lab.measure()
for call in (
    lambda: perf_lab.compare(whole, broken),
    lambda: perf_lab.interaction(whole, broken, whole, whole),
    lambda: perf_lab.ablation(whole, broken),
    lambda: perf_lab.by_load([(broken, whole)]),
):
    with pytest.raises(Exception, match="OOM: .*: there is no number to compare, leave out what broke"):
        call()
""",
    )
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    assert sorted(verdicts(result)) == ["MEASURED", "OOM"]
    assert lines_with(result, "tp1 default n=60: OOM is a data point of this test")
    assert not lines_with(result, "reproduce the failures")


@pytest.mark.parametrize(
    ("mode", "verdict", "may_break", "outcome"),
    [
        ("sigquit", "CRASH", "", "failed"),
        ("sigquit", "CRASH", ', may_break=("OOM", "CRASH")', "passed"),
        ("oom", "OOM", ', may_break=("CRASH",)', "failed"),
        ("nan", "INVALID", ', may_break=("OOM", "CRASH", "HANG", "CONFIG")', "failed"),
    ],
)
def test_only_what_was_named_is_a_data_point(
    r1perf_project: Project, mode: str, verdict: str, may_break: str, outcome: str
) -> None:
    r1perf_project.control({"mode": mode})
    lab(r1perf_project, f"assert not perf_lab.attempt(n=60{may_break})")
    result = r1perf_project.perf()
    result.assert_outcomes(**{outcome: 1})
    assert verdicts(result) == [verdict]
    assert bool(lines_with(result, "reproduce the failures")) == (outcome == "failed")


@pytest.mark.parametrize("name", ["INVALID", "INFRA", "REGRESSED", "oom"])
def test_no_number_and_no_host_is_a_data_point(r1perf_project: Project, name: str) -> None:
    lab(r1perf_project, f'perf_lab.attempt(may_break=("{name}",))')
    result = r1perf_project.perf()
    result.assert_outcomes(failed=1)
    assert lines_with(result, f"may_break has {name!r}, which is no data point; ")
    assert r1perf_project.calls() == []


def test_a_comparison_says_what_is_mixed(r1perf_project: Project) -> None:
    r1perf_project.control({}, n60={"resolved": {"page_size": 16}})
    lab(
        r1perf_project,
        f"""
plain, eight, more = perf_lab.in_turn({{}}, {EIGHT}, {{"n": 60}})
alike = perf_lab.compare(plain, eight)
assert alike.mixed == ()
asked = "scheduling and backend stack (max_running_requests=not set against max_running_requests=8)"
assert alike.checklist == (asked,)
mixed = perf_lab.compare(plain, more)
assert mixed.mixed == ("mixed loads in one comparison: n=50 and n=60", "the protocols differ: page_size 1 -> 16")
assert mixed.checklist[0].startswith("load (num_prompts=50, ")
""",
    )
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    assert "mixed loads in one comparison: n=50 and n=60" in said(result)
    assert "the protocols differ: page_size 1 -> 16" in said(result)
    assert "the guide's checklist is broken in: load (num_prompts=50, " in said(result)


def test_topologies_are_said_once_and_not_again_as_protocol(r1perf_project: Project) -> None:
    lab(r1perf_project, 'perf_lab.scaling(*perf_lab.in_turn({}, {"topology": "tp2"}))')
    r1perf_project.platform(noise={"run_cv": 0.02, "runs": 10, "session_cv": 0.01, "sessions": 5, "source": "test"})
    result = r1perf_project.perf("-rs")
    result.assert_outcomes(passed=1)
    assert "mixed topologies in one comparison: tp1 and tp2" in said(result)
    assert "tp_size" not in said(result)
    assert "scaling in total_throughput per GPU over tp1 default n=50: tp2 default n=50 0.5" in said(result)


def test_a_factorial_finds_an_injected_interaction(r1perf_project: Project) -> None:
    """N stands for the second factor: the fake has a speed for each of the four cells."""
    r1perf_project.control({}, n50={"speed": 4000}, n60={"speed": 4400})
    r1perf_project.slow_cell("n50", speed=4200)
    r1perf_project.slow_cell("n60", speed=6000)
    lab(
        r1perf_project,
        """
eight = {"flags": {"max_running_requests": 8}}
cells = perf_lab.in_turn({}, eight, {"n": 60}, {**eight, "n": 60})
found = perf_lab.interaction(*cells, published={"ab": "+7.5 %", "expected": "+2.9 %"})
assert found.synergy
assert found.over_a.estimate == pytest.approx(1.05, abs=0.002)
assert found.over_b.estimate == pytest.approx(1.10, abs=0.002)
assert found.over_ab.estimate == pytest.approx(1.50, abs=0.002)
assert found.expected.estimate == pytest.approx(1.15, abs=0.002)
assert found.term.estimate == pytest.approx(1.5 / 1.05 / 1.10, abs=0.002)
assert found.term.lower > 1.25
assert [said.holds for said in found.published] == ["surely more here"] * 2
same = perf_lab.interaction(cells[0], cells[1], cells[2], cells[3], "total_latency")
assert same.term.estimate != found.term.estimate
""",
    )
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    told = said(result)
    assert "interaction in total_throughput of [+ max_running_requests=8] and [n=50 -> n=60]: +50.0 % [" in told
    assert "together surely more than one by one" in told


def test_an_ablation_names_its_steps(r1perf_project: Project) -> None:
    r1perf_project.control({"speed": 4000})
    r1perf_project.slow_cell(speed=5000)
    lab(
        r1perf_project,
        """
steps = [{}, {"flags": {"max_running_requests": 8}}, {"flags": {"schedule_policy": "lof"}}]
found = perf_lab.ablation(*perf_lab.in_turn(*steps), published={"total": "+1 %"})
assert [point.label for point in found.points] == [
    "tp1 default n=50", "+ max_running_requests=8", "+ schedule_policy=lof - max_running_requests"]
assert found.step("+ max_running_requests=8").lower > 1.2
assert found.total.lower < 1 < found.total.upper
renamed = perf_lab.ablation(*perf_lab.in_turn(*steps), names=["stock", "eight", "lof"])
assert renamed.step("eight").estimate == found.steps[0].estimate
with pytest.raises(Exception, match="names has 1 names for 2 cells"):
    perf_lab.ablation(*perf_lab.in_turn(*steps[:2]), names=["stock"])
""",
    )
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    # Cells that the session has already are not measured again.
    assert len(r1perf_project.calls()) == 6


def test_effects_are_drawn_under_the_tests_id_and_kept(r1perf_project: Project) -> None:
    r1perf_project.control({"speed": 4000}, n60={"speed": 5000})
    lab(
        r1perf_project,
        """
cells = perf_lab.in_turn({}, {"n": 60})
perf_lab.ablation(*cells)
perf_lab.spread(*cells)
""",
    )
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    start = result.outlines.index("test_perf.py::test_lab")
    drawn = [line for line in result.outlines[start:] if not line.startswith("=====")]
    assert max(map(len, drawn)) <= 80
    result.stdout.fnmatch_lines(
        [
            "test_perf.py::test_lab",
            "ablation in total_throughput: +25.0 % [[]*",
            "  tp1 default n=50 *=*",
            "  n=50 -> n=60 *+*",
            "  total *=*",
            "spread in total_throughput over 2 cells: +25.0 % [[]*",
        ]
    )
    (line,) = [line for line in r1perf_project.records() if line.get("result", {}).get("effects")]
    assert [effect["kind"] for effect in line["result"]["effects"]] == ["ablation", "spread"]
    assert line["result"]["effects"][0]["points"][1]["num_prompts"] == 60


def test_effects_travel_from_a_worker(r1perf_project: Project) -> None:
    lab(r1perf_project, 'perf_lab.spread(*perf_lab.in_turn({}, {"n": 60}))')
    result = r1perf_project.perf_subprocess("-n", "1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_perf.py::test_lab", "spread in total_throughput over 2 cells: *"])


def test_a_load_curve_crosses(r1perf_project: Project) -> None:
    r1perf_project.control({}, n10={"speed": 5000}, n100={"speed": 4000})
    r1perf_project.slow_cell("n10", speed=4000)
    r1perf_project.slow_cell("n100", speed=5000)
    lab(
        r1perf_project,
        """
eight, plain = {"flags": {"max_running_requests": 8}}, {}
cells = perf_lab.in_turn(*({"n": n, **side} for n in (100, 10) for side in (eight, plain)))
found = perf_lab.by_load(list(zip(cells[::2], cells[1::2])), published={"100": "+20.6 %"})
assert [pair.a.num_prompts for pair in found.pairs] == [10, 100]
assert found.pairs[0].b_wins and found.decisive.a_wins
assert [(low.num_prompts, high.num_prompts) for low, high in found.crossings] == [(10, 100)]
assert found.mixed == ()
assert (found.a, found.b) == ("tp1 default max_running_requests=8", "tp1 default")
for call, message in (
    (lambda: perf_lab.by_load([(cells[0], cells[3])]), "have different N"),
    (lambda: perf_lab.spread(cells[0], cells[1], cells[0]), "is given twice"),
    (lambda: perf_lab.scaling(cells[0]), "scaling needs at least 2 measured cells"),
):
    with pytest.raises(Exception, match=message):
        call()
""",
    )
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    assert "is surely ahead; the sign changes between n=10 and n=100" in said(result)


def test_a_grid_goes_on_past_a_cell_that_breaks(r1perf_project: Project) -> None:
    r1perf_project.control({"speed": 4000}, n60={"speed": 5000, "mode": ["oom", "ok"]})
    lab(
        r1perf_project,
        """
found = perf_lab.grid({"schedule_policy": ["lof", "fcfs"], "n": [50, 60]}, flags={"max_prefill_tokens": 999})
assert (found.down, found.across) == (("lof", "fcfs"), ("50", "60"))
assert [[getattr(cell, "verdict", "ok") for cell in row] for row in found.cells] == [["ok", "OOM"], ["ok", "ok"]]
assert found.best == (1, 1)
assert found.contenders == ((1, 1),)
assert found.broken[0].label == "schedule_policy=lof n=60"
column = perf_lab.grid({"schedule_policy": ["lof", "fcfs"]}, flags={"max_prefill_tokens": 999})
assert len(column.contenders) == 2
""",
    )
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    assert "sweep of schedule_policy x n in total_throughput: best [schedule_policy=fcfs n=60] with" in said(result)
    # The cell that broke was tried once, and none twice; the flags of the call are in every cell.
    calls = r1perf_project.calls()
    assert [call["cell"] for call in calls] == ["n50", "n60", "n50", "n60", "n60", "n50", "n50"]
    assert all("999" in call["argv"] for call in calls)


def test_one_round_is_refused_before_a_sweep_begins(r1perf_project: Project) -> None:
    lab(
        r1perf_project,
        """
with pytest.raises(Exception, match="one round a cell has no spread to see: .* rounds='2:2'"):
    perf_lab.grid({"n": [50, 60]})
with pytest.raises(Exception, match="grid needs one or two things to sweep"):
    perf_lab.grid({})
one = perf_lab.measure()
with pytest.raises(Exception, match="have one round each: measure at least two, e.g. rounds='2:2'"):
    perf_lab.compare(one, perf_lab.measure(n=60))
""",
        marker='topology="tp1", n=50, rounds="1"',
    )
    r1perf_project.perf().assert_outcomes(passed=1)
    assert len(r1perf_project.calls()) == 2


def test_the_error_rate_and_the_metric_are_the_tests_or_the_calls_own(r1perf_project: Project) -> None:
    r1perf_project.platform(error_rate={"per_night": 0.05, "suite_size": 10, "source": "test"})
    lab(
        r1perf_project,
        """
cells = perf_lab.in_turn({}, {"n": 60})
default, wide = perf_lab.compare(*cells), perf_lab.compare(*cells, alpha=0.0001)
assert default.alpha == default.ratio.alpha == 0.005
assert wide.ratio.upper > default.ratio.upper
assert perf_lab.spread(*cells, alpha=0.05).alpha == 0.05
assert default.metric == "total_latency"
assert perf_lab.compare(*cells, "output_throughput").metric == "output_throughput"
for alpha in (0, 0.5, -1):
    with pytest.raises(Exception, match="alpha must be an error rate above 0 and below 0.5"):
        perf_lab.compare(*cells, alpha=alpha)
with pytest.raises(Exception, match="n=50: round 1 has no ttft_ms, .*name another metric"):
    perf_lab.compare(*cells, "ttft_ms")
""",
        marker='topology="tp1", n=50, metric=["total_latency", "total_throughput"]',
    )
    r1perf_project.perf().assert_outcomes(passed=1)


def test_engine_mode_works_as_measure_does(r1perf_project: Project) -> None:
    lab(
        r1perf_project,
        """
found = perf_lab.compare(*perf_lab.in_turn({}, {"flags": {"max_running_requests": 9}}))
assert found.a.values and len(found.a.values) == 2
""",
        marker='topology="tp1", n=50, mode="engine"',
    )
    r1perf_project.platform(engine={"windows": 2, "source": "test"})
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    assert verdicts(result) == ["MEASURED", "MEASURED"]


def test_serve_mode_works_as_measure_does(r1perf_project: Project) -> None:
    lab(
        r1perf_project,
        """
traffic, batch = perf_lab.in_turn({}, {"batch_size": 4, "input_len": 128, "output_len": 16})
found = perf_lab.compare(traffic, batch, "output_throughput")
assert found.a.load == "n=50 slo-ttft_ms=100000"
assert found.b.load == "n=4 one-batch in=128 out=16"
assert found.mixed[0] == f"mixed loads in one comparison: {found.a.load} and {found.b.load}"
""",
        marker='topology="tp1", n=50, mode="serve", slo={"ttft_ms": 100000}',
    )
    r1perf_project.platform(engine={"windows": 1, "source": "test"})
    result = r1perf_project.perf()
    result.assert_outcomes(passed=1)
    assert verdicts(result) == ["MEASURED", "MEASURED"]
    r1perf_project.nothing_left()


TRAFFIC = {"topology": "tp1", "mode": "serve", "n": 50, "request_rate": 4.0}
BATCH = {"topology": "tp1", "mode": "serve", "batch_size": 8, "input_len": 128, "output_len": 256}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"request_rate": 8.0}, {**TRAFFIC, "request_rate": 8.0}),
        ({"n": 60}, {**TRAFFIC, "n": 60}),
        ({**BATCH}, BATCH),
        ({"mode": "offline"}, {"topology": "tp1", "mode": "offline", "n": 50}),
        ({"mode": "offline", "n": 60}, {"topology": "tp1", "mode": "offline", "n": 60}),
    ],
)
def test_a_call_changes_the_markers_load(given: dict[str, object], left: dict[str, object]) -> None:
    assert over(TRAFFIC, given) == left


def test_traffic_takes_the_place_of_a_batch() -> None:
    assert over(BATCH, {"n": 60}) == {"topology": "tp1", "mode": "serve", "n": 60}
    assert over(BATCH, {"batch_size": 16}) == {**BATCH, "batch_size": 16}


def test_a_pair_that_is_turned_round_at_one_load_is_said(r1perf_project: Project) -> None:
    lab(
        r1perf_project,
        """
base, more, base60, more60 = perf_lab.in_turn(*({"n": n, "flags": f} for n in (50, 60) for f in ({}, FLAGS)))
fine = perf_lab.by_load([(more, base), (more60, base60)])
assert fine.mixed == ()
turned = perf_lab.by_load([(more, base), (base60, more60)])
assert turned.mixed[0].startswith("not the same two at every load: [tp1 default max_running_requests=8] and [tp1 def")
""".replace("FLAGS", '{"max_running_requests": 8}'),
        marker='topology="tp1", n=50, rounds="2"',
    )
    r1perf_project.perf().assert_outcomes(passed=1)
