"""Fills a plan: what a test would run, found out without starting it (`r1perf plan`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_r1perf import baseline as baselines
from pytest_r1perf.antipatterns import matching
from pytest_r1perf.cell import Cell, cell_of
from pytest_r1perf.childenv import compose, shown
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.fit import misfit
from pytest_r1perf.launch.container import wrap
from pytest_r1perf.launch.launcher import RankCommand
from pytest_r1perf.launch.mark import RunMark
from pytest_r1perf.launchsettings import ENGINES
from pytest_r1perf.load import Batch, batch_workload
from pytest_r1perf.marker import PerfSpec
from pytest_r1perf.memory import GPU_BYTES, MemoryEstimate, estimate, fits, load_of
from pytest_r1perf.modelshape import shape_of
from pytest_r1perf.modes import windows_of
from pytest_r1perf.place import LocalPlace
from pytest_r1perf.plan import MatchedRule, PlannedCommand, PlannedTest, expected, histories
from pytest_r1perf.preflight import Finding, Severity, findings_of
from pytest_r1perf.report.plan import fit_sentence
from pytest_r1perf.rig.home import home
from pytest_r1perf.roundcheck import RESULT
from pytest_r1perf.roundrun import paths_of, translated, with_pins
from pytest_r1perf.runner import OLD, CannotRun, Runner
from pytest_r1perf.serve.client import client_command, kind_of
from pytest_r1perf.sglang.clientoptions import ask_client
from pytest_r1perf.sglang.command import offline_command
from pytest_r1perf.sglang.engine import engine_command, planned
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.sampling import Inputs, look_at, sample
from pytest_r1perf.sglang.serve import addressed, server_command
from pytest_r1perf.sglang.translate import NoteKind, Translation
from pytest_r1perf.sglang.translate_nouns import CannotExpress, Note
from pytest_r1perf.siteplace import IMAGE, named
from pytest_r1perf.workload import SampledWorkload

RENDEZVOUS = "HEAD:PORT"
"""Stands for rank 0's address, which is known when the nodes are."""
PORT, NAME = "PORT", "r1perf-NAME"
"""Stand for a server's port and name, which are new in every round."""
LAB = Finding(
    "perf-lab",
    Severity.NOTE,
    "the test takes perf_lab: which cells are measured its body decides while it runs; shown is the marker's own, "
    "which may not be among them, and processes and time are of that one alone",
    "docs/fixtures.md",
)
"""What a plan can't know. The body is not run to find out: it may do anything, and most need numbers to go on."""


