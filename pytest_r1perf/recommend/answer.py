"""The answer: from baselines first, from the published figures otherwise, and which of the two it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pytest_r1perf.catalog import Catalog
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.recipe import Published, Recipe
from pytest_r1perf.recommend.decisions import METRIC_OF, Decision, load_matrix
from pytest_r1perf.recommend.measured import ALPHA, Candidate, candidates, groups, is_reference, is_stack, widest
from pytest_r1perf.statistics import Component, Interval, interval_of_ratio
from pytest_r1perf.topology import Topology


class Basis(str, Enum):
    """What an answer rests on."""

    MEASURED = "measured"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class Rival:
    """Another stack at the same load, and the best one over it; ``None`` where one round a side tells no spread."""

    candidate: Candidate
    ratio: Interval | None


@dataclass(frozen=True, slots=True)
class Answer:
    """One recommendation.

    ``decision`` is the guide's line, ``None`` where it has none. ``best`` and its ``rivals`` were measured (on one
    hardware, at one load); ``published`` is the guide's own figure of its recipe, which ``topology`` and ``recipe`` are
    where nothing was measured. ``agrees``: the stack is the guide's own.
    """

    goal: str
    gpus: int
    metric: str
    basis: Basis
    topology: Topology
    recipe: str
    platform: str
    decision: Decision | None
    published: Published | None
    agrees: bool
    best: Candidate | None = None
    rivals: tuple[Rival, ...] = ()


def recommend(goal: str, gpus: int, catalog: Catalog, root: Path) -> tuple[Answer, ...]:
    """One answer for each hardware that was measured; the guide's where none was.

    Baselines answer where the guide's own stack is among those measured at one conclusive load, or where the guide has
    none for this goal. Raises :class:`R1PerfError` with one sentence for what can't be answered.
    """
    matrix, metric = load_matrix(), METRIC_OF[goal]
    decision = matrix.decision(goal, gpus)
    found = candidates(root, catalog, gpus, metric)
    if goal == "reference":
        found = [one for one in found if is_reference(one.topology, gpus)]
    recipe = catalog.recipe(decision.recipe) if decision is not None else None
    answers = []
    for hardware in sorted({one.hardware for one in found}):
        together = list(groups(one for one in found if one.hardware == hardware).values())
        ranked = widest(together, recipe)
        if ranked:
            answers.append(_from_baselines(goal, gpus, ranked, decision, recipe, catalog))
    if answers:
        return tuple(answers)
    if decision is None or recipe is None or recipe.topology is None:
        says = matrix.unanswered.get((goal, gpus), "the guide has no line for it")
        raise R1PerfError(f"--goal {goal} --gpus {gpus}: {says}; no baseline under {root} answers it either")
    return (
        Answer(
            goal=goal,
            gpus=gpus,
            metric=metric,
            basis=Basis.PUBLISHED,
            topology=catalog.topology(recipe.topology),
            recipe=recipe.name,
            platform=_platform_for(catalog, recipe, gpus),
            decision=decision,
            published=recipe.published,
            agrees=True,
        ),
    )


def _from_baselines(
    goal: str,
    gpus: int,
    ranked: Sequence[Candidate],
    decision: Decision | None,
    recipe: Recipe | None,
    catalog: Catalog,
) -> Answer:
    best, *others = ranked
    return Answer(
        goal=goal,
        gpus=gpus,
        metric=best.metric,
        basis=Basis.MEASURED,
        topology=best.topology,
        recipe=best.recipe,
        platform=best.platform,
        decision=decision,
        published=recipe.published if recipe is not None else None,
        agrees=recipe is not None and is_stack(best, recipe),
        best=best,
        rivals=tuple(Rival(one, _over(best, one, catalog)) for one in others),
    )


def _over(best: Candidate, other: Candidate, catalog: Catalog) -> Interval | None:
    """The ratio with its 95 % limits; two sessions differ by more than their rounds show, where that was measured."""
    noise = catalog.platform(best.platform).noise
    between = []
    if noise is not None and best.session != other.session:
        between.append(Component(2 * noise.session_cv**2, noise.sessions - 1))
    fallback = (noise.run_cv, noise.runs - 1) if noise is not None else None
    return interval_of_ratio(best.values, other.values, alpha=ALPHA, fallback_cv=fallback, between=between)


def _platform_for(catalog: Catalog, recipe: Recipe, gpus: int) -> str:
    """A platform of so many GPUs that has the recipe as its own for the topology; else the first large enough."""
    able = [one for one in catalog.platforms.values() if one.gpus_per_node and one.gpus_per_node * one.nodes == gpus]
    own = [one for one in able if recipe.topology and one.default_recipes.get(recipe.topology) == recipe.name]
    return next((one.name for one in (*own, *able)), "")
