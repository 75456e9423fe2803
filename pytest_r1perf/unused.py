"""Baseline entries that no test means any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_r1perf import baseline
from pytest_r1perf.catalog import Catalog
from pytest_r1perf.cell import cell_of
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.hardware import Hardware
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.options import PerfOptions
from pytest_r1perf.results import CellResult
from pytest_r1perf.runner import DEFAULT_PLATFORM


def unused_entries(
    specs: Iterable[PerfSpec],
    results: Iterable[CellResult],
    options: PerfOptions,
    catalog: Catalog,
    hardware_of: Callable[[str], Hardware | None],
) -> list[str]:
    """``"path: key"`` for every entry of this hardware that no collected test means.

    ``hardware_of`` gives this host's hardware for a platform's name. Only entries of the session's own platform
    are looked at.
    """
    platform = catalog.platform(options.platform or DEFAULT_PLATFORM)
    own = hardware_of(platform.name)
    if own is None:
        return []
    used = {(result.topology, result.key) for result in results}
    for spec in specs:
        if spec.n is not None and spec.platform in (None, platform.name):
            used.add((spec.topology, cell_of(spec, platform, catalog).key))
    found = []
    for path in sorted((options.baselines / own.key).glob("*.yaml")):
        try:
            cells = baseline.load(path).cells
        except R1PerfError:
            continue  # reported where it is used
        found += [
            f"{path}: {key}" for key in cells if key.startswith(platform.name + "/") and (path.stem, key) not in used
        ]
    return found
