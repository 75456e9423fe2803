"""What a sweep's values say, on values whose answers are known by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.sglang.one_batch import OneBatchResult, RowFormat
from pytest_r1perf.stress import effects
from pytest_r1perf.stress.bootstrap import Estimate, Resamples, Scale, resamples
from pytest_r1perf.stress.cases import BATCH_SIZES, INPUT_LENS, OUTPUT_LENS, Case, grid
from pytest_r1perf.stress.conclusions import Conclusion, Holds, conclusions
from pytest_r1perf.stress.rows import Mark, Row
from pytest_r1perf.stress.table import table

GUIDE = grid(BATCH_SIZES, INPUT_LENS, OUTPUT_LENS)


def sweep(value: Callable[[Case], float], cases: tuple[Case, ...] = GUIDE) -> dict[Case, float]:
    return {case: value(case) for case in cases}


def batches(*values: float, sizes: tuple[int, ...] = BATCH_SIZES) -> dict[Case, float]:
    """One value a batch size, the same lengths."""
    return {Case(size, 1, 1): value for size, value in zip(sizes, values, strict=True)}


def ratio_1_to_32(values: Mapping[Case, float]) -> float | None:
    return effects.ratio(values, "batch_size", 1, 32)


# --- boxes


def test_a_box_by_hand() -> None:
    box = effects.box([3, 1, 2, 9, 4, 5, 6, 100, 7, 8])
    assert (box.count, box.low, box.q1, box.median, box.q3, box.high) == (10, 1, 3.25, 5.5, 7.75, 9)
    assert box.outliers == (100,)
    assert (box.height, box.span) == (4.5, 8)


def test_a_box_of_one_value() -> None:
    box = effects.box([7.0])
    assert (box.low, box.q1, box.median, box.q3, box.high, box.outliers) == (7, 7, 7, 7, 7, ())


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40))
def test_a_box_is_in_order_and_loses_nothing(values: list[float]) -> None:
    box = effects.box(values)
    assert min(values) <= box.low <= box.high <= max(values)
    assert box.q1 <= box.median * (1 + 1e-12)
    assert box.median <= box.q3 * (1 + 1e-12)
    assert len(box.outliers) + sum(box.low <= value <= box.high for value in values) == len(values)


# --- ratios, slopes, correlations


def test_a_power_law_by_hand() -> None:
    values = sweep(lambda case: 50 * case.batch_size**0.5 * case.output_len**-0.25)
    assert effects.ratio(values, "batch_size", 1, 32) == pytest.approx(math.sqrt(32))
    assert effects.ratio(values, "output_len", 256, 8192) == pytest.approx(32**-0.25)
    assert effects.ratio(values, "input_len", 128, 512) == pytest.approx(1)
    assert effects.per_doubling(values, "batch_size") == pytest.approx(math.sqrt(2))
    assert effects.per_doubling(values, "output_len") == pytest.approx(2**-0.25)
    assert effects.per_doubling(values, "input_len") == pytest.approx(1)
    assert effects.correlation(values, "input_len", logs=True) == pytest.approx(0, abs=1e-12)


def test_correlations_by_hand() -> None:
    values = batches(1, 2, 3, sizes=(1, 4, 8))
    assert effects.correlation(values, "batch_size") == pytest.approx(7 / math.sqrt(148 / 3))
    assert effects.correlation(batches(5, 20, 40, sizes=(1, 4, 8)), "batch_size") == pytest.approx(1)
    assert effects.correlation(values, "output_len") is None
    assert effects.correlation(batches(2, 2, sizes=(1, 4)), "batch_size") is None


def test_only_cases_that_differ_in_nothing_else_are_compared() -> None:
    """Batch size 32 lacks the long answers, which are slow: that is no effect of batch size."""
    values = {Case(1, 1, 1): 10.0, Case(1, 1, 9): 1.0, Case(32, 1, 1): 20.0, Case(32, 2, 9): 7.0}
    assert effects.ratio(values, "batch_size", 1, 32) == pytest.approx(2)
    assert effects.per_doubling(values, "batch_size") == pytest.approx(2**0.2)
    assert effects.ratio(values, "batch_size", 1, 8) is None
    assert effects.per_doubling({Case(1, 1, 1): 1.0, Case(2, 2, 1): 2.0}, "batch_size") is None


def test_shares_of_the_variance_by_hand() -> None:
    values = {Case(a, b, 1): 2.0 ** (x + 3 * y) for x, a in enumerate((1, 4)) for y, b in enumerate((128, 256))}
    assert effects.share(values, "batch_size") == pytest.approx(0.1)
    assert effects.share(values, "input_len") == pytest.approx(0.9)
    assert effects.share(batches(2, 2, sizes=(1, 4)), "batch_size") is None


def test_a_small_correlation_hides_an_effect() -> None:
    """The guide takes r < 0.01 for no effect. Here output 8192 costs a fourth, and r is under 0.1."""
    values = sweep(lambda case: 50 * case.batch_size * (0.75 if case.output_len == 8192 else 1.0))
    r = effects.correlation(values, "output_len")
    assert r is not None
    assert abs(r) < 0.15
    assert effects.ratio(values, "output_len", 256, 8192) == pytest.approx(0.75)


@given(st.floats(50, 480), st.floats(50, 480))
def test_the_guides_figures_contradict_each_other(at_4: float, at_8: float) -> None:
    """50 at batch size 1, 600 at 32 and 25 % from 16 to 32 leave r below 0.96 whatever is at 4 and 8, not 0.993."""
    r = effects.correlation(batches(50, at_4, at_8, 480, 600), "batch_size")
    assert r is not None
    assert r < 0.96


# --- intervals


def test_an_interval_by_hand() -> None:
    """Two repeats, ratios 2 and 8: ln 4 with standard error ln 2; Student's t with 1 degree of freedom is 12.7062."""
    sample = resamples([batches(1, 2, sizes=(1, 32)), batches(1, 8, sizes=(1, 32))])
    found = sample.estimate(ratio_1_to_32, Scale.RATIO)
    assert found is not None
    assert found.value == pytest.approx(4)
    assert found.low == pytest.approx(4 * 2**-12.70620, rel=1e-4)
    assert found.high == pytest.approx(4 * 2**12.70620, rel=1e-4)


