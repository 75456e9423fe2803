"""Variance components: simulated data of known variances, hand arithmetic, and what is told of data that don't fit."""

from __future__ import annotations

import math
import random
import statistics as plain
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.noise.components import Component, Estimate, Series, estimate
from pytest_r1perf.noise.order import cold_first, order, outlier
from pytest_r1perf.report.noise import noise_table, remarks


def nested(
    rng: random.Random,
    *,
    hosts: int = 1,
    sessions: Sequence[int] = (1,),
    runs: Sequence[int] = (10,),
    windows: Sequence[int] = (1,),
    cv: tuple[float, float, float, float] = (0.0, 0.02, 0.0, 0.0),
    cell: str = "a",
    mean: float = 1000.0,
) -> list[Series]:
    """Data of the model: CVs of windows, processes, sessions, hosts; numbers are taken in turn from the lists."""
    found = []
    for host in range(hosts):
        at_host = rng.gauss(0, cv[3])
        for session in range(sessions[host % len(sessions)]):
            at_session = at_host + rng.gauss(0, cv[2])
            values = []
            for run in range(runs[(host + session) % len(runs)]):
                at_run = at_session + rng.gauss(0, cv[1])
                count = windows[run % len(windows)]
                values.append(tuple(mean * math.exp(at_run + rng.gauss(0, cv[0])) for _ in range(count)))
            found.append(Series(cell, f"host{host}", f"{host}.{session}", tuple(values)))
    return found


def single(*values: float, session: str = "s", host: str = "h", cell: str = "a") -> Series:
    return Series(cell, host, session, tuple((value,) for value in values))


def known(component: Component | None) -> Component:
    assert component is not None
    return component


# -- by hand ------------------------------------------------------------------------------------------------


def test_one_session_is_the_standard_deviation_of_the_logarithms() -> None:
    logs = (0.0, 0.1, 0.2, 0.1, 0.0)
    found = estimate([single(*map(math.exp, logs))])
    assert found.round.cv == pytest.approx(plain.stdev(logs))
    assert found.round.df == 4
    assert found.round.count == 5
    assert (found.window, found.process, found.session, found.host) == (None, None, None, None)
    assert found.windows == 1


def test_the_limits_of_one_mean_square_are_chi_squared() -> None:
    values = [1000 * math.exp(0.01 * x) for x in (-3, 1, 0, 2, -1, 4, 0, -2, 1, -2)]
    found = estimate([single(*values)]).round
    spread = plain.variance(map(math.log, values))
    low, high = (math.sqrt(9 * spread / stats.chi2.ppf(q, 9)) for q in (0.975, 0.025))
    # 40,000 draws find a tail of 2.5 % within 2 % of the limit.
    assert found.lower == pytest.approx(low, rel=0.02)
    assert found.upper == pytest.approx(high, rel=0.02)


def test_balanced_windows_are_the_textbook_anova() -> None:
    # Two windows in each of three processes; logarithms.
    logs = ((0.0, 0.2), (0.5, 0.3), (0.9, 0.9))
    found = estimate([Series("a", "h", "s", tuple(tuple(map(math.exp, run)) for run in logs))])
    # Means 0.1, 0.4, 0.9: their variance is 0.49/3. Within: (0.02 + 0.02 + 0)/3.
    assert known(found.window).variance == pytest.approx(0.04 / 3)
    assert known(found.window).df == 3
    assert found.round.variance == pytest.approx(0.49 / 3)
    assert known(found.process).variance == pytest.approx(0.49 / 3 - 0.04 / 3 / 2)
    # Satterthwaite: (A - B)^2 / (A^2/2 + B^2/3) with A = 0.49/3, B = 0.02/3.
    a, b = 0.49 / 3, 0.02 / 3
    assert known(found.process).df == pytest.approx((a - b) ** 2 / (a**2 / 2 + b**2 / 3))


DYESTUFF = """
1545 1440 1440 1520 1580
1540 1555 1490 1560 1495
1595 1550 1605 1510 1560
1445 1440 1595 1465 1545
1595 1630 1515 1635 1625
1520 1455 1450 1480 1445
"""


