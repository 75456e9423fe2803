"""What a round needs, whatever its mode: a cell said in one SGLang's words, and one supervised run of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from pytest_r1perf.caches import CacheDir, CacheFile, snapshot, written
from pytest_r1perf.ceilings.bounds import Ceilings, NoCeilings, ceilings_of
from pytest_r1perf.ceilings.gpumodel import GpuModel
from pytest_r1perf.cell import Cell
from pytest_r1perf.childenv import compose, recorded, shown
from pytest_r1perf.coldcaches import EmptyCaches, named_in
from pytest_r1perf.ended import Ended
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.gpu.elsewhere import watch_of
from pytest_r1perf.gpu.judge import Watched
from pytest_r1perf.gpuwatch import GpuWatch
from pytest_r1perf.launch.mark import marked_environment, new_mark
from pytest_r1perf.launch.process import LaunchError, Poll
from pytest_r1perf.launchsettings import ContainerSettings
from pytest_r1perf.measurement import Measurement, Problem
from pytest_r1perf.ownprocess import COLD
from pytest_r1perf.platform import Platform, expand
from pytest_r1perf.preflight import Severity, findings_of
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.rig.home import home
from pytest_r1perf.sglang.command import shell_line
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.facts import LogFacts, Progress
from pytest_r1perf.sglang.options import OptionTable
from pytest_r1perf.sglang.pins import pins_for
from pytest_r1perf.sglang.protocol import protocol_of
from pytest_r1perf.sglang.resolved import resolved_of
from pytest_r1perf.sglang.sampling import Inputs, Sampling, look_at, sample
from pytest_r1perf.sglang.translate import Translation, translate
from pytest_r1perf.sglang.warmups import without_effect
from pytest_r1perf.site import LOG, Site, fresh_folder
from pytest_r1perf.siteplace import SitePlace
from pytest_r1perf.verdict import Verdict
from pytest_r1perf.workload import SampledWorkload


@dataclass(frozen=True, slots=True)
class Ready:
    """What a cell needs besides itself: where its inputs are, and its flags in this SGLang's words.

    ``pins`` are the defaults that moved between releases, with what is stated, or would be.
    """

    inputs: Inputs
    translation: Translation
    pins: Mapping[str, FlagValue]


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that is over: its folder and end, and who watched its GPUs, here or ``there`` (by rank).

    ``written`` are the kernel cache files that were written meanwhile, by whomever. ``started`` is when it was
    handed to the supervision (monotonic clock). ``remarks``: what of the round's own caches could not be removed.
    """

    folder: Path
    ended: Ended
    watch: GpuWatch
    there: Mapping[int, Sequence[str]]
    written: tuple[CacheFile, ...] = ()
    started: float = 0.0
    remarks: tuple[str, ...] = ()

    @property
    def log(self) -> str:
        """Rank 0's."""
        return str(self.folder / LOG)

    def gpus(self, start: float | None, line_no: int | None, seconds: float) -> Watched:
        """What the GPUs did in a window: from ``start`` (this host's monotonic clock), or from a line of the log on."""
        if not any(self.there.values()):
            return self.watch.seen(start, seconds)
        return watch_of(self.folder, self.there, line_no, seconds)