def test_three_repeats_are_students_t_of_their_logarithms() -> None:
    """For a mean of logarithms the bootstrap's standard error, corrected, is s / sqrt(n); t is 4.30265."""
    logs = [0.0, 0.3, 0.9]
    sample = resamples([batches(1, math.exp(x), sizes=(1, 32)) for x in logs])
    found = sample.estimate(ratio_1_to_32, Scale.RATIO)
    assert found is not None
    error = math.sqrt(((0.4**2 + 0.1**2 + 0.5**2) / 2) / 3)
    assert found.low == pytest.approx(math.exp(0.4 - 4.30265 * error), rel=1e-4)
    assert found.high == pytest.approx(math.exp(0.4 + 4.30265 * error), rel=1e-4)


def test_what_all_cases_of_a_repeat_share_is_no_error_of_a_ratio() -> None:
    """A repeat in which all is 20 % slower: whole repeats are resampled, so ratios within one stay what they are."""
    sample = resamples([batches(100 * slow, 1200 * slow, sizes=(1, 32)) for slow in (1.0, 0.8, 1.1)])
    found = sample.estimate(ratio_1_to_32, Scale.RATIO)
    assert found is not None
    assert [found.value, found.low, found.high] == pytest.approx([12, 12, 12])


def test_one_repeat_has_no_interval() -> None:
    found = resamples([batches(1, 2, sizes=(1, 32))]).estimate(ratio_1_to_32, Scale.RATIO)
    assert found is not None
    assert found.value == pytest.approx(2)
    assert (found.low, found.high) == (None, None)
    assert found.within(0, 100) is None