def test_a_published_example() -> None:
    """Yields of dyestuff from six batches (Davies, Statistical Methods in Research and Production (1947), table 6.1).

    The published estimates, also lme4's by REML: 1764 between batches and 2451 within.
    """
    batches = [[float(value) / 1000 for value in line.split()] for line in DYESTUFF.strip().splitlines()]
    found = estimate([single(*map(math.exp, batch), session=str(number)) for number, batch in enumerate(batches)])
    assert found.round.variance * 1e6 == pytest.approx(2451, abs=0.5)
    assert known(found.session).variance * 1e6 == pytest.approx(1764, abs=0.5)
    assert (found.round.df, known(found.session).count) == (24, 6)


def test_unequal_sessions_by_hand() -> None:
    # Session means 0.1 of two and 0.4 of four; within: 0.02 (df 1) and 0.0008 in all (df 3).
    one, two = (0.0, 0.2), (0.38, 0.39, 0.41, 0.42)
    found = estimate([single(*map(math.exp, one), session="1"), single(*map(math.exp, two), session="2")])
    within = (0.02 + 0.001) / 4
    assert found.round.variance == pytest.approx(within)
    # The variance of the two means is 0.045; of it a process has, on average over sessions, (1/2 + 1/4)/2.
    assert known(found.session).variance == pytest.approx(0.045 - within * 0.375)
    assert known(found.session).count == 2


def test_a_session_that_adds_nothing_is_0_and_says_so() -> None:
    series = [single(990, 1010, 995, 1005, session="1"), single(1011, 991, 1005, 995, session="2")]
    found = estimate(series)
    session = known(found.session)
    assert session.variance < 0
    assert session.cv == 0
    assert session.lower == 0
    assert session.upper > 0
    assert any(line.startswith("session: the estimate is below 0") for line in remarks(found, series))


def test_hosts_without_a_second_session_hold_what_sessions_add() -> None:
    rng = random.Random(1)
    series = nested(rng, hosts=4, cv=(0, 0.01, 0.05, 0.0))
    found = estimate(series)
    assert found.session is None
    assert known(found.host).cv > 0.02
    assert any("what sessions add is in it" in line for line in remarks(found, series))


def test_cells_have_means_of_their_own_but_share_their_sessions() -> None:
    fast = [single(100, 101, session=f"{n}", cell="fast") for n in range(3)]
    slow = [single(1.00, 1.01, session=f"{n}", cell="slow") for n in range(3)]
    found = estimate([*fast, *slow])
    assert found.cells == 2
    assert found.round.cv == pytest.approx(math.log(1.01) / math.sqrt(2))
    assert found.round.df == 6
    assert known(found.session).cv == 0
    # Twice as many means, but three sessions: two degrees of freedom.
    assert known(found.session).df == pytest.approx(2)
    assert known(found.session).count == 3


# -- known variances ----------------------------------------------------------------------------------------


TRUTH = (0.03, 0.02, 0.015, 0.04)


@pytest.mark.parametrize(
    ("sessions", "runs", "windows"),
    [((6,), (5,), (3,)), ((3, 9, 4), (2, 8, 3), (1, 4, 2))],
    ids=["balanced", "unbalanced"],
)
def test_components_are_unbiased(sessions: tuple[int, ...], runs: tuple[int, ...], windows: tuple[int, ...]) -> None:
    rng = random.Random(7)
    found = [estimate(nested(rng, hosts=6, sessions=sessions, runs=runs, windows=windows, cv=TRUTH)) for _ in range(60)]
    for level, truth in zip(("window", "process", "session", "host"), TRUTH, strict=True):
        variances = [known(getattr(one, level)).variance for one in found]
        error = plain.stdev(variances) / math.sqrt(len(variances))
        assert plain.fmean(variances) == pytest.approx(truth**2, abs=4 * error), level