@dataclass
class RoundRunner:
    """Prepares cells for one SGLang environment, and runs what a mode makes of them on the nodes of a site.

    ``folder`` takes a folder a round: the logs as they grow, the result file, the commands. ``watch`` observes GPUs
    of this host by UUID. ``show`` is called about five times a second with the round's number and progress.
    ``sglang_defaults`` leaves what moved between releases to SGLang instead of stating it. ``gpu_of`` has the GPUs'
    data sheets, for ceilings; ``caches`` names the directories with compiled kernels of a process with these variables;
    ``coming`` gives the workloads that later cells need, which are sampled in one process with a cell's own.
    """

    site: Site
    environment: SglangEnvironment
    folder: Path
    watch: Callable[[tuple[str, ...]], GpuWatch]
    show: Callable[[Cell, int, Progress], None] = lambda cell, number, now: None
    sglang_defaults: bool = False
    gpu_of: Callable[[Platform], GpuModel | None] = lambda platform: None
    caches: Callable[[Mapping[str, str]], tuple[CacheDir, ...]] = lambda env: ()
    coming: Callable[[Cell], Sequence[Sampling]] = lambda cell: ()
    _ready: dict[str, Ready] = field(default_factory=dict)

    def ready(self, cell: Cell) -> Ready:
        """What :meth:`prepared` found for the cell."""
        return self._ready[cell.fingerprint]

    def prepared(self, cell: Cell, command: Callable[[Cell], tuple[str, ...]]) -> Measurement:
        """Translate the flags, resolve paths, count the workload beforehand; a mistake is CONFIG with one sentence.

        ``command`` gives the command that is written down, once the cell is :meth:`ready`.
        """
        local = not self.site.remote and self.image is None
        own = {**cell.env, **marked_environment(new_mark(self.site.session.name))}
        env = compose(own) if local else own
        try:
            translation = translated(cell, self.environment.options, sglang_defaults=self.sglang_defaults)
            model, dataset = paths_of(cell, elsewhere=self.site.remote)
            inputs = look_at(self.environment, model, dataset, env)
            workload = self.sampled(cell, inputs, env)
        except LaunchError as error:
            return Measurement(cell, problem=Problem(Verdict.INFRA, str(error)))
        except R1PerfError as error:
            return Measurement(cell, problem=Problem(Verdict.CONFIG, str(error)))
        cold = cannot_be_cold(cell, self.site)
        if cold is not None:
            return Measurement(cell, problem=Problem(Verdict.CONFIG, cold))
        network = self.site.wrong_network(cell.env)
        if network is not None:
            return Measurement(cell, problem=Problem(Verdict.CONFIG, f"env: {network}"))
        stated = with_pins(cell, self.environment.options, sglang_defaults=self.sglang_defaults)
        findings = findings_of(stated, self.environment.version, inputs.config, workload, self.site.hardware.count)
        refused = next((finding for finding in findings if finding.blocks), None)
        if refused is not None:
            return Measurement(cell, problem=Problem(Verdict.CONFIG, f"{refused.rule}: {refused.text}"))
        pins = pins_for(cell.flags, is_cpu=cell.platform.is_cpu, table=self.environment.options).flags
        self._ready[cell.fingerprint] = Ready(inputs, translation, pins)
        unused = without_effect(cell.flags, server=cell.mode == "serve")
        ambient = compose(translation.env) if local else dict(translation.env)
        return Measurement(
            cell,
            command=command(cell),
            env={**recorded(ambient), **shown(translation.env)},
            versions={**self.environment.versions, **({"image": str(self.image.image)} if self.image else {})},
            workload=workload,
            translation=tuple(f"{note.kind.value} {note.flag}: {note.text}" for note in translation.notes),
            remarks=(
                *(f"{note.flag}: {note.text}" for note in translation.notes if note.matters),
                *(f"{found.rule}: {found.text}" for found in findings if found.severity is not Severity.NOTE),
                *([unused] if unused is not None else ()),
            ),
        )

    def sampled(self, cell: Cell, inputs: Inputs, env: Mapping[str, str]) -> SampledWorkload:
        """What the cell's workload comes to, counted beforehand. Raises :class:`R1PerfError`."""
        return sample(
            cell.workload,
            cell.num_prompts,
            environment=self.environment,
            given=inputs,
            cache=home() / "workloads",
            env=env,
            also=lambda: self.coming(cell),
        )

    def run(
        self,
        cell: Cell,
        folder: Path,
        argv_of: Callable[[int], Sequence[str]],
        *,
        timeout_s: float,
        mounts: Sequence[str],
        fetch: tuple[str, ...],
        on_output: Callable[[bytes], None],
        poll: Callable[[], Poll],
        beside: Mapping[str, str] = MappingProxyType({}),
    ) -> Ran | Problem:
        """Run one command a rank of the cell, watch it, and end every process of it.

        ``beside`` are variables of this process alone. A :class:`Problem` when it could not be started, or when the
        lease of its GPUs was lost meanwhile.
        """
        env = {**self.ready(cell).translation.env, **beside}
        gpus = cell.topology.gpus_used // cell.topology.nnodes
        own = {
            rank: {**env, **self.site.rank_environment(rank, env, gpus, contained=self.image is not None)}
            for rank in range(cell.topology.nnodes)
        }
        watch = self.watch(self.site.local_gpus(cell.topology.gpus_used))
        not_free = watch.not_free()
        if not_free is not None:
            return Problem(Verdict.INFRA, not_free)
        launch = partial(
            self.site.run,
            argv_of,
            image=self.image,
            folder=folder,
            timeout_s=timeout_s,
            ranks=cell.topology.nnodes,
            gpus=gpus,
            mounts=mounts,
            fetch=fetch,
            on_output=on_output,
            poll=poll,
        )
        with EmptyCaches(folder, tuple(own) if cell.kernel_caches == COLD else ()) as empty:
            own = {rank: {**own[rank], **empty.variables(rank)} for rank in own}
            lines = [shell_line(argv_of(rank), shown(own[rank])) for rank in own]
            (folder / "command.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
            seen = self._seen_caches(own, empty)
            before = snapshot(seen)
            started = time.monotonic()
            try:
                with watch.during(folder):
                    ended = launch(own.__getitem__)
            except LaunchError as error:
                return Problem(Verdict.INFRA, str(error), log=str(folder / LOG))
            files = written(before, snapshot(seen)) if seen else ()
        lost = self.site.lost_lease()
        if lost is not None and ended.launch_problem is None:
            return Problem(Verdict.INFRA, f"{lost}; somebody else may have measured beside it", log=str(folder / LOG))
        there = {rank: self.site.gpus_there(rank, gpus) for rank in own}
        return Ran(folder, ended, watch, there, files, started, tuple(empty.left))

    def _seen_caches(self, own: Mapping[int, Mapping[str, str]], empty: EmptyCaches) -> tuple[CacheDir, ...]:
        """The caches that this host can see: not those of another one or in a container, but a round's own there."""
        found = [one for env in own.values() for one in self.caches(compose(env))] if not self.site.remote else []
        if self.image is not None:
            found = [one for one in found if empty.has(one.path)]
        return tuple(dict.fromkeys(found))

    @property
    def image(self) -> ContainerSettings | None:
        """The container that SGLang is in, if it is in one."""
        place = self.environment.place
        return place.image if isinstance(place, SitePlace) else None

    def stated_pins(self, cell: Cell) -> Mapping[str, FlagValue]:
        """The moved defaults that were given to SGLang beside the cell's own flags."""
        return {} if self.sglang_defaults else self.ready(cell).pins

    def left_pins(self, cell: Cell) -> Mapping[str, FlagValue]:
        """Those that were left to it, with what would have been stated."""
        return self.ready(cell).pins if self.sglang_defaults else {}

    def ceilings(self, measurement: Measurement, facts: LogFacts) -> Ceilings | NoCeilings:
        """The most that the hardware can do with the cell's workload, as the run resolved its arguments."""
        cell = measurement.cell
        config = self.ready(cell).inputs.config
        return ceilings_of(config, self.gpu_of(cell.platform), cell, measurement.workload, facts=facts)

    def told(
        self, measurement: Measurement, facts: LogFacts, ended: Ended, extra: Mapping[str, object] | None = None
    ) -> Measurement:
        """The measurement with what SGLang resolved (the first round that tells it is kept), and where it ran.

        ``extra``: what a mode adds to the protocol.
        """
        there = ended.told.get(0)
        if self.image is None and there is not None:
            measurement = replace(measurement, env_there=there.env)
        resolved = facts.server_args
        if measurement.protocol or not resolved or measurement.workload is None:
            return measurement
        inputs = self.ready(measurement.cell).inputs
        protocol = protocol_of(
            measurement.cell, measurement.workload, resolved, inputs.config_digest, facts, hosts=self.site.host_count
        )
        return replace(measurement, protocol={**protocol, **(extra or {})}, resolved=resolved_of(facts))

    def round_folder(self, cell: Cell, number: int) -> Path:
        """A new folder for a round."""
        slug = re.sub(r"[^A-Za-z0-9.=_-]+", "-", f"{cell.topology.name}-{cell.key}")[:80]
        return fresh_folder(self.folder / f"{slug}-{cell.fingerprint[:6]}", f"round-{number}")


def cannot_be_cold(cell: Cell, site: Site) -> str | None:
    """Why a cell can't have empty kernel caches each round, in one sentence."""
    if cell.kernel_caches != COLD:
        return None
    if site.remote:
        hosts = ", ".join(dict.fromkeys(node.host for node in site.nodes))
        return (
            f"kernel_caches='cold' makes and removes directories on this host, and the cell runs on {hosts}: run "
            f"pytest there, or leave kernel_caches out"
        )
    own = named_in(cell.extra_env)
    if own is not None:
        return f"env[{own!r}] names a kernel cache, and kernel_caches='cold' gives every round its own: leave one out"
    return None


def paths_of(cell: Cell, *, elsewhere: bool) -> tuple[str, str]:
    """Model and data set of a cell, as paths where it runs. Raises :class:`R1PerfError`."""
    platform = cell.platform
    what = f"platform {platform.name!r}: "
    model = expand(platform.model_path, what=f"{what}model_path", home=home(), elsewhere=elsewhere)
    try:
        dataset = platform.datasets[cell.workload.dataset]
    except KeyError:
        raise R1PerfError(
            f"platform {platform.name!r} has no data set {cell.workload.dataset!r}, which workload "
            f"{cell.workload.name!r} needs: add it under the platform's datasets in your r1perf.yaml"
        ) from None
    key = f"{what}datasets.{cell.workload.dataset}"
    return model, expand(dataset, what=key, home=home(), elsewhere=elsewhere)


def asked(cell: Cell, translation: Translation) -> dict[str, FlagValue]:
    """The cell's flags with the values that this SGLang was given for them."""
    return {flag: translation.said.get(flag, value) for flag, value in cell.flags.items()}


def with_pins(cell: Cell, table: OptionTable, *, sglang_defaults: bool) -> Cell:
    """The cell with the moved defaults that its run states, unless SGLang's own are asked for."""
    if sglang_defaults:
        return cell
    pins = pins_for(cell.flags, is_cpu=cell.platform.is_cpu, table=table)
    return replace(cell, flags={**pins.flags, **cell.flags})


def translated(cell: Cell, table: OptionTable, *, sglang_defaults: bool) -> Translation:
    """The cell's flags in one release's words, moved defaults stated unless SGLang's own are asked for."""
    if sglang_defaults:
        return translate(cell.flags, cell.env, table)
    pins = pins_for(cell.flags, is_cpu=cell.platform.is_cpu, table=table)
    said = translate({**pins.flags, **cell.flags}, cell.env, table)
    return replace(said, notes=(*pins.notes, *said.notes))
