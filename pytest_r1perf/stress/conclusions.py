"""What the guide concludes from its 90 results, and whether it holds on the data at hand.

Source of all quotes and figures: "SGLang Private Deployment - DeepSeek-R1" (two servers of eight H100, SGLang
0.4.3.post2, tp 16), section Test Results. The guide says "about", "nearly" and "no": what counts as that is ours,
stands in the sentence, and is one of the constants here. A claim holds where the whole interval is within what it
allows, and does not where the whole interval is without; with one repeat there is no interval, and it can't be said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial

from pytest_r1perf.stress import claimed, effects
from pytest_r1perf.stress.bootstrap import Estimate, Resamples, Scale
from pytest_r1perf.stress.effects import Axis

ABOUT = 0.1
"""A number that is said to be about another is within 10 % of it (ours)."""
ABOUT_25 = 0.05
"""And a gain of about 25 % is from 20 to 30 % (ours)."""
NO_EFFECT = 0.05
"""A length without effect changes throughput by less than 5 % from its shortest to its longest (ours)."""
NO_CORRELATION = 0.01
"""The guide's own: "correlation coefficient < 0.01"."""
STRONG = 0.993
STRONG_WITHIN = 0.005
"""The guide's r, and how near is the same (ours)."""


class Holds(str, Enum):
    """Whether a conclusion of the guide holds on these data."""

    YES = "holds"
    NO = "does not hold"
    UNKNOWN = "can't be said"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """``quote``: the guide in a few words. ``sentence``: the number, and what was allowed. ``estimate``: the number."""

    quote: str
    holds: Holds
    sentence: str
    estimate: Estimate | None = None


_TEN, _FIVE = (f"{share * 100:g} %" for share in (ABOUT, NO_EFFECT))
_INFINITE = float("inf")
_EXACT_FLOOR = 1e-300


def conclusions(sample: Resamples, latency: Resamples, *, measured: int, asked: int) -> list[Conclusion]:
    """All of them, in the guide's order. ``sample``: tok/s; ``latency``: s; cases measured and asked for."""
    return [
        *_files(measured, asked),
        *_throughput(sample),
        *_boxes(sample),
        *_advice(sample, latency),
        *_lengths(sample),
    ]


def _files(measured: int, asked: int) -> Iterator[Conclusion]:
    holds = Holds.UNKNOWN if asked != 90 else Holds.YES if measured == 90 else Holds.NO
    yield Conclusion("a total of 90 data files", holds, f"{measured} cases are measured whole, {asked} were asked for")


def _throughput(sample: Resamples) -> Iterator[Conclusion]:
    for size, said, quote in ((1, 50.0, "about 50 tokens/s at batch size 1"), (32, 580.0, "about 580 at 32")):
        yield _judged(
            quote,
            sample.estimate(partial(claimed.median, size=size), Scale.RATIO),
            said * (1 - ABOUT),
            said * (1 + ABOUT),
            f"the median of batch size {size} is {{}} tok/s; {said:g} within {_TEN} counts",
            f"batch size {size} was not measured",
        )
    yield _judged(
        "an increase of nearly 12 times from 1 to 32",
        sample.estimate(partial(effects.ratio, axis="batch_size", low=1, high=32), Scale.RATIO),
        12 * (1 - ABOUT),
        12 * (1 + ABOUT),
        f"from batch size 1 to 32 throughput is {{}} times as high; 12 within {_TEN} counts",
        "batch sizes 1 and 32 were not both measured with the same lengths",
    )
    yield _all(
        "from 1 to 8, throughput doubles with each batch size increment",
        [
            (f"from {low} to {high} it is {{}} times as high", _step(sample, low, high))
            for low, high in ((1, 4), (4, 8))
        ],
        2 * (1 - ABOUT),
        2 * (1 + ABOUT),
        f"each step of the grid should give 2 within {_TEN}",
    )
    yield _all(
        "the same, read as: each doubling of the batch doubles throughput",
        [
            (f"from {low} to {high} a doubling gives {{}}", _doubling(sample, low, high))
            for low, high in ((1, 4), (4, 8))
        ],
        2 * (1 - ABOUT),
        2 * (1 + ABOUT),
        f"2 within {_TEN} counts",
    )
    yield _judged(
        "from 8 to 16 to 32 the growth rate flattens",
        sample.estimate(claimed.flattening, Scale.RATIO),
        _EXACT_FLOOR,
        1,
        "the gain from 16 to 32 is {} times that from 8 to 16; below 1 it flattens",
        "batch sizes 8, 16 and 32 were not all measured with the same lengths",
    )
    yield _judged(
        "from 16 to 32 only about 25 %",
        _step(sample, 16, 32),
        1.25 - ABOUT_25,
        1.25 + ABOUT_25,
        "from 16 to 32 it is {} times as high; 1.2 to 1.3 counts",
        "batch sizes 16 and 32 were not both measured with the same lengths",
    )
    yield _judged(
        "the parallel acceleration expectations of Amdahl's law",
        sample.estimate(claimed.amdahl, Scale.RATIO),
        1 - ABOUT,
        1 + ABOUT,
        f"a law through batch sizes 1 and 32 gives {{}} times what is measured between them; within {_TEN} counts",
        "batch sizes 1 and 32 and one between them were not all measured with the same lengths",
    )


