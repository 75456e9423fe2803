"""The command lines of SGLang's serving clients, for every release from 0.4.3 on.

Every default that moved between releases is stated (seed, temperature, warm-up, flush, readiness check). An option
that a release lacks is left out where the same is built in there, left out with a note where it is not, and refused
where the run would measure something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_r1perf.sglang.translate_nouns import CannotExpress, Note, NoteKind

if TYPE_CHECKING:
    from pytest_r1perf.load import Batch, Traffic
    from pytest_r1perf.sglang.clientoptions import Client
    from pytest_r1perf.workload import Workload

_KNOWS_NO_MODEL = "0.5.4.post3"
"""First of the examined releases whose server arguments take the model ``None`` for none; before, they read it."""
_ASKS_THE_TOKENIZER = "0.4.9.post6"
"""First of the examined releases in which bench_one_batch_server asks the server for the tokenizer."""


class _Line:
    """A command line in the making."""

    def __init__(self, python: Sequence[str], client: Client, notes: list[Note] | None) -> None:
        self.client = client
        self.table = client.options
        self.argv = [*python, "-m", client.module]
        self._notes = [] if notes is None else notes

    def need(self, name: str, *values: object) -> None:
        """An option without which it would be another run."""
        reason = self.table.accepts(name, " ".join(map(str, values)) if values else True)
        if reason is not None:
            raise CannotExpress(f"{self.client.name} cannot be run as asked: {reason}")
        self._give(name, values)

    def offer(self, name: str, *values: object, without: str | None = None, matters: bool = True) -> None:
        """An option that older releases lack. ``without`` says what they do; None: the same, so there is no note."""
        if name in self.table:
            self.need(name, *values)
        elif without is not None:
            self.note(NoteKind.DROPPED, name, without, matters)

    def note(self, kind: NoteKind, name: str, text: str, matters: bool = True) -> None:
        self._notes.append(
            Note(kind, name.removeprefix("--").replace("-", "_"), f"{self.client.name}: {text}", matters)
        )

    def _give(self, name: str, values: Sequence[object]) -> None:
        self.argv += [name, *map(str, values)]


def batch_command(
    python: Sequence[str],
    client: Client,
    batch: Batch,
    *,
    base_url: str,
    model: str | None,
    tokenizer: str | None,
    seed: int,
    dataset: str | None,
    result: str,
    warm_up: bool = False,
    run_name: str = "default",
    notes: list[Note] | None = None,
) -> tuple[str, ...]:
    """The argv of one batch through bench_one_batch_server; ``result`` gets one JSON line.

    ``model`` and ``tokenizer`` are paths where the client runs, ``dataset`` is a ShareGPT-format file there; None draws
    the prompts from random token ids, in the releases that can. ``warm_up`` is the client's own (a batch of 1024
    tokens in and 16 out, of another size in 0.4.3). ``notes`` gets what is not as asked. End-of-text is ignored and the
    answers are greedy in all releases; the cache is flushed before the batch from 0.4.6.post5 on, by the client
    itself. Raises :class:`CannotExpress` where the release can't be told.
    """
    line = _Line(python, client, notes)
    old = "--temperature" not in line.table  # 0.4.3 to 0.4.6: whole answers, random token ids
    _model(line, model, tokenizer, old)
    line.need("--base-url", base_url)
    line.need("--run-name", run_name)
    line.need("--batch-size", batch.batch_size)
    line.need("--input-len", batch.input_len)
    line.need("--output-len", batch.output_len)
    line.offer("--seed", seed, without=f"seed {seed} left out: the prompts are drawn anew in every run")
    _prompts(line, dataset, old)
    line.offer("--backend", "sglang")
    line.offer("--temperature", "0.0")
    line.offer("--client-stream-interval", 1)
    line.offer("--input-len-step-percentage", "0.0")
    line.offer("--cache-hit-rate", "0.0")
    line.offer("--no-append-to-github-summary")
    if not warm_up:
        line.need("--skip-warmup")
    line.need("--result-filename", result)
    return tuple(line.argv)


def serving_command(
    python: Sequence[str],
    client: Client,
    traffic: Traffic,
    *,
    n: int,
    workload: Workload,
    base_url: str,
    model: str,
    tokenizer: str | None,
    dataset: str,
    result: str,
    warm_up: int = 1,
    details: bool = True,
    notes: list[Note] | None = None,
) -> tuple[str, ...]:
    """The argv of ``n`` requests of a workload through bench_serving; ``result`` gets one JSON line.

    ``model``, ``tokenizer`` and ``dataset`` are paths where the client runs. ``warm_up`` requests are sent before the
    window and the cache is flushed after them. ``details`` asks for the raw numbers of every request: goodput is
    computed from them, here and not by the client, so that it means the same in every release; and only they tell
    a request that was refused from one that was answered. They cost about 20 bytes a generated token in the row.
    ``notes`` gets what is not as asked. Raises :class:`CannotExpress` where the release can't be told.
    """
    line = _Line(python, client, notes)
    line.need("--backend", "sglang")
    line.need("--base-url", base_url)
    line.need("--model", model)
    line.need("--tokenizer", tokenizer or model)
    line.need("--dataset-name", "sharegpt")
    line.need("--dataset-path", dataset)
    line.need("--num-prompts", n)
    line.need("--seed", workload.seed)
    if workload.sharegpt_output_len is not None:
        line.need("--sharegpt-output-len", workload.sharegpt_output_len)
    if workload.sharegpt_context_len is not None:
        line.need("--sharegpt-context-len", workload.sharegpt_context_len)
    line.need("--request-rate", "inf" if traffic.request_rate is None else traffic.request_rate)
    if traffic.max_concurrency is not None:
        line.need("--max-concurrency", traffic.max_concurrency)
    line.offer("--temperature", "0.0")
    line.offer("--top-p", "1.0")
    built_in = line.table.before("0.4.4")
    line.offer(
        "--warmup-requests",
        warm_up,
        without=None if built_in and warm_up == 1 else f"{warm_up} warm-up requests left out: it always sends one",
    )
    line.offer("--flush-cache", without=None if built_in else "the cache is not flushed before the window")
    line.offer("--ready-check-timeout-sec", 0)  # 60 from 0.5.10, no such check before: our server is ready
    line.need("--disable-tqdm")
    if details:
        goodput = ", and no goodput" if traffic.slo else ""
        without = f"no numbers of single requests (first in 0.4.6.post5): refused ones can't be told{goodput}"
        line.offer("--output-details", without=without)
    line.need("--output-file", result)
    return tuple(line.argv)


def _model(line: _Line, model: str | None, tokenizer: str | None, old: bool) -> None:
    """The client takes a server's arguments and makes sense of them although it starts no server."""
    none = model is None or not line.table.before(_KNOWS_NO_MODEL)
    line.need("--model-path", "None" if none else str(model))
    if "--local-tokenizer-path" in line.table:
        if tokenizer is not None:
            line.need("--local-tokenizer-path", tokenizer)
    elif old:
        return  # it has no tokenizer
    elif line.table.before(_ASKS_THE_TOKENIZER):
        if tokenizer is None and model is None:
            raise CannotExpress(
                f"{line.client.name} needs the model's tokenizer, which it can't ask the server for: give its path"
            )
        line.need("--tokenizer-path", tokenizer or model)
    elif tokenizer is not None:
        line.note(NoteKind.DROPPED, "tokenizer", "it takes the tokenizer that the server names", matters=False)


def _prompts(line: _Line, dataset: str | None, old: bool) -> None:
    if old:
        if dataset is not None:
            line.note(NoteKind.DROPPED, "dataset", "the prompts are random token ids, not of the data set")
    elif "--dataset-path" not in line.table:
        line.note(
            NoteKind.DROPPED,
            "dataset",
            "the prompts are of /tmp/ShareGPT_V3_unfiltered_cleaned_split.json, downloaded where it is absent",
        )
    elif dataset is not None:
        line.need("--dataset-name", "random")
        line.need("--dataset-path", dataset)
    elif line.table.accepts("--dataset-name", "random-ids") is None:
        line.need("--dataset-name", "random-ids")
        line.note(NoteKind.CHANGED, "dataset", "no data set given: the prompts are random token ids", matters=False)
    else:
        raise CannotExpress(
            f"{line.client.name} would download ShareGPT for its prompts: give a data set's path (random token ids "
            f"without one from 0.5.13 on)"
        )
