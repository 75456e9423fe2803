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


def spread_out(count: int, mean: float, variance: float) -> list[float]:
    """``count`` rounds with this geometric mean and exactly this log variance."""
    steps = [index - (count - 1) / 2 for index in range(count)]
    scale = math.sqrt(variance * (count - 1) / math.fsum(step * step for step in steps))
    values = [mean * math.exp(scale * step) for step in steps]
    assert log_variance(values) == pytest.approx(variance)
    return values


def terms(
    tolerance: float = 0.05,
    floor: float | None = None,
    alpha: float = ALPHA,
    beta: float = ALPHA,
    detect: float | None = None,
) -> Terms:
    return Terms(tolerance=tolerance, floor=floor, alpha=alpha, beta=beta, detect=detect)


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
        "wall_time": -1,
        "startup_time": -1,
        "decode_throughput": 1,
        "ttft_ms": -1,
        "tpot_ms": -1,
        "itl_ms": -1,
        "e2e_latency_ms": -1,
        "p99_ttft_ms": -1,
        "p99_tpot_ms": -1,
        "p99_itl_ms": -1,
        "goodput": 1,
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
    assert "surely above the reference" in judge(TOTAL, near(1100), Reference(near(1000)), terms(floor=900)).reason
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
    known = replace(terms(), noise_between=(0.1, 9))
    own = judge(TOTAL, near(1000), Reference(near(1000)), terms()).ratio
    assert own is not None
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
    assert (within.lower, within.upper) == pytest.approx((own.lower, own.upper))


def test_hosts_count_only_where_another_host_measured_the_reference() -> None:
    known = replace(terms(), noise_between=(0.1, 9), noise_host=(0.2, 3))

    def variance(reference: Reference) -> float:
        ratio = judge(TOTAL, near(1000), reference, known).ratio
        assert ratio is not None
        return ratio.log_se**2 - 2 * 1e-6 / 3

    assert variance(Reference(near(1000))) == pytest.approx(2 * 0.01)
    assert variance(Reference(near(1000), other_host=True)) == pytest.approx(2 * 0.01 + 2 * 0.04)
    assert variance(Reference(near(1000), same_session=True, other_host=True)) == pytest.approx(0, abs=1e-12)
    # Satterthwaite: 0.1^2 / (0.02^2 / 9 + 0.08^2 / 3).
    far = judge(TOTAL, near(1000), Reference(near(1000), other_host=True), known).ratio
    assert far is not None
    assert far.df == pytest.approx(4.592, abs=0.01)
    floor = judge(TOTAL, near(1000), None, replace(known, floor=900)).mean
    assert floor is not None
    assert floor.log_se**2 == pytest.approx(0.01, rel=1e-3)  # a floor has no host


# -- the drop to be detected --------------------------------------------------------------------------------

# Five rounds a side with a log spread of 0.02 and df 8, where tables have 1.860 at 95 %: the limits are
# 1.860 x 0.02 x sqrt(2/5) = 2.35 % off the estimate.
FIVE = tuple(math.exp(0.02 * math.sqrt(0.4) * step) for step in (-2, -1, 0, 1, 2))
DETECT = [
    # estimate, verdict with a tolerance of 5 % alone, and with a drop of 10 % to be detected
    (1.060, Verdict.PASS, Verdict.PASS),  # lower limit 1.035
    (1.080, Verdict.IMPROVED, Verdict.IMPROVED),  # 1.055
    (0.980, Verdict.PASS, Verdict.PASS),  # 0.957
    (0.960, Verdict.UNDECIDED, Verdict.PASS),  # 0.938 to 0.983
    (0.930, Verdict.UNDECIDED, Verdict.PASS),  # 0.908 to 0.952: slower than the tolerance, not surely
    (0.925, Verdict.REGRESSED, Verdict.REGRESSED),  # 0.903 to 0.947: both hold, and the alarm goes first
    (0.900, Verdict.REGRESSED, Verdict.REGRESSED),
    (0.880, Verdict.REGRESSED, Verdict.REGRESSED),
]


@pytest.mark.parametrize("metric", [TOTAL, LATENCY])
@pytest.mark.parametrize(("factor", "without", "with_detect"), DETECT)
def test_a_drop_to_be_detected(factor: float, without: Verdict, with_detect: Verdict, metric: str) -> None:
    better = factor if metric == TOTAL else 1 / factor
    values, reference = [better * 1000 * x for x in FIVE], Reference([1000 * x for x in FIVE])
    plain = judge(metric, values, reference, terms())
    assert (plain.verdict, plain.excludes) == (without, 0.05)
    detecting = judge(metric, values, reference, terms(detect=0.1))
    assert (detecting.verdict, detecting.excludes, detecting.tolerance) == (with_detect, 0.1, 0.05)