def test_round_is_what_the_plugin_averages() -> None:
    """``run_cv`` holds the windows' part, by the number of windows that there were."""
    rng = random.Random(3)
    found = estimate(nested(rng, sessions=(60,), runs=(10,), windows=(4,), cv=(0.04, 0.02, 0.0, 0.0)))
    assert found.round.cv == pytest.approx(math.sqrt(0.02**2 + 0.04**2 / 4), rel=0.1)
    assert known(found.process).cv == pytest.approx(0.02, rel=0.25)
    assert known(found.window).cv == pytest.approx(0.04, rel=0.1)
    assert found.windows == 4


def test_limits_hold_the_truth_as_often_as_they_say() -> None:
    rng = random.Random(11)
    held = {"process": 0, "session": 0}
    nights = 100
    for _ in range(nights):
        found = estimate(nested(rng, sessions=(8,), runs=(5, 7), windows=(3,), cv=(0.03, 0.02, 0.02, 0.0)))
        for level in held:
            component = known(getattr(found, level))
            held[level] += component.lower <= 0.02 <= component.upper
    # 95 %, less three standard errors of 100 nights.
    assert all(count >= 88 for count in held.values()), held


# -- properties ---------------------------------------------------------------------------------------------

values = st.floats(min_value=1.0, max_value=1e5)
some_runs = st.lists(st.lists(values, min_size=1, max_size=3).map(tuple), min_size=2, max_size=4).map(tuple)
trees = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("hi"), some_runs), min_size=1, max_size=4)


def built(tree: list[tuple[str, str, tuple[tuple[float, ...], ...]]], unit: float = 1.0) -> list[Series]:
    return [
        Series(cell, host, str(number), tuple(tuple(value * unit for value in run) for run in runs))
        for number, (cell, host, runs) in enumerate(tree)
    ]


def figures(found: Estimate) -> list[tuple[float, float, float]]:
    levels = (found.round, found.window, found.process, found.session, found.host)
    return [(one.cv, one.lower, one.upper) for one in levels if one is not None]


@settings(max_examples=40)
@given(trees, st.floats(min_value=1e-3, max_value=1e3))
def test_units_do_not_matter(tree: list[tuple[str, str, tuple[tuple[float, ...], ...]]], unit: float) -> None:
    before, after = estimate(built(tree)), estimate(built(tree, unit))
    for one, other in zip(figures(before), figures(after), strict=True):
        assert other == pytest.approx(one, rel=1e-6, abs=1e-6)


@settings(max_examples=40)
@given(trees, st.randoms())
def test_the_order_of_series_does_not_matter(
    tree: list[tuple[str, str, tuple[tuple[float, ...], ...]]], rng: random.Random
) -> None:
    series = built(tree)
    shuffled = rng.sample(series, len(series))
    for one, other in zip(figures(estimate(series)), figures(estimate(shuffled)), strict=True):
        assert other == pytest.approx(one, rel=1e-6, abs=1e-6)


@settings(max_examples=40)
@given(trees)
def test_limits_are_in_order_and_never_below_0(tree: list[tuple[str, str, tuple[tuple[float, ...], ...]]]) -> None:
    found = estimate(built(tree))
    for cv, lower, upper in figures(found):
        assert 0 <= lower <= upper
        assert cv >= 0
    assert noise_table(found).count("\n") == 6


# -- degenerate ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_what_has_no_logarithm_is_refused(bad: float) -> None:
    with pytest.raises(R1PerfError, match=r"session s: .* is no measurement"):
        estimate([single(1000, bad, 1001)])


@pytest.mark.parametrize("series", [[], [single(1000)], [single(1000, session="1"), single(1001, session="2")]])
def test_nothing_repeated_is_refused(series: list[Series]) -> None:
    with pytest.raises(R1PerfError, match="two processes of one cell"):
        estimate(series)


def test_equal_values_have_no_noise_and_nothing_is_told() -> None:
    series = [single(1000, 1000, 1000, 1000, session=name) for name in "12"]
    found = estimate(series)
    assert (found.round.cv, found.round.lower, found.round.upper) == (0, 0, 0)
    assert order([one.logs for one in series]) is None
    assert outlier([one.logs for one in series]) is None


# -- order --------------------------------------------------------------------------------------------------