@pytest.mark.parametrize(("repeats", "resampled"), [(2, 3), (3, 10), (6, 462), (7, 1000)])
def test_every_resample_up_to_six_repeats(repeats: int, resampled: int) -> None:
    """C(2n - 1, n) of them; their probabilities are all of it."""
    sample = resamples([batches(number + 1, sizes=(1,)) for number in range(repeats)])
    assert len(sample.drawn) == resampled
    assert math.fsum(share for share, _ in sample.drawn) == pytest.approx(1)


@pytest.mark.parametrize("repeats", [3, 8])
def test_the_interval_is_right_19_times_of_20(repeats: int) -> None:
    """Ratios of 12 whose logarithms vary by 5 % from repeat to repeat: 400 sweeps."""
    chance = random.Random(5)
    hits = 0
    for _ in range(400):
        sample = resamples([batches(1, 12 * math.exp(chance.gauss(0, 0.05)), sizes=(1, 32)) for _ in range(repeats)])
        found = sample.estimate(ratio_1_to_32, Scale.RATIO)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 12 <= found.high
    assert 366 <= hits <= 393  # 380 expected; beyond these with probability 0.01


def test_repeats_must_have_the_same_cases() -> None:
    with pytest.raises(ValueError, match="the same cases"):
        resamples([batches(1, sizes=(1,)), batches(1, sizes=(4,))])
    with pytest.raises(ValueError, match="the same cases"):
        resamples([])


@pytest.mark.parametrize(
    ("low", "high", "answer"), [(9, 13, True), (10, 12, True), (12.5, 20, False), (11, 20, None), (10.5, 11.5, None)]
)
def test_within(low: float, high: float, answer: bool | None) -> None:
    assert Estimate(11, 10, 12, 3).within(low, high) is answer


# --- where doubling stops paying


def sure(*levels: float) -> Resamples:
    return resamples([batches(*levels), batches(*levels)])


def test_the_knee_by_hand() -> None:
    """Gains a doubling: 2, 2, 1.5, 1.1."""
    steps = effects.steps(sure(100, 400, 800, 1200, 1320))
    gains = [step.gain.value for step in steps if step.gain is not None]
    assert gains == [pytest.approx(2), pytest.approx(2), pytest.approx(1.5), pytest.approx(1.1)]
    knee = effects.knee(steps)
    assert knee is not None
    assert (knee.size, knee.earliest, knee.latest, knee.sure) == (16, 16, 16, True)
    early, never = effects.knee(steps, 0.6), effects.knee(steps, 0.05)
    assert early is not None
    assert never is not None
    assert early.size == 8
    assert (never.size, never.earliest, never.latest) == (None, None, None)


def test_a_knee_that_is_not_sure() -> None:
    """The last gain is 1.05, 1.3 and 1.5 in three repeats: it may be below 1.25, and may be above."""
    repeats = [batches(100, 400, 800, 1600, 1600 * gain) for gain in (1.05, 1.3, 1.5)]
    knee = effects.knee(effects.steps(resamples(repeats)))
    assert knee is not None
    assert (knee.size, knee.earliest, knee.latest) == (None, 16, None)


def test_the_limits_of_all_steps_hold_together() -> None:
    """Four steps: each at 98.75 %, so at 3 repeats t is 8.8602 and not 4.30265 (Bonferroni)."""
    logs = [0.0, 0.3, 0.9]
    steps = effects.steps(resamples([batches(1, 4, 8, 16, 16 * math.exp(x)) for x in logs]))
    gain = steps[-1].gain
    assert gain is not None
    error = math.sqrt(((0.4**2 + 0.1**2 + 0.5**2) / 2) / 3)
    assert gain.high == pytest.approx(math.exp(0.4 + 8.8602 * error), rel=1e-3)


def test_a_knee_of_one_repeat_has_no_limits() -> None:
    knee = effects.knee(effects.steps(resamples([batches(100, 400, 800, 1600, 1700)])))
    assert knee is not None
    assert (knee.size, knee.sure) == (16, False)
    assert effects.knee(effects.steps(resamples([batches(1, sizes=(4,))]))) is None


