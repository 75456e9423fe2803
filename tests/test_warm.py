"""Discard and drift on series whose truth is known, and on the recorded engine."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from pytest_r1perf.warm import MIN_WINDOWS, drift, drifting, drifting_together, learned_discard

# r1-slice_one-engine_fa3.jsonl: one engine on one NVIDIA H200, sglang 0.5.11, R1's layers with dummy weights, five
# rounds of N = 200, 1000 and 3000 in turn; output tok/s.
RECORDED = {
    200: (1008.16, 12885.11, 13016.20, 11681.9, 11892.3),
    1000: (22304.92, 26299.84, 21308.34, 26587.2, 25131.4),
    3000: (31455.02, 40529.09, 32509.84, 31881.3, 33653.9),
}

Series = list[float]


def noise(chance: random.Random, windows: int, cv: float = 0.02) -> Series:
    return [1000 * math.exp(chance.gauss(0, cv)) for _ in range(windows)]


def cold(chance: random.Random, windows: int, *factors: float) -> Series:
    """The first windows at these shares of the steady speed."""
    made = noise(chance, windows)
    return [value * factor for value, factor in itertools.zip_longest(made, factors, fillvalue=1.0)]


def correlated(chance: random.Random, windows: int, phi: float, cv: float = 0.02) -> Series:
    state, made = chance.gauss(0, cv / math.sqrt(1 - phi**2)), []
    for _ in range(windows):
        made.append(1000 * math.exp(state))
        state = phi * state + chance.gauss(0, cv)
    return made


def discards(make: Callable[[random.Random], list[Series]], times: int = 40) -> Counter[int]:
    chance = random.Random(2026)
    return Counter(learned_discard(make(chance)).discard for _ in range(times))


# --- the discard


@pytest.mark.parametrize(("processes", "windows"), [(1, 10), (3, 5), (5, 8)])
def test_a_cold_first_window_is_all_that_is_thrown_away(processes: int, windows: int) -> None:
    """13 times slower, as recorded; and as often where even that is missing."""
    for first in (1 / 13, 1.0):
        found = discards(lambda chance, first=first: [cold(chance, windows, first) for _ in range(processes)])  # type: ignore[misc]
        assert found[1] >= 0.85 * 40


@pytest.mark.parametrize(
    ("processes", "windows", "factors"),
    [(3, 5, (0.1, 0.5)), (5, 8, (0.1, 0.5, 0.8)), (5, 10, (0.5, 0.9, 0.9)), (2, 10, (0.1, 0.3, 0.6, 0.8))],
)
def test_a_longer_warm_up_is_learned_from_several_processes(
    processes: int, windows: int, factors: tuple[float, ...]
) -> None:
    found = discards(lambda chance: [cold(chance, windows, *factors) for _ in range(processes)])
    assert found[len(factors)] >= 0.75 * 40
    assert sum(found[length] for length in range(1, len(factors))) <= 0.2 * 40


@pytest.mark.parametrize(("processes", "windows"), [(1, 8), (3, 6), (5, 8)])
def test_one_outlier_is_no_warm_up(processes: int, windows: int) -> None:
    def make(chance: random.Random) -> list[Series]:
        series = [cold(chance, windows, 0.1) for _ in range(processes)]
        series[0][chance.randrange(1, windows)] *= 0.5
        return series

    assert discards(make)[1] >= 0.85 * 40


def test_an_outlier_beside_a_warm_up_does_not_hide_it() -> None:
    def make(chance: random.Random) -> list[Series]:
        series = [cold(chance, 8, 0.1, 0.3) for _ in range(5)]
        series[0][chance.randrange(4, 8)] *= 0.8
        return series

    assert discards(make)[2] >= 0.75 * 40


def test_processes_of_different_levels_are_one_warm_up() -> None:
    """Hosts differ by tens of percent, which must not drown a second window at 0.9."""
    found = discards(lambda chance: [[v * level for v in cold(chance, 8, 0.1, 0.9)] for level in (1, 1.3, 0.7, 2, 1.1)])
    assert found[2] >= 0.75 * 40


def test_latencies_are_learned_as_throughputs_are() -> None:
    chance = random.Random(3)
    series = [cold(chance, 8, 0.1, 0.5) for _ in range(4)]
    turned = [[1e6 / value for value in one] for one in series]
    assert learned_discard(series).discard == learned_discard(turned).discard == 2


def test_what_is_still_warming_up_at_half_is_said() -> None:
    chance = random.Random(4)
    found = learned_discard([cold(chance, 8, *(0.5 + 0.1 * step for step in range(6))) for _ in range(4)])
    assert found.discard == 4
    assert "take longer series" in found.note
    # The same from one process with a smooth approach to its speed.
    assert learned_discard([[1 - 0.9 * 0.7**step for step in range(16)]]).discard >= 4


@pytest.mark.parametrize("series", [[], [[]], [[1.0]], [[1.0, 9.0, 9.0, 9.0]] * 3])
def test_too_short_series_give_one_and_say_so(series: list[Series]) -> None:
    found = learned_discard(series)
    assert (found.discard, found.p) == (1, None)
    assert f"{MIN_WINDOWS} are needed" in found.note


def test_short_series_among_long_ones_are_left_out_and_said() -> None:
    found = learned_discard([[1.0], *([100.0, 101.0, 99.0, 100.5, 100.2, 99.9],) * 3])
    assert (found.processes, found.windows) == (3, 6)
    assert "1 of 4 series are shorter" in found.note


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_measurement_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite number above 0"):
        learned_discard([[bad, 1.0, 1.0]])
    with pytest.raises(ValueError, match="finite number above 0"):
        drift([[bad, 1.0, 1.0]])


@given(st.lists(st.lists(st.floats(0.1, 1e6), max_size=12), max_size=3))
def test_the_discard_is_from_one_to_half_of_the_windows(series: list[Series]) -> None:
    found = learned_discard(series)
    assert 1 <= found.discard <= max(1, found.windows // 2)
    assert learned_discard(series) == found


def test_equal_values_are_warm() -> None:
    assert learned_discard([[5.0] * 8] * 3).discard == 1


@pytest.mark.parametrize("requests", [200, 1000, 3000])
def test_the_recorded_engine_was_cold_for_one_window(requests: int) -> None:
    """At N = 200 the first window ran at a thirteenth; of the others none differs from its noise."""
    found = learned_discard([RECORDED[requests]])
    assert found.discard == 1
    assert "one process" in found.note
    kept = RECORDED[requests][found.discard :]
    assert drifting(kept) is None
    if requests == 200:
        assert RECORDED[requests][0] < min(kept) / 11


# --- the drift


def test_a_drift_is_one_sentence_with_its_size() -> None:
    said = drifting([100.0, 101.0, 102.0, 103.0, 104.0, 105.0], "total_throughput")
    assert said is not None
    assert said.startswith("total_throughput drifts by +5.0% from the first to the last of 6 windows (")
    assert "p = 0.003" in said  # 2 of 720 orders
    assert "\n" not in said
    down = drifting([100.0 * 0.98**step for step in range(6)])
    assert down is not None
    assert "-9.6%" in down  # 0.98^5


@pytest.mark.parametrize("windows", [0, 1, 2, 3, 4])
def test_below_five_windows_it_cannot_say(windows: int) -> None:
    values = [100.0 * 2**step for step in range(windows)]
    assert drifting(values) is None
    assert drift([values]).p is None
    five = [*values, *(1e6 * 2**step for step in range(5 - windows))]
    assert drift([five]).p == pytest.approx(2 / 120)


def test_short_processes_can_say_it_together() -> None:
    """Three windows each: two processes can't (2 of 36 orders), three can (2 of 216)."""
    rising = [100.0, 110.0, 120.0]
    assert drift([rising] * 2).p is None
    said = drifting_together([rising, [2 * value for value in rising], rising], "output_throughput")
    assert said is not None
    assert "+20.0%" in said
    assert "in each of 3 processes" in said
    assert drift([rising] * 3).p == pytest.approx(2 / 216)


