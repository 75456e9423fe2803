"""The ``antipatterns`` and ``load_evidence`` fixtures (design section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from pytest_r1perf.antipatterns import Rule
from pytest_r1perf.effects import Comparison, LoadCurve
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.lab import Measured, PerfLab, arguments_from, run_of
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
    curve: LoadCurve

    @property
    def decisive(self) -> Comparison:
        """The highest load's comparison."""
        return self.curve.decisive

    @property
    def flips(self) -> tuple[Comparison, ...]:
        """Loads that surely say the opposite."""
        return self.curve.flips

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

    def __call__(self, claim: str, *pairs: tuple[Measured, Measured], metric: str | None = None) -> Ranking:
        """The ranking at the highest load, with every load that says the opposite.

        Raises :class:`LowLoadOnly` (and xfails the test) when no pair reaches the platform's
        ``min_conclusive_n``; :class:`R1PerfError` as :meth:`PerfLab.by_load` does, which it concludes by.
        """
        if not pairs:
            raise R1PerfError("load_evidence needs at least one pair of measured cells")
        highest = max(one.num_prompts for pair in pairs for one in pair)
        enough = self._run.assessor.runner.platform_of(self._run.spec).min_conclusive_n
        if highest < enough:
            reason = (
                f"{claim!r} rests on low loads only (N={highest} at most, {enough} is the least that this "
                f"platform concludes from): rankings flip at higher N"
            )
            self._request.node.add_marker(pytest.mark.xfail(raises=LowLoadOnly, strict=True, reason=reason))
            raise LowLoadOnly(reason)
        ranking = Ranking(claim, PerfLab(self._run, arguments_from(self._run.spec)).by_load(pairs, metric))
        if ranking.flips:
            self._run.note(f"flip: {ranking}")
        return ranking


def antipatterns_of(request: pytest.FixtureRequest) -> AntiPatterns:
    """The fixture's value."""
    return AntiPatterns(run_of(request, "antipatterns"))


def load_evidence_of(request: pytest.FixtureRequest) -> LoadEvidence:
    """The fixture's value."""
    return LoadEvidence(request, run_of(request, "load_evidence"))