def test_a_step_that_no_lengths_tell_of_is_no_step_that_pays() -> None:
    """Killed half-way: batch sizes 4 and 8 were measured with lengths that the other one lacks."""
    long, short = grid((1, 4), (128,), (256,)), grid((8, 16), (128,), (512,))
    knee = effects.knee(effects.steps(resamples([sweep(lambda case: 10.0 * case.batch_size, (*long, *short))])))
    assert knee is not None
    assert (knee.size, knee.gaps) == (None, ((4, 8),))


# --- from rows to repeats


def row(case: Case, repeat: int | None, rate: float = 10.0, format_: RowFormat = RowFormat.COUNTED) -> Row:
    tokens = case.batch_size * case.output_len
    result = OneBatchResult(*case.key, tokens / rate, tokens, rate, 2 * rate, None, None, None, format_)
    return Row(case, result, None if repeat is None else Mark("s", f"start{repeat}", repeat))


A, B, C = Case(1, 1, 1), Case(4, 1, 1), Case(8, 1, 1)


def test_repeats_in_order() -> None:
    found = table([row(B, 2, 4), row(A, 1, 1), row(B, 1, 2), row(A, 2, 3)])
    assert found.repeats == ({A: 1, B: 2}, {A: 3, B: 4})
    assert found.latency == ({A: 1.0, B: 2.0}, {A: pytest.approx(1 / 3), B: 1.0})
    assert found.starts == 2
    assert found.notes == ()
    assert table([row(A, None, 1), row(A, None, 2)]).repeats == ({A: 1}, {A: 2})
    assert table([row(A, 1, 1)], "overall_throughput").repeats == ({A: 2},)


def test_a_repeat_that_is_not_whole_is_left_out() -> None:
    found = table([row(A, 1), row(B, 1), row(A, 2)])
    assert found.repeats == ({A: 10, B: 10},)
    assert found.notes == ("repeat 2 has 1 of 2 cases and is left out",)


def test_cases_that_are_not_in_every_repeat() -> None:
    found = table([row(A, 1), row(B, 1), row(A, 2), row(C, 2)])
    assert found.repeats == ({A: 10}, {A: 10})
    assert found.notes == ("2 cases are not in every repeat and are left out: 4-1-1, 8-1-1",)
    apart = table([row(A, 1), row(B, 2), row(C, 2)])
    assert apart.repeats == ({B: 10, C: 10},)
    assert apart.notes[0].startswith("no case is in every repeat: only repeat 2 is used")


def test_releases_that_measure_differently_are_not_mixed() -> None:
    with pytest.raises(R1PerfError, match="measure differently"):
        table([row(A, 1), row(B, 1, format_=RowFormat.WHOLE)])
    with pytest.raises(R1PerfError, match="no case"):
        table([])


# --- the guide's conclusions


def judged(*repeats: Mapping[Case, float]) -> dict[str, Conclusion]:
    sample = resamples(repeats)
    latency = resamples(
        [{case: case.batch_size * case.output_len / rate for case, rate in one.items()} for one in repeats]
    )
    cases = len(repeats[0])
    return {one.quote: one for one in conclusions(sample, latency, measured=cases, asked=cases)}


LEVELS = {1: 50.0, 4: 100.0, 8: 200.0, 16: 464.0, 32: 580.0}
"""What the guide says of batch sizes: 580 is 1.25 times 464 and 11.6 times 50."""

HALF_BOX = {1: 0.06, 4: 0.05, 8: 0.015, 16: 0.005, 32: 0.002}
"""Boxes that get narrower, by input length: the middle one is the level."""


def as_the_guide_says(case: Case) -> float:
    side = {128: -1, 256: 0, 512: 1}[case.input_len]
    return LEVELS[case.batch_size] * math.exp(side * HALF_BOX[case.batch_size])