def _boxes(sample: Resamples) -> Iterator[Conclusion]:
    yield _judged(
        "larger batch sizes lead to smaller box heights",
        sample.estimate(partial(claimed.heights, relative=False), Scale.RATIO),
        _EXACT_FLOOR,
        1,
        "the box of the largest batch size is {} times as high, in tok/s, as that of the smallest; below 1",
        "there are no two boxes with a height",
    )
    yield _judged(
        "more concentrated results at larger batch sizes",
        sample.estimate(partial(claimed.heights, relative=True), Scale.RATIO),
        _EXACT_FLOOR,
        1,
        "over their medians, the box of the largest is {} times as high as that of the smallest",
        "there are no two boxes with a height",
    )
    yield _judged(
        "at batch size 1 the whiskers are longer",
        sample.estimate(claimed.whiskers, Scale.RATIO),
        1,
        _INFINITE,
        "from whisker to whisker, in tok/s, the smallest batch size has {} times the longest of the others; above 1",
        "there are no two boxes with whiskers",
    )


def _advice(sample: Resamples, latency: Resamples) -> Iterator[Conclusion]:
    yield _judged(
        "offline: use BatchSize=32 to maximise hardware utilisation",
        sample.estimate(claimed.largest, Scale.RATIO),
        1,
        _INFINITE,
        "batch size 32 has {} times the throughput of the best of the others; above 1",
        "batch size 32 and each of the others were not measured with the same lengths",
    )
    slower = latency.estimate(partial(effects.ratio, axis="batch_size", low=32, high=16), Scale.RATIO)
    kept = sample.estimate(partial(effects.ratio, axis="batch_size", low=32, high=16), Scale.RATIO)
    missing = "batch sizes 16 and 32 were not both measured with the same lengths"
    yield Conclusion(
        "real-time: BatchSize=16 to balance throughput and latency",
        Holds.UNKNOWN,
        missing
        if slower is None or kept is None
        else f"16 has {shown(kept)} of the throughput of 32 at {shown(slower)} of its latency; what latency is "
        f"needed, the guide does not say",
    )


