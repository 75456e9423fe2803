"""Effects of several cells: numbers worked out by hand, and what the intervals promise, simulated with fixed seeds."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf import procedures
from pytest_r1perf.effects import BrokenPoint, Effect, Grid, Interaction, Point
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.procedures import Basis

TOTAL = METRICS["total_throughput"]
# Two-sided 95 % points of Student's t, from its printed tables.
T_2, T_4, T_8, T_49 = 4.3027, 2.7764, 2.3060, 2.0096


def point(*logs: float, label: str = "x", n: int = 50, gpus: int = 1, topology: str = "tp1") -> Point:
    """A cell whose rounds have these logarithms."""
    return Point(label, topology, gpus, n, f"n={n}", tuple(math.exp(value) for value in logs))


def basis(alpha: float = 0.025, metric: str = "total_throughput", noise: tuple[float, float] | None = None) -> Basis:
    return Basis(METRICS[metric], alpha, noise)


def factorial(cells: Sequence[Point], on: Basis) -> Interaction:
    base, a, b, ab = cells
    return procedures.interaction(base, a, b, ab, on)


# -- by hand -----------------------------------------------------------------------------------------------


def test_a_comparison_is_students_pooled_t() -> None:
    found = procedures.comparison(point(0.10, 0.12), point(0.00, 0.02), basis())
    # Means 0.11 and 0.01, both variances 0.0002, so the difference has 0.0002 * (1/2 + 1/2) and 2 degrees of freedom.
    reach = T_2 * math.sqrt(0.0002)
    assert found.ratio.estimate == pytest.approx(math.exp(0.10))
    assert found.ratio.lower == pytest.approx(math.exp(0.10 - reach), rel=1e-4)
    assert found.ratio.upper == pytest.approx(math.exp(0.10 + reach), rel=1e-4)
    assert found.ratio.df == 2
    assert found.a_wins
    assert not found.b_wins


def test_less_is_better_turns_the_ratio_round() -> None:
    found = procedures.comparison(point(0.10, 0.12), point(0.00, 0.02), basis(metric="total_latency"))
    assert found.ratio.estimate == pytest.approx(math.exp(-0.10))
    assert found.b_wins


def test_an_interaction_is_a_contrast_of_four_means() -> None:
    cells = [point(0.00, 0.02), point(0.01, 0.03), point(0.02, 0.04), point(0.10, 0.12)]
    found = factorial(cells, basis(alpha=5 * 0.025))
    # Five intervals share 0.125: each limit has 0.025, and the pooled variance 0.0002 has 4 degrees of freedom.
    assert [math.log(one.estimate) for one in (found.over_a, found.over_b, found.over_ab, found.term)] == pytest.approx(
        [0.01, 0.02, 0.10, 0.07]
    )
    assert found.over_ab.lower == pytest.approx(math.exp(0.10 - T_4 * math.sqrt(0.0002)), rel=1e-4)
    assert found.term.lower == pytest.approx(math.exp(0.07 - T_4 * math.sqrt(0.0002 * 4 / 2)), rel=1e-4)
    assert found.term.upper == pytest.approx(math.exp(0.07 + T_4 * math.sqrt(0.0002 * 4 / 2)), rel=1e-4)
    assert found.expected is not None
    assert found.expected.estimate == pytest.approx(math.exp(0.01) + math.exp(0.02) - 1)
    assert found.expected.lower < found.expected.estimate < found.expected.upper < found.over_ab.estimate
    assert found.product == pytest.approx(math.exp(0.03))
    assert found.family == 5
    assert found.synergy
    assert not found.conflict


def test_the_linear_expectation_moves_with_all_three_cells() -> None:
    """Both gains 0: then it is a * b / base squared to first order, whose variance is 1 + 1 + 4 over the rounds."""
    cells = [point(-0.01, 0.01), point(-0.01, 0.01), point(-0.01, 0.01), point(-0.01, 0.01)]
    found = factorial(cells, basis(alpha=5 * 0.025))
    assert found.expected is not None
    assert math.log(found.expected.upper) == pytest.approx(T_4 * math.sqrt(0.0002 * 6 / 2), rel=1e-4)


def test_gains_that_add_up_to_nothing_have_no_linear_expectation() -> None:
    half = math.log(0.4)
    cells = [point(0, 0.01), point(half, half + 0.01), point(half, half + 0.01), point(half, half + 0.01)]
    assert factorial(cells, basis()).expected is None


def test_an_ablation_has_each_step_and_the_total() -> None:
    cells = [point(0.00, 0.02, label="start"), point(0.05, 0.07, label="one"), point(0.04, 0.06, label="two")]
    found = procedures.ablation([*cells, point(0.5, 0.52, label="three")], basis(alpha=4 * 0.025))
    assert [math.log(step.estimate) for step in found.steps] == pytest.approx([0.05, -0.01, 0.46])
    assert math.log(found.total.estimate) == pytest.approx(0.5)
    assert math.log(found.total.upper) == pytest.approx(0.5 + T_4 * math.sqrt(0.0002), rel=1e-4)
    assert found.step("two") == found.steps[1]
    assert found.family == 4


def test_one_step_is_the_total_and_counts_once() -> None:
    found = procedures.ablation([point(0, 0.02), point(0.1, 0.12)], basis())
    assert found.family == 1
    assert found.steps == (found.total,)
    with pytest.raises(R1PerfError, match="ablation needs at least 2 measured cells, got 1"):
        procedures.ablation([point(0, 0.02)], basis())


def test_scaling_is_per_gpu_and_over_the_first() -> None:
    one, two = point(1.00, 1.02, gpus=8, topology="tp8"), point(1.50, 1.52, gpus=16, topology="pp2")
    found = procedures.scaling([one, two], basis(alpha=3 * 0.025))
    assert [per.estimate for per in found.per_gpu] == pytest.approx([math.exp(1.01) / 8, math.exp(1.51) / 16])
    # The mean of two rounds has half their pooled variance, with its 2 degrees of freedom.
    assert found.per_gpu[0].upper == pytest.approx(math.exp(1.01 + T_2 * math.sqrt(0.0002 / 2)) / 8, rel=1e-4)
    assert found.efficiency[0].estimate == pytest.approx(math.exp(0.5) / 2)
    assert found.efficiency[0].lower == pytest.approx(math.exp(0.5 - T_2 * math.sqrt(0.0002)) / 2, rel=1e-4)
    assert found.speedup[0].estimate == pytest.approx(math.exp(0.5))


@pytest.mark.parametrize("metric", ["tokps_per_gpu", "total_latency"])
def test_scaling_divides_a_throughput_of_the_whole_cell(metric: str) -> None:
    with pytest.raises(R1PerfError, match=rf"{metric} is in .*: give total_throughput"):
        procedures.scaling([point(0, 0.1), point(0, 0.1)], basis(metric=metric))


def load(n: int, *difference: float) -> tuple[Point, Point]:
    """A pair at this N: ``b`` has 1, ``a`` is off by these logarithms."""
    return point(*difference, label=f"a{n}", n=n), point(0.0, 0.002, label=f"b{n}", n=n)


def test_a_load_curve_flips_and_crosses_between_sure_loads() -> None:
    pairs = [load(7000, 0.2, 0.202), load(1000, -0.1, -0.098), load(3000, 0.0, 0.003)]
    found = procedures.by_load(pairs, basis())
    assert [pair.a.num_prompts for pair in found.pairs] == [1000, 3000, 7000]
    assert [(pair.a_wins, pair.b_wins) for pair in found.pairs] == [(False, True), (False, False), (True, False)]
    assert found.decisive.a.num_prompts == 7000
    assert [flip.a.num_prompts for flip in found.flips] == [1000]
    assert [(low.num_prompts, high.num_prompts) for low, high in found.crossings] == [(1000, 7000)]
    assert found.family == 3


def test_a_flip_is_one_either_way() -> None:
    found = procedures.by_load([load(1000, 0.1, 0.102), load(3000, -0.1, -0.098), load(7000, -0.2, -0.198)], basis())
    assert found.decisive.b_wins
    assert [flip.a.num_prompts for flip in found.flips] == [1000]
    assert [(low.num_prompts, high.num_prompts) for low, high in found.crossings] == [(1000, 3000)]


def test_a_load_curve_without_a_sure_sign_has_no_crossing() -> None:
    found = procedures.by_load([load(1000, -0.001, 0.003), load(7000, 0.2, 0.202)], basis())
    assert found.flips == ()
    assert found.crossings == ()


def test_pairs_have_one_load_each_and_loads_one_pair() -> None:
    with pytest.raises(R1PerfError, match="a50 and b60 have different N: compare them at the same one"):
        procedures.by_load([(load(50, 0, 0.1)[0], load(60, 0, 0.1)[1])], basis())
    with pytest.raises(R1PerfError, match="two pairs at n=50: give one pair a load"):
        procedures.by_load([load(50, 0, 0.1), load(50, 0, 0.2)], basis())
    with pytest.raises(R1PerfError, match="at least one pair"):
        procedures.by_load([], basis())


def test_a_spread_is_the_best_over_the_worst() -> None:
    cells = [point(0.00, 0.02), point(0.03, 0.05), point(-0.02, 0.00)]
    found = procedures.spread(cells, basis())
    assert math.log(found.ratio.estimate) == pytest.approx(0.05)
    # The farthest pair's own limit, with 3 degrees of freedom: t is 3.1824. The lower limit is shared by six pairs,
    # so its t is above 3.1824 and below the table's 5.8409 for 0.005: 0.05 - 4 * 0.014 is below 0.
    assert math.log(found.ratio.upper) == pytest.approx(0.05 + 3.1824 * math.sqrt(0.0002), rel=1e-3)
    assert found.ratio.lower == 1.0
    assert found.surely_below == pytest.approx(found.ratio.upper - 1)


def test_a_grid_marks_the_best_and_what_may_be_as_good() -> None:
    cells: list[Point | BrokenPoint] = [
        point(0.0, 0.002, label="a1"),
        point(0.100, 0.102, label="a2"),
        point(0.101, 0.103, label="b1"),
        BrokenPoint("b2", "OOM", "no memory left"),
    ]
    found = procedures.grid({"x": ["a", "b"], "y": [1, 2]}, cells, basis())
    assert found.best == (1, 0)
    assert found.contenders == ((0, 1), (1, 0))
    assert [cell.verdict for cell in found.broken] == ["OOM"]
    assert (found.down, found.across) == (("a", "b"), ("1", "2"))
    assert found.cells[1][1] is cells[3]


def test_a_grid_of_one_thing_is_a_column() -> None:
    found = procedures.grid({"x": [1, 2]}, [point(0.0, 0.002), point(0.3, 0.302)], basis())
    assert [len(row) for row in found.cells] == [1, 1]
    assert found.best == (1, 0)
    assert found.contenders == ((1, 0),)


def test_a_cell_that_broke_keeps_its_place_in_a_grid() -> None:
    broken = BrokenPoint("a1", "OOM", "no memory left")
    cells: list[Point | BrokenPoint] = [broken, point(0.0, 0.002), point(0.3, 0.302), point(0.1, 0.102)]
    found = procedures.grid({"x": ["a", "b"], "y": [1, 2]}, cells, basis())
    assert found.best == (1, 0)
    assert found.contenders == ((1, 0),)
    assert found.cells[0][0] is broken


@pytest.mark.parametrize("whole", [0, 1])
def test_a_grid_that_broke(whole: int) -> None:
    broken = BrokenPoint("x", "OOM", "no memory left")
    cells: list[Point | BrokenPoint] = [*[point(0.0, 0.1)] * whole, *[broken] * (2 - whole)]
    found = procedures.grid({"x": [1, 2]}, cells, basis())
    assert found.best == ((0, 0) if whole else None)
    assert found.contenders == (((0, 0),) if whole else ())


# -- spreads -----------------------------------------------------------------------------------------------


def test_a_cell_that_spreads_far_more_stands_by_itself() -> None:
    quiet = [point(0.00, 0.002, 0.004), point(0.01, 0.012, 0.014), point(0.02, 0.022, 0.024)]
    wild = point(-0.5, 0.0, 0.5)
    found = procedures.ablation([*quiet, wild], basis())
    # Of the quiet ones the pooled variance has 6 degrees of freedom; the wild one has 2 of its own.
    assert [step.df for step in found.steps[:2]] == pytest.approx([6, 6])
    assert found.steps[0].log_se == pytest.approx(math.sqrt(4e-6 * 2 / 3))
    assert found.steps[2].df == pytest.approx(2, rel=0.01)
    assert found.steps[2].log_se == pytest.approx(math.sqrt(0.25 / 3 + 4e-6 / 3))


def test_a_cell_that_may_spread_more_by_chance_stays_with_the_others() -> None:
    """7 times the others' variance, F(2, 6): by chance in 27 of 1,000, and the largest of four is looked at."""
    step = math.sqrt(7e-4)
    cells = [*(point(0.0, 0.01, 0.02) for _ in range(3)), point(0.0, step, 2 * step)]
    found = procedures.ablation(cells, basis())
    assert found.steps[0].df == pytest.approx(8)
    assert found.steps[0].log_se == pytest.approx(math.sqrt((3e-4 + 7e-4) / 4 * 2 / 3))
    # The pair with the noisier cell has its own, larger standard error: (1e-4 + 7e-4) / 3, and Satterthwaite's
    # degrees of freedom, 2 * 8^2 / (1^2 + 7^2).
    assert found.steps[2].log_se == pytest.approx(math.sqrt(8e-4 / 3))
    assert found.steps[2].df == pytest.approx(2.56)


