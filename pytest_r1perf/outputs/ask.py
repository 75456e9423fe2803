"""Ask one SGLang environment a fixed set of prompts, greedily: a process of its own, as a round of the benchmark."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_r1perf.cell import Cell
from pytest_r1perf.childenv import shown
from pytest_r1perf.datafile import read_yaml
from pytest_r1perf.ended import Ended
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.gpuwatch import GpuWatch
from pytest_r1perf.launch.process import LaunchError, Poll
from pytest_r1perf.measurement import Problem
from pytest_r1perf.outputs.agreement import Answers, NotAsked
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.roundcheck import LINGER_S
from pytest_r1perf.roundrun import paths_of, translated
from pytest_r1perf.sglang.command import shell_line
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.failure import classify
from pytest_r1perf.sglang.greedy import WRITTEN, BadAnswers, greedy_command, read_answers, shown_command
from pytest_r1perf.sglang.log import LogReader
from pytest_r1perf.site import LOG, Site, fresh_folder
from pytest_r1perf.siteplace import SitePlace
from pytest_r1perf.verdict import Verdict

RESULT = "greedy.jsonl"
"""The driver's own file, in the run's folder."""

_FILE = Path(__file__).parents[1] / "data" / "greedy.yaml"


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts, how many tokens are answered to each, and a digest of both."""

    prompts: tuple[str, ...]
    max_new_tokens: int
    digest: str


@functools.cache
def load_prompts(path: Path = _FILE) -> PromptSet:
    """The prompts of a YAML file.

    Raises :class:`DataError` with file, line and key; also where the digest is not that of what stands there.
    """
    data = read_yaml(path)
    prompts, tokens, stated = data.texts("prompts"), data.integer("max_new_tokens"), data.text("digest")
    data.done()
    if not prompts:
        data.fail("must have at least one prompt", "prompts")
    content = json.dumps([list(prompts), tokens], ensure_ascii=False)
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    if digest != stated:
        data.fail(
            f"is {stated!r}, but the prompts and max_new_tokens give {digest!r}: undo the change, or state it, and "
            f"earlier answers are no longer compared with new ones",
            "digest",
        )
    return PromptSet(prompts, tokens, digest)


def ask(
    cell: Cell,
    environment: SglangEnvironment,
    site: Site,
    folder: Path,
    *,
    flags: Mapping[str, FlagValue] | None = None,
    model_path: str | None = None,
    sglang_defaults: bool = False,
    prompts: PromptSet | None = None,
    watch: Callable[[tuple[str, ...]], GpuWatch] | None = None,
) -> Answers | NotAsked | Problem:
    """Start the cell's server arguments in an engine, answer the prompts twice, and end every process of it.

    The caller holds the lease. ``flags`` are laid over the cell's (``{"dtype": "float32"}``), ``model_path`` takes
    the place of the platform's; weights of its folder are used even where the cell asks for dummy ones. ``watch``
    waits until the GPUs of this host are free. Logs, the command and the result go to a new folder under ``folder``.
    A cell of several nodes is :class:`NotAsked`.
    """
    if cell.topology.nnodes > 1:
        return NotAsked(
            f"topology {cell.topology.name} spans {cell.topology.nnodes} nodes, and greedy answers are asked for on "
            f"one: check the outputs with a topology of one node"
        )
    prompts = prompts or load_prompts()
    cell = replace(cell, flags={**cell.flags, **(flags or {})})
    try:
        translation = translated(cell, environment.options, sglang_defaults=sglang_defaults)
        model = model_path or paths_of(cell, elsewhere=site.remote)[0]
        argv = greedy_command(
            environment.python,
            model,
            translation.argv,
            prompts=prompts.prompts,
            max_new_tokens=prompts.max_new_tokens,
            digest=prompts.digest,
            result=RESULT,
        )
    except R1PerfError as error:
        return Problem(Verdict.CONFIG, str(error))
    gpus = cell.topology.gpus_used
    image = environment.place.image if isinstance(environment.place, SitePlace) else None
    env = {**translation.env, **site.rank_environment(0, translation.env, gpus, contained=image is not None)}
    folder = fresh_folder(folder, f"greedy-{cell.topology.name}-{cell.fingerprint[:6]}")
    (folder / "command.txt").write_text(shell_line(shown_command(argv), shown(env)) + "\n", encoding="utf-8")
    not_free = watch(site.local_gpus(gpus)).not_free() if watch is not None else None
    if not_free is not None:
        return Problem(Verdict.INFRA, not_free)
    seen = _Seen()
    try:
        ended = site.run(
            lambda rank: argv,
            lambda rank: env,
            image=image,
            folder=folder,
            timeout_s=cell.timeout_s,
            ranks=1,
            gpus=gpus,
            mounts=(model,),
            fetch=(RESULT,),
            on_output=seen.feed,
            poll=seen.poll,
        )
    except LaunchError as error:
        return Problem(Verdict.INFRA, str(error), log=str(folder / LOG))
    seen.reader.close()
    lost = site.lost_lease()
    if lost is not None and ended.launch_problem is None:
        return Problem(Verdict.INFRA, f"{lost}; somebody else may have run beside it", log=str(folder / LOG))
    return _outcome(ended, seen.reader, folder, prompts)


def _outcome(ended: Ended, reader: LogReader, folder: Path, prompts: PromptSet) -> Answers | Problem:
    """The answers, or why there are none; a complete result counts whatever the engine's end was like."""
    log = str(folder / LOG)
    if ended.left:
        return Problem(
            Verdict.INFRA, f"the greedy answers' engine could not be ended whole: {'; '.join(ended.left)}", log=log
        )
    try:
        answers = read_answers(
            folder / RESULT, prompts=len(prompts.prompts), max_new_tokens=prompts.max_new_tokens, digest=prompts.digest
        )
    except BadAnswers as error:
        return Problem(Verdict.INVALID, str(error), log=log)
    if answers is not None:
        return replace(answers, wall_s=ended.exit.wall_s, log=log)
    if ended.launch_problem is not None:
        return Problem(Verdict.INFRA, ended.launch_problem, log=log)
    timed_out = ended.exit.ended_by == "timeout"
    if not timed_out and ended.returncode == 0:
        return Problem(Verdict.INVALID, "the greedy driver ended well and wrote no answers", log=log)
    failure = classify(reader.facts, returncode=ended.returncode, timed_out=timed_out)
    return Problem(Verdict(failure.kind.value), failure.cause, failure.hint, log)


class _Seen:
    """Reads the log as it grows, and ends a process that wrote its answers and then does not exit."""

    def __init__(self) -> None:
        self.reader = LogReader()
        self._tail = b""
        self._written_at: float | None = None

    def feed(self, data: bytes) -> None:
        """New bytes of the log."""
        self.reader.feed(data)
        if self._written_at is None:
            seen = self._tail + data
            if WRITTEN in seen:
                self._written_at = time.monotonic()
            self._tail = seen[-len(WRITTEN) :]

    def poll(self) -> Poll:
        """Whether to wait on."""
        if self._written_at is None or time.monotonic() - self._written_at < LINGER_S:
            return Poll.GO_ON
        return Poll.END