def _lengths(sample: Resamples) -> Iterator[Conclusion]:
    yield _judged(
        "a very strong positive correlation (0.993)",
        sample.estimate(partial(claimed.correlation, axis="batch_size"), Scale.CORRELATION),
        STRONG - STRONG_WITHIN,
        STRONG + STRONG_WITHIN,
        f"r of batch size and throughput is {{}}; {STRONG} within {STRONG_WITHIN} counts",
        "one batch size has no correlation",
    )
    yield _judged(
        "batch size is the dominant factor",
        sample.estimate(claimed.share, Scale.SHARE),
        0.5,
        _INFINITE,
        "it accounts for {} of the variance of log throughput; more than half",
        "all values are the same",
    )
    yield _judged(
        "increasing batch_size can linearly improve throughput",
        sample.estimate(partial(effects.per_doubling, axis="batch_size"), Scale.RATIO),
        2 * (1 - ABOUT),
        2 * (1 + ABOUT),
        f"over all sizes a doubling gives {{}}; 2 within {_TEN} is linear",
        "one batch size has no slope",
    )
    lengths: tuple[tuple[Axis, str], ...] = (("input_len", "input length"), ("output_len", "output length"))
    for axis, name in lengths:
        yield _judged(
            f"no significant correlation of {name} (< 0.01)",
            sample.estimate(partial(claimed.correlation, axis=axis), Scale.CORRELATION),
            -NO_CORRELATION,
            NO_CORRELATION,
            f"r of {name} and throughput is {{}}; within {NO_CORRELATION} of 0",
            f"one {name} has no correlation",
        )
    for axis, name in lengths:
        levels = sorted({getattr(case, axis) for case in sample.own})
        low, high = levels[0], levels[-1]
        yield _judged(
            f"changes in {name} have a negligible impact",
            sample.estimate(partial(effects.ratio, axis=axis, low=low, high=high), Scale.RATIO)
            if low != high
            else None,
            1 - NO_EFFECT,
            1 / (1 - NO_EFFECT),
            f"from {name} {low} to {high} throughput is {{}} times as high, all else equal; within {_FIVE} of "
            f"1 (a small r says nothing of this: it is the part of a variance that batch size makes)",
            f"one {name} was measured" if low == high else f"no two cases differ in {name} {low} and {high} alone",
        )
    yield Conclusion(
        "well-optimised for variable-length sequences",
        Holds.UNKNOWN,
        "all requests of a case have the same lengths: batches of mixed lengths were not measured",
    )
    yield Conclusion(
        "limited by compute efficiency, SM utilisation, not memory bandwidth",
        Holds.UNKNOWN,
        "the results have times and tokens only: no counter of a GPU is in them",
    )


def shown(estimate: Estimate) -> str:
    """``11.84 [11.61, 12.07]``; without limits where there are none."""
    text = f"{estimate.value:.4g}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low:.4g}, {estimate.high:.4g}]"


def _judged(quote: str, estimate: Estimate | None, low: float, high: float, sentence: str, missing: str) -> Conclusion:
    if estimate is None:
        return Conclusion(quote, Holds.UNKNOWN, missing)
    told = sentence.format(shown(estimate)) + _no_limits(estimate)
    return Conclusion(quote, _holds(estimate.within(low, high)), told, estimate)


def _all(quote: str, parts: list[tuple[str, Estimate | None]], low: float, high: float, allowed: str) -> Conclusion:
    """A claim of several numbers: it holds where all do, and does not where one does not."""
    known = [(sentence, estimate) for sentence, estimate in parts if estimate is not None]
    if len(known) < len(parts):
        return Conclusion(quote, Holds.UNKNOWN, "batch sizes 1, 4 and 8 were not all measured with the same lengths")
    within = [estimate.within(low, high) for _, estimate in known]
    holds = Holds.NO if False in within else Holds.UNKNOWN if None in within else Holds.YES
    told = ", ".join(sentence.format(shown(estimate)) for sentence, estimate in known)
    return Conclusion(quote, holds, f"{told}; {allowed}{_no_limits(known[0][1])}")


def _no_limits(estimate: Estimate) -> str:
    """Why there are none."""
    if estimate.low is not None:
        return ""
    if estimate.repeats < 2:
        return "; measured once, so how far that moves is not known"
    return "; some of the resamples do not give it, so how far it moves is not known"


def _holds(within: bool | None) -> Holds:
    return Holds.UNKNOWN if within is None else Holds.YES if within else Holds.NO


def _step(sample: Resamples, low: int, high: int) -> Estimate | None:
    return sample.estimate(partial(effects.ratio, axis="batch_size", low=low, high=high), Scale.RATIO)


def _doubling(sample: Resamples, low: int, high: int) -> Estimate | None:
    return sample.estimate(partial(effects.doubled, low=low, high=high), Scale.RATIO)