def test_one_round_borrows_what_is_known() -> None:
    single, other = point(0.1, label="single"), point(0.0, 0.02)
    borrowed = procedures.comparison(single, other, basis())
    assert borrowed.ratio.log_se == pytest.approx(math.sqrt(0.0002 * (1 + 1 / 2)))
    assert borrowed.ratio.df == 1
    told = procedures.comparison(single, other, basis(noise=(0.03, 49)))
    assert told.ratio.log_se == pytest.approx(math.sqrt(0.03**2 + 0.0002 / 2))
    both = procedures.comparison(single, point(0.0), basis(noise=(0.03, 49)))
    assert math.log(both.ratio.upper) == pytest.approx(0.1 + T_49 * 0.03 * math.sqrt(2), rel=1e-3)
    with pytest.raises(R1PerfError, match=r"single and x have one round each: .* rounds='2:2'"):
        procedures.comparison(single, point(0.0), basis())


# -- what the intervals promise ----------------------------------------------------------------------------


def cells_with(random_: random.Random, truths: Sequence[float], spreads: Sequence[float], rounds: int) -> list[Point]:
    return [
        point(*(random_.gauss(truth, spread) for _ in range(rounds)), label=str(place))
        for place, (truth, spread) in enumerate(zip(truths, spreads, strict=True))
    ]


