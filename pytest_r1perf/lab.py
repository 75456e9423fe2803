"""The ``perf_lab`` fixture: what a test's body can say of several cells.

They are measured by :mod:`pytest_r1perf.labcells`, and what they come to is :mod:`pytest_r1perf.procedures`'s.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from pytest_r1perf import procedures
from pytest_r1perf.deployment import NOT_THE_BENCHMARK
from pytest_r1perf.effects import (
    Ablation,
    BrokenPoint,
    Comparison,
    Effect,
    Grid,
    Interaction,
    LoadCurve,
    Point,
    Scaling,
    Spread,
)
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.labcells import LabCells, arguments_from
from pytest_r1perf.load import ARGUMENTS as LOAD_ARGUMENTS
from pytest_r1perf.measured import Broken, Measured, PerfResult, run_of
from pytest_r1perf.metrics import metric_named
from pytest_r1perf.mixing import Checklist, changed, guides_checklist, load_of, mixed, pace
from pytest_r1perf.procedures import Basis
from pytest_r1perf.published import Published, PublishedAs
from pytest_r1perf.testrun import TestRun

__all__ = [
    "Ablation",
    "Broken",
    "Comparison",
    "Grid",
    "Interaction",
    "LoadCurve",
    "Measured",
    "PerfLab",
    "PerfResult",
    "Published",
    "Scaling",
    "Spread",
    "arguments_from",
    "run_of",
]

E = TypeVar("E", bound=Effect)


class PerfLab:
    """Measures cells within one test; the marker gives every argument that a call leaves out.

    What is said of several cells (all but ``measure``, ``in_turn`` and ``attempt``) comes with intervals on the log
    scale and in the better direction of ``metric``, the marker's first by default. The limits of one call hold
    together: the probability that any lower limit is wrong is at most ``alpha``, by default the cell's share of the
    platform's error rate, and so is that of any upper one. One round a cell has no spread: give the marker
    ``rounds="3"``. Nothing is compared with a baseline, and ``published=`` is only set beside what was measured.
    """

    def __init__(self, run: TestRun, arguments: Mapping[str, Any], checklist: Checklist = guides_checklist) -> None:
        self._run = run
        self._cells = LabCells(run, arguments)
        self._checklist = checklist

    def measure(self, **arguments: Any) -> Measured:
        """One more cell: marker arguments over those of the test's own marker.

        A broken measurement fails the test, named as any other; what can't run here skips it.
        """
        return self._cells.measured([arguments])[0]

    def in_turn(self, *cells: Mapping[str, Any]) -> tuple[Measured, ...]:
        """Several cells, a round of each in turn, so that a host that drifts does so for all of them.

        ::

            plain, lof = perf_lab.in_turn({}, {"flags": {"schedule_policy": "lof"}})
        """
        return self._cells.measured(cells)

    def attempt(self, *, may_break: Sequence[str] = ("OOM",), **arguments: Any) -> Measured | Broken:
        """One more cell that may break: an OOM is then a data point, not a failed test.

        ``may_break`` are the verdicts that count so: OOM, HANG, CRASH or CONFIG. Any other breakage fails the test, as
        with :meth:`measure`: INVALID is no number, and INFRA says nothing of the cell.
        """
        return self._cells.attempted([arguments], may_break)[0]

    def attempt_in_turn(
        self, *cells: Mapping[str, Any], may_break: Sequence[str] = ("OOM",)
    ) -> tuple[Measured | Broken, ...]:
        """Several cells in turn, each of which may break: :meth:`in_turn` and :meth:`attempt` in one."""
        return self._cells.attempted(cells, may_break)

    def compare(
        self,
        a: Measured,
        b: Measured,
        metric: str | None = None,
        *,
        alpha: float | None = None,
        published: PublishedAs = None,
    ) -> Comparison:
        """``a`` over ``b`` with its interval.

        What differs beside what was asked for (topology, load, protocol) is said. Raises :class:`R1PerfError` for two
        platforms, or with one round on each side.
        """
        points, basis = self._basis([a, b], metric, alpha, twice=True)
        items = tuple(self._checklist(a.measurement, b.measurement))
        return self._tell(procedures.comparison(points[0], points[1], basis, published, items))

    def interaction(
        self,
        base: Measured,
        a: Measured,
        b: Measured,
        ab: Measured,
        metric: str | None = None,
        *,
        alpha: float | None = None,
        published: PublishedAs = None,
    ) -> Interaction:
        """A 2 x 2 factorial: what ``a`` and ``b`` gain by themselves and together, and the interaction.

        The term is ``ab * base / (a * b)``: above 1 the two together gain more than one by one (on the log scale). The
        linear expectation, the sum of both gains, stands beside it. ``published`` is of the two together, or a mapping
        with the keys ``a``, ``b``, ``ab``, ``term`` and ``expected`` (the linear expectation)::

            perf_lab.interaction(base, lof, fi, both, published={"ab": "+7.5 %", "expected": "+2.9 %"})
        """
        _whole([base, a, b, ab])
        names = [base.label, changed(base.cell, a.cell), changed(base.cell, b.cell), changed(base.cell, ab.cell)]
        points, basis = self._basis([base, a, b, ab], metric, alpha, names=names)
        return self._tell(procedures.interaction(points[0], points[1], points[2], points[3], basis, published))

    def ablation(
        self,
        *measured: Measured,
        metric: str | None = None,
        names: Sequence[str] | None = None,
        alpha: float | None = None,
        published: PublishedAs = None,
    ) -> Ablation:
        """Steps one at a time: each cell over the one before, and the last over the first; drawn as a waterfall.

        A step is named after what changed, unless ``names`` are given. ``published`` is of the total, or a mapping of
        steps' names (and ``total``) to figures.
        """
        steps = [changed(before.cell, after.cell) for before, after in itertools.pairwise(_whole(measured))]
        first = [one.label for one in measured[:1]]
        points, basis = self._basis(measured, metric, alpha, names=names or [*first, *steps])
        return self._tell(procedures.ablation(points, basis, published))

    def scaling(
        self,
        *measured: Measured,
        metric: str | None = None,
        names: Sequence[str] | None = None,
        alpha: float | None = None,
        published: PublishedAs = None,
    ) -> Scaling:
        """Figures per GPU, and each one's efficiency against the first cell's.

        GPUs are those that the topology really uses. ``published`` is of the last efficiency (``"0.64x"``), or a
        mapping of names to figures. Raises :class:`R1PerfError` for a metric that isn't a throughput of the whole cell.
        """
        points, basis = self._basis(measured, metric, alpha, names=names)
        return self._tell(procedures.scaling(points, basis, published))

    def by_load(
        self,
        pairs: Sequence[tuple[Measured, Measured]],
        metric: str | None = None,
        *,
        alpha: float | None = None,
        published: PublishedAs = None,
    ) -> LoadCurve:
        """Pairs (a, b), each at one N: the ratio at every load, where its sign flips, and the highest load's answer.

        A sign counts where it is sure. Of a server's traffic a higher rate is a higher load. ``published`` is of the
        highest load, or a mapping of N to figures. Raises :class:`R1PerfError` for a pair of two different loads, and
        for two pairs of one.
        """
        _whole([one for pair in pairs for one in pair])
        pairs = sorted(pairs, key=lambda pair: pace(pair[0].cell))
        points, basis = self._basis([one for pair in pairs for one in pair], metric, alpha, loads=False)
        a, b = (_without_load(one) for one in pairs[0]) if pairs else ("", "")
        for side, first in enumerate((a, b)):
            other = next((name for name in (_without_load(pair[side]) for pair in pairs) if name != first), None)
            if other is not None:
                sentence = f"not the same two at every load: [{first}] and [{other}] are both {'ab'[side]}"
                basis = replace(basis, mixed=(*basis.mixed, sentence))
        both = list(zip(points[::2], points[1::2], strict=True))
        return self._tell(procedures.by_load(both, basis, published, a=a, b=b))

    def spread(
        self,
        *measured: Measured,
        metric: str | None = None,
        names: Sequence[str] | None = None,
        alpha: float | None = None,
        published: PublishedAs = None,
    ) -> Spread:
        """How far neighbours are apart: the best over the worst, less 1, with an interval.

        ``published`` is such a figure, or a bound on it (``"< 2.4 %"``).
        """
        points, basis = self._basis(measured, metric, alpha, names=names)
        return self._tell(procedures.spread(points, basis, published))

    def grid(
        self,
        rows: Mapping[str, Sequence[Any]],
        *,
        alpha: float | None = None,
        may_break: Sequence[str] = ("OOM",),
        **fixed: Any,
    ) -> Grid:
        """A sweep over two things, or one: every combination is measured, and one that breaks is a data point.

        ``rows`` maps a flag, or a marker argument, to its values: the first goes down, the second across. ``fixed`` are
        marker arguments of every cell. The best combination is named with those that may be as good::

            perf_lab.grid({"mem_fraction_static": [0.7, 0.83, 0.87], "cuda_graph_max_bs": [256, 2048]}, n=7000)
        """
        if not 1 <= len(rows) <= 2 or not all(rows.values()):
            raise R1PerfError(f"grid needs one or two things to sweep, each with its values, got {dict(rows)!r}")
        places = [dict(zip(rows, values, strict=True)) for values in itertools.product(*rows.values())]
        cells = [self._cells.swept(place, fixed) for place in places]
        metric = self._cells.refuse_one_round(cells[0]).metrics[0]
        found = self._cells.attempted(cells, may_break)
        names = [" ".join(f"{key}={value}" for key, value in place.items()) for place in places]
        whole = [one for one in found if isinstance(one, Measured)]
        _, basis = self._basis(whole, metric, alpha, loads=not {"n", *LOAD_ARGUMENTS} & {*rows})
        points: list[Point | BrokenPoint] = [
            one.point(metric, name) if isinstance(one, Measured) else replace(one.point(), label=name)
            for one, name in zip(found, names, strict=True)
        ]
        return self._tell(procedures.grid(rows, points, basis))

    def _basis(
        self,
        measured: Sequence[Measured],
        metric: str | None,
        alpha: float | None,
        *,
        names: Sequence[str] | None = None,
        loads: bool = True,
        twice: bool = False,
    ) -> tuple[list[Point], Basis]:
        """The cells as points, and what an effect of them rests on.

        ``loads=False``: N differs by intent; ``twice``: one cell may be given two times.
        """
        chosen = metric_named(metric or self._run.spec.metrics[0])
        for place, one in enumerate(_whole(measured)):
            if not twice and any(one.cell.fingerprint == other.cell.fingerprint for other in measured[:place]):
                raise R1PerfError(f"{one.label} is given twice: the same rounds cannot count two times")
        if names is not None and len(names) != len(measured):
            raise R1PerfError(f"names has {len(names)} names for {len(measured)} cells: {list(names)!r}")
        platform = measured[0].cell.platform if measured else self._run.assessor.runner.platform_of(self._run.spec)
        noise, level = platform.noise, platform.error_rate.per_cell if alpha is None else alpha
        if not 0 < level < 0.5:
            raise R1PerfError(f"alpha must be an error rate above 0 and below 0.5, got {alpha!r}")
        called = names if names is not None else [one.label for one in measured]
        points = [one.point(chosen.name, name) for one, name in zip(measured, called, strict=True)]
        return points, Basis(
            metric=chosen,
            alpha=level,
            noise=(noise.run_cv, noise.runs - 1) if noise is not None else None,
            mixed=mixed([one.measurement for one in measured], loads=loads) if measured else (),
            aside=NOT_THE_BENCHMARK if platform.deployed else "",
        )

    def _tell(self, effect: E) -> E:
        """Put an effect into the report, and hand it on."""
        self._run.effect(effect.as_dict())
        return effect


def perf_result_of(request: pytest.FixtureRequest) -> PerfResult:
    """The fixture's value."""
    return PerfResult(run_of(request, "perf_result"))


def perf_lab_of(request: pytest.FixtureRequest) -> PerfLab:
    """The fixture's value."""
    run = run_of(request, "perf_lab")
    return PerfLab(run, arguments_from(run.spec))


def _whole(measured: Sequence[Measured]) -> Sequence[Measured]:
    """The same, none of them broken: what ``attempt`` gave may have no number."""
    for one in measured:
        if not isinstance(one, Measured):
            raise R1PerfError(f"{one}: there is no number to compare, leave out what broke")
    return measured


def _without_load(one: Measured) -> str:
    """A cell's label without its load."""
    load = load_of(one.cell).split(" ")
    return " ".join(part for part in one.label.split(" ") if part not in load)
