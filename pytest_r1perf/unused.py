"""Baseline entries that no test means any more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache

from pytest_r1perf import baseline
from pytest_r1perf.catalog import Catalog
from pytest_r1perf.cell import cell_of
from pytest_r1perf.deployment import is_of_deployment
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.hardware import Hardware
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.options import PerfOptions
from pytest_r1perf.platform import Platform
from pytest_r1perf.results import CellResult
from pytest_r1perf.runner import DEFAULT_PLATFORM


def unused_entries(
    specs: Iterable[PerfSpec],
    results: Iterable[CellResult],
    options: PerfOptions,
    catalog: Catalog,
    hardware_of: Callable[[str], Hardware | None],
) -> list[str]:
    """``"path: key"`` for every entry of the platform's hardware that no collected test means.

    ``hardware_of`` gives this host's hardware for a platform's name; it is asked for topologies that run here.
    Of other hosts only the hardware that this session measured on counts: nobody is asked. Only entries of the
    session's own platform are looked at, and of a closing pass only its own.
    """
    platform = catalog.platform(options.platform or DEFAULT_PLATFORM)
    used = {(result.topology, result.key) for result in results}
    for spec in specs:
        if spec.num_prompts is not None and spec.platform in (None, platform.name):
            used.add((spec.topology, cell_of(spec, platform, catalog).key))
    elsewhere = {result.hardware for result in results if result.platform == platform.name and result.measured_on}

    @cache
    def here() -> str | None:
        own = hardware_of(platform.name)
        return own.key if own is not None else None

    found = []
    for path in sorted(options.baselines.glob("*/*.yaml")):
        folder = path.parent.name
        if (folder not in elsewhere) if _is_remote(path.stem, platform, catalog) else folder != here():
            continue
        try:
            cells = baseline.load(path).cells
        except R1PerfError:
            continue  # reported where it is used
        own = [key for key in cells if key.startswith(platform.name + "/")]
        asked = [key for key in own if is_of_deployment(key) is options.deployment]
        found += [f"{path}: {key}" for key in asked if (path.stem, key) not in used]
    return found


def _is_remote(topology: str, platform: Platform, catalog: Catalog) -> bool:
    """Whether this topology's ranks run on other hosts; one that is not known any more counts as one node."""
    known = catalog.topologies.get(topology)
    return platform.launch.chosen(known.nnodes if known is not None else 1, os.environ) != "local"