@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_the_five_intervals_of_a_factorial_hold_together(rounds: int) -> None:
    """In 2,000 factorials any lower limit is wrong in at most 5 % (and any upper), less not by far."""
    random_ = random.Random(rounds)
    truths = (0.0, 0.015, 0.014, 0.072)
    expected = math.log(math.exp(0.015) + math.exp(0.014) - 1)
    wanted = (0.015, 0.014, 0.072, 0.072 - 0.029, expected)
    low = high = 0
    for _ in range(2000):
        found = factorial(cells_with(random_, truths, (0.02,) * 4, rounds), basis(alpha=0.05))
        assert found.expected is not None
        parts = (found.over_a, found.over_b, found.over_ab, found.term, found.expected)
        low += any(math.log(one.lower) > truth for one, truth in zip(parts, wanted, strict=True))
        high += any(math.log(one.upper) < truth for one, truth in zip(parts, wanted, strict=True))
    # The standard error of a share of 5 % in 2,000 is 0.5 points; Bonferroni is careful, so less is no fault.
    assert 0.02 < low / 2000 < 0.065
    assert 0.02 < high / 2000 < 0.065


def test_the_steps_of_an_ablation_hold_together_though_one_cell_is_wild() -> None:
    random_ = random.Random(7)
    truths = [0.03 * place for place in range(7)]
    spreads = [0.02] * 3 + [0.2] + [0.02] * 3
    wrong = 0
    for _ in range(1500):
        found = procedures.ablation(cells_with(random_, truths, spreads, 3), basis(alpha=0.05))
        steps = [(step, 0.03) for step in found.steps] + [(found.total, 0.18)]
        wrong += any(math.log(one.lower) > truth for one, truth in steps)
    assert wrong / 1500 < 0.065