@given(st.lists(st.floats(1.0, 1e6), min_size=5, max_size=9, unique=True))
def test_one_process_is_kendalls_exact_test(values: Series) -> None:
    expected = kendalltau(range(len(values)), values, method="exact").pvalue
    found = drift([values]).p
    assert found is not None
    assert min(found, 1.0) == pytest.approx(expected)


@given(st.lists(st.floats(1.0, 1e6), min_size=5, max_size=9), st.floats(0.01, 100))
def test_a_unit_changes_nothing_and_backwards_is_the_other_way(values: Series, unit: float) -> None:
    here, scaled, back = drift([values]), drift([[v * unit for v in values]]), drift([values[::-1]])
    assert here.total == pytest.approx(scaled.total, rel=1e-6, abs=1e-9)
    assert 1 + here.total == pytest.approx(1 / (1 + back.total))
    assert here.p == back.p


def alarms(make: Callable[[random.Random], Series], times: int = 1000) -> float:
    chance = random.Random(7)
    return sum(drifting(make(chance)) is not None for _ in range(times)) / times


@pytest.mark.parametrize("windows", [5, 8, 20])
def test_false_alarms_without_drift(windows: int) -> None:
    """At most 5 %; fewer with few windows, whose p has few values. Margin: three standard errors of the simulation."""
    assert alarms(lambda chance: noise(chance, windows)) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


def test_false_alarms_together() -> None:
    chance = random.Random(8)
    found = sum(drifting_together([noise(chance, 3) for _ in range(5)]) is not None for _ in range(1000)) / 1000
    assert found <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


def test_a_drift_is_found() -> None:
    """5 % over 8 windows at 1 % noise: seen in 84 % of a larger simulation."""

    def make(chance: random.Random) -> Series:
        return [value * (1 + 0.05 * step / 7) for step, value in enumerate(noise(chance, 8, 0.01))]

    assert alarms(make, 300) >= 0.75


def test_autocorrelation_raises_the_false_alarms_as_documented() -> None:
    """About twice the rate at a lag-one correlation of 0.3 and 8 windows."""
    rate = alarms(lambda chance: correlated(chance, 8, 0.3))
    assert 0.03 < rate < 0.12


def test_one_outlier_is_no_drift() -> None:
    def make(chance: random.Random) -> Series:
        values = noise(chance, 8)
        values[chance.randrange(8)] *= 0.3
        return values

    assert alarms(make) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)
