"""Intervals, power and rounds to decide: against SciPy, printed tables, hand arithmetic and simulation."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

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
    pooled_variance,
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


def of_ratio(new: Sequence[float], reference: Sequence[float], alpha: float, beta: float | None = None) -> Interval:
    interval = interval_of_ratio(new, reference, alpha=alpha, beta=beta)
    assert interval is not None
    return interval


def spread_out(count: int, variance: float, mean: float = 1.0) -> list[float]:
    """``count`` rounds with this geometric mean and this log variance, exactly."""
    steps = [index - (count - 1) / 2 for index in range(count)]
    scale = math.sqrt(variance * (count - 1) / math.fsum(step * step for step in steps))
    return [mean * math.exp(scale * step) for step in steps]


def limits_by_scipy(
    new: Sequence[float], reference: Sequence[float], level: float, *, pooled: bool
) -> tuple[float, float, float]:
    """One-sided lower and upper limit of this level, and the degrees of freedom, from SciPy's t test."""
    test = stats.ttest_ind([math.log(x) for x in new], [math.log(x) for x in reference], equal_var=pooled)
    # SciPy's two-sided level 1 - 2 alpha has the one-sided limits of alpha.
    low, high = test.confidence_interval(confidence_level=1 - 2 * level)
    return math.exp(low), math.exp(high), float(test.df)


# F at 5 %, one-sided, as printed: F(2, 4) = 6.94, F(2, 9) = 4.26, F(4, 4) = 6.39.
RULES = {
    # name: (the two sides: count and log variance), upper limit pooled, lower limit pooled
    "smaller and quieter": (((3, 0.001), (10, 0.004)), True, True),
    "smaller and much quieter": (((3, 1e-6), (5, 0.004)), True, True),
    "smaller, noisier by chance": (((3, 0.0042), (10, 0.001)), False, True),
    "smaller, noisier by more than chance": (((3, 0.0043), (10, 0.001)), False, False),
    "five, by chance": (((3, 0.0069), (5, 0.001)), False, True),
    "five, by more than chance": (((3, 0.0070), (5, 0.001)), False, False),
    "as many, as noisy": (((5, 0.001), (5, 0.001)), False, True),
    "as many, noisier by chance": (((5, 0.0063), (5, 0.001)), False, True),
    "as many, noisier by more than chance": (((5, 0.0065), (5, 0.001)), False, False),
}


@pytest.mark.parametrize("swapped", [False, True], ids=["new is smaller", "reference is smaller"])
@pytest.mark.parametrize("rule", RULES)
def test_which_limit_is_pooled_and_which_is_welch(rule: str, swapped: bool) -> None:
    """The side with fewer rounds counts, whichever it is; of two with as many, the noisier."""
    sides, upper_pooled, lower_pooled = RULES[rule]
    new, reference = (spread_out(count, variance, 1000) for count, variance in (sides[::-1] if swapped else sides))
    interval = of_ratio(new, reference, 0.01, 0.1)
    _, upper, df = limits_by_scipy(new, reference, 0.01, pooled=upper_pooled)
    lower, _, _ = limits_by_scipy(new, reference, 0.1, pooled=lower_pooled)
    assert interval.upper == pytest.approx(upper, rel=1e-9)
    assert interval.df == pytest.approx(df, rel=1e-9)
    assert interval.lower == pytest.approx(lower, rel=1e-9)
    # Pooled and Welch differ here, so that the wrong one is seen.
    assert upper != pytest.approx(limits_by_scipy(new, reference, 0.01, pooled=not upper_pooled)[1], rel=1e-4) or (
        rule == "as many, as noisy"
    )


@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.01, 0.00125])
@pytest.mark.parametrize(
    ("new", "reference", "upper_pooled"),
    [(SLOWER, RIG, True), (RIG, SLOWER, True), (RIG, THREE, False), (THREE, RIG, False)],
)
def test_ratio_is_a_t_test_on_logarithms(
    new: tuple[float, ...], reference: tuple[float, ...], upper_pooled: bool, alpha: float
) -> None:
    """SLOWER is quieter than RIG; THREE is 6.6 times as noisy, less than the 6.94 of F(2, 4) at 5 %."""
    interval = of_ratio(new, reference, alpha)
    assert interval.lower == pytest.approx(limits_by_scipy(new, reference, alpha, pooled=True)[0], rel=1e-9)
    _, upper, df = limits_by_scipy(new, reference, alpha, pooled=upper_pooled)
    assert interval.upper == pytest.approx(upper, rel=1e-9)
    assert interval.df == pytest.approx(df, rel=1e-9)
    assert (interval.alpha, interval.beta) == (alpha, alpha)


