"""The command line of the CPU rig: ``r1perf rig``, ``r1perf model`` and ``r1perf dataset``."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_r1perf.rig.dataset import (
    CPU_MEAN_INPUT_TOKENS,
    CPU_MEAN_OUTPUT_TOKENS,
    SEED,
    SHAREGPT_MEAN_INPUT_TOKENS,
    SHAREGPT_MEAN_OUTPUT_TOKENS,
    make_dataset,
)
from pytest_r1perf.rig.home import DEFAULT_SGLANG_VERSION, dataset_path, home, interpreter, model_dir, rig_dir
from pytest_r1perf.rig.install import install, rig_state
from pytest_r1perf.rig.model import make_model
from pytest_r1perf.rig.pins import known_versions

_DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.group("rig")
def rig_group() -> None:
    """The CPU rig: virtual environments with the real SGLang for a host without a GPU."""


@rig_group.command("install")
@click.argument("directory", metavar="[DIR]", required=False, type=_DIRECTORY)
@click.option(
    "--sglang-version",
    default=DEFAULT_SGLANG_VERSION,
    show_default=True,
    help=f"One of {', '.join(known_versions())}; each has a directory of its own.",
)
@click.option(
    "--pip-arg",
    "pip_args",
    multiple=True,
    metavar="ARG",
    help="Passed on to pip; may be repeated. PyPI's x86-64 torch is the CUDA build, several GB more: for the CPU build "
    "give an index of CPU wheels, --pip-arg=--extra-index-url=URL.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show the commands that are run.")
def rig_install(directory: Path | None, sglang_version: str, pip_args: tuple[str, ...], verbose: bool) -> None:
    """Make the rig in DIR, or go on with one that was interrupted.

    Needs Linux on x86-64 and Python 3.10 to 3.13 (verified with 3.11).
    """
    install(sglang_version, directory or rig_dir(sglang_version), echo=click.echo, pip_args=pip_args, verbose=verbose)


@rig_group.command("status")
def rig_status() -> None:
    """Show which rigs are there, what is in them, and whether they are complete."""
    found = sorted((home() / "rig").glob("sglang-*/"))
    for directory in found:
        click.echo(f"{directory}: {rig_state(directory)}")
    if not found:
        click.echo(f"no rig in {home() / 'rig'}: `r1perf rig install` makes one")


@click.group("model")
def model_group() -> None:
    """The tiny model of R1's architecture."""


@model_group.command("make")
@click.argument("directory", metavar="[DIR]", required=False, type=_DIRECTORY)
@click.option("--dtype", default="bfloat16", show_default=True, help="The dtype that config.json states.")
@click.option("--weights", is_flag=True, help="Write random float32 weights too (needs the default rig).")
def model_make(directory: Path | None, dtype: str, weights: bool) -> None:
    """Write the model's config and tokenizer to DIR; `--load-format dummy` needs no weights."""
    python = interpreter(rig_dir()) if weights else None
    made = make_model(directory or model_dir(), dtype=dtype, weights=weights, python=python)
    click.echo(f"DeepseekV3ForCausalLM, tiny: {made}")


@click.group("dataset")
def dataset_group() -> None:
    """A generated data set in ShareGPT's format."""


@dataset_group.command(
    "make",
    epilog="Lengths are in tokens of the tiny model's tokenizer. ShareGPT's means are about "
    f"{SHAREGPT_MEAN_INPUT_TOKENS:g} in and {SHAREGPT_MEAN_OUTPUT_TOKENS:g} out.",
)
@click.argument("path", metavar="[PATH]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--num", default=2000, show_default=True, help="Conversations.")
@click.option("--mean-input-tokens", default=CPU_MEAN_INPUT_TOKENS, show_default=True, help="Mean prompt length.")
@click.option("--mean-output-tokens", default=CPU_MEAN_OUTPUT_TOKENS, show_default=True, help="Mean answer length.")
@click.option("--sigma", default=0.6, show_default=True, help="Spread: standard deviation of the length's logarithm.")
@click.option("--max-tokens", default=1024, show_default=True, help="Longest prompt and longest answer.")
@click.option("--seed", default=SEED, show_default=True)
def dataset_make(
    path: Path | None,
    num: int,
    mean_input_tokens: float,
    mean_output_tokens: float,
    sigma: float,
    max_tokens: int,
    seed: int,
) -> None:
    """Write conversations with log-normal lengths to PATH and print what it holds."""
    target = path or dataset_path()
    made = make_dataset(
        target,
        num_conversations=num,
        mean_input_tokens=mean_input_tokens,
        mean_output_tokens=mean_output_tokens,
        sigma=sigma,
        max_tokens=max_tokens,
        seed=seed,
    )
    click.echo(f"{target}: {made}")