def test_a_drop_to_be_detected_in_between() -> None:
    """Too noisy for either: the interval reaches across both bounds."""
    values = [0.93 * 1000 * x**2 for x in FIVE]  # limits 4.7 % off: 0.887 to 0.975
    judgement = judge(TOTAL, values, Reference([1000 * x**2 for x in FIVE]), terms(detect=0.1))
    assert judgement.verdict is Verdict.UNDECIDED


def test_a_smaller_drop_to_be_detected_than_the_tolerance_changes_nothing() -> None:
    assert terms(tolerance=0.05, detect=0.01).excludes == 0.05
    assert terms(tolerance=0.05).excludes == 0.05
    assert terms(tolerance=0.05, detect=0.2).excludes == 0.2


def test_a_pass_says_which_drop_it_excludes() -> None:
    reference = Reference([1000 * x for x in FIVE])
    sure = judge(TOTAL, [990 * x for x in FIVE], reference, terms(detect=0.1))
    assert "no worse than the reference less the tolerance" in sure.reason
    wide = judge(TOTAL, [950 * x for x in FIVE], reference, terms(detect=0.1))
    assert wide.verdict is Verdict.PASS
    assert "less than 10 %, the drop to be detected" in wide.reason


def test_a_drop_to_be_detected_is_not_the_floors() -> None:
    values = [970 * x for x in FIVE]
    assert judge(TOTAL, values, None, terms(floor=970, detect=0.5)).verdict is Verdict.UNDECIDED
    assert judge(TOTAL, values, Reference(values), terms(floor=970, detect=0.5)).verdict is Verdict.UNDECIDED


# -- error control ------------------------------------------------------------------------------------------


def test_the_alarms_rate_is_shared_over_the_metrics_the_all_clears_is_not() -> None:
    h200 = load_catalog().platform("h200x8")  # 0.05 a night over 40 cells
    one = terms_for(h200, tolerance=0.05, floor=None)
    assert (one.alpha, one.beta) == pytest.approx((0.00125, 0.025))
    five = terms_for(h200, tolerance=0.05, floor=None, looks=(3, 4, 5), metrics=5)
    assert (five.alpha, five.beta) == pytest.approx((0.00025, 0.025))
    assert five.looks == (3, 4, 5)  # they share it by what each knows, not in equal parts
    rate = replace(h200.error_rate, missed=0.1)
    assert terms_for(replace(h200, error_rate=rate), tolerance=0.05, floor=None).beta == 0.1


def test_the_platforms_noise_reaches_the_terms() -> None:
    platform = replace(load_catalog().platform("h200x1"), noise=Noise(0.02, 10, 0.03, 6, "hand"))
    made = terms_for(platform, tolerance=0.05, floor=None)
    assert (made.noise_run, made.noise_between, made.noise_host) == ((0.02, 9), (0.03, 5), None)
    hosts = replace(platform, noise=Noise(0.02, 10, 0.03, 6, "hand", host_cv=0.01, hosts=4))
    assert terms_for(hosts, tolerance=0.05, floor=None).noise_host == (0.01, 3)
    unknown = terms_for(replace(platform, noise=None), tolerance=0.05, floor=None)
    assert (unknown.noise_run, unknown.noise_between, unknown.noise_host) == (None, None, None)


def test_the_platforms_drop_to_be_detected_reaches_the_terms() -> None:
    platform = replace(load_catalog().platform("h200x1"), detect=0.08)
    assert terms_for(platform, tolerance=0.05, floor=None).detect == 0.08
    assert terms_for(platform, tolerance=0.05, floor=None, detect=0.2).detect == 0.2


