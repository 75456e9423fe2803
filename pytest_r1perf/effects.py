"""What a test's body learns from several cells: plain data with intervals, for the report, for JSON, for asserts.

Ratios are in the better direction of the metric: above 1 is better, a latency that fell by half is 2. ``gain`` is a
ratio less 1. Intervals of one effect hold together: see :class:`Effect`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar

from pytest_r1perf.published import Said
from pytest_r1perf.results import finite
from pytest_r1perf.statistics import Interval, geometric_mean


@dataclass(frozen=True, slots=True)
class Point:
    """A measured cell: ``values`` has one value a round, in the metric's unit.

    ``gpus`` are those really used; ``load`` is N with whatever else a server was given, in a few words.
    """

    label: str
    topology: str
    gpus: int
    num_prompts: int
    load: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The geometric mean over the rounds."""
        return geometric_mean(self.values)


@dataclass(frozen=True, slots=True)
class BrokenPoint:
    """A cell that broke: the verdict's name (``OOM``) and its cause."""

    label: str
    verdict: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What every effect has.

    The probability that any of its lower limits is wrong is at most ``alpha``, over all ``family`` intervals together
    (Bonferroni: each has ``alpha / family``); the same holds for the upper ones. ``mixed`` says what differs between
    the cells beside what was asked for; ``published`` sets figures of documents beside the measured ones.
    """

    kind: ClassVar[str] = ""

    metric: str
    alpha: float
    family: int
    mixed: tuple[str, ...] = ()
    published: tuple[Said, ...] = ()

    def __str__(self) -> str:
        """One sentence."""
        from pytest_r1perf.report.effects import sentence

        return sentence(self)

    def lines(self, width: int = 80) -> list[str]:
        """The table or drawing for a terminal of this width."""
        from pytest_r1perf.report.effects import lines

        return lines(self, width)

    def as_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists, texts and numbers; an endless limit is ``None``.

        Beside the fields: ``kind``, the ``sentence``, and ``text``, the lines for a terminal of 80 columns.
        """
        told = {"sentence": str(self), "text": self.lines()}
        plain: dict[str, Any] = finite({"kind": self.kind, **asdict(self), **told})
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Effect):
    """``a`` over ``b``: above 1, ``a`` is better. ``checklist`` are the items of parity that do not hold."""

    kind: ClassVar[str] = "comparison"

    a: Point
    b: Point
    ratio: Interval
    checklist: tuple[str, ...] = ()

    @property
    def a_wins(self) -> bool:
        """``a`` is surely better."""
        return self.ratio.lower > 1

    @property
    def b_wins(self) -> bool:
        """``b`` is surely better."""
        return self.ratio.upper < 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction(Effect):
    """A 2 x 2 factorial: ``a``, ``b`` and both over ``base``, and ``term``, ab * base / (a * b).

    ``expected`` is the linear expectation, the sum of both gains, as a ratio (1.029 is +2.9 %); ``None`` where the
    gains add up to -100 % or less.
    """

    kind: ClassVar[str] = "interaction"

    base: Point
    a: Point
    b: Point
    ab: Point
    over_a: Interval
    over_b: Interval
    over_ab: Interval
    term: Interval
    expected: Interval | None

    @property
    def product(self) -> float:
        """What both would give without an interaction on the log scale: the product of their ratios."""
        return self.over_a.estimate * self.over_b.estimate

    @property
    def synergy(self) -> bool:
        """Together surely more than the product of both."""
        return self.term.lower > 1

    @property
    def conflict(self) -> bool:
        """Together surely less than the product of both."""
        return self.term.upper < 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation(Effect):
    """Steps one at a time: ``steps[i]`` is ``points[i + 1]`` over ``points[i]``, ``total`` the last over the first."""

    kind: ClassVar[str] = "ablation"

    points: tuple[Point, ...]
    steps: tuple[Interval, ...]
    total: Interval

    def step(self, name: str) -> Interval:
        """The ratio of the step of that name; ``KeyError`` where there is none."""
        return dict(zip((point.label for point in self.points[1:]), self.steps, strict=True))[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Effect):
    """Figures per GPU (in the metric's unit), and ``efficiency`` of each cell from the second on over the first."""

    kind: ClassVar[str] = "scaling"

    points: tuple[Point, ...]
    per_gpu: tuple[Interval, ...]
    efficiency: tuple[Interval, ...]

    @property
    def speedup(self) -> tuple[Interval, ...]:
        """The whole cells over the first: the efficiency times the number of GPUs over the first's."""
        first = self.points[0].gpus
        rest = zip(self.points[1:], self.efficiency, strict=True)
        return tuple(interval.scaled(point.gpus / first) for point, interval in rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCurve(Effect):
    """``a`` over ``b`` at every load, lowest first; ``a`` and ``b`` are their names without the load."""

    kind: ClassVar[str] = "by load"

    a: str
    b: str
    pairs: tuple[Comparison, ...]

    @property
    def decisive(self) -> Comparison:
        """The highest load's: rankings flip below it."""
        return self.pairs[-1]

    @property
    def flips(self) -> tuple[Comparison, ...]:
        """Loads that surely say the opposite of the highest one."""
        top = self.decisive
        return tuple(one for one in self.pairs[:-1] if (one.a_wins and top.b_wins) or (one.b_wins and top.a_wins))

    @property
    def crossings(self) -> tuple[tuple[Point, Point], ...]:
        """The loads (of ``a``) between which the sign surely changes, lowest first; those between them are open."""
        sure = [pair for pair in self.pairs if pair.a_wins or pair.b_wins]
        return tuple((low.a, high.a) for low, high in pairwise(sure) if low.a_wins != high.a_wins)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(Effect):
    """The best of several cells over the worst. Of cells that are all alike the estimate is above 1 by noise alone."""

    kind: ClassVar[str] = "spread"

    points: tuple[Point, ...]
    ratio: Interval

    @property
    def surely_below(self) -> float:
        """The spread that is excluded: 0.024 means that the best is surely less than 2.4 % above the worst."""
        return self.ratio.upper - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid(Effect):
    """A sweep: ``cells[i][j]`` is at ``down[i]`` and ``across[j]``; one that broke is a point, too.

    ``best`` and ``contenders`` are places (i, j): the best of all is surely among them. ``best`` is ``None`` where
    every cell broke.
    """

    kind: ClassVar[str] = "grid"

    names: tuple[str, ...]
    down: tuple[str, ...]
    across: tuple[str, ...]
    cells: tuple[tuple[Point | BrokenPoint, ...], ...]
    best: tuple[int, int] | None
    contenders: tuple[tuple[int, int], ...]

    @property
    def broken(self) -> tuple[BrokenPoint, ...]:
        """The cells that broke."""
        return tuple(cell for row in self.cells for cell in row if isinstance(cell, BrokenPoint))