def test_the_lower_limit_has_a_rate_of_its_own() -> None:
    # Five and five as noisy: df 8, where tables of Student's t have 1.397 at 90 % and 2.896 at 99 %.
    values = spread_out(5, 0.04**2, 1000)
    interval = of_ratio(values, values, 0.01, 0.1)
    log_se = 0.04 * math.sqrt(2 / 5)
    assert math.log(interval.upper) == pytest.approx(2.896 * log_se, abs=2e-5)
    assert math.log(interval.lower) == pytest.approx(-1.397 * log_se, abs=2e-5)
    assert (interval.alpha, interval.beta) == (0.01, 0.1)
    # One side: df 4, 1.533 and 3.747.
    mean = interval_of_mean(values, alpha=0.01, beta=0.1, unit=1000)
    assert mean is not None
    assert math.log(mean.upper) == pytest.approx(3.747 * 0.04 / math.sqrt(5), abs=2e-5)
    assert math.log(mean.lower) == pytest.approx(-1.533 * 0.04 / math.sqrt(5), abs=2e-5)


def test_a_look_that_may_spend_nothing_has_no_limit() -> None:
    interval = of_ratio(RIG, SLOWER, 0.0, 0.05)
    assert interval.upper == math.inf
    assert interval.lower == pytest.approx(limits_by_scipy(RIG, SLOWER, 0.05, pooled=True)[0])
    assert detectable_drop(interval, 0.05) == 1.0
    assert of_ratio(RIG, SLOWER, 0.05, 0.0).lower == 0


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


def test_between_component_of_a_pooled_pair_by_hand() -> None:
    # Two new rounds, 0.1 apart (variance 0.005), against THREE (0.01): pooled (0.005 + 2 x 0.01) / 3 = 1/120 with 3
    # df; of the means 1/120 x (1/2 + 1/3) = 1/144. With 0.0018 of 9 df: 0.00874444, Satterthwaite 4.6526.
    two = (1.0, math.exp(0.1))
    interval = interval_of_ratio(two, THREE, alpha=0.05, between=[Component(0.0018, 9)])
    assert interval is not None
    assert interval.log_se == pytest.approx(math.sqrt(0.00874444), rel=1e-6)
    assert interval.df == pytest.approx(4.6526, abs=1e-4)
    quantile = float(stats.t.ppf(0.95, 4.6526))
    centre = 0.05 - 0.1
    assert math.log(interval.upper) == pytest.approx(centre + quantile * math.sqrt(0.00874444), abs=1e-5)
    assert math.log(interval.lower) == pytest.approx(centre - quantile * math.sqrt(0.00874444), abs=1e-5)


def test_pooled_variance_by_hand() -> None:
    pooled = pooled_variance(((1.0, math.exp(0.1)), THREE, (7.0,)))
    assert (pooled.variance, pooled.df) == pytest.approx((1 / 120, 3))
    assert pooled_variance(((7.0,),)).df == 0


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
    assert (double.log_se, double.df) == (interval.log_se, interval.df)
    assert (double.alpha, double.beta) == (interval.alpha, interval.beta)


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
    """Each limit lies as far from the estimate whichever side is called new."""
    ab, ba = of_ratio(a, b, alpha), of_ratio(b, a, alpha)
    assert ab.estimate * ba.estimate == pytest.approx(1, rel=1e-9)
    assert (ab.log_se, ab.df) == pytest.approx((ba.log_se, ba.df), rel=1e-6)
    below, above = (math.log(x.estimate) - math.log(x.lower) if x.lower > 0 else math.inf for x in (ab, ba))
    assume(below < 600)
    assert below == pytest.approx(above, rel=1e-6, abs=1e-9)


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
        ((0.04, 0.04), (4, 9), 0.0),
        ((0.04, 0.04), (3, 20), 0.0),
        ((0.04, 0.04), (1, 5), 0.0),  # one new round: borrowed spread
        ((0.03, 0.03), (5, 5), 0.03),
        ((0.02, 0.02), (5, 5), 0.08),
    ],
)
def test_coverage(sigma: tuple[float, float], count: tuple[int, int], between: float) -> None:
    # 4 standard deviations of a binomial of 4,000 at 5 % are 1.4 points; Welch itself is within 1 point.
    for share in misses(11, 4000, 0.05, sigma=sigma, count=count, between=between):
        assert 0.026 < share < 0.064 + (0.004 if between else 0)