@pytest.mark.parametrize("truths", [(0.0, 0.0, 0.0, 0.0), (0.0, 0.01, 0.02, 0.024), (0.0, 0.024, 0.0, 0.024)])
def test_a_spread_is_covered_from_both_sides(truths: tuple[float, ...]) -> None:
    random_ = random.Random(11)
    true = max(truths) - min(truths)
    low = high = 0
    for _ in range(800):
        found = procedures.spread(cells_with(random_, truths, (0.01,) * 4, 3), basis(alpha=0.05))
        low += math.log(found.ratio.lower) > true
        high += math.log(found.ratio.upper) < true
    assert low / 800 < 0.07
    assert high / 800 < 0.07


def test_the_best_of_a_grid_is_among_those_that_are_marked() -> None:
    """All alike but for one: the luckiest of eight looks best most of the time, and the best must stay in."""
    random_ = random.Random(3)
    truths = [0.0] * 7 + [0.001]
    left_out = looked_best = 0
    for _ in range(600):
        cells = cells_with(random_, truths, (0.02,) * 8, 3)
        found = procedures.grid({"x": list(range(8))}, cells, basis(alpha=0.05))
        left_out += (7, 0) not in found.contenders
        looked_best += found.best == (7, 0)
    assert looked_best / 600 < 0.3
    assert left_out / 600 < 0.075


