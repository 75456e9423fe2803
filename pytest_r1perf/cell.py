"""The cell: one (platform, topology, recipe, workload, mode) to measure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pytest_r1perf.catalog import Catalog
from pytest_r1perf.childenv import redact
from pytest_r1perf.deployment import KEY as DEPLOYMENT
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.load import Batch, Load
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.ownprocess import WARM
from pytest_r1perf.platform import Platform
from pytest_r1perf.recipe import DEFAULT_RECIPE, FlagValue, Recipe
from pytest_r1perf.topology import Topology
from pytest_r1perf.workload import Workload


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured, all defaults filled in.

    ``flags`` are the logical server flags in force: platform, then the recipe's protocol, then its tuning,
    then the marker's own, then the topology's layout. ``extra_flags`` and ``extra_env`` are the marker's own
    part again: they are in the cell's name. ``load`` is what a server is given (``mode="serve"``); of a batch
    ``num_prompts`` is its size. ``kernel_caches`` is ``"cold"`` where every round gets empty ones of its own.
    """

    platform: Platform
    topology: Topology
    recipe: Recipe
    workload: Workload
    num_prompts: int
    mode: str
    flags: Mapping[str, FlagValue]
    env: Mapping[str, str]
    extra_flags: Mapping[str, FlagValue]
    extra_env: Mapping[str, str]
    timeout_s: float
    load: Load | None = None
    kernel_caches: str = WARM

    @property
    def key(self) -> str:
        """The name in a baseline file and in reports, e.g. ``cpu/default/sharegpt/n50/offline``.

        The topology is left out: it is the file's name. The value of a secret is, too.
        """
        parts = [self.platform.name, self.recipe.name, self.workload.name, f"n{self.num_prompts}", self.mode]
        parts += self._closing_pass
        parts += self.load.parts if self.load is not None else ()
        parts += self._cold
        parts += [f"{name}={value}" for name, value in sorted(self.extra_flags.items())]
        parts += [f"{name}={redact(name, value)}" for name, value in sorted(self.extra_env.items())]
        return "/".join(parts)

    @property
    def label(self) -> str:
        """Short, for a table: topology, recipe, N and what the marker changed."""
        extra = [f"{name}={value}" for name, value in self.extra_flags.items()]
        extra += [f"{name}={redact(name, value)}" for name, value in self.extra_env.items()]
        load = self.load.parts if self.load is not None else ()
        own = (*self._closing_pass, *load, *self._cold)
        return " ".join([self.topology.name, self.recipe.name, f"n={self.num_prompts}", *own, *extra])

    @property
    def _closing_pass(self) -> tuple[str, ...]:
        """In the key, the label and the fingerprint of what has the deployment's own weights and traffic."""
        return (DEPLOYMENT,) if self.platform.deployed else ()

    @property
    def _cold(self) -> tuple[str, ...]:
        """In the key, the label and the fingerprint: only what is not as usual."""
        return () if self.kernel_caches == WARM else (f"kernel_caches={self.kernel_caches}",)

    @property
    def fingerprint(self) -> str:
        """Identifies everything that is asked for: equal fingerprints are the same measurement."""
        asked = [
            self.platform.name,
            self.topology.name,
            self.recipe.name,
            self.platform.model_path,
            self.platform.datasets.get(self.workload.dataset),
            self.workload.name,
            self.workload.seed,
            self.workload.sharegpt_output_len,
            self.workload.sharegpt_context_len,
            self.num_prompts,
            self.mode,
            sorted((name, str(value)) for name, value in self.flags.items()),
            sorted(self.env.items()),
            *(self.load.parts if self.load is not None else ()),
            *self._cold,
            *self._closing_pass,
        ]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]

    @property
    def engine_key(self) -> str:
        """The same for two cells that one SGLang engine can measure: all but the workload and the limit of time."""
        asked = [
            self.platform.name,
            self.topology.name,
            self.platform.model_path,
            sorted((name, str(value)) for name, value in self.flags.items()),
            sorted(self.env.items()),
        ]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]


def cell_of(spec: PerfSpec, platform: Platform, catalog: Catalog) -> Cell:
    """The cell that a marker means on a platform.

    Without a recipe of its own it has the platform's for this topology, or for the one that this topology is
    measured against: then the layout is all that differs.
    """
    if spec.num_prompts is None:
        raise R1PerfError("perf() needs n, the number of prompts, e.g. perf(topology='tp8', n=5000)")
    topology = catalog.topology(spec.topology)
    defaults = (platform.default_recipes.get(name) for name in (topology.name, topology.reference) if name)
    recipe = catalog.recipe(spec.recipe or next(filter(None, defaults), DEFAULT_RECIPE.name))
    extra_flags, extra_env = dict(spec.flags), dict(spec.env)
    deployment = platform.deployment.flags if platform.deployed and platform.deployment is not None else {}
    # Over the recipe's protocol and the marker, which then does not name it: dummy weights are the benchmark's.
    extra_flags = {name: value for name, value in extra_flags.items() if name not in deployment}
    flags = {**platform.flags, **recipe.protocol, **recipe.flags, **extra_flags, **deployment}
    return Cell(
        platform=platform,
        topology=topology,
        recipe=recipe,
        workload=catalog.workload(spec.workload),
        num_prompts=spec.num_prompts,
        mode=spec.mode,
        flags=MappingProxyType({**flags, **topology.flags()}),
        env=MappingProxyType({**platform.env, **recipe.env, **extra_env}),
        extra_flags=MappingProxyType(extra_flags),
        extra_env=MappingProxyType(extra_env),
        timeout_s=spec.timeout_s or platform.timeout_s,
        load=spec.load,
        kernel_caches=spec.kernel_caches,
    )


def reference_of(cell: Cell, catalog: Catalog, rule: str) -> Cell:
    """What an anti-pattern is measured against: the reference recipe of the same topology and N.

    Raises :class:`R1PerfError` where that is the same cell: ``rule`` matches what the platform gives every cell.
    """
    topology = cell.topology.reference or cell.topology.name
    spec = PerfSpec(
        topology=topology,
        n=None if isinstance(cell.load, Batch) else cell.num_prompts,
        workload=cell.workload.name,
        mode=cell.mode,
        timeout_s=cell.timeout_s,
        load=cell.load,
        kernel_caches=cell.kernel_caches,
    )
    reference = cell_of(spec, cell.platform, catalog)
    if reference.fingerprint == cell.fingerprint:
        raise R1PerfError(
            f"{cell.label} matches the anti-pattern {rule}, and so does its reference, which has the same arguments: "
            f"take what the rule names out of the flags, env or default_recipes of platform {cell.platform.name!r}"
        )
    return reference