def test_three_rounds_twice_as_noisy_as_twenty() -> None:
    """What the rule gives up: 5.3 % above (Welch) and 10.1 % below (pooled until F tells), by 200,000 nights."""
    below, above = misses(12, 3000, 0.05, sigma=(0.08, 0.04), count=(3, 20))
    assert 0.035 < above < 0.070
    assert 0.080 < below < 0.125


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
    interval = Interval(1.0, 0.9, 1.1, 0.02, df, alpha, 0.1)
    drop = detectable_drop(interval, 0.05)
    off = math.log(0.95 / (1 - drop)) / 0.02
    power = stats.nct.sf(stats.t.ppf(1 - alpha, df), df, off)
    assert 0.94 < power < 0.955


def test_power_of_the_normal_limit_by_hand() -> None:
    # df infinite: z(0.95) + z(0.95) = 3.28971; 1 - 0.9 exp(-0.0328971) = 0.12913.
    assert detectable_drop(Interval(1, 1, 1, 0.01, math.inf, 0.05, 0.05), 0.1) == pytest.approx(0.12913, abs=1e-5)


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


def decides(count: int, *, distance: float, fixed: Component, level: float, run: Component, others: int) -> bool:
    """The same question, asked of SciPy alone; ``others``: rounds of the reference, 0 for a floor."""
    own = run.variance * (1 / count + (1 / others if others else 0))
    total = own + fixed.variance
    df = total**2 / (own**2 / (run.df + count - 1) + fixed.variance**2 / fixed.df)
    return bool(stats.t.ppf(1 - level, df) * math.sqrt(total) < distance)


@pytest.mark.parametrize("others", [0, 50])
@pytest.mark.parametrize("estimate", [0.91, 0.97, 1.0, 1.05])
def test_rounds_to_decide_is_the_first_number_that_decides(estimate: float, others: int) -> None:
    """Below the bound at ``alpha``, above it at ``beta``; a floor, and a reference of 50 rounds as noisy."""
    alpha, beta, bound = 0.01, 0.1, 0.94
    run = Component(0.05**2, max(0, others - 1))
    fixed = Component(0.01**2, 9)
    interval = Interval(estimate, 0, 2, 0.03, 3.0, alpha, beta)
    count = rounds_to_decide(interval, bound, rounds=2, run=run, reference_rounds=others, fixed=[fixed])
    assert count is not None
    level = alpha if estimate < bound else beta

    def decided(after: int) -> bool:
        distance = abs(math.log(estimate / bound))
        return decides(after, distance=distance, fixed=fixed, level=level, run=run, others=others)

    assert decided(count)
    assert not any(decided(fewer) for fewer in range(3, count))


def test_rounds_to_decide_takes_the_side_the_estimate_is_on() -> None:
    # 5 % off either way, one round's variance 0.05^2, df without end: 1 / count < (1 / z)^2, with z(0.999) = 3.090
    # (9.55: the 10th) and z(0.9) = 1.2816 (1.64: the 2nd).
    run = Component(0.05**2, 1e9)
    below = Interval(math.exp(-0.05), 0, 2, 0.05, 1e9, 0.001, 0.1)
    above = Interval(math.exp(0.05), 0, 2, 0.05, 1e9, 0.001, 0.1)
    assert rounds_to_decide(below, 1.0, rounds=1, run=run) == 10
    assert rounds_to_decide(above, 1.0, rounds=1, run=run) == 2


def test_rounds_to_decide_when_more_rounds_cannot() -> None:
    run, quiet = Component(0.01, 4), Component(1e-6, 4)
    interval = Interval(0.96, 0.8, 1.1, 0.1, 5.0, 0.01, 0.01)
    # 5 % between sessions is too much for a distance of 1 %, and so is a reference of five rounds of 10 %.
    assert rounds_to_decide(interval, 0.95, rounds=5, run=quiet, fixed=[Component(0.05**2, 4)]) is None
    assert rounds_to_decide(interval, 0.95, rounds=5, run=run, reference_rounds=5) is None
    assert rounds_to_decide(interval, 0.95, rounds=5, run=quiet, reference_rounds=5) == 6
    # The estimate sits on the bound.
    on_bound = Interval(0.95, 0.8, 1.1, 0.1, 5.0, 0.01, 0.01)
    assert rounds_to_decide(on_bound, 0.95, rounds=5, run=run) is None
    assert rounds_to_decide(interval, 0.95, rounds=MOST_ROUNDS, run=quiet) is None
    # A look that may spend nothing decides nothing.
    nothing = Interval(0.90, 0.8, 1.1, 0.1, 5.0, 0.0, 0.01)
    assert rounds_to_decide(nothing, 0.95, rounds=5, run=quiet) is None