EXPECTED = {
    "a total of 90 data files": Holds.YES,
    "about 50 tokens/s at batch size 1": Holds.YES,
    "about 580 at 32": Holds.YES,
    "an increase of nearly 12 times from 1 to 32": Holds.YES,
    "from 1 to 8, throughput doubles with each batch size increment": Holds.YES,
    "the same, read as: each doubling of the batch doubles throughput": Holds.NO,
    "from 8 to 16 to 32 the growth rate flattens": Holds.YES,
    "from 16 to 32 only about 25 %": Holds.YES,
    "larger batch sizes lead to smaller box heights": Holds.YES,
    "more concentrated results at larger batch sizes": Holds.YES,
    "at batch size 1 the whiskers are longer": Holds.NO,  # 12 % of 50 are less than 10 % of 100
    "offline: use BatchSize=32 to maximise hardware utilisation": Holds.YES,
    "real-time: BatchSize=16 to balance throughput and latency": Holds.UNKNOWN,
    "a very strong positive correlation (0.993)": Holds.NO,  # see test_the_guides_figures_contradict_each_other
    "batch size is the dominant factor": Holds.YES,
    "increasing batch_size can linearly improve throughput": Holds.NO,
    "no significant correlation of output length (< 0.01)": Holds.YES,
    "changes in output length have a negligible impact": Holds.YES,
    "well-optimised for variable-length sequences": Holds.UNKNOWN,
    "limited by compute efficiency, SM utilisation, not memory bandwidth": Holds.UNKNOWN,
}


def test_the_guides_own_levels() -> None:
    values = sweep(as_the_guide_says)
    found = judged(values, values, values)
    assert {quote: found[quote].holds for quote in EXPECTED} == EXPECTED
    assert found["an increase of nearly 12 times from 1 to 32"].sentence.startswith(
        "from batch size 1 to 32 throughput is 11.6 [11.6, 11.6] times as high"
    )
    assert "1.25 [1.25, 1.25]" in found["from 16 to 32 only about 25 %"].sentence
    real_time = found["real-time: BatchSize=16 to balance throughput and latency"].sentence
    assert real_time.startswith("16 has 0.8 [0.8, 0.8] of the throughput of 32 at 0.625 [0.625, 0.625] of its latency")


def test_a_server_for_which_nothing_of_it_holds() -> None:
    """Throughput falls with the batch, and lengths decide."""
    levels = {1: 4000.0, 4: 1000.0, 8: 500.0, 16: 100.0, 32: 50.0}

    def value(case: Case) -> float:
        longer = math.pow(case.input_len / 128, 2 + case.batch_size / 32)
        return levels[case.batch_size] * case.output_len / 256 * longer

    values = sweep(value)
    found = judged(values, values, values)
    unknown = {quote for quote, one in found.items() if one.holds is Holds.UNKNOWN}
    assert unknown == {quote for quote, holds in EXPECTED.items() if holds is Holds.UNKNOWN}
    held = {quote for quote, one in found.items() if one.holds is Holds.YES}
    assert held == {
        "a total of 90 data files",
        "larger batch sizes lead to smaller box heights",
        "at batch size 1 the whiskers are longer",
    }


def test_linear_growth_follows_amdahls_law_without_a_serial_part() -> None:
    values = sweep(lambda case: 30.0 * case.batch_size)
    found = judged(values, values)
    law = found["the parallel acceleration expectations of Amdahl's law"]
    assert law.holds is Holds.YES
    assert law.estimate is not None
    assert law.estimate.value == pytest.approx(1)
    assert found["increasing batch_size can linearly improve throughput"].holds is Holds.YES
    assert found["the same, read as: each doubling of the batch doubles throughput"].holds is Holds.YES
    assert found["from 1 to 8, throughput doubles with each batch size increment"].holds is Holds.NO


def test_measured_once_nothing_can_be_said() -> None:
    found = judged(sweep(as_the_guide_says))
    known = {quote for quote, one in found.items() if one.holds is not Holds.UNKNOWN}
    assert known == {"a total of 90 data files"}
    twelve = found["an increase of nearly 12 times from 1 to 32"].sentence
    assert "throughput is 11.6 times as high" in twelve
    assert twelve.endswith("measured once, so how far that moves is not known")


