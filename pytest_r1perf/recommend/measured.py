"""Stored baselines that can answer: on hardware that fits, at a load that counts, comparable with each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf import baseline
from pytest_r1perf.baseline import Baseline, BaselineFile
from pytest_r1perf.catalog import Catalog
from pytest_r1perf.deployment import is_of_deployment
from pytest_r1perf.recipe import Recipe
from pytest_r1perf.statistics import Interval, geometric_mean, interval_of_mean
from pytest_r1perf.topology import Topology

ALPHA = 0.025
"""One side of the 95 % intervals that are shown."""
MOST_NODES = 2
"""The guide's shapes: one node, or two."""
_MODES = ("offline", "engine")
"""A server's client adds a load of its own: it answers other questions."""
_GROUP = ("workload", "model_config", "load_format", "dtype", "quantization", "metric_definition", "cache_state")
"""Keys of the protocol that must be the same, whatever the layout, before two stacks may be ranked."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One stored baseline: what was measured, where, and how much of ``metric`` it made.

    ``interval`` is the mean with its 95 % limits, ``None`` for a single round.
    """

    path: Path
    hardware: str
    topology: Topology
    entry: Baseline
    metric: str
    platform: str
    recipe: str
    n: int
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The geometric mean of the rounds."""
        return geometric_mean(self.values)

    @property
    def interval(self) -> Interval | None:
        """The mean with its 95 % limits."""
        return interval_of_mean(self.values, alpha=ALPHA)

    @property
    def group(self) -> tuple[object, ...]:
        """Equal for two that may be ranked: one hardware, workload, load, mode and way of loading the model."""
        parts = self.entry.key.split("/")
        return (self.hardware, parts[2], self.n, parts[4], *(str(self.entry.protocol.get(key)) for key in _GROUP))

    @property
    def session(self) -> str:
        """Rounds of one session share what that session adds."""
        return str(self.entry.provenance.get("session", self.path))


def candidates(root: Path, catalog: Catalog, gpus: int, metric: str) -> list[Candidate]:
    """Every baseline under ``root`` that could answer for so many GPUs. Raises :class:`DataError` for a bad file.

    Hardware fits that makes the GPUs with one whole node or two. Loads below the platform's ``min_conclusive_n`` rank
    nothing, and what was measured with a deployment's own weights is no benchmark.
    """
    found = []
    for path in sorted(root.glob("*/*.yaml")):
        if path.parent.name.startswith("cpu-"):
            continue
        file = baseline.load(path)
        topology = catalog.topologies.get(file.topology)
        if topology is not None and _fits(topology, file, gpus):
            found += [
                one for entry in file.cells.values() if (one := _candidate(file, topology, entry, catalog, metric))
            ]
    return found


def _fits(topology: Topology, file: BaselineFile, gpus: int) -> bool:
    nodes, rest = divmod(gpus, file.hardware_count)
    return not rest and 1 <= nodes <= MOST_NODES and topology.nnodes <= nodes


def _candidate(
    file: BaselineFile, topology: Topology, entry: Baseline, catalog: Catalog, metric: str
) -> Candidate | None:
    parts = entry.key.split("/")
    n = entry.protocol.get("num_prompts")
    platform = catalog.platforms.get(parts[0])
    if platform is None or len(parts) < 5 or parts[4] not in _MODES or not isinstance(n, int):
        return None
    if is_of_deployment(entry.key) or n < platform.min_conclusive_n or metric not in entry.samples:
        return None
    return Candidate(
        path=file.path,
        hardware=file.path.parent.name,
        topology=topology,
        entry=entry,
        metric=metric,
        platform=platform.name,
        recipe="/".join([parts[1], *parts[5:]]),
        n=n,
        values=tuple(entry.samples[metric]),
    )


def groups(found: Iterable[Candidate]) -> dict[tuple[object, ...], list[Candidate]]:
    """Those that may be ranked, together, the best first."""
    together: dict[tuple[object, ...], list[Candidate]] = {}
    for one in found:
        together.setdefault(one.group, []).append(one)
    return {key: sorted(ones, key=lambda one: -one.mean) for key, ones in together.items()}


def is_reference(topology: Topology, gpus: int) -> bool:
    """Tensor parallel over all the GPUs of two nodes, and nothing else."""
    return topology.nnodes == MOST_NODES and topology.tp_size == gpus and topology.gpus_used == gpus


def is_stack(one: Candidate, recipe: Recipe) -> bool:
    """Whether it is a recipe on the topology that the recipe is for: elsewhere the same flags are another stack."""
    return one.recipe == recipe.name and recipe.topology in (None, one.topology.name)


def widest(together: Sequence[list[Candidate]], recipe: Recipe | None) -> list[Candidate]:
    """The group to answer from: with this stack in it, of the most topologies, then of the highest load.

    Empty where no group has the stack.
    """
    able = [ones for ones in together if recipe is None or any(is_stack(one, recipe) for one in ones)]
    return max(able, key=lambda ones: (len({one.topology.name for one in ones}), ones[0].n), default=[])
