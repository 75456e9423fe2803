"""Change points: hand-made series, invariances, and the error rates and the power by simulation with fixed seeds.

The simulated series are drawn here; the limits on counts are three standard deviations of the binomial beside the
promised rate, so a seed that fails is a fault and not bad luck.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf.history.changepoint import Analysis, Drift, Step, analyse, fewest_nights
from pytest_r1perf.history.nightly import Point, bad_nights

ALPHA = 0.05


def flat(night: int) -> float:
    return 0.0 * night


def series(
    rng: random.Random,
    nights: int,
    *,
    cv: float,
    shape: Callable[[int], float] = flat,
    rounds: tuple[int, int] = (5, 5),
    run_cv: float = 0.01,
    heavy: bool = False,
) -> list[Point]:
    """Nights of ``shape`` (a logarithm), each with its own luck and rounds about it."""
    found = []
    for night in range(nights):
        luck = rng.gauss(0, 1)
        if heavy:  # Student's t with 3 degrees of freedom, to unit variance
            luck /= math.sqrt(sum(rng.gauss(0, 1) ** 2 for _ in range(3)))
        level = shape(night) + cv * luck
        found.append(Point.of([20000 * math.exp(level + rng.gauss(0, run_cv)) for _ in range(rng.randint(*rounds))]))
    return found


def kinds(analysis: Analysis) -> str:
    return "".join("S" if isinstance(change, Step) else "D" for change in analysis.changes)


def most(trials: int, rate: float) -> float:
    return trials * rate + 3 * math.sqrt(trials * rate * (1 - rate))


# Unchanged series.


@pytest.mark.parametrize(
    "how",
    [
        {"nights": 12, "cv": 0.01},
        {"nights": 30, "cv": 0.01},
        {"nights": 30, "cv": 0.01, "heavy": True},
        {"nights": 30, "cv": 0.003, "rounds": (1, 10), "run_cv": 0.02},
        {"nights": 30, "cv": 0.01, "rounds": (1, 1)},
    ],
    ids=["12 nights", "30 nights", "heavy tails", "unequal nights", "one round a night"],
)
def test_unchanged_series_show_a_change_at_the_promised_rate_at_most(how: dict[str, object]) -> None:
    rng, trials = random.Random(2025), 200
    false = sum(bool(analyse(series(rng, **how), alpha=ALPHA).changes) for _ in range(trials))  # type: ignore[arg-type]
    assert false <= most(trials, ALPHA)


def test_the_rate_follows_alpha() -> None:
    """A quarter of all unchanged series at alpha 0.25: the rate above is no accident of a search that sees nothing."""
    rng, trials = random.Random(2025), 200
    false = sum(bool(analyse(series(rng, 20, cv=0.01), alpha=0.25).changes) for _ in range(trials))
    assert most(trials, 0.15) < false <= most(trials, 0.25)


def test_unchanged_series_have_bad_nights_at_the_promised_rate_at_most() -> None:
    rng, trials = random.Random(2025), 400
    false = sum(bool(bad_nights(series(rng, 30, cv=0.01), alpha=ALPHA)) for _ in range(trials))
    assert 0 < false <= most(trials, ALPHA)


# Power: 30 nights, 5 % less; docs/history.md has these numbers.


@pytest.mark.parametrize(
    ("cv", "after", "least"),
    [(0.01, 3, 0.95), (0.01, 15, 0.95), (0.02, 3, 0.75), (0.02, 5, 0.85), (0.02, 15, 0.80)],
)
def test_power_at_a_drop_of_5_percent(cv: float, after: int, least: float) -> None:
    """A step within a night of where it is, among 30 nights of which ``after`` are of the new level."""
    rng, trials, found = random.Random(2025), 100, 0
    for _ in range(trials):
        points = series(rng, 30, cv=cv, shape=lambda night: math.log(0.95) if night >= 30 - after else 0.0)
        steps = [change for change in analyse(points, alpha=ALPHA).changes if isinstance(change, Step)]
        found += any(abs(step.at - (30 - after)) <= 1 and step.size.upper < 0 for step in steps)
    assert found >= least * trials


def test_sizes_and_places_are_where_they_say_they_are() -> None:
    """Intervals of 95 %: a little less, since the place was chosen by the same nights."""
    rng, trials, sized, placed = random.Random(2025), 100, 0, 0
    for _ in range(trials):
        points = series(rng, 30, cv=0.015, shape=lambda night: -0.05 if night >= 18 else 0.0)
        analysis = analyse(points, alpha=0.02)
        step = next((change for change in analysis.changes if isinstance(change, Step)), None)
        if step is None:
            continue
        sized += step.size.lower <= -0.05 <= step.size.upper
        placed += step.earliest <= 18 <= step.latest
    assert sized >= 0.87 * trials
    assert placed >= 0.90 * trials


# A step, a drift and a bad night are three things.


def test_a_steady_slope_is_a_drift() -> None:
    rng, drifts = random.Random(2025), 0
    for _ in range(50):
        analysis = analyse(series(rng, 30, cv=0.01, shape=lambda night: -0.003 * night), alpha=ALPHA)
        if kinds(analysis) == "D":
            (drift,) = analysis.changes
            assert isinstance(drift, Drift)
            drifts += drift.slope.lower <= -0.003 <= drift.slope.upper and (drift.first, drift.last) == (0, 29)
    assert drifts >= 43


@pytest.mark.parametrize("where", [1, 2, 12, 26, 28])
@pytest.mark.parametrize("off", [-0.15, 0.15])
def test_a_single_bad_night_is_no_step(where: int, off: float) -> None:
    rng = random.Random(where)
    analysis = analyse(series(rng, 30, cv=0.01, shape=lambda night: off * (night == where)), alpha=0.01)
    assert analysis.bad == (where,)
    assert analysis.changes == ()
    assert not analysis.last_off


def test_a_fault_that_was_mended_is_two_steps() -> None:
    """Both ends are alike: no single split shows anything."""
    rng = random.Random(3)
    analysis = analyse(series(rng, 30, cv=0.01, shape=lambda night: -0.08 * (13 <= night < 17)), alpha=0.05)
    assert analysis.bad == ()
    down, up = analysis.changes
    assert isinstance(down, Step)
    assert isinstance(up, Step)
    assert (down.at, up.at) == (13, 17)
    assert down.size.lower < -0.08 < down.size.upper < 0 < up.size.lower < 0.08 < up.size.upper


def test_the_latest_night_alone_is_neither() -> None:
    rng = random.Random(3)
    points = series(rng, 30, cv=0.01, shape=lambda night: -0.1 * (night >= 29))
    analysis = analyse(points, alpha=0.05)
    assert (analysis.last_off, analysis.changes, analysis.bad) == (True, (), ())
    # One more night of the same settles it, either way.
    again = analyse([*points, Point(points[-1].mean + 0.002, 0.01, 5)], alpha=0.05)
    assert (again.last_off, kinds(again)) == (False, "S")
    back = analyse([*points, Point(points[0].mean, 0.01, 5)], alpha=0.05)
    assert (back.last_off, kinds(back), back.bad) == (False, "", (29,))


def test_two_steps_are_found_and_sized_against_their_neighbours() -> None:
    rng = random.Random(4)
    shape = [0.0] * 10 + [-0.08] * 10 + [-0.03] * 10
    analysis = analyse(series(rng, 30, cv=0.005, shape=lambda night: shape[night]), alpha=0.01)
    first, second = analysis.changes
    assert isinstance(first, Step)
    assert isinstance(second, Step)
    assert (first.at, second.at) == (10, 20)
    assert first.size.lower < -0.08 < first.size.upper
    assert second.size.lower < 0.05 < second.size.upper
    assert analysis.level_first == 20


def test_a_bad_night_beside_a_step_hides_neither() -> None:
    rng = random.Random(5)
    shape = [0.0] * 20 + [-0.05] * 10
    shape[8] = -0.2
    analysis = analyse(series(rng, 30, cv=0.005, shape=lambda night: shape[night]), alpha=0.01)
    assert analysis.bad == (8,)
    (step,) = analysis.changes
    assert isinstance(step, Step)
    assert step.at == 20  # in the whole series' numbers


# Too little, and too perfect.


def test_few_nights_say_nothing() -> None:
    """The best of C(8, 4) / 2 = 35 halvings is 1 in 35, of 7 nights 1 in 17.5: only 8 can be as rare as 0.05."""
    assert fewest_nights(0.05) == 8
    assert fewest_nights(0.2) == 6
    for nights in range(8):
        analysis = analyse([Point(0.0 if n < nights / 2 else 1.0, 0.01, 3) for n in range(nights)], alpha=0.05)
        assert not analysis.enough
        assert analysis.changes == ()
    assert kinds(analyse([Point(0.0 if n < 4 else 1.0, 0.01, 3) for n in range(8)], alpha=0.05)) == "S"


def test_noiseless_series() -> None:
    same = [Point(9.0, 0.0, 3)] * 20
    assert kinds(analyse(same, alpha=0.05)) == ""
    step = [Point(9.0, 0.0, 3)] * 10 + [Point(8.9, 0.0, 3)] * 10
    (found,) = analyse(step, alpha=0.05).changes
    assert isinstance(found, Step)
    assert (found.at, found.earliest, found.latest) == (10, 10, 10)
    assert found.size.estimate == pytest.approx(-0.1)
    line = [Point(9.0 - 0.003 * night, None, 1) for night in range(20)]
    (drift,) = analyse(line, alpha=0.05).changes
    assert isinstance(drift, Drift)
    assert drift.slope.estimate == pytest.approx(-0.003)
    assert drift.size.estimate == pytest.approx(-0.003 * 19)


def test_a_noisy_night_weighs_less() -> None:
    """A step of the quiet nights stays where it is, though a night of two wild rounds blurs its edge."""
    rng = random.Random(6)
    points = series(rng, 24, cv=0.001, run_cv=0.002, shape=lambda night: -0.03 * (night >= 12))
    points[12] = Point(points[0].mean - 0.012, 0.05, 2)
    (step,) = analyse(points, alpha=0.01).changes
    assert isinstance(step, Step)
    assert step.size.estimate == pytest.approx(-0.03, abs=0.003)


levels = st.lists(st.floats(min_value=-5, max_value=15, allow_nan=False), min_size=0, max_size=40)


@settings(deadline=None, max_examples=60)
@given(means=levels, rounds=st.integers(min_value=1, max_value=6))
def test_any_series_has_one_answer_within_its_bounds(means: list[float], rounds: int) -> None:
    points = [Point(mean, 0.01 if rounds > 1 else None, rounds) for mean in means]
    analysis = analyse(points, alpha=0.05)
    assert analysis == analyse(points, alpha=0.05)
    places: list[int] = []
    for change in analysis.changes:
        assert change.size.lower <= change.size.estimate <= change.size.upper
        if isinstance(change, Step):
            assert 0 < change.earliest <= change.at <= change.latest < len(points)
            places.append(change.at)
    assert places == sorted(set(places))
    assert not set(analysis.bad) & set(places)


@pytest.mark.parametrize("unit", [1e-3, 1e6])
def test_the_unit_does_not_matter(unit: float) -> None:
    rng = random.Random(8)
    points = series(rng, 25, cv=0.005, shape=lambda night: -0.05 * (night >= 16))
    other = [Point(point.mean + math.log(unit), point.cv, point.rounds) for point in points]
    (one,), (two,) = analyse(points, alpha=0.01).changes, analyse(other, alpha=0.01).changes
    assert isinstance(one, Step)
    assert isinstance(two, Step)
    assert (one.at, one.earliest, one.latest, one.p) == (two.at, two.earliest, two.latest, two.p)
    assert two.size.estimate == pytest.approx(one.size.estimate)


def test_upside_down_and_backwards() -> None:
    """More is no better than less here, and the past no better than the future."""
    rng = random.Random(9)
    points = series(rng, 25, cv=0.005, shape=lambda night: -0.05 * (night >= 16))
    down = analyse(points, alpha=0.01).changes
    up = analyse([Point(-point.mean, point.cv, point.rounds) for point in points], alpha=0.01).changes
    back = analyse(points[::-1], alpha=0.01).changes
    assert [change.at for change in (*down, *up, *back) if isinstance(change, Step)] == [16, 16, 9]
    assert [change.size.estimate < 0 for change in (*down, *up, *back)] == [True, False, False]