def test_limits_that_some_resamples_do_not_give() -> None:
    """A box without a height in one repeat of two: it was not measured once."""
    cases = grid((1, 32), INPUT_LENS, (256,))
    flat = sweep(lambda case: 50.0, cases)
    found = judged(flat, sweep(as_the_guide_says, cases))["larger batch sizes lead to smaller box heights"]
    assert found.holds is Holds.UNKNOWN
    assert found.sentence.endswith("some of the resamples do not give it, so how far it moves is not known")


def test_a_share_of_the_variance_stays_between_none_and_all() -> None:
    noisy = judged(sweep(as_the_guide_says), sweep(lambda case: 50.0 * case.output_len / case.batch_size))[
        "batch size is the dominant factor"
    ]
    assert noisy.estimate is not None
    assert noisy.estimate.low is not None
    assert noisy.estimate.high is not None
    assert 0 <= noisy.estimate.low < noisy.estimate.value < noisy.estimate.high <= 1
    assert noisy.holds is Holds.UNKNOWN


def test_batch_sizes_are_compared_by_the_lengths_that_all_have() -> None:
    """32 without its longest answers, which are half as fast at every size."""
    values = {
        case: rate * (0.5 if case.output_len == 8192 else 1.0)
        for case, rate in sweep(lambda case: LEVELS[case.batch_size]).items()
    }
    whole = judged(values, values)
    short = {case: rate for case, rate in values.items() if case.key[::2] != (32, 8192)}
    found = judged(short, short)
    for quote in (
        "from 8 to 16 to 32 the growth rate flattens",
        "the parallel acceleration expectations of Amdahl's law",
    ):
        now, before = found[quote].estimate, whole[quote].estimate
        assert now is not None
        assert before is not None
        assert now.value == pytest.approx(before.value)
    output = found["no significant correlation of output length (< 0.01)"].estimate
    assert output is not None
    assert output.value == pytest.approx(0, abs=1e-9)


def test_32_is_not_the_best_where_16_is_faster() -> None:
    values = batches(50, 100, 200, 600, 500)
    found = judged(values, values)["offline: use BatchSize=32 to maximise hardware utilisation"]
    assert found.holds is Holds.NO
    assert found.estimate is not None
    assert found.estimate.value == pytest.approx(5 / 6)


def test_what_was_not_measured_cannot_be_said() -> None:
    cases = grid((2, 64), (128,), (256,))
    values = sweep(lambda case: 10.0 * case.batch_size, cases)
    found = judged(values, values)
    for quote in (
        "a total of 90 data files",
        "about 580 at 32",
        "from 16 to 32 only about 25 %",
        "changes in input length have a negligible impact",
    ):
        assert found[quote].holds is Holds.UNKNOWN
        assert "measured" in found[quote].sentence


def test_32_is_the_best_only_of_those_it_was_compared_with() -> None:
    """Batch size 16, five times as fast, has none of the others' lengths."""
    values = {**sweep(lambda case: 10.0 * case.batch_size, grid((8, 32), (128,), (256,))), Case(16, 128, 512): 999.0}
    best = judged(values, values)["offline: use BatchSize=32 to maximise hardware utilisation"]
    assert (best.holds, best.estimate) == (Holds.UNKNOWN, None)


def test_sizes_without_a_length_in_common_were_measured_all_the_same() -> None:
    values = {Case(1, 128, 256): 50.0, Case(32, 128, 512): 600.0, Case(32, 256, 1024): 600.0}
    found = judged(values, values)
    assert found["an increase of nearly 12 times from 1 to 32"].sentence.endswith("with the same lengths")
    impact = found["changes in input length have a negligible impact"]
    assert impact.sentence == "no two cases differ in input length 128 and 256 alone"


def test_a_noisy_sweep_is_not_sure() -> None:

    def times(factor: float) -> dict[Case, float]:
        return sweep(lambda case: as_the_guide_says(case) * (factor if case.batch_size == 32 else 1))

    found = judged(times(0.8), times(1.25))
    assert found["an increase of nearly 12 times from 1 to 32"].holds is Holds.UNKNOWN
    assert found["from 1 to 8, throughput doubles with each batch size increment"].holds is Holds.YES
