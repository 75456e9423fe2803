"""A cell's client: its command, and what its row says, whichever of SGLang's two clients it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.cell import Cell
from pytest_r1perf.load import Batch, Traffic
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.sglang import bench_serving, one_batch
from pytest_r1perf.sglang.bench_serving import ServingLine, read_serving_lines
from pytest_r1perf.sglang.clientoptions import Client, ClientKind
from pytest_r1perf.sglang.clients import batch_command, serving_command
from pytest_r1perf.sglang.one_batch import OneBatchLine, read_one_batch_lines
from pytest_r1perf.sglang.result import Check
from pytest_r1perf.sglang.sampling import Inputs
from pytest_r1perf.sglang.serve import RESULT, URL, ServerInfo
from pytest_r1perf.sglang.serving_result import ServingResult
from pytest_r1perf.sglang.translate_nouns import Note
from pytest_r1perf.workload import SampledWorkload


def kind_of(cell: Cell) -> ClientKind:
    """The client that puts the cell's load on a server."""
    return ClientKind.ONE_BATCH if isinstance(cell.load, Batch) else ClientKind.SERVING


def client_command(
    cell: Cell,
    client: Client,
    python: str,
    inputs: Inputs,
    *,
    url: str = URL,
    result: str = RESULT,
    warm_up: bool = False,
    notes: list[Note] | None = None,
) -> tuple[str, ...]:
    """The argv of the cell's client, once against a server; ``notes`` gets what this release can't be told.

    ``warm_up``: a batch's client sends a batch of its own before the one that it times; traffic always has one request
    before its window. A row is known by the cell's fingerprint, where the client lets its rows be named. Raises
    ``CannotExpress``.
    """
    if isinstance(cell.load, Batch):
        return batch_command(
            [python],
            client,
            cell.load,
            base_url=url,
            model=inputs.model_path,
            tokenizer=inputs.model_path,
            seed=cell.workload.seed,
            dataset=inputs.dataset_path,
            result=result,
            warm_up=warm_up,
            run_name=cell.fingerprint,
            notes=notes,
        )
    return serving_command(
        [python],
        client,
        _traffic(cell),
        n=cell.num_prompts,
        workload=cell.workload,
        base_url=url,
        model=inputs.model_path,
        tokenizer=inputs.model_path,
        dataset=inputs.dataset_path,
        result=result,
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """What the one row of a window says: the metrics, and how long its timed window was (s)."""

    metrics: Mapping[str, float]
    seconds: float


def read_row(
    path: Path, cell: Cell, workload: SampledWorkload | None, server: ServerInfo
) -> tuple[Row | None, list[Check]]:
    """The row of one window, if there is exactly one that can be read, and all that is wrong with it."""
    lines = _lines(path, cell)
    if len(lines) != 1:
        return None, [Check("one-row", f"the client wrote {len(lines)} rows into {path.name}; a window has 1")]
    (line,) = lines
    if line.failed is not None:
        return None, [line.failed]
    if isinstance(line, OneBatchLine):
        row, wrong = _batch(line, cell)
    else:
        row, wrong = _served(line, cell, workload, server)
    return row, [*wrong, *_positive(row)]


def definition_of(path: Path, cell: Cell) -> str | None:
    """What the row's numbers are, for the protocol; ``None`` where there is no row that can be read."""
    result = next((line.result for line in _lines(path, cell) if line.result is not None), None)
    if isinstance(result, ServingResult):
        return f"{result.definition('total_throughput')}; itl_ms: {result.definition('itl_ms').partition(': ')[2]}"
    return result.definition("total_throughput") if result is not None else None


def _lines(path: Path, cell: Cell) -> Sequence[OneBatchLine | ServingLine]:
    return read_one_batch_lines(path) if isinstance(cell.load, Batch) else read_serving_lines(path)


def _batch(line: OneBatchLine, cell: Cell) -> tuple[Row, list[Check]]:
    result, batch = line.result, cell.load
    assert result is not None
    assert isinstance(batch, Batch)
    wrong = list(one_batch.not_as_asked([result], [(batch.batch_size, batch.input_len, batch.output_len)]))
    asked = batch.batch_size * batch.output_len
    if result.early_stopped:
        wrong.append(Check("early-stop", f"{result.early_stopped} of {batch.batch_size} answers stopped early"))
    if result.total_output_tokens != asked:
        wrong.append(
            Check("total-output-tokens", f"total_output_tokens is {result.total_output_tokens}; the batch says {asked}")
        )
    if result.run_name != cell.fingerprint:
        wrong.append(
            Check("foreign-row", f"the row is of run {result.run_name!r}; this cell's is {cell.fingerprint!r}")
        )
    metrics = _with_gpus(result.metrics, cell)
    return Row(metrics, result.latency_s), wrong


def _served(
    line: ServingLine, cell: Cell, workload: SampledWorkload | None, server: ServerInfo
) -> tuple[Row, list[Check]]:
    result, traffic = line.result, _traffic(cell)
    assert result is not None
    wrong = list(
        bench_serving.not_as_asked(
            result, traffic, n=cell.num_prompts, workload=workload, served_model_name=server.name
        )
    )
    if traffic.slo and result.why_no_goodput is not None:
        wrong.append(Check("goodput", f"there is no goodput: {result.why_no_goodput}"))
    metrics = _with_gpus(result.metrics(traffic.slo), cell)
    return Row(metrics, result.duration_s), wrong


def _with_gpus(metrics: Mapping[str, float], cell: Cell) -> dict[str, float]:
    """Those that we know, and the one a GPU."""
    found = {name: value for name, value in metrics.items() if name in METRICS}
    return {**found, "tokps_per_gpu": found["total_throughput"] / cell.topology.gpus_used}


def _positive(row: Row) -> Iterator[Check]:
    for name, value in row.metrics.items():
        if math.isfinite(value) and value > 0:
            continue
        if name == "goodput" and value == 0:
            yield Check(
                "goodput", "goodput is 0: no request kept every limit of the slo, and 0 has no ratio to anything"
            )
        else:
            yield Check("positive", f"{name} is {value}; a measurement is above 0")


def _traffic(cell: Cell) -> Traffic:
    return cell.load if isinstance(cell.load, Traffic) else Traffic()