# -- properties --------------------------------------------------------------------------------------------

rounds_of = st.lists(st.floats(min_value=50, max_value=200), min_size=2, max_size=5)


@given(rounds_of, rounds_of)
def test_it_does_not_matter_which_is_called_a(one: list[float], other: list[float]) -> None:
    a, b = (Point("x", "tp1", 1, 50, "n=50", tuple(values)) for values in (one, other))
    first, second = procedures.comparison(a, b, basis()).ratio, procedures.comparison(b, a, basis()).ratio
    assert first.lower == pytest.approx(1 / second.upper)
    assert first.upper == pytest.approx(1 / second.lower)


@given(st.lists(rounds_of, min_size=4, max_size=4), st.sampled_from([1e-3, 10.0]))
def test_an_interaction_has_no_unit(cells: list[list[float]], factor: float) -> None:
    points = [Point("x", "tp1", 1, 50, "n=50", tuple(values)) for values in cells]
    scaled = [Point("x", "tp1", 1, 50, "n=50", tuple(factor * value for value in values)) for values in cells]
    one, other = factorial(points, basis()), factorial(scaled, basis())
    assert other.term.estimate == pytest.approx(one.term.estimate)
    assert other.term.lower == pytest.approx(one.term.lower, rel=1e-6)


def test_plain_data_is_json_and_says_its_kind() -> None:
    pair = [point(0, 0.01, label="a"), point(0, 0.5, label="b")]
    grid: Grid = procedures.grid({"x": [1, 2]}, [pair[0], BrokenPoint("x", "OOM", "no memory left")], basis())
    effects: list[Effect] = [
        procedures.comparison(pair[0], pair[1], basis(alpha=1e-9)),
        factorial([*pair, *pair], basis()),
        procedures.ablation(pair, basis()),
        procedures.scaling(pair, basis()),
        procedures.by_load([(pair[0], pair[1])], basis()),
        procedures.spread(pair, basis()),
        grid,
    ]
    for effect in effects:
        data: dict[str, Any] = json.loads(json.dumps(effect.as_dict(), allow_nan=False))
        assert data["kind"] == type(effect).kind
        assert data["metric"] == "total_throughput"
        assert data["sentence"] == str(effect)
        assert data["text"] == effect.lines(80)
    assert len({type(effect).kind for effect in effects}) == len(effects)


def test_two_ruinous_changes_have_no_linear_expectation_and_a_published_one_is_left_out() -> None:
    """-60 % and -60 % add up to less than nothing."""
    base, a, b, ab = (point(math.log(ratio), math.log(ratio) + 0.01) for ratio in (1.0, 0.4, 0.4, 0.3))
    found = procedures.interaction(base, a, b, ab, basis(), {"ab": "-70 %", "expected": "-50 %"})
    assert found.expected is None
    assert [said.of for said in found.published] == ["ab"]
