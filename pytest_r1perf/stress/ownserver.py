"""From the command line to a sweep with servers of our own: nodes, their lease, and ``serve`` mode."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.stress.clientside import ClientSide, case_timeout_s, catalog_of, conditions, run_name
from pytest_r1perf.stress.folder import LOGS
from pytest_r1perf.stress.manifest import DIGEST

if TYPE_CHECKING:
    from pytest_r1perf.catalog import Catalog
    from pytest_r1perf.cell import Cell
    from pytest_r1perf.devices import Holder
    from pytest_r1perf.sites import Sites

_ANY = {"mode": "serve", "batch_size": 1, "input_len": 16, "output_len": 4}
"""Each case replaces it."""


@contextlib.contextmanager
def own_server(given: Mapping[str, Any], folder: Path, tell: Callable[[str], None]) -> Iterator[ClientSide]:
    """Hold the nodes and devices of a topology on a platform, and measure with a server a repeat.

    Raises :class:`R1PerfError` for what is wrong, and where the devices can't be had.
    """
    from pytest_r1perf.devices import lease_directory
    from pytest_r1perf.leasing import leased
    from pytest_r1perf.site import Session
    from pytest_r1perf.sites import Sites

    for option in ("dataset", "tokenizer"):
        if given[option] is not None:
            raise R1PerfError(f"--{option} is for --base-url: a server of our own has its platform's")
    catalog = catalog_of(given)
    cell = _cell(given, catalog)
    name = run_name()
    logs = (folder / LOGS / name).absolute()
    logs.mkdir(parents=True)
    configured = given["lease_dir"]
    session = Session(name, lease_directory(configured), logs, configured)
    sites = Sites(lambda: session, tell)

    def waiting(holder: Holder | None) -> None:
        if holder is not None:
            tell(f"waiting for {holder.device}, which another session has")

    try:
        side = _side(given, catalog, cell, sites, logs, tell)
        with leased(sites.site(cell, sys.executable), cell, "r1perf stress", waiting=waiting, tell=tell):
            yield side
    finally:
        sites.close()


def _cell(given: Mapping[str, Any], catalog: Catalog) -> Cell:
    from pytest_r1perf.cell import cell_of
    from pytest_r1perf.marker import check

    platform = catalog.platform(given["platform"])
    asked = {"topology": given["topology"], "recipe": given["recipe"], **_ANY}
    cell = cell_of(check(asked, catalog), platform, catalog)
    workload = cell.workload if given["seed"] is None else replace(cell.workload, seed=given["seed"])
    return replace(cell, workload=workload, timeout_s=max(platform.timeout_s, case_timeout_s(given)))


def _side(
    given: Mapping[str, Any],
    catalog: Catalog,
    cell: Cell,
    sites: Sites,
    logs: Path,
    tell: Callable[[str], None],
) -> ClientSide:
    from pytest_r1perf.caches import cache_dirs
    from pytest_r1perf.childenv import compose
    from pytest_r1perf.fit import misfit
    from pytest_r1perf.gpu.nvml import open_nvml
    from pytest_r1perf.gpuwatch import GpuWatch
    from pytest_r1perf.place import LocalPlace
    from pytest_r1perf.rig.home import home
    from pytest_r1perf.roundrun import paths_of
    from pytest_r1perf.serve.bencher import OwnServer
    from pytest_r1perf.serve.mode import ServeMode
    from pytest_r1perf.sglang.environment import probe
    from pytest_r1perf.sglang.sampling import look_at
    from pytest_r1perf.siteplace import agent_python, environment_named, place_at

    platform = cell.platform
    remote = platform.launch.chosen(cell.topology.nnodes, os.environ) != "local"
    site = sites.site(cell, agent_python(platform, given["sglang"]) if remote else sys.executable)
    reason = misfit(cell.topology, platform, None if remote else site.hardware, remote=remote)
    if reason is not None:
        raise R1PerfError(f"--topology {cell.topology.name} on platform {platform.name!r}: {reason}")
    place = place_at(site, environment_named(platform, given["sglang"], elsewhere=remote))
    env = compose(platform.env) if isinstance(place, LocalPlace) else dict(platform.env)
    environment = probe(place, env, cache=home() / "probes")
    nvml, warm_up = open_nvml(), not given["no_warm_up"]
    bencher = OwnServer(
        ServeMode(
            site=site,
            environment=environment,
            folder=logs,
            watch=lambda uuids: GpuWatch(nvml, uuids, tell),
            gpu_of=catalog.gpu_of,
            caches=lambda own: cache_dirs(own, Path.home()),
        ),
        cell,
        warm_up=warm_up,
    )
    dataset = None if remote else _dataset(cell)
    described = conditions(environment.version, cell.workload.seed, dataset, warm_up=warm_up)
    if dataset is None:
        inputs = look_at(environment, *paths_of(cell, elsewhere=remote), env)
        described["prompts"] = f"data set {cell.workload.dataset}"
        described[DIGEST] = f"sha256 {inputs.dataset_digest}"
    return ClientSide(bencher, bencher.identify, described)


def _dataset(cell: Cell) -> Path | None:
    """The file of the prompts, where it is on this host: a data set's name may come to mean another file."""
    from pytest_r1perf.platform import expand
    from pytest_r1perf.rig.home import home

    given = cell.platform.datasets.get(cell.workload.dataset)
    if given is None:
        return None
    path = Path(expand(given, what=f"datasets: {cell.workload.dataset}", home=home()))
    return path if path.is_file() else None
