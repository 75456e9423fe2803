"""Two environments over the whole suite: one ratio, and whether it is surely lower though no single cell is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_r1perf.results import CellResult
from pytest_r1perf.statistics import Interval, average
from pytest_r1perf.verdict import Verdict

_COMPARED = (Verdict.PASS, Verdict.IMPROVED, Verdict.REGRESSED, Verdict.UNDECIDED)


@dataclass(frozen=True, slots=True)
class SuiteRatio:
    """The geometric mean over ``cells`` of new / old, each by its first metric, in the better direction."""

    ratio: Interval
    cells: int
    tolerance: float

    @property
    def regressed(self) -> bool:
        """Surely below 1 less the tolerance (the largest of the cells')."""
        return self.ratio.upper < 1 - self.tolerance


def suite_ratio(results: Sequence[CellResult]) -> SuiteRatio | None:
    """The suite's ratio in a session of two environments, from two cells on; ``None`` where there is none.

    It has the share of one more cell in the night's false-alarm rate. Cells that are not comparable, and all
    but the first of several tests that share a measurement, are left out.
    """
    once: dict[tuple[str, str, str], CellResult] = {}
    for result in results:
        decides = not result.quarantined and result.verdict in _COMPARED
        if decides and result.side_by_side and result.judgements and result.judgements[0].ratio is not None:
            once.setdefault((result.platform, result.topology, result.key), result)
    if len(once) < 2:
        return None
    groups: dict[tuple[str, ...], list[Interval]] = {}
    for cell, result in once.items():
        ratio = result.judgements[0].ratio
        if ratio is not None:
            together = (result.engine,) if result.engine else cell
            groups.setdefault(together, []).append(ratio)
    return SuiteRatio(
        ratio=average(
            list(groups.values()),
            alpha=min(result.error_rate for result in once.values()),
            beta=min(result.missed_rate for result in once.values()),
        ),
        cells=len(once),
        tolerance=max(result.judgements[0].tolerance for result in once.values()),
    )
