"""Warm-up and drift inside an engine: pure functions on the values of its timed windows, in their order.

    learned = learned_discard(series)           # series[process][window], a throughput or a latency
    said = drifting(values[learned.discard:])

All is done on logarithms, so neither a unit nor a process's own level changes anything.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

MIN_WINDOWS = 5
"""Fewer windows a process can't tell warm-up from noise: with 4 that may move, the lowest p is 1/24."""

ALPHA = 0.05
"""Rate of false alarms of one look, for more than one window of warm-up and for a drift; ours, the usual one."""

_SHUFFLES = 399


@dataclass(frozen=True, slots=True)
class Learned:
    """How many of an engine's first windows to throw away, at least 1.

    From ``processes`` of ``windows`` each (those that were long enough). ``p``: how likely this much more than one
    window would come out if nothing but the first were cold. ``note`` says where the number is not to be trusted,
    else it is empty.
    """

    discard: int
    processes: int
    windows: int
    p: float | None = None
    note: str = ""


def learned_discard(series: Sequence[Sequence[float]], *, alpha: float = ALPHA) -> Learned:
    """Learn the discard from the window series of several engine processes.

    The first window is always thrown away: it holds whatever the engine does once. Whether more are is judged by
    MSER's statistic, the standard error that the mean would have, which is smallest at the best truncation (K. P.
    White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69(6), 1997,
    323-334); not in batches of five (MSER-5), for which these series are too short. Processes are combined first,
    window by window, as in Welch's procedure for replications ("The statistical analysis of simulation results",
    1983). As White has it, no more than half of the windows are truncated.

    MSER alone also truncates pure noise, and after a single outlier. So windows are thrown away one by one, for as
    long as truncating what is left gains more than it does when that is shuffled within each process, in all but
    ``alpha`` of 399 shuffles (of all orders where there are fewer). A lone outlier stands at the start in as many
    shuffles as anywhere, and doesn't pass; for the same reason a single process can't show a second cold window.

    Raises ValueError for a value that is not a finite number above 0.
    """
    _check(series)
    long = [one for one in series if len(one) >= MIN_WINDOWS]
    count = min(map(len, long), default=0)
    if not long:
        most = max(map(len, series), default=0)
        note = f"the longest series has {most} windows and {MIN_WINDOWS} are needed: 1 is assumed, not learned"
        return Learned(1, 0, most, note=note)
    logs = [[math.log(value) for value in one[:count]] for one in long]
    discard, p = 1, None
    while discard < count // 2:
        chance = _chance([one[discard:] for one in logs], count // 2 - discard)
        p = chance if p is None else p
        if chance > alpha:
            break
        discard += 1
    notes = []
    if len(long) < len(series):
        notes.append(f"{len(series) - len(long)} of {len(series)} series are shorter than {MIN_WINDOWS} and left out")
    if discard == count // 2 > 1:
        notes.append(f"still warming up, or drifting, at half of {count} windows: take longer series")
    if len(long) == 1:
        notes.append("learned from one process")
    return Learned(discard, len(long), count, p, "; ".join(notes))


@dataclass(frozen=True, slots=True)
class Drift:
    """A trend over the windows of one process or several.

    ``total`` is the relative change from the first to the last window by the median slope, ``p`` two-sided; ``None``
    where even values in perfect order would not have been significant.
    """

    windows: int
    processes: int
    total: float
    p: float | None


def drift(series: Sequence[Sequence[float]], *, alpha: float = ALPHA) -> Drift:
    """Test the windows of each process for a trend that they have in common.

    Mann-Kendall's S is added up over the processes (Hirsch, Slack and Smith, "Techniques of trend analysis for
    monthly water quality data", Water Resources Research 18(1), 1982, with processes for seasons), which no level of
    a process and no single outlier moves far. Its distribution without trend is exact, not the normal one. Equal
    values count as no order, which makes p too large. Windows that depend on their neighbours (autocorrelation) make
    it too small: at a lag-one correlation of 0.3 and 8 windows the rate of false alarms is about twice ``alpha``.

    The size is Theil and Sen's: the median slope over all pairs within a process, times the steps of the longest one.
    Raises ValueError for a value that is not a finite number above 0.
    """
    _check(series)
    kept = [one for one in series if len(one) > 1]
    logs = [[math.log(value) for value in one] for one in kept]
    steps = max(map(len, logs), default=1) - 1
    slopes = [
        (one[later] - one[earlier]) / (later - earlier)
        for one in logs
        for earlier, later in itertools.combinations(range(len(one)), 2)
    ]
    total = math.expm1(statistics.median(slopes) * steps) if slopes else 0.0
    lengths = tuple(sorted(map(len, logs)))
    lowest = _two_sided(lengths, sum(length * (length - 1) // 2 for length in lengths))
    p = None
    if lowest <= alpha:
        p = _two_sided(lengths, sum(map(_kendall, kept)))
    return Drift(steps + 1 if logs else max(map(len, series), default=0), len(logs), total, p)


def drifting(values: Sequence[float], what: str = "the value", *, alpha: float = ALPHA) -> str | None:
    """One sentence if the windows of one process drift, with by how much; ``None`` where no drift is seen.

    Below 5 windows none can be seen (:func:`drift` tells: ``p`` is ``None``); several short processes together can,
    with :func:`drifting_together`.
    """
    return drifting_together([values], what, alpha=alpha)


def drifting_together(
    series: Sequence[Sequence[float]], what: str = "the value", *, alpha: float = ALPHA
) -> str | None:
    """:func:`drifting` for all processes of a cell at once: a trend that they have in common."""
    found = drift(series, alpha=alpha)
    if found.p is None or found.p > alpha:
        return None
    of = f" in each of {found.processes} processes" if found.processes > 1 else ""
    return (
        f"{what} drifts by {found.total:+.1%} from the first to the last of {found.windows} windows{of} "
        f"(Mann-Kendall p = {_shown(found.p)}): it has not settled, so its mean depends on how long it is measured"
    )


def _check(series: Sequence[Sequence[float]]) -> None:
    for value in itertools.chain.from_iterable(series):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"a window's value is {value}: it must be a finite number above 0")


def _gain(logs: Sequence[Sequence[float]], most: int) -> float:
    """MSER's statistic at its best truncation, of ``most`` windows at most, over the one without truncation."""
    # A process's own level moves the mean of all windows alike, and MSER not at all.
    profile = [statistics.fmean(column) for column in zip(*logs, strict=True)]
    whole = _mser(profile)
    return min(_mser(profile[cut:]) for cut in range(most + 1)) / whole if whole > 0 else 1.0


def _mser(kept: Sequence[float]) -> float:
    """The square of the mean's standard error, as White's statistic has it: sum of squares / count squared."""
    mean = statistics.fmean(kept)
    return sum((value - mean) ** 2 for value in kept) / len(kept) ** 2


def _chance(logs: Sequence[Sequence[float]], most: int) -> float:
    """How often truncation gains this much when the windows are in no order."""
    limit = _gain(logs, most) * (1 + 1e-9)
    if math.factorial(len(logs[0])) ** len(logs) <= _SHUFFLES:
        every = [_gain(one, most) for one in itertools.product(*map(list, map(itertools.permutations, logs)))]
        return sum(value <= limit for value in every) / len(every)
    chance = random.Random(0)  # the same answer each time
    hits = sum(_gain([chance.sample(one, len(one)) for one in logs], most) <= limit for _ in range(_SHUFFLES))
    return (hits + 1) / (_SHUFFLES + 1)


def _kendall(values: Sequence[float]) -> int:
    """Pairs that rise, less pairs that fall."""
    return sum((later > earlier) - (later < earlier) for earlier, later in itertools.combinations(values, 2))


def _two_sided(lengths: tuple[int, ...], score: int) -> float:
    """The chance of a sum of Kendall scores as far from 0 as this in random orders of these lengths."""
    counts = _counts(lengths)
    pairs = sum(length * (length - 1) // 2 for length in lengths)
    # `counts[k]`: orders with k falling pairs; the score is pairs - 2k.
    far = sum(number for falling, number in enumerate(counts) if abs(pairs - 2 * falling) >= abs(score))
    return far / sum(counts)


@cache
def _counts(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """In how many ways orders of these lengths have 0, 1, 2, ... falling pairs together."""
    counts = [1]
    for length in lengths:
        for more in range(2, length + 1):  # inserting one more value makes 0 to more - 1 new falling pairs
            wider, total = [], 0
            for falling in range(len(counts) + more - 1):
                total += counts[falling] if falling < len(counts) else 0
                total -= counts[falling - more] if falling >= more else 0
                wider.append(total)
            counts = wider
    return tuple(counts)


def _shown(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "0.001 or less"
