"""The benchmark's command line: what the workload and the launch add to a translated recipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from pytest_r1perf.cell import Cell
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.sampling import Inputs


def offline_command(
    cell: Cell,
    environment: SglangEnvironment,
    server_arguments: Sequence[str],
    inputs: Inputs,
    *,
    result: str,
    rank: int = 0,
    rendezvous: str | None = None,
) -> tuple[str, ...]:
    """The argv of one rank of one offline throughput run, full spellings throughout.

    ``server_arguments`` are translated already. ``result`` is relative to the working directory;
    ``rendezvous`` is ``HOST:PORT`` of rank 0 where there are several nodes.
    """
    workload = cell.workload
    argv = [environment.python, "-m", environment.offline_module, "--model-path", inputs.model_path]
    argv += ["--dataset-name", "sharegpt", "--dataset-path", inputs.dataset_path]
    argv += ["--num-prompts", str(cell.num_prompts), "--seed", str(workload.seed)]
    if workload.sharegpt_output_len is not None:
        argv += ["--sharegpt-output-len", str(workload.sharegpt_output_len)]
    if workload.sharegpt_context_len is not None:
        argv += ["--sharegpt-context-len", str(workload.sharegpt_context_len)]
    argv += server_arguments
    if rendezvous is not None:
        argv += ["--node-rank", str(rank), "--dist-init-addr", rendezvous]
    argv += ["--result-filename", result]
    return tuple(argv)


def core_binding(cores: Sequence[int]) -> dict[str, str]:
    """One core a rank of a CPU engine: without it two ranks share their threads' cores."""
    return {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, cores))}


def shell_line(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """A line that a person can paste into a shell."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(env.items())]
    return " ".join([*assignments, shlex.join(argv)])