def test_baseline_and_floor_share_the_alarms_rate_and_not_the_all_clears() -> None:
    """Either can raise the alarm; both must hold for a PASS."""
    both = judge(TOTAL, near(1000), Reference(near(1000)), terms(floor=900, beta=0.2))
    assert both.ratio is not None
    assert both.mean is not None
    assert both.ratio.alpha == both.mean.alpha == ALPHA / 2
    assert both.ratio.beta == both.mean.beta == 0.2
    only = judge(TOTAL, near(1000), Reference(near(1000)), terms(beta=0.2))
    assert only.ratio is not None
    assert (only.ratio.alpha, only.ratio.beta) == (ALPHA, 0.2)
    floor = judge(TOTAL, near(1000), None, terms(floor=900, beta=0.2)).mean
    assert floor is not None
    assert (floor.alpha, floor.beta) == (ALPHA, 0.2)


@pytest.mark.parametrize("metric", [TOTAL, LATENCY])
@pytest.mark.parametrize(
    ("factor", "alpha", "beta", "expected"),
    [
        # Three rounds a side with a spread of 1 %: df 4, t 1.533 at 90 % and 7.173 at 99.9 %, limits 1.26 or 6.03 %.
        (0.93, 0.001, 0.1, Verdict.UNDECIDED),  # upper limit 0.986
        (0.93, 0.1, 0.001, Verdict.REGRESSED),  # 0.942
        (0.97, 0.001, 0.1, Verdict.PASS),  # lower limit 0.958
        (0.97, 0.1, 0.001, Verdict.UNDECIDED),  # 0.915
        (1.07, 0.001, 0.1, Verdict.IMPROVED),  # 1.057: the all-clear's rate
        (1.07, 0.1, 0.001, Verdict.PASS),  # 1.009
        (0.88, 0.001, 0.001, Verdict.REGRESSED),  # 0.935
    ],
)
def test_the_alarm_is_the_upper_limits_and_the_all_clear_the_lower_ones(
    factor: float, alpha: float, beta: float, expected: Verdict, metric: str
) -> None:
    better = factor if metric == TOTAL else 1 / factor
    values, reference = near(1000 * better, 0.01), Reference(near(1000, 0.01))
    assert judge(metric, values, reference, terms(alpha=alpha, beta=beta)).verdict is expected


@pytest.mark.parametrize(
    ("value", "alpha", "beta", "expected"),
    [
        # df 2: 1.886 at 90 % and 22.33 at 99.9 %; a spread of 1 % has limits 1.09 and 12.9 % off.
        (1020.0, 0.001, 0.1, Verdict.PASS),
        (1020.0, 0.1, 0.001, Verdict.UNDECIDED),
        (980.0, 0.001, 0.1, Verdict.UNDECIDED),
        (980.0, 0.1, 0.001, Verdict.REGRESSED),
    ],
)
def test_alarm_and_all_clear_at_a_floor(value: float, alpha: float, beta: float, expected: Verdict) -> None:
    made = terms(floor=1000, alpha=alpha, beta=beta)
    assert judge(TOTAL, near(value, 0.01), None, made).verdict is expected


# -- looks --------------------------------------------------------------------------------------------------

# One-sided nominal levels for 0.025 in four looks of equal information, spent as the cube of the information: the
# example on gsDesign's page of sfPower (Z 3.36, 2.76, 2.36, 2.03).
CUBE = (0.0004, 0.0029, 0.0092, 0.0212)


def levels_at(count: int, reference: Reference | None, made: Terms) -> tuple[float, float]:
    judgement = judge(TOTAL, spread_out(count, 1000, 0.02**2), reference, made)
    interval = judgement.ratio if reference is not None else judgement.mean
    assert interval is not None
    return interval.alpha, interval.beta


