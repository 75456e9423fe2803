"""The rules of design section 5 and 6 on made-up rounds whose intervals are known by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.platform import Noise
from pytest_r1perf.statistics import log_variance
from pytest_r1perf.verdict import (
    Judgement,
    Reference,
    Terms,
    Verdict,
    judge,
    judge_antipattern,
    terms_for,
    worst,
)

TOTAL = "total_throughput"
LATENCY = "total_latency"
ALPHA = 0.05


def near(value: float, spread: float = 0.001) -> tuple[float, ...]:
    """Three rounds with log spread ``spread``; against three such the limits are +- 2.132 x 0.816 x spread."""
    return (value * math.exp(-spread), value, value * math.exp(spread))


def terms(tolerance: float = 0.05, floor: float | None = None, alpha: float = ALPHA) -> Terms:
    return Terms(tolerance=tolerance, floor=floor, alpha=alpha)


def verdict_of(
    values: Sequence[float],
    reference: Sequence[float] | None,
    floor: float | None = None,
    tolerance: float = 0.05,
    metric: str = TOTAL,
) -> Verdict:
    return judge(metric, values, Reference(reference) if reference else None, terms(tolerance, floor)).verdict


# The limits are 0.17 % off the estimate.
RULES = [
    (1.00, 0.05, Verdict.PASS),
    (0.96, 0.05, Verdict.PASS),
    (1.04, 0.05, Verdict.PASS),
    (0.953, 0.05, Verdict.PASS),
    (0.951, 0.05, Verdict.UNDECIDED),
    (0.949, 0.05, Verdict.UNDECIDED),
    (0.947, 0.05, Verdict.REGRESSED),
    (0.5, 0.3, Verdict.REGRESSED),
    (1.051, 0.05, Verdict.PASS),  # lower end 1.0492: not surely above 1 + d
    (1.053, 0.05, Verdict.IMPROVED),
    (1.053, 0.06, Verdict.PASS),
    (0.71, 0.3, Verdict.PASS),
]


@pytest.mark.parametrize(("factor", "tolerance", "expected"), RULES)
def test_against_a_baseline(factor: float, tolerance: float, expected: Verdict) -> None:
    assert verdict_of(near(1000 * factor), near(1000), tolerance=tolerance) is expected


@pytest.mark.parametrize(("factor", "tolerance", "expected"), RULES)
def test_a_lower_is_better_metric_mirrors(factor: float, tolerance: float, expected: Verdict) -> None:
    assert verdict_of(near(12 / factor), near(12), tolerance=tolerance, metric=LATENCY) is expected


def test_every_metric_has_the_direction_of_its_meaning() -> None:
    """A time is better when smaller, a rate when larger; typed by hand."""
    assert {name: metric.better for name, metric in METRICS.items()} == {
        "total_throughput": 1,
        "output_throughput": 1,
        "input_throughput": 1,
        "request_throughput": 1,
        "tokps_per_gpu": 1,
        "total_latency": -1,
    }


def test_the_bounds_themselves() -> None:
    # No spread at all: the interval is the estimate. >= passes at the bound, > and < don't.
    same = (1000.0, 1000.0)
    assert verdict_of(same, same, tolerance=0) is Verdict.PASS
    assert verdict_of((999.0, 999.0), same, tolerance=0) is Verdict.REGRESSED
    assert verdict_of((1001.0, 1001.0), same, tolerance=0) is Verdict.IMPROVED
    assert verdict_of(same, None, floor=1000) is Verdict.PASS


@pytest.mark.parametrize(
    ("factor", "floor", "expected"),
    [
        (1.00, 900, Verdict.PASS),
        (1.10, 900, Verdict.IMPROVED),
        (1.10, 1100, Verdict.UNDECIDED),  # improved, and at its floor
        (1.10, 1200, Verdict.REGRESSED),  # improved, and below its floor
        (1.00, 1000, Verdict.UNDECIDED),
        (1.00, 1100, Verdict.REGRESSED),
        (0.90, 800, Verdict.REGRESSED),  # the floor holds, the baseline doesn't
        (0.95, 800, Verdict.UNDECIDED),
        (0.95, 1000, Verdict.REGRESSED),  # undecided and below the floor
    ],
)
def test_baseline_and_floor(factor: float, floor: float, expected: Verdict) -> None:
    assert verdict_of(near(1000 * factor), near(1000), floor=floor) is expected


@pytest.mark.parametrize(
    ("floor", "expected"),
    [
        (None, Verdict.NO_BASELINE),
        (900.0, Verdict.PASS),
        (1000.5, Verdict.UNDECIDED),
        (999.5, Verdict.UNDECIDED),
        (1100.0, Verdict.REGRESSED),
    ],
)
def test_without_a_baseline(floor: float | None, expected: Verdict) -> None:
    judgement = judge(TOTAL, near(1000), None, terms(floor=floor))
    assert judgement.verdict is expected
    assert judgement.ratio is None
    assert judgement.baseline is None
    if floor is not None:
        assert judgement.mean is not None
        assert judgement.mean.estimate == pytest.approx(1000)  # in the metric's unit, not over the floor


def test_the_reason_is_that_of_the_verdict() -> None:
    assert "surely above the baseline" in judge(TOTAL, near(1100), Reference(near(1000)), terms(floor=900)).reason
    assert "below the floor" in judge(TOTAL, near(1000), Reference(near(1000)), terms(floor=1100)).reason
    assert "no floor" in judge(TOTAL, near(1000), None, terms()).reason


def test_one_round_a_side() -> None:
    undecided = judge(TOTAL, [500], Reference([1000]), terms())
    assert undecided.verdict is Verdict.UNDECIDED
    assert "at least two" in undecided.reason
    assert judge(TOTAL, [500], None, terms(floor=1000)).verdict is Verdict.UNDECIDED
    known = replace(terms(), noise_run=(0.02, 9))
    assert judge(TOTAL, [500], Reference([1000]), known).verdict is Verdict.REGRESSED
    assert judge(TOTAL, [990], Reference([1000]), replace(known, tolerance=0.2)).verdict is Verdict.PASS


def test_tolerance_is_not_widened_by_noise_nor_noise_by_tolerance() -> None:
    noisy = (700.0, 1000.0, 1400.0)
    assert verdict_of(noisy, noisy, tolerance=0.05) is Verdict.UNDECIDED
    judgement = judge(TOTAL, noisy, Reference(noisy), terms(0.05))
    assert judgement.tolerance == 0.05
    assert judgement.spread == pytest.approx(0.3466, abs=1e-3)  # the logarithms of 1.4 and 0.7 are 0.69 apart


def test_sessions_count_twice_in_a_ratio_once_in_a_floor_never_within_a_session() -> None:
    known = Terms(0.05, None, ALPHA, noise_between=0.1, noise_sessions=10)
    own = math.log(judge(TOTAL, near(1000), Reference(near(1000)), terms()).ratio.upper)  # type: ignore[union-attr]
    run_variance = 2 * 1e-6 / 3

    across = judge(TOTAL, near(1000), Reference(near(1000)), known).ratio
    assert across is not None
    assert across.log_se**2 == pytest.approx(2 * 0.01 + run_variance)
    assert across.df == pytest.approx(9, rel=1e-2)

    floor = judge(TOTAL, near(1000), None, replace(known, floor=900)).mean
    assert floor is not None
    assert floor.log_se**2 == pytest.approx(0.01 + run_variance / 2)

    within = judge(TOTAL, near(1000), Reference(near(1000), same_session=True), known).ratio
    assert within is not None
    assert math.log(within.upper) == pytest.approx(own)


# -- error control ------------------------------------------------------------------------------------------


def test_the_cells_share_of_the_error_rate() -> None:
    h200 = load_catalog().platform("h200x8")  # 0.05 a night over 40 cells
    assert terms_for(h200, tolerance=0.05, floor=None, looks=1).alpha == pytest.approx(0.00125)
    assert terms_for(h200, tolerance=0.05, floor=None, looks=2).alpha == pytest.approx(0.000625)
    assert terms_for(h200, tolerance=0.05, floor=None, looks=2, metrics=5).alpha == pytest.approx(0.000125)


def test_the_platforms_noise_reaches_the_terms() -> None:
    platform = replace(load_catalog().platform("h200x1"), noise=Noise(0.02, 10, 0.03, 6, "hand"))
    made = terms_for(platform, tolerance=0.05, floor=None, looks=1)
    assert (made.noise_between, made.noise_sessions, made.noise_run) == (0.03, 6, (0.02, 9))


def test_baseline_and_floor_share_it() -> None:
    both = judge(TOTAL, near(1000), Reference(near(1000)), terms(floor=900))
    assert both.ratio is not None
    assert both.mean is not None
    assert both.ratio.alpha == both.mean.alpha == ALPHA / 2
    only = judge(TOTAL, near(1000), Reference(near(1000)), terms())
    assert only.ratio is not None
    assert only.ratio.alpha == ALPHA


# -- several metrics ----------------------------------------------------------------------------------------


def test_the_worst_verdict_names_the_cell() -> None:
    """Design: FAIL > XPASS > XFAIL > PASS; what is open stands between failing and passing."""
    order = [
        Verdict.REGRESSED,
        Verdict.XPASS,
        Verdict.UNDECIDED,
        Verdict.NO_BASELINE,
        Verdict.XFAIL,
        Verdict.PASS,
        Verdict.IMPROVED,
    ]
    made = [Judgement(TOTAL, verdict, 3, 1000.0, None) for verdict in order]
    for at, judgement in enumerate(made):
        assert worst(made[at:][::-1]) is judgement


def test_the_first_of_equals_names_the_cell() -> None:
    first, second = (Judgement(name, Verdict.REGRESSED, 3, 1000.0, None) for name in (LATENCY, TOTAL))
    assert worst([first, second]) is first


def test_what_fails_and_what_is_open() -> None:
    fails = {verdict for verdict in Verdict if verdict.fails}
    assert {verdict.value for verdict in fails} == {
        *("REGRESSED", "INVALID", "OOM", "HANG", "INFRA", "CONFIG", "CRASH", "XPASS"),
    }
    assert {verdict.value for verdict in Verdict if not verdict.decided} == {
        *("UNDECIDED", "INCOMPARABLE", "NO BASELINE"),
    }


# -- anti-patterns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (0.2, Verdict.XFAIL),
        (0.9, Verdict.XFAIL),
        (0.997, Verdict.XFAIL),  # surely slower, though within the tolerance
        (0.999, Verdict.XPASS),  # not surely slower, surely within the tolerance
        (1.0, Verdict.XPASS),
        (1.5, Verdict.XPASS),
    ],
)
def test_antipattern(factor: float, expected: Verdict) -> None:
    judgement = judge_antipattern(TOTAL, near(1000 * factor), Reference(near(1000), same_session=True), terms())
    assert judgement.verdict is expected
    assert worst([judgement]) is judgement
    assert judgement.ratio is not None
    assert judgement.ratio.estimate == pytest.approx(factor)


def test_antipattern_on_a_metric_where_less_is_better() -> None:
    slower = judge_antipattern(LATENCY, near(20), Reference(near(10), same_session=True), terms())
    assert slower.verdict is Verdict.XFAIL


def test_antipattern_undecided_says_how_many_rounds() -> None:
    noisy = near(1, 0.1)  # limits +- 17 %: from below 0.95 to above 1
    judgement = judge_antipattern(
        TOTAL, [980 * x for x in noisy], Reference([1000 * x for x in noisy], same_session=True), terms()
    )
    assert judgement.verdict is Verdict.UNDECIDED
    assert judgement.rounds_needed is None  # the reference's own 6 % never shows 2 %
    fine = near(1000, 0.004)
    judgement = judge_antipattern(TOTAL, [960 * x for x in near(1, 0.08)], Reference(fine, same_session=True), terms())
    assert judgement.verdict is Verdict.UNDECIDED
    assert judgement.rounds_needed is not None
    assert 3 < judgement.rounds_needed < 40


def test_antipattern_without_a_spread() -> None:
    judgement = judge_antipattern(TOTAL, [500], Reference([1000], same_session=True), terms())
    assert judgement.verdict is Verdict.UNDECIDED
    assert judgement.detectable is None


def test_antipattern_names_the_cost_it_could_have_seen() -> None:
    """XFAIL needs the upper limit below 1: no tolerance in it."""
    reference = Reference(near(1000), same_session=True)
    plain = judge(TOTAL, near(1000), reference, terms())
    expected = judge_antipattern(TOTAL, near(1000), reference, terms())
    assert plain.detectable is not None
    assert expected.detectable is not None
    assert 0.05 < plain.detectable < 0.06
    assert 0 < expected.detectable < 0.01


# -- what an open verdict says ------------------------------------------------------------------------------


def spread_out(count: int, mean: float, variance: float) -> list[float]:
    """``count`` rounds with this geometric mean and exactly this log variance."""
    steps = [index - (count - 1) / 2 for index in range(count)]
    scale = math.sqrt(variance * (count - 1) / math.fsum(step * step for step in steps))
    values = [mean * math.exp(scale * step) for step in steps]
    assert log_variance(values) == pytest.approx(variance)
    return values


@pytest.mark.parametrize(
    ("mean", "reference", "floor"),
    [
        (970.0, near(1000, 0.01), None),  # towards PASS
        (930.0, near(1000, 0.01), None),  # towards REGRESSED
        (1030.0, None, 1000.0),
        (960.0, None, 1000.0),
        (1000.0, near(1000, 0.01), 990.0),  # both must hold: the floor takes longer
        (1000.0, near(1000, 0.01), 1030.0),  # one broken bound is enough
    ],
)
def test_rounds_needed_would_decide_and_one_fewer_would_not(
    mean: float, reference: tuple[float, ...] | None, floor: float | None
) -> None:
    against = Reference(reference) if reference else None
    now = judge(TOTAL, spread_out(4, mean, 0.05**2), against, terms(floor=floor))
    assert now.verdict is Verdict.UNDECIDED
    assert now.rounds_needed is not None
    assert now.rounds_needed > 4

    def later(count: int) -> Verdict:
        return judge(TOTAL, spread_out(count, mean, 0.05**2), against, terms(floor=floor)).verdict

    assert later(now.rounds_needed) is not Verdict.UNDECIDED
    if now.rounds_needed > 5:
        assert later(now.rounds_needed - 1) is Verdict.UNDECIDED


def test_rounds_needed_from_a_single_round() -> None:
    known = replace(terms(), noise_run=(0.04, 9))
    judgement = judge(TOTAL, [980], Reference(spread_out(10, 1000, 0.01**2)), known)
    assert judgement.verdict is Verdict.UNDECIDED
    assert judgement.rounds_needed is not None
    later = judge(TOTAL, spread_out(judgement.rounds_needed, 980, 0.04**2), Reference(near(1000, 0.01)), known)
    assert later.verdict is not Verdict.UNDECIDED


def test_a_decided_verdict_needs_no_rounds() -> None:
    assert judge(TOTAL, near(1000), Reference(near(1000)), terms()).rounds_needed is None


def test_the_drop_below_a_floor_starts_from_where_the_mean_is() -> None:
    # 20 % above the floor, hardly any noise: a drop of 1 - 1/1.2 = 16.7 % reaches it.
    above = judge(TOTAL, near(1200, 1e-5), None, terms(floor=1000))
    assert above.detectable == pytest.approx(1 - 1 / 1.2, abs=1e-3)
    below = judge(TOTAL, near(900, 1e-5), None, terms(floor=1000))
    assert below.detectable == 0


# -- properties ---------------------------------------------------------------------------------------------

ORDER = [Verdict.REGRESSED, Verdict.UNDECIDED, Verdict.PASS, Verdict.IMPROVED]
rounds = st.lists(st.floats(min_value=800, max_value=1250), min_size=2, max_size=6)
tolerances = st.floats(min_value=0, max_value=0.5)


@given(rounds, rounds, tolerances, st.floats(min_value=1, max_value=3))
def test_faster_by_one_factor_is_never_a_worse_verdict(
    new: list[float], old: list[float], tolerance: float, factor: float
) -> None:
    before = verdict_of(new, old, tolerance=tolerance)
    after = verdict_of([x * factor for x in new], old, tolerance=tolerance)
    assert ORDER.index(after) >= ORDER.index(before)


@given(st.lists(st.tuples(st.floats(800, 1250), st.floats(1, 2)), min_size=2, max_size=6), rounds, tolerances)
def test_faster_rounds_never_turn_a_pass_into_a_regression(
    new: list[tuple[float, float]], old: list[float], tolerance: float
) -> None:
    """Each by its own factor: that may add spread and so doubt, never a regression."""
    if verdict_of([x for x, _ in new], old, tolerance=tolerance) in (Verdict.PASS, Verdict.IMPROVED):
        assert verdict_of([x * factor for x, factor in new], old, tolerance=tolerance) is not Verdict.REGRESSED


@given(rounds, rounds, st.floats(0, 0.4), st.floats(0, 0.1))
def test_a_wider_tolerance_never_regresses(new: list[float], old: list[float], tolerance: float, more: float) -> None:
    if verdict_of(new, old, tolerance=tolerance + more) is Verdict.REGRESSED:
        assert verdict_of(new, old, tolerance=tolerance) is Verdict.REGRESSED


@given(rounds, rounds, tolerances)
def test_latency_mirrors_throughput(new: list[float], old: list[float], tolerance: float) -> None:
    # The same tokens: a run with half the rate takes twice the time.
    faster = judge(TOTAL, new, Reference(old), terms(tolerance))
    slower = judge(LATENCY, [1e6 / x for x in new], Reference([1e6 / x for x in old]), terms(tolerance))
    assert faster.ratio is not None
    assert slower.ratio is not None
    assert slower.ratio.estimate == pytest.approx(faster.ratio.estimate)
    assert slower.ratio.lower == pytest.approx(faster.ratio.lower)
    limits = (faster.ratio.lower, faster.ratio.upper)
    if min(abs(limit - bound) for limit in limits for bound in (1 - tolerance, 1 + tolerance)) > 1e-9:
        assert slower.verdict is faster.verdict


# -- calibration, with fixed seeds --------------------------------------------------------------------------


def nights(seed: int, count: int, *, drop: float, sigma: float, made: Terms) -> dict[Verdict, int]:
    """Five rounds against five with independent log-normal noise."""
    rng = random.Random(seed)
    found = dict.fromkeys(Verdict, 0)
    for _ in range(count):
        old = [1000 * math.exp(rng.gauss(0, sigma)) for _ in range(5)]
        new = [1000 * (1 - drop) * math.exp(rng.gauss(0, sigma)) for _ in range(5)]
        found[judge(TOTAL, new, Reference(old), made).verdict] += 1
    return found


def test_false_alarms_without_a_change_are_at_most_alpha() -> None:
    found = nights(1, 2000, drop=0, sigma=0.04, made=terms(tolerance=0))
    # Binomial of 2,000 at 5 %: mean 100, standard deviation 9.7; the bound is three of them.
    assert 60 < found[Verdict.REGRESSED] <= 129
    assert 60 < found[Verdict.IMPROVED] + found[Verdict.PASS] <= 129


def test_false_alarms_at_the_tolerance_itself_are_at_most_alpha() -> None:
    """The worst case that must still not fail: a true drop of exactly d."""
    found = nights(2, 2000, drop=0.05, sigma=0.04, made=terms(tolerance=0.05))
    assert 60 < found[Verdict.REGRESSED] <= 129


def test_baseline_and_floor_together_keep_to_alpha() -> None:
    """Both at their bound: without sharing it would be nearly twice as often."""
    found = nights(3, 2000, drop=0.05, sigma=0.04, made=terms(tolerance=0.05, floor=950))
    assert found[Verdict.REGRESSED] <= 129


def test_the_gate_fails_on_a_drop_of_20_percent_and_passes_without_one() -> None:
    """Five rounds, 2 % noise, tolerance 10 %, the alpha of a suite of 40."""
    made = terms(tolerance=0.1, alpha=0.00125)
    assert nights(4, 200, drop=0.2, sigma=0.02, made=made)[Verdict.REGRESSED] >= 190
    passed = nights(5, 200, drop=0, sigma=0.02, made=made)
    assert passed[Verdict.PASS] + passed[Verdict.IMPROVED] >= 180
    assert passed[Verdict.REGRESSED] == 0