def noisy(rng: random.Random, count: int, *, drift: float = 0.0, alike: float = 0.0) -> list[float]:
    values, before = [], rng.gauss(0, 1)
    for place in range(count):
        before = alike * before + math.sqrt(1 - alike**2) * rng.gauss(0, 1)
        values.append(0.02 * before + drift * place)
    return values


def test_an_outlier_is_found_and_the_figure_without_it_told() -> None:
    rng = random.Random(5)
    series = [single(*(1000 * math.exp(x) for x in noisy(rng, 10)), session=name) for name in "12"]
    clean = estimate(series).round.cv
    assert not any("makes the figure" in line for line in remarks(estimate(series), series))
    values = [run[0] for run in series[1].runs]
    values[6] *= 0.8
    spoilt = [series[0], single(*values, session="2")]
    (line,) = [line for line in remarks(estimate(spoilt), spoilt) if "one process makes the figure" in line]
    assert "the 7th of session 2" in line
    found = outlier([one.logs for one in spoilt])
    assert found is not None
    assert (found.group, found.place) == (1, 6)
    assert found.without == pytest.approx(clean, rel=0.25)
    assert found.cv == pytest.approx(estimate(spoilt).round.cv)


def test_the_outlier_test_is_grubbs() -> None:
    values = (2.0, 2.1, 1.9, 2.05, 1.95, 2.6)
    found = outlier([values])
    assert found is not None
    g = (2.6 - plain.fmean(values)) / plain.stdev(values)
    # Grubbs, Technometrics 11 (1969): G as a t value of n - 2 degrees of freedom.
    t = math.sqrt(6 * 4 * g**2 / (25 - 6 * g**2))
    assert found.p == pytest.approx(2 * 6 * stats.t.sf(t, 4))


def test_a_cold_first_process_is_told() -> None:
    rng = random.Random(9)
    groups = [[x - 0.15 * (place == 0) for place, x in enumerate(noisy(rng, 6))] for _ in range(3)]
    found = cold_first(groups)
    assert found is not None
    assert found.ratio == pytest.approx(math.exp(-0.15), abs=0.04)
    assert found.p < 1e-4
    series = [single(*map(math.exp, group), session=str(number)) for number, group in enumerate(groups)]
    assert any("the first process of a session is unlike" in line for line in remarks(estimate(series), series))


def test_the_cold_first_test_is_students() -> None:
    values = [0.1, 0.0, 0.02, -0.01, 0.03]
    found = cold_first([values])
    assert found is not None
    expected = stats.ttest_ind(values[:1], values[1:])  # the spread is the others' alone: 3 degrees of freedom
    assert found.p == pytest.approx(expected.pvalue)


def test_drift_and_likeness_are_told_and_noise_is_not() -> None:
    rng = random.Random(13)
    drifting = order([noisy(rng, 10, drift=0.01) for _ in range(2)])
    alike = order([noisy(rng, 40, alike=0.8)])
    assert drifting is not None
    assert alike is not None
    assert drifting.drift == pytest.approx(0.01, abs=0.005)
    assert drifting.drift_p < 0.01
    assert alike.lag1 > 0.5
    assert alike.lag1_p < 0.01
    found = [order([noisy(rng, 10)]) for _ in range(100)]
    for name in ("drift_p", "lag1_p"):
        # p values are even: below 0.2 lie 20 of 100, with a standard deviation of 4.
        assert 8 <= sum(getattr(one, name) < 0.2 for one in found) <= 32


@given(st.lists(values, min_size=4, max_size=8))
def test_turned_round_the_drift_has_the_other_sign(numbers: list[float]) -> None:
    logs = [math.log(value) for value in numbers]
    assume(plain.pstdev(logs) > 1e-6)
    there, back = order([logs]), order([logs[::-1]])
    assert there is not None
    assert back is not None
    assert math.log1p(there.drift) == pytest.approx(-math.log1p(back.drift), abs=1e-9)
    assert there.lag1 == pytest.approx(back.lag1, abs=1e-9)


def test_too_few_for_an_order() -> None:
    assert order([[0.0, 0.1, 0.2]]) is None
    assert cold_first([[0.0, 0.1]]) is None
    assert outlier([[0.0, 0.1], [0.2, 0.1]]) is None
