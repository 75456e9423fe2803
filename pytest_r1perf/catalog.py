"""The catalog: every topology, platform, recipe, workload, rule and GPU, the package's own and the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pytest_r1perf.antipatterns import Rule, load_rule
from pytest_r1perf.ceilings.gpumodel import GpuModel, load_gpu
from pytest_r1perf.datafile import Section, merged, read_yaml
from pytest_r1perf.errors import R1PerfError, did_you_mean
from pytest_r1perf.platform import Platform, load_platform
from pytest_r1perf.recipe import DEFAULT_RECIPE, Recipe, load_recipe
from pytest_r1perf.topology import Topology, load_topology
from pytest_r1perf.workload import Workload, load_workload

USER_FILE = "r1perf.yaml"
"""A file of this name in pytest's rootdir extends or overrides the package's own data."""

_PACKAGE_FILES = ("topologies", "platforms", "recipes", "workloads", "antipatterns", "gpus")
_DATA = Path(__file__).parent / "data"

Noun = TypeVar("Noun")


@dataclass(frozen=True, slots=True)
class Catalog:
    """All nouns by name. Each ``..._named`` lookup raises :class:`R1PerfError` with the nearest name."""

    topologies: Mapping[str, Topology]
    platforms: Mapping[str, Platform]
    recipes: Mapping[str, Recipe]
    workloads: Mapping[str, Workload]
    rules: Mapping[str, Rule]
    gpus: Mapping[str, GpuModel]

    def topology(self, name: str) -> Topology:
        """The topology of that name."""
        return _named("topology", self.topologies, name)

    def platform(self, name: str) -> Platform:
        """The platform of that name."""
        return _named("platform", self.platforms, name)

    def recipe(self, name: str) -> Recipe:
        """The recipe of that name."""
        return _named("recipe", self.recipes, name)

    def workload(self, name: str) -> Workload:
        """The workload of that name."""
        return _named("workload", self.workloads, name)

    def gpu_of(self, platform: Platform) -> GpuModel | None:
        """What is known of a platform's GPU; ``None`` on a CPU and for a GPU that no ``gpus:`` names."""
        return self.gpus.get(platform.accelerator)


def load_catalog(user_files: Sequence[Path] = ()) -> Catalog:
    """The package's data with ``user_files`` laid over it, in their order.

    An entry of the same name overrides the keys it gives; ``extends: NAME`` starts a new entry from another.
    Raises :class:`DataError` for a bad file, with file, line and key.
    """
    entries: dict[str, dict[str, Section]] = {kind: {} for kind in _PACKAGE_FILES}
    for path in (*(_DATA / f"{kind}.yaml" for kind in _PACKAGE_FILES), *user_files):
        _lay_over(entries, read_yaml(path))
    recipes = _load_all(load_recipe, entries["recipes"])
    catalog = Catalog(
        topologies=_load_all(load_topology, entries["topologies"]),
        platforms=_load_all(load_platform, entries["platforms"]),
        recipes={DEFAULT_RECIPE.name: DEFAULT_RECIPE, **recipes},
        workloads=_load_all(load_workload, entries["workloads"]),
        rules=_load_all(load_rule, entries["antipatterns"]),
        gpus=_load_all(load_gpu, entries["gpus"]),
    )
    _check_references(catalog, entries)
    return catalog


def _lay_over(entries: dict[str, dict[str, Section]], file: Section) -> None:
    for kind in entries:
        for name, section in file.section(kind).sections():
            parent = section.optional_text("extends")
            known = entries[kind]
            if parent is not None:
                if parent not in known:
                    section.fail(f"{parent!r} is not known; {did_you_mean(parent, known)}", "extends")
                del section.values["extends"]
                known[name] = merged(known[parent], section)
            elif name in known:
                known[name] = merged(known[name], section)
            else:
                known[name] = section
    file.done()


def _load_all(load: Callable[[str, Section], Noun], sections: Mapping[str, Section]) -> dict[str, Noun]:
    return {name: load(name, section) for name, section in sections.items()}


def _check_references(catalog: Catalog, entries: Mapping[str, Mapping[str, Section]]) -> None:
    for name, topology in catalog.topologies.items():
        if topology.reference is not None and topology.reference not in catalog.topologies:
            entries["topologies"][name].fail(f"topology {topology.reference!r} is not known", "reference")
    for name, recipe in catalog.recipes.items():
        if recipe.topology is not None and recipe.topology not in catalog.topologies:
            entries["recipes"][name].fail(f"topology {recipe.topology!r} is not known", "topology")
    for name, platform in catalog.platforms.items():
        for topology_name, recipe_name in platform.default_recipes.items():
            if topology_name not in catalog.topologies or recipe_name not in catalog.recipes:
                entries["platforms"][name].fail(
                    f"{topology_name}: {recipe_name} names no known topology and recipe", "default_recipes"
                )
            if catalog.recipes[recipe_name].topology not in (None, topology_name):
                entries["platforms"][name].fail(
                    f"recipe {recipe_name!r} is for another topology than {topology_name!r}", "default_recipes"
                )


def _named(kind: str, nouns: Mapping[str, Noun], name: str) -> Noun:
    try:
        return nouns[name]
    except KeyError:
        raise R1PerfError(f"{kind} {name!r} is not known; {did_you_mean(name, nouns)}") from None
