"""``mode="offline"``: SGLang's own offline throughput benchmark, verbatim, a fresh process a round."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_r1perf.cell import Cell
from pytest_r1perf.childenv import compose, recorded, shown
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.gpu.elsewhere import watch_of
from pytest_r1perf.gpu.judge import Watched
from pytest_r1perf.gpuwatch import GpuWatch
from pytest_r1perf.launch.mark import marked_environment, new_mark
from pytest_r1perf.launch.process import LaunchError, Poll
from pytest_r1perf.launchsettings import ContainerSettings
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.platform import expand
from pytest_r1perf.preflight import Severity, findings_of
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.rig.home import home
from pytest_r1perf.roundcheck import LINGER_S, RESULT, FinishedRun, outcome
from pytest_r1perf.sglang.command import offline_command, shell_line
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.facts import Phase, Progress
from pytest_r1perf.sglang.log import LogReader, progress
from pytest_r1perf.sglang.options import OptionTable
from pytest_r1perf.sglang.pins import pins_for
from pytest_r1perf.sglang.protocol import protocol_of
from pytest_r1perf.sglang.resolved import resolved_of
from pytest_r1perf.sglang.sampling import Inputs, look_at, sample
from pytest_r1perf.sglang.translate import Translation, translate
from pytest_r1perf.site import LOG, Site, fresh_folder
from pytest_r1perf.siteplace import SitePlace
from pytest_r1perf.verdict import Verdict


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a cell needs besides itself: where its inputs are, and its flags in this SGLang's words.

    ``pins`` are the defaults that moved between releases, with what is stated, or would be.
    """

    inputs: Inputs
    translation: Translation
    pins: Mapping[str, FlagValue]