@dataclass
class Planner:
    """Plans the tests of a session with its runner; other hosts are not asked."""

    runner: Runner
    out: Path
    _histories: dict[str, tuple[float, ...]] | None = field(default=None)

    def plan(self, nodeid: str, spec: PerfSpec, *, lab: bool = False) -> PlannedTest:
        """What the test would run; ``lab``: its body measures by itself, so it is the marker's own cell only.

        Raises :class:`R1PerfError` for a name that isn't known.
        """
        skip: str | None = None
        try:
            platform = self.runner.platform_of(spec)
        except CannotRun as reason:
            skip = str(reason)
            platform = self.runner.catalog.platform(spec.platform or "cpu")
        cell = cell_of(spec, platform, self.runner.catalog)
        remote = self.runner.is_remote(cell)
        hardware = None if remote else self.runner.find_hardware(platform)
        skip = skip or misfit(cell.topology, platform, hardware, remote=remote)
        findings: list[Finding] = [LAB] if lab else []
        environment = self._environment(cell, findings)
        inputs, workload = self._inputs(cell, environment, findings)
        commands, notes = self._commands(cell, environment, inputs, findings)
        available = hardware.count if hardware is not None else platform.gpus_per_node
        version = environment.version if environment is not None else None
        config = inputs.config or None
        stated = cell
        if environment is not None:
            own = self.runner.options.sglang_defaults
            stated = with_pins(cell, environment.options, sglang_defaults=own)
        findings += findings_of(stated, version, config, workload, available)
        memory = _memory(stated, config)
        load = load_of(workload)
        pool, pools = (memory.max_tokens, memory.pools) if memory is not None else (_given_pool(cell), 1)
        fit = fits(pool, pools, load) if pool is not None and load is not None else None
        rounds = self.runner.plan(spec, platform)
        seconds, source = expected(self._history(cell), rounds.maximum, self.out.name)
        return PlannedTest(
            nodeid=nodeid,
            cell=cell.label,
            key=cell.key,
            commands=commands,
            notes=notes,
            gpus_used=cell.topology.gpus_used,
            gpus_allocated=cell.topology.nnodes * platform.gpus_per_node if platform.gpus_per_node else None,
            memory=memory,
            fits=fit_sentence(fit, pool),
            rounds=(rounds.minimum, rounds.maximum),
            expected_s=seconds,
            expected_from=source,
            antipatterns=tuple(
                MatchedRule(rule.id, rule.kind, rule.title)
                for rule in matching(self.runner.catalog.rules.values(), cell, version)
            ),
            findings=tuple(findings),
            baseline=self._baseline(cell),
            skip=skip,
            unit="cores" if platform.is_cpu else "GPUs",
        )

    def _environment(self, cell: Cell, findings: list[Finding]) -> SglangEnvironment | None:
        """The environment, if it is on this host; its options decide how the flags are said."""
        try:
            return self.runner.environment_here(cell)
        except R1PerfError as error:
            findings.append(Finding("sglang-environment", Severity.WARN, str(error), "preflight"))
            return None

    def _inputs(
        self, cell: Cell, environment: SglangEnvironment | None, findings: list[Finding]
    ) -> tuple[Inputs, SampledWorkload | None]:
        platform = cell.platform
        nothing = Inputs(platform.model_path, platform.datasets.get(cell.workload.dataset, "?"), "", "", "", {})
        try:
            model, dataset = paths_of(cell, elsewhere=self.runner.is_remote(cell))
            nothing = replace(nothing, model_path=model, dataset_path=dataset)
            if environment is None or not isinstance(environment.place, LocalPlace):
                return nothing, None
            nothing = inputs = look_at(environment, model, dataset, compose(cell.env))
            if isinstance(cell.load, Batch):
                return inputs, batch_workload(cell.load, [inputs.dataset_digest])
            workload = sample(
                cell.workload,
                cell.num_prompts,
                environment=environment,
                given=inputs,
                cache=home() / "workloads",
                env=compose(cell.env),
                also=lambda: self.runner.coming(cell),
            )
        except R1PerfError as error:
            findings.append(Finding("inputs", Severity.WARN, str(error), "preflight"))
            return nothing, None
        return inputs, workload

    def _commands(
        self, cell: Cell, environment: SglangEnvironment | None, inputs: Inputs, findings: list[Finding]
    ) -> tuple[tuple[PlannedCommand, ...], tuple[str, ...]]:
        if environment is None:
            return (), ()
        try:
            said = translated(cell, environment.options, sglang_defaults=self.runner.options.sglang_defaults)
        except R1PerfError as error:
            findings.append(Finding("flags", Severity.REFUSE, str(error), "the release's own options"))
            return (), ()
        if cell.mode == "engine":
            return self._engine(cell, environment, said, inputs)
        if cell.mode == "serve":
            return self._serve(cell, environment, said, inputs, findings)
        nodes = cell.topology.nnodes
        commands = []
        for rank in range(nodes):
            rendezvous = RENDEZVOUS if nodes > 1 else None
            argv = offline_command(
                cell, environment, said.argv, inputs, result=RESULT, rank=rank, rendezvous=rendezvous
            )
            command = self._contained(cell, RankCommand(rank, argv, said.env, "."), inputs)
            commands.append(PlannedCommand(rank, _host(cell, rank), command.argv, shown(command.env)))
        return tuple(commands), (*_notes(said), *self._in_turn(cell))

    def _engine(
        self, cell: Cell, environment: SglangEnvironment, said: Translation, inputs: Inputs
    ) -> tuple[tuple[PlannedCommand, ...], tuple[str, ...]]:
        """The driver's command with this cell alone; the file is in the round's folder."""
        windows, discard = windows_of(cell, self.runner.options)
        alone = planned(cell.fingerprint, cell.num_prompts, cell.workload, inputs, windows=windows, discard=discard)
        argv = engine_command(environment, [alone], said.argv, inputs)
        command = self._contained(cell, RankCommand(0, argv, said.env, "."), inputs)
        shared = "one engine a round, shared with all tests of this session that have the same server arguments"
        notes = (*_notes(said), shared, *self._in_turn(cell))
        return (PlannedCommand(0, _host(cell, 0), command.argv, shown(command.env)),), notes

    def _serve(
        self,
        cell: Cell,
        environment: SglangEnvironment,
        said: Translation,
        inputs: Inputs,
        findings: list[Finding],
    ) -> tuple[tuple[PlannedCommand, ...], tuple[str, ...]]:
        """The servers' own commands and the client's, as the driver starts them; port and name are its choice."""
        windows, discard = windows_of(cell, self.runner.options)
        notes: list[Note] = []
        commands = []
        nodes = cell.topology.nnodes
        for rank in range(nodes):
            rendezvous = RENDEZVOUS if nodes > 1 else None
            argv = server_command(environment, said.argv, inputs, rank=rank, rendezvous=rendezvous)
            whole = addressed(argv, PORT, NAME if rank == 0 else None)
            command = self._contained(cell, RankCommand(rank, whole, said.env, "."), inputs)
            commands.append(PlannedCommand(rank, _host(cell, rank), command.argv, shown(command.env)))
        try:
            client = ask_client(environment, kind_of(cell), compose(cell.env), cache=home() / "probes")
            url = f"http://127.0.0.1:{PORT}"
            argv = client_command(cell, client, environment.python, inputs, url=url, result=RESULT, notes=notes)
            command = self._contained(cell, RankCommand(0, argv, said.env, "."), inputs)
            where = f"{_host(cell, 0)}, the client, {discard} + {windows} times when the server is ready"
            commands.append(PlannedCommand(0, where, command.argv, shown(command.env)))
        except CannotExpress as error:
            findings.append(Finding("client", Severity.REFUSE, str(error), "the release's own options"))
        except R1PerfError as error:
            findings.append(Finding("client", Severity.WARN, str(error), "preflight"))
        shared = "one server a round, shared with all tests of this session that have the same server arguments"
        told = [f"{note.kind.value} {note.flag}: {note.text}" for note in notes]
        return tuple(commands), (*_notes(said), *told, shared, *self._in_turn(cell))

    def _in_turn(self, cell: Cell) -> tuple[str, ...]:
        if self.runner.options.sglang_old is None:
            return ()
        old = self.runner.given(cell.platform, elsewhere=self.runner.is_remote(cell), side=OLD)
        asked = ", and one engine each for the greedy answers" if self.runner.options.outputs else ""
        return (f"in turn with {old}, so twice the rounds{asked}; the command is the new environment's",)

    def _contained(self, cell: Cell, command: RankCommand, inputs: Inputs) -> RankCommand:
        given = self.runner.given(cell.platform)
        if not given.startswith(IMAGE):
            return command
        image = named(cell.platform.launch.container, given)
        mounts = (inputs.model_path, inputs.dataset_path)
        mark = RunMark("plan", 0, 0, 0)
        return wrap(
            replace(command, cwd="/tmp/r1perf"),
            image,
            engine=image.engine or ENGINES[0],
            mark=mark,
            gpus=() if cell.platform.is_cpu else None,
            read_only=mounts,
            names=command.env.keys(),
        )

    def _history(self, cell: Cell) -> tuple[float, int] | None:
        import statistics

        if self._histories is None:
            self._histories = histories(self.out)
        walls = self._histories.get(cell.fingerprint)
        return (statistics.median(walls), len(walls)) if walls else None

    def _baseline(self, cell: Cell) -> Path | None:
        key = self.runner.hardware_key(cell)
        path = baselines.path_of(self.runner.options.baselines, key, cell.topology.name)
        if not path.exists() or cell.key not in baselines.load(path).cells:
            return None
        return path


def _notes(said: Translation) -> tuple[str, ...]:
    """What was said otherwise, one line each; what was only stated, in one line (its sources are in pins.yaml)."""
    changed = [f"{note.kind.value} {note.flag}: {note.text}" for note in said.notes if note.kind is not NoteKind.PINNED]
    pinned = [note.flag for note in said.notes if note.kind is NoteKind.PINNED]
    if pinned:
        changed.append(f"stated, because the default moves between releases: {', '.join(pinned)}")
    return tuple(changed)


def _host(cell: Cell, rank: int) -> str:
    hosts = cell.platform.launch.hosts
    if rank < len(hosts):
        return hosts[rank]
    return "this host" if cell.topology.nnodes == 1 else f"node {rank}"


def _memory(cell: Cell, config: object) -> MemoryEstimate | None:
    gpu_bytes = GPU_BYTES.get(cell.platform.accelerator)
    if config is None or gpu_bytes is None:
        return None
    try:
        return estimate(shape_of(config, "config.json"), cell, gpu_bytes)
    except R1PerfError:
        return None


def _given_pool(cell: Cell) -> int | None:
    """The KV pool's tokens where the platform or the recipe names them (as the CPU rig's does)."""
    tokens = cell.flags.get("max_total_tokens")
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None
