"""Logical flags to SGLang's command line: the only place that spells them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_r1perf.cell import Cell
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.sglang.environment import SglangEnvironment


def offline_command(
    cell: Cell, environment: SglangEnvironment, *, model_path: str, dataset_path: str, result: Path
) -> tuple[str, ...]:
    """The argv of one offline throughput run, full spellings throughout.

    Abbreviations such as ``--pp`` became ambiguous between SGLang versions, so none is used.
    """
    workload = cell.workload
    argv = [str(environment.python), "-m", environment.offline_module, "--model-path", model_path]
    argv += ["--dataset-name", "sharegpt", "--dataset-path", dataset_path]
    argv += ["--num-prompts", str(cell.num_prompts), "--seed", str(workload.seed)]
    if workload.sharegpt_output_len is not None:
        argv += ["--sharegpt-output-len", str(workload.sharegpt_output_len)]
    if workload.sharegpt_context_len is not None:
        argv += ["--sharegpt-context-len", str(workload.sharegpt_context_len)]
    argv += server_arguments(cell.flags)
    argv += ["--result-filename", str(result)]
    return tuple(argv)


def server_arguments(flags: Mapping[str, FlagValue]) -> list[str]:
    """Server flags in a stable order: ``True`` is a bare switch, ``False`` is left out."""
    argv: list[str] = []
    for name, value in flags.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            argv.append(option)
        elif value is not False:
            argv += [option, str(value)]
    return argv


def shell_line(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """A line that a person can paste into a shell."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(env.items())]
    return " ".join([*assignments, shlex.join(argv)])