@dataclass
class OfflineMode:
    """Runs rounds of cells in one SGLang environment, on the nodes of a site.

    ``folder`` takes a folder a round: the logs as they grow, the result file, the commands. ``show`` is called
    about five times a second with the round's number and progress. ``sglang_defaults`` leaves what moved
    between releases to SGLang instead of stating it. ``watch`` observes GPUs of this host by UUID.
    """

    site: Site
    environment: SglangEnvironment
    folder: Path
    watch: Callable[[tuple[str, ...]], GpuWatch]
    show: Callable[[Cell, int, Progress], None] = lambda cell, number, now: None
    sglang_defaults: bool = False
    _prepared: dict[str, _Prepared] = field(default_factory=dict)

    def prepare(self, cell: Cell) -> Measurement:
        """Translate the flags, resolve paths, count the workload beforehand; a mistake is CONFIG with one sentence."""
        local = not self.site.remote and self.image is None
        own = {**cell.env, **marked_environment(new_mark(self.site.session.name))}
        env = compose(own) if local else own
        try:
            translation = translated(cell, self.environment.options, sglang_defaults=self.sglang_defaults)
            model, dataset = paths_of(cell, elsewhere=self.site.remote)
            inputs = look_at(self.environment, model, dataset, env)
            workload = sample(
                cell.workload,
                cell.num_prompts,
                environment=self.environment,
                given=inputs,
                cache=home() / "workloads",
                env=env,
            )
        except LaunchError as error:
            return Measurement(cell, problem=Problem(Verdict.INFRA, str(error)))
        except R1PerfError as error:
            return Measurement(cell, problem=Problem(Verdict.CONFIG, str(error)))
        network = self.site.wrong_network(cell.env)
        if network is not None:
            return Measurement(cell, problem=Problem(Verdict.CONFIG, f"env: {network}"))
        stated = with_pins(cell, self.environment.options, sglang_defaults=self.sglang_defaults)
        findings = findings_of(stated, self.environment.version, inputs.config, workload, self.site.hardware.count)
        refused = next((finding for finding in findings if finding.blocks), None)
        if refused is not None:
            return Measurement(cell, problem=Problem(Verdict.CONFIG, f"{refused.rule}: {refused.text}"))
        self._prepared[cell.fingerprint] = _Prepared(inputs, translation, self._pins(cell))
        ambient = compose(translation.env) if local else dict(translation.env)
        return Measurement(
            cell,
            command=self._command(cell, 0, "HEAD:PORT" if cell.topology.nnodes > 1 else None),
            env={**recorded(ambient), **shown(translation.env)},
            versions={**self.environment.versions, **({"image": str(self.image.image)} if self.image else {})},
            workload=workload,
            translation=tuple(f"{note.kind.value} {note.flag}: {note.text}" for note in translation.notes),
            remarks=(
                *(f"{note.flag}: {note.text}" for note in translation.notes if note.matters),
                *(f"{found.rule}: {found.text}" for found in findings if found.severity is not Severity.NOTE),
            ),
        )

    def round(self, prepared: Measurement, number: int) -> tuple[Measurement, Sample | Problem]:
        """Start the benchmark on every node, watch it, end every process of it, and judge what rank 0 left."""
        cell = prepared.cell
        folder = self._round_folder(cell, number)
        ready = self._prepared[cell.fingerprint]
        env = ready.translation.env
        rendezvous = self.site.rendezvous()
        gpus = cell.topology.gpus_used // cell.topology.nnodes
        own = {
            rank: {**env, **self.site.rank_environment(rank, env, gpus, contained=self.image is not None)}
            for rank in range(cell.topology.nnodes)
        }
        argv = {rank: self._command(cell, rank, rendezvous) for rank in own}
        lines = [shell_line(argv[rank], shown(own[rank])) for rank in own]
        (folder / "command.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        reader = LogReader()
        lingering = _Lingering(reader)

        began: dict[Phase, float] = {}

        def on_output(data: bytes) -> None:
            reader.feed(data)
            began.setdefault(reader.facts.phase, time.monotonic())
            self.show(cell, number, progress(reader.facts, cell.num_prompts))

        watch = self.watch(self.site.local_gpus(cell.topology.gpus_used))
        not_free = watch.not_free()
        if not_free is not None:
            return prepared, Problem(Verdict.INFRA, not_free)
        try:
            with watch.during(folder):
                ended = self.site.run(
                    argv.__getitem__,
                    own.__getitem__,
                    image=self.image,
                    folder=folder,
                    timeout_s=cell.timeout_s,
                    ranks=cell.topology.nnodes,
                    gpus=gpus,
                    mounts=(ready.inputs.model_path, ready.inputs.dataset_path),
                    fetch=(RESULT,),
                    on_output=on_output,
                    poll=lingering,
                )
        except LaunchError as error:
            return prepared, Problem(Verdict.INFRA, str(error), log=str(folder / LOG))
        reader.close()
        lost = self.site.lost_lease()
        if lost is not None and ended.launch_problem is None:
            return prepared, Problem(
                Verdict.INFRA, f"{lost}; somebody else may have measured beside it", log=str(folder / LOG)
            )
        measured = self._told(prepared, reader, ready.inputs)
        there = {rank: self.site.gpus_there(rank, gpus) for rank in own}

        def seen(seconds: float) -> Watched:
            if not any(there.values()):
                return watch.seen(began.get(Phase.BENCHMARK), seconds)
            line = next((mark.line_no for mark in reader.facts.phases if mark.phase is Phase.BENCHMARK), None)
            return watch_of(folder, there, line, seconds)

        told = ended.told.get(0)
        if self.image is None and told is not None:
            measured = replace(measured, env_there=told.env)
        run = FinishedRun(
            facts=reader.facts,
            ended=ended,
            folder=folder,
            hosts=tuple(node.host for node in self.site.nodes),
            asked=_asked(cell, ready.translation),
            stated={} if self.sglang_defaults else ready.pins,
            pins=ready.pins if self.sglang_defaults else {},
            gpus=seen,
        )
        return measured, outcome(measured, number, run)

    @property
    def image(self) -> ContainerSettings | None:
        """The container that SGLang is in, if it is in one."""
        place = self.environment.place
        return place.image if isinstance(place, SitePlace) else None

    def _pins(self, cell: Cell) -> Mapping[str, FlagValue]:
        return pins_for(cell.flags, is_cpu=cell.platform.is_cpu, table=self.environment.options).flags

    def _command(self, cell: Cell, rank: int, rendezvous: str | None) -> tuple[str, ...]:
        prepared = self._prepared[cell.fingerprint]
        return offline_command(
            cell,
            self.environment,
            prepared.translation.argv,
            prepared.inputs,
            result=RESULT,
            rank=rank,
            rendezvous=rendezvous,
        )

    def _told(self, measurement: Measurement, reader: LogReader, inputs: Inputs) -> Measurement:
        """The measurement with what SGLang resolved; the first round that tells it is kept."""
        resolved = reader.facts.server_args
        if measurement.protocol or not resolved or measurement.workload is None:
            return measurement
        facts = reader.facts
        protocol = protocol_of(
            measurement.cell, measurement.workload, resolved, inputs.config_digest, facts, hosts=self.site.host_count
        )
        return replace(measurement, protocol=protocol, resolved=resolved_of(facts))

    def _round_folder(self, cell: Cell, number: int) -> Path:
        slug = re.sub(r"[^A-Za-z0-9.=_-]+", "-", f"{cell.topology.name}-{cell.key}")[:80]
        return fresh_folder(self.folder / f"{slug}-{cell.fingerprint[:6]}", f"round-{number}")


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


def _asked(cell: Cell, translation: Translation) -> dict[str, FlagValue]:
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


class _Lingering:
    """Ends a process that printed its whole result and then doesn't exit."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._since: float | None = None

    def __call__(self) -> Poll:
        table = self._reader.facts.table
        if table is None or not table.complete:
            return Poll.GO_ON
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return Poll.END if now - self._since > LINGER_S else Poll.GO_ON
