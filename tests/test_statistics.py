"""Intervals, power and rounds to decide: against SciPy, printed tables, hand arithmetic and simulation."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from pytest_r1perf.statistics import (
    MOST_ROUNDS,
    Component,
    Interval,
    coefficient_of_variation,
    detectable_drop,
    geometric_mean,
    interval_of_mean,
    interval_of_ratio,
    log_variance,
    rounds_to_decide,
)

# Logarithms 0, 0.1, 0.2: mean 0.1, variance 0.01.
THREE = (1.0, math.exp(0.1), math.exp(0.2))
# Recorded rounds of the cpu rig (cpu-rig/README.md, OMP 1), output tok/s, and an invented slower set.
RIG = (1937.0, 1793.0, 1988.0, 1933.0, 1881.0)
SLOWER = (1702.0, 1689.0, 1755.0)

rates = st.floats(min_value=0.5, max_value=2e5, allow_nan=False)
rounds = st.lists(rates, min_size=2, max_size=8)
alphas = st.floats(min_value=1e-4, max_value=0.3)


def log_normal(rng: random.Random, count: int, sigma: float, mean: float = 1000.0) -> list[float]:
    return [mean * math.exp(rng.gauss(0, sigma)) for _ in range(count)]


def of_ratio(
    new: list[float] | tuple[float, ...], reference: list[float] | tuple[float, ...], alpha: float
) -> Interval:
    interval = interval_of_ratio(new, reference, alpha=alpha)
    assert interval is not None
    return interval


@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.01, 0.00125])
@pytest.mark.parametrize(("new", "reference"), [(SLOWER, RIG), (RIG, SLOWER), (RIG, THREE)])
def test_ratio_is_welch_on_logarithms(new: tuple[float, ...], reference: tuple[float, ...], alpha: float) -> None:
    test = stats.ttest_ind([math.log(x) for x in new], [math.log(x) for x in reference], equal_var=False)
    # SciPy's two-sided level 1 - 2 alpha has the one-sided limits of alpha.
    low, high = test.confidence_interval(confidence_level=1 - 2 * alpha)
    interval = of_ratio(new, reference, alpha)
    assert interval.lower == pytest.approx(math.exp(low), rel=1e-9)
    assert interval.upper == pytest.approx(math.exp(high), rel=1e-9)
    assert interval.df == pytest.approx(float(test.df), rel=1e-9)
    assert interval.alpha == alpha


def test_mean_is_student_on_logarithms() -> None:
    logs = [math.log(x) for x in RIG]
    low, high = stats.t.interval(0.9, 4, loc=sum(logs) / 5, scale=stats.sem(logs))
    interval = interval_of_mean(RIG, alpha=0.05)
    assert interval is not None
    assert (interval.lower, interval.upper) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)


def test_ratio_by_hand_with_a_printed_table() -> None:
    # Equal variances 0.01 of three each: df 4, where every table of Student's t has 2.132 at 95 %.
    interval = of_ratio(THREE, THREE, 0.05)
    assert interval.estimate == pytest.approx(1)
    assert interval.df == pytest.approx(4)
    assert interval.log_se == pytest.approx(0.0816497, abs=1e-7)
    assert math.log(interval.upper) == pytest.approx(2.132 * 0.0816497, abs=5e-5)
    assert math.log(interval.lower) == pytest.approx(-2.132 * 0.0816497, abs=5e-5)


def test_between_component_by_hand() -> None:
    # 2 x 0.01/3 with 2 df each and 2 x 0.03^2 with 9: variance 0.0084667, Satterthwaite 6.249.
    interval = interval_of_ratio(THREE, THREE, alpha=0.05, between=[Component(0.0018, 9)])
    assert interval is not None
    assert interval.log_se == pytest.approx(math.sqrt(0.0084667), rel=1e-5)
    assert interval.df == pytest.approx(6.249, abs=2e-3)


def test_large_samples_tend_to_the_normal_table() -> None:
    many = THREE * 4000
    interval = of_ratio(many, many, 0.05)
    assert math.log(interval.upper) / interval.log_se == pytest.approx(1.6449, abs=1e-3)


def test_a_single_round_borrows_the_other_sides_spread_once() -> None:
    # One new observation against n: the prediction interval of every textbook, s^2 (1 + 1/n) with n - 1 df.
    interval = of_ratio([1.3], THREE, 0.05)
    assert interval.log_se == pytest.approx(math.sqrt(0.01 * 4 / 3))
    assert interval.df == pytest.approx(2)
    assert of_ratio(THREE, [1.3], 0.05).df == pytest.approx(2)


def test_two_single_rounds_share_the_platforms_noise() -> None:
    interval = interval_of_ratio([1.3], [1.1], alpha=0.05, fallback_cv=(0.04, 9))
    assert interval is not None
    assert interval.log_se == pytest.approx(0.04 * math.sqrt(2))
    assert interval.df == pytest.approx(9)
    # A side with rounds of its own keeps its own spread.
    interval = interval_of_ratio(THREE, [1.1], alpha=0.05, fallback_cv=(0.04, 9))
    assert interval is not None
    assert interval.log_se == pytest.approx(math.sqrt(0.01 / 3 + 0.0016))


def test_nothing_to_estimate_a_spread_from() -> None:
    assert interval_of_ratio([1.3], [1.1], alpha=0.05) is None
    assert interval_of_mean([1.3], alpha=0.05) is None
    one = interval_of_mean([1.3], alpha=0.05, fallback_cv=(0.04, 9))
    assert one is not None
    assert one.log_se == pytest.approx(0.04)
    assert coefficient_of_variation([1.3]) is None


def test_an_interval_too_wide_for_a_float() -> None:
    # Two rounds a side at the alpha of a large suite: t with 1 or 2 df is in the thousands.
    interval = of_ratio([1.0, 9.0], [1.0, 1.0], 1e-6)
    assert interval.upper == math.inf
    assert interval.lower == 0
    assert detectable_drop(interval, 0.05) == pytest.approx(1)


def test_mean_and_spread_by_hand() -> None:
    assert geometric_mean([1, 100]) == pytest.approx(10)
    assert geometric_mean([1e300, 1e300, 1e300]) == pytest.approx(1e300)
    assert log_variance(THREE) == pytest.approx(0.01)
    assert coefficient_of_variation(THREE) == pytest.approx(0.1)


def test_scaled() -> None:
    interval = of_ratio(RIG, SLOWER, 0.05)
    double = interval.scaled(2)
    assert (double.estimate, double.lower, double.upper) == pytest.approx(
        (2 * interval.estimate, 2 * interval.lower, 2 * interval.upper)
    )
    assert (double.log_se, double.df, double.alpha) == (interval.log_se, interval.df, interval.alpha)


# -- properties ---------------------------------------------------------------------------------------------


@given(rounds, rounds, alphas, alphas)
def test_contains_the_estimate_and_widens_as_alpha_shrinks(
    new: list[float], reference: list[float], one: float, other: float
) -> None:
    small, large = sorted((one, other))
    wide, narrow = of_ratio(new, reference, small), of_ratio(new, reference, large)
    for interval in (wide, narrow):
        assert interval.lower <= interval.estimate <= interval.upper
    assert wide.lower <= narrow.lower * (1 + 1e-12)
    assert wide.upper >= narrow.upper * (1 - 1e-12)


@given(rounds, rounds, alphas, st.floats(min_value=1e-3, max_value=1e3))
def test_units_do_not_matter(new: list[float], reference: list[float], alpha: float, unit: float) -> None:
    before = of_ratio(new, reference, alpha)
    after = of_ratio([x * unit for x in new], [x * unit for x in reference], alpha)
    assume(before.log_se > 1e-9)  # below, rounding is all there is
    assert after.estimate == pytest.approx(before.estimate, rel=1e-6)
    assert after.log_se == pytest.approx(before.log_se, rel=1e-4)


@given(rounds, rounds, alphas)
def test_the_ratio_the_other_way_round_is_the_inverse(a: list[float], b: list[float], alpha: float) -> None:
    ab, ba = of_ratio(a, b, alpha), of_ratio(b, a, alpha)
    assume(ab.upper < 1e100)
    assert ab.estimate * ba.estimate == pytest.approx(1, rel=1e-9)
    assert ab.lower * ba.upper == pytest.approx(1, rel=1e-6)
    assert ab.upper * ba.lower == pytest.approx(1, rel=1e-6)


@given(rounds, rounds, alphas, st.floats(min_value=1e-6, max_value=0.1), st.integers(min_value=1, max_value=30))
def test_a_session_component_never_moves_the_estimate_and_adds_its_variance(
    new: list[float], reference: list[float], alpha: float, variance: float, df: int
) -> None:
    plain = of_ratio(new, reference, alpha)
    wider = interval_of_ratio(new, reference, alpha=alpha, between=[Component(variance, df)])
    assert wider is not None
    assert wider.estimate == plain.estimate
    assert wider.log_se**2 == pytest.approx(plain.log_se**2 + variance)


# -- calibration, with fixed seeds --------------------------------------------------------------------------


def misses(
    seed: int, repeats: int, alpha: float, *, sigma: tuple[float, float], count: tuple[int, int], between: float = 0.0
) -> tuple[float, float]:
    """How often the true ratio 1 lies below the lower and above the upper limit.

    ``between``: true session effect; the interval is told an estimate of it from 10 sessions.
    """
    rng = random.Random(seed)
    below = above = 0
    for _ in range(repeats):
        new = log_normal(rng, count[0], sigma[0], 1000 * math.exp(rng.gauss(0, between)))
        reference = log_normal(rng, count[1], sigma[1], 1000 * math.exp(rng.gauss(0, between)))
        chi2 = math.fsum(rng.gauss(0, 1) ** 2 for _ in range(9))
        parts = [Component(2 * between**2 * chi2 / 9, 9)] if between else []
        interval = interval_of_ratio(new, reference, alpha=alpha, between=parts)
        assert interval is not None
        below += interval.lower > 1
        above += interval.upper < 1
    return below / repeats, above / repeats


@pytest.mark.parametrize(
    ("sigma", "count", "between"),
    [
        ((0.04, 0.04), (5, 5), 0.0),
        ((0.02, 0.08), (5, 5), 0.0),
        ((0.08, 0.02), (4, 9), 0.0),
        ((0.04, 0.04), (1, 5), 0.0),  # one new round: borrowed spread
        ((0.03, 0.03), (5, 5), 0.03),
        ((0.02, 0.02), (5, 5), 0.08),
    ],
)
def test_coverage(sigma: tuple[float, float], count: tuple[int, int], between: float) -> None:
    # 4 standard deviations of a binomial of 4,000 at 5 % are 1.4 points; Welch itself is within 1 point.
    for share in misses(11, 4000, 0.05, sigma=sigma, count=count, between=between):
        assert 0.026 < share < 0.064 + (0.004 if between else 0)


def test_ignoring_sessions_would_break_the_error_rate() -> None:
    """Why the component is there: without it an unchanged cell is "surely" slower one night in four."""
    rng = random.Random(5)
    wrong = 0
    for _ in range(1000):
        new, old = (log_normal(rng, 5, 0.03, 1000 * math.exp(rng.gauss(0, 0.05))) for _ in range(2))
        wrong += of_ratio(new, old, 0.05).upper < 1
    assert wrong > 200


# -- power and rounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("df", [4.0, 5.5, 8.0, 30.0])
@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.00125])
def test_power_at_the_detectable_drop_is_the_noncentral_ts(df: float, alpha: float) -> None:
    interval = Interval(1.0, 0.9, 1.1, 0.02, df, alpha)
    drop = detectable_drop(interval, 0.05)
    off = math.log(0.95 / (1 - drop)) / 0.02
    power = stats.nct.sf(stats.t.ppf(1 - alpha, df), df, off)
    assert 0.94 < power < 0.955


def test_power_of_the_normal_limit_by_hand() -> None:
    # df infinite: z(0.95) + z(0.95) = 3.28971; 1 - 0.9 exp(-0.0328971) = 0.12913.
    assert detectable_drop(Interval(1, 1, 1, 0.01, math.inf, 0.05), 0.1) == pytest.approx(0.12913, abs=1e-5)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_power_at_the_detectable_drop_by_simulation(alpha: float) -> None:
    """Five rounds a side whose log variance is exactly 0.04^2; then nights with just the drop it names."""
    pattern = [math.exp(0.04 * math.sqrt(4 / 10) * step) for step in (-2, -1, 0, 1, 2)]
    assert log_variance(pattern) == pytest.approx(0.04**2)
    drop = detectable_drop(of_ratio(pattern, pattern, alpha), 0.05)
    rng = random.Random(3)
    seen = sum(
        of_ratio(log_normal(rng, 5, 0.04, 1 - drop), log_normal(rng, 5, 0.04, 1.0), alpha).upper < 0.95
        for _ in range(2000)
    )
    # Welch's own df is below 8 on most nights: a little under 95 %.
    assert 0.915 < seen / 2000 < 0.965


def decides(count: int, *, distance: float, variance: float, fixed: float, fixed_df: float, alpha: float) -> bool:
    """The same question, asked of SciPy alone."""
    total = variance / count + fixed
    df = total**2 / ((variance / count) ** 2 / (count - 1) + fixed**2 / fixed_df)
    return bool(stats.t.ppf(1 - alpha, df) * math.sqrt(total) < distance)


@pytest.mark.parametrize("estimate", [0.91, 0.97, 1.0, 1.05])
def test_rounds_to_decide_is_the_first_number_that_decides(estimate: float) -> None:
    variance, fixed, alpha, bound = 0.05**2, 0.01**2, 0.01, 0.94
    interval = Interval(estimate, 0, 2, math.sqrt(variance / 3 + fixed), 3.0, alpha)
    count = rounds_to_decide(interval, bound, rounds=3, run_variance=variance, fixed=[Component(fixed, 9)])
    assert count is not None
    assert count > 3
    asked = {"distance": abs(math.log(estimate / bound)), "variance": variance, "fixed": fixed, "fixed_df": 9}
    assert decides(count, **asked, alpha=alpha)
    assert all(not decides(fewer, **asked, alpha=alpha) for fewer in range(4, count))


def test_rounds_to_decide_when_more_rounds_cannot() -> None:
    interval = Interval(0.96, 0.8, 1.1, 0.1, 5.0, 0.01)
    # The baseline's own 5 % alone is too much for a distance of 1 %.
    assert rounds_to_decide(interval, 0.95, rounds=5, run_variance=0.01, fixed=[Component(0.05**2, 4)]) is None
    # The estimate sits on the bound.
    on_bound = Interval(0.95, 0.8, 1.1, 0.1, 5.0, 0.01)
    assert rounds_to_decide(on_bound, 0.95, rounds=5, run_variance=0.01, fixed=[]) is None
    assert rounds_to_decide(interval, 0.95, rounds=MOST_ROUNDS, run_variance=1e-6, fixed=[]) is None
