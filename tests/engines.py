"""An engine mode (or an offline one) without pytest around it, for tests of what a round gives."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_r1perf.caches import CacheDir
from pytest_r1perf.catalog import Catalog, load_catalog
from pytest_r1perf.cell import Cell, cell_of
from pytest_r1perf.childenv import compose
from pytest_r1perf.engine.mode import EngineMode
from pytest_r1perf.gpu.nvml import NvmlAbsent
from pytest_r1perf.gpuwatch import GpuWatch
from pytest_r1perf.hardware import Hardware, hardware_for
from pytest_r1perf.launch.local import LocalLauncher
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.nodeinfo import inspect_here
from pytest_r1perf.offline import OfflineMode
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.environment import SglangEnvironment, probe
from pytest_r1perf.sglang.facts import Progress
from pytest_r1perf.site import Session, Site
from pytest_r1perf.siteplace import place_at
from tests.elsewhere import Elsewhere


@dataclass
class Bench:
    """A site of this host's CPU, a folder for logs, and what was kept of siblings."""

    folder: Path
    environment: SglangEnvironment
    catalog: Catalog
    site: Site
    kept: list[tuple[Measurement, Sample | Problem, str]] = field(default_factory=list)
    caches: tuple[CacheDir, ...] = ()
    shown: list[tuple[str, int, Progress]] = field(default_factory=list)

    def cell(
        self, n: int, *, mode: str = "engine", topology: str = "tp1", timeout_s: float = 60, **flags: FlagValue
    ) -> Cell:
        spec = PerfSpec(topology=topology, n=n, mode=mode, timeout_s=timeout_s, flags=tuple(sorted(flags.items())))
        return cell_of(spec, self.catalog.platform("cpu"), self.catalog)

    def offline(self) -> OfflineMode:
        return OfflineMode(site=self.site, environment=self.environment, folder=self.folder, watch=self._watch)

    def engine(
        self,
        siblings: Sequence[Cell] = (),
        *,
        windows: int = 2,
        discard: int = 1,
        ids: Callable[[Cell], str | None] = lambda cell: None,
    ) -> EngineMode:
        def keep(measurement: Measurement, outcome: Sample | Problem, nodeid: str) -> None:
            self.kept.append((measurement, outcome, nodeid))

        return EngineMode(
            site=self.site,
            environment=self.environment,
            folder=self.folder,
            watch=self._watch,
            show=lambda cell, number, now: self.shown.append((cell.key, number, now)),
            siblings=lambda cell, number: [(other, f"test_n{other.num_prompts}") for other in siblings],
            keep=keep,
            caches=lambda env: self.caches,
            windows=windows,
            discard=discard,
            ids=ids,
        )

    def _watch(self, uuids: tuple[str, ...]) -> GpuWatch:
        return GpuWatch(NvmlAbsent("this is a CPU"), uuids, lambda text: None)

    def logs(self) -> list[Path]:
        """One a process, oldest first."""
        return sorted(self.folder.glob("*/round-*/log.txt"), key=lambda path: path.stat().st_ctime_ns)


def bench(folder: Path, python: Path | str, *user_files: Path, remote: bool = False) -> Bench:
    """On the cpu platform with the SGLang of ``python``; ``remote``: through our agent, as on another host."""
    catalog = load_catalog(list(user_files))
    platform = catalog.platform("cpu")
    hardware = hardware_for(is_cpu=True)
    assert isinstance(hardware, Hardware)
    out = folder / "out"
    out.mkdir()
    session = Session(f"s{time.time_ns()}", folder / "state", out)
    if remote:
        site = Site(platform, Elsewhere(), hardware, (inspect_here(),), session, sys.executable)
    else:
        with LocalLauncher().allocate(1, print) as allocation:
            site = Site(platform, allocation, hardware, (), session)
    place = place_at(site, str(python))
    env = dict(platform.env) if remote else compose(platform.env)
    environment = probe(place, env, cache=folder / "probes")
    return Bench(out, environment, catalog, site)
