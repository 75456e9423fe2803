"""Which way of measuring a cell asks for: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_r1perf.caches import CacheDir, cache_dirs
from pytest_r1perf.ceilings.gpumodel import GpuModel
from pytest_r1perf.cell import Cell
from pytest_r1perf.gpuwatch import GpuWatch
from pytest_r1perf.grouping import SHARED
from pytest_r1perf.measure import Mode
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.offline import OfflineMode
from pytest_r1perf.options import PerfOptions
from pytest_r1perf.platform import Platform
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.facts import Progress
from pytest_r1perf.site import Site

if TYPE_CHECKING:
    from pytest_r1perf.outputs.agreement import Answers, NotAsked
    from pytest_r1perf.recipe import FlagValue
    from pytest_r1perf.sglang.sampling import Sampling


def _shared(mode: str) -> Callable[..., Mode]:
    if mode == "serve":
        from pytest_r1perf.serve.mode import ServeMode

        return ServeMode
    from pytest_r1perf.engine.mode import EngineMode

    return EngineMode


def windows_of(cell: Cell, options: PerfOptions) -> tuple[int, int]:
    """How many windows of a cell count in one engine or server, and how many before them are thrown away."""
    noise = cell.platform.noise
    windows = cell.platform.windows if options.windows is None else options.windows
    return windows, (noise.discard if noise is not None else 1) if options.discard is None else options.discard


def _caches(env: Mapping[str, str]) -> tuple[CacheDir, ...]:
    return cache_dirs(env, Path.home())


@dataclass(frozen=True)
class SessionModes:
    """Makes the modes of a session: logs under ``folder``, progress through ``show``.

    ``gpu_of`` has the data sheets of GPUs, for ceilings.
    """

    folder: Path
    watch: Callable[[tuple[str, ...]], GpuWatch]
    show: Callable[[Cell, int, Progress, str | None], None]
    options: PerfOptions
    gpu_of: Callable[[Platform], GpuModel | None] = lambda platform: None

    def __call__(
        self,
        site: Site,
        environment: SglangEnvironment,
        cell: Cell,
        *,
        side: str | None,
        siblings: Callable[[Cell, int], Sequence[tuple[Cell, str]]],
        keep: Callable[[Measurement, Sample | Problem, str], None],
        coming: Callable[[Cell], Sequence[Sampling]] = lambda cell: (),
    ) -> Mode:
        """The cell's own mode; siblings share its engine or server where it has one. A side has a folder of its own."""
        folder = self.folder / side if side is not None else self.folder

        def show(cell: Cell, number: int, now: Progress) -> None:
            self.show(cell, number, now, side)

        mode: Callable[..., Mode] = OfflineMode
        if cell.mode in SHARED:
            windows, discard = windows_of(cell, self.options)
            mode = partial(_shared(cell.mode), siblings=siblings, keep=keep, windows=windows, discard=discard)
        return mode(
            site=site,
            environment=environment,
            folder=folder,
            watch=self.watch,
            show=show,
            sglang_defaults=self.options.sglang_defaults,
            gpu_of=self.gpu_of,
            caches=_caches,
            coming=coming,
        )

    def ask(self, site: Site, environment: SglangEnvironment, cell: Cell, *, side: str) -> Answers | NotAsked | Problem:
        """The greedy answers of an environment with the cell's server arguments.

        On a CPU in float32, whatever the cell is measured in: there two releases that compute the same agree.
        """
        from pytest_r1perf.outputs.ask import ask

        flags: dict[str, FlagValue] = {"dtype": "float32"} if cell.platform.is_cpu else {}
        return ask(
            cell,
            environment,
            site,
            self.folder / side,
            flags=flags,
            sglang_defaults=self.options.sglang_defaults,
            watch=self.watch,
        )