@pytest.mark.parametrize(("count", "expected"), list(zip((2, 4, 6, 8), CUBE, strict=True)))
def test_a_look_has_the_level_of_the_printed_table(count: int, expected: float) -> None:
    """A floor's information grows with the rounds, and so does that of two sides that grow together."""
    made = replace(terms(floor=900, alpha=0.025, beta=0.025), looks=(2, 4, 6, 8))
    assert levels_at(count, None, made) == pytest.approx((expected, expected), abs=6e-5)
    growing = Reference(spread_out(count, 1000, 0.02**2), same_session=True, grows=True)
    made = replace(made, floor=None)
    assert levels_at(count, growing, made) == pytest.approx((expected, expected), abs=6e-5)
    lagging = Reference(spread_out(max(2, count - 2), 1000, 0.02**2), same_session=True, grows=True)
    earlier = CUBE[max(0, count // 2 - 2)]
    assert levels_at(count, lagging, made) == pytest.approx((earlier, earlier), abs=6e-5)


def test_each_limit_spends_its_own_rate() -> None:
    made = replace(terms(floor=900, alpha=0.025, beta=0.4), looks=(2, 4))
    # The first look at half the information: an eighth of each.
    assert levels_at(2, None, made) == pytest.approx((0.025 / 8, 0.4 / 8))


def test_a_fixed_number_of_rounds_has_the_whole_rate() -> None:
    for looks in ((), (5,)):
        assert levels_at(5, None, replace(terms(floor=900), looks=looks)) == (ALPHA, ALPHA)
        assert levels_at(5, Reference(near(1000)), replace(terms(), looks=looks)) == (ALPHA, ALPHA)


def test_what_a_look_may_spend_rests_on_the_platforms_noise_and_not_on_the_rounds() -> None:
    """Looks after 2 and 4 rounds against 4: 1 / (1/2 + 1/4) of 1 / (1/4 + 1/4) is 2/3, cubed 8/27."""
    made = replace(terms(alpha=0.027), looks=(2, 4))
    quiet, wild = (Reference(spread_out(4, 1000, cv**2)) for cv in (0.001, 0.3))
    for reference in (quiet, wild):
        assert levels_at(2, reference, made)[0] == pytest.approx(0.008, rel=1e-5)
    # With 4 % a round and 4 % a session, twice: (0.75 + 2) against (0.5 + 2); cubed 0.7513.
    noisy = replace(made, noise_run=(0.04, 9), noise_between=(0.04, 9))
    assert levels_at(2, quiet, noisy)[0] == pytest.approx(0.027 * (2.5 / 2.75) ** 3, rel=1e-5)
    within = Reference(quiet.values, same_session=True)
    assert levels_at(2, within, noisy)[0] == pytest.approx(0.008, rel=1e-5)
    elsewhere = replace(noisy, noise_host=(0.04, 9))
    far = Reference(quiet.values, other_host=True)
    assert levels_at(2, far, elsewhere)[0] == pytest.approx(0.027 * (4.5 / 4.75) ** 3, rel=1e-5)


def test_a_look_that_adds_nothing_has_the_level_of_the_other() -> None:
    """Sessions differ by so much that a fourth round is no news: the two looks are one, with the whole rate."""
    made = replace(terms(), looks=(3, 4), noise_run=(0.001, 9), noise_between=(0.5, 9))
    for count in (3, 4):
        judgement = judge(TOTAL, spread_out(count, 1, 1e-6), Reference(near(1000)), made)  # a thousandth
        assert judgement.verdict is Verdict.REGRESSED
        assert judgement.ratio is not None
        assert judgement.ratio.alpha == pytest.approx(ALPHA)


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
        *("REGRESSED", "INVALID", "OOM", "HANG", "INFRA", "CONFIG", "CRASH", "XPASS", "OUTPUTS CHANGED"),
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


def test_antipattern_has_the_alarms_rate_on_both_sides() -> None:
    """XPASS fails a test as XFAIL would have spared it: neither may come at the all-clear's rate or with its drop."""
    made = terms(alpha=0.001, beta=0.4, detect=0.5, floor=1.0)
    reference = Reference(near(1000, 0.01), same_session=True)
    judgement = judge_antipattern(TOTAL, near(1000, 0.01), reference, made)
    assert judgement.ratio is not None
    assert (judgement.ratio.alpha, judgement.ratio.beta) == (0.001, 0.001)
    assert (judgement.excludes, judgement.floor) == (0.05, None)
    # Limits 6.03 % off (t 7.173 with df 4), the tolerance 5 %.
    assert judgement.verdict is Verdict.UNDECIDED
    assert judge_antipattern(TOTAL, near(1015, 0.01), reference, made).verdict is Verdict.XPASS
    assert judge_antipattern(TOTAL, near(950, 0.01), reference, made).verdict is Verdict.UNDECIDED
    assert judge_antipattern(TOTAL, near(935, 0.01), reference, made).verdict is Verdict.XFAIL


def test_antipattern_undecided_says_how_many_rounds() -> None:
    noisy = near(1, 0.1)  # limits +- 17 %: from below 0.95 to above 1
    fixed = Reference([1000 * x for x in noisy], same_session=True)
    judgement = judge_antipattern(TOTAL, [980 * x for x in noisy], fixed, terms())
    assert judgement.verdict is Verdict.UNDECIDED
    assert judgement.rounds_needed is None  # the reference's own 6 % never shows 2 %
    growing = replace(fixed, grows=True)
    judgement = judge_antipattern(TOTAL, [980 * x for x in noisy], growing, terms())
    assert judgement.verdict is Verdict.UNDECIDED
    assert judgement.rounds_needed is not None
    # Both bounds: 1 is 0.0202 off and 0.95 is 0.0311. The nearer takes more; with z(0.95) = 1.645 the farther one
    # takes 2 (1.645 x 0.1 / 0.0311)^2 = 56.
    assert 56 <= judgement.rounds_needed <= 60
    later = [spread_out(judgement.rounds_needed, mean, 0.1**2) for mean in (980, 1000)]
    decided = judge_antipattern(TOTAL, later[0], replace(growing, values=later[1]), terms())
    assert decided.verdict is Verdict.XPASS


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


# Hardly noisier than the rounds that come, so that the smaller side is the quieter one at every number of them.
SIXTY = tuple(spread_out(60, 1000, 0.0501**2))


@pytest.mark.parametrize(
    ("mean", "reference", "made"),
    [
        (970.0, SIXTY, terms(alpha=0.01, beta=0.1)),  # towards PASS
        (985.0, SIXTY, terms(alpha=0.1, beta=0.01)),
        (930.0, SIXTY, terms(alpha=0.1, beta=0.01)),  # towards REGRESSED
        (910.0, SIXTY, terms(alpha=0.01, beta=0.1)),
        (925.0, SIXTY, terms(alpha=0.001, beta=0.1, detect=0.1)),  # below the tolerance, towards PASS of 10 %
        (922.0, SIXTY, terms(alpha=0.05, beta=0.01, detect=0.1)),  # either way, and the alarm comes first
        (1030.0, None, terms(floor=1000.0, alpha=0.01, beta=0.1)),
        (960.0, None, terms(floor=1000.0, alpha=0.1, beta=0.01)),
        (1000.0, SIXTY, terms(floor=980.0, alpha=0.01, beta=0.1)),  # both must hold: the floor takes longer
        (1000.0, SIXTY, terms(floor=1040.0, alpha=0.1, beta=0.01)),  # one broken bound is enough
    ],
)
def test_rounds_needed_would_decide_and_one_fewer_would_not(
    mean: float, reference: tuple[float, ...] | None, made: Terms
) -> None:
    against = Reference(reference) if reference else None
    now = judge(TOTAL, spread_out(3, mean, 0.05**2), against, made)
    assert now.verdict is Verdict.UNDECIDED
    assert now.rounds_needed is not None
    assert 4 < now.rounds_needed < 60

    def later(count: int) -> Verdict:
        return judge(TOTAL, spread_out(count, mean, 0.05**2), against, made).verdict

    assert later(now.rounds_needed) is not Verdict.UNDECIDED
    assert later(now.rounds_needed - 1) is Verdict.UNDECIDED


def test_rounds_needed_on_a_metric_where_less_is_better() -> None:
    made = terms(alpha=0.01, beta=0.1)
    faster = judge(TOTAL, spread_out(3, 970, 0.05**2), Reference(SIXTY), made)
    slower = judge(LATENCY, spread_out(3, 1e6 / 970, 0.05**2), Reference([1e6 / x for x in SIXTY]), made)
    assert faster.rounds_needed is not None
    assert slower.rounds_needed == faster.rounds_needed


def test_rounds_needed_from_a_single_round() -> None:
    known = replace(terms(), noise_run=(0.04, 9))
    reference = Reference(spread_out(10, 1000, 0.04**2))
    judgement = judge(TOTAL, [985], reference, known)
    assert judgement.verdict is Verdict.UNDECIDED
    assert judgement.rounds_needed is not None
    later = judge(TOTAL, spread_out(judgement.rounds_needed, 985, 0.04**2), reference, known)
    assert later.verdict is Verdict.PASS
    fewer = judge(TOTAL, spread_out(judgement.rounds_needed - 1, 985, 0.04**2), reference, known)
    assert fewer.verdict is Verdict.UNDECIDED


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
    made = terms(tolerance=0.1, alpha=0.00125, beta=0.025)
    assert nights(4, 200, drop=0.2, sigma=0.02, made=made)[Verdict.REGRESSED] >= 190
    passed = nights(5, 200, drop=0, sigma=0.02, made=made)
    assert passed[Verdict.PASS] + passed[Verdict.IMPROVED] >= 180
    assert passed[Verdict.REGRESSED] == 0
