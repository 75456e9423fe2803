"""The ``antipatterns`` and ``load_evidence`` fixtures (design section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from pytest_r1perf.antipatterns import Rule
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.lab import Comparison, Measured, PerfLab, arguments_from, run_of
from pytest_r1perf.marker import DEFAULT_METRIC
from pytest_r1perf.outcomes import LowLoadOnly
from pytest_r1perf.testrun import TestRun


class AntiPatterns(Mapping[str, Rule]):
    """Every rule by its id; :attr:`matched` are those that the test's own cell is an instance of."""

    def __init__(self, run: TestRun) -> None:
        self._run = run

    @property
    def matched(self) -> tuple[Rule, ...]:
        """Rules that the measured cell breaks; use it in the body."""
        if self._run.assessment is None:
            raise R1PerfError("antipatterns.matched is known just before the test's body runs: use it there")
        return self._run.assessment.rules

    def __getitem__(self, rule_id: str) -> Rule:
        return self._rules[rule_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    @property
    def _rules(self) -> Mapping[str, Rule]:
        return self._run.assessor.runner.catalog.rules


@dataclass(frozen=True)
class Ranking:
    """What loads say of a pair: the comparison at the highest load counts."""

    claim: str
    decisive: Comparison
    flips: tuple[Comparison, ...]

    def __str__(self) -> str:
        flipped = ", ".join(f"N={flip.a.num_prompts} says the opposite" for flip in self.flips)
        return f"{self.claim}: {self.decisive}" + (f" ({flipped})" if flipped else "")


class LoadEvidence:
    """Concludes from pairs of cells, each pair measured at one N.

    ::

        ranking = load_evidence("A beats B", (a_low, b_low), (a_high, b_high))
        assert ranking.decisive.a_wins
    """

    def __init__(self, request: pytest.FixtureRequest, run: TestRun) -> None:
        self._request = request
        self._run = run

    def __call__(self, claim: str, *pairs: tuple[Measured, Measured], metric: str = DEFAULT_METRIC) -> Ranking:
        """The ranking at the highest load, with every load that says the opposite.

        Raises :class:`LowLoadOnly` (and xfails the test) when no pair reaches the platform's
        ``min_conclusive_n``; :class:`R1PerfError` for a pair of two different N.
        """
        if not pairs:
            raise R1PerfError("load_evidence needs at least one pair of measured cells")
        for a, b in pairs:
            if a.num_prompts != b.num_prompts:
                raise R1PerfError(
                    f"{a.label} and {b.label} have different N: compare them at the same number of prompts"
                )
        enough = self._run.assessor.runner.platform_of(self._run.spec).min_conclusive_n
        by_load = sorted(pairs, key=lambda pair: pair[0].num_prompts)
        highest = by_load[-1][0].num_prompts
        if highest < enough:
            reason = (
                f"{claim!r} rests on low loads only (N={highest} at most, {enough} is the least that this "
                f"platform concludes from): rankings flip at higher N"
            )
            self._request.node.add_marker(pytest.mark.xfail(raises=LowLoadOnly, strict=True, reason=reason))
            raise LowLoadOnly(reason)
        lab = PerfLab(self._run, arguments_from(self._run.spec))
        comparisons = [lab.compare(a, b, metric) for a, b in by_load]
        decisive = comparisons[-1]
        flips = tuple(
            other
            for other in comparisons[:-1]
            if (other.a_wins and decisive.b_wins) or (other.b_wins and decisive.a_wins)
        )
        ranking = Ranking(claim, decisive, flips)
        if flips:
            self._run.note(f"flip: {ranking}")
        return ranking


def antipatterns_of(request: pytest.FixtureRequest) -> AntiPatterns:
    """The fixture's value."""
    return AntiPatterns(run_of(request, "antipatterns"))


def load_evidence_of(request: pytest.FixtureRequest) -> LoadEvidence:
    """The fixture's value."""
    return LoadEvidence(request, run_of(request, "load_evidence"))
