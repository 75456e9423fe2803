"""``r1perf``: the command line beside pytest."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pytest_r1perf.bisect.command import bisect_command
from pytest_r1perf.claims.commands import claims_command
from pytest_r1perf.compare.commands import compare_command
from pytest_r1perf.doctor.commands import doctor_command
from pytest_r1perf.document.commands import report_command
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.history.commands import trend_command
from pytest_r1perf.noise.commands import noise_command
from pytest_r1perf.noise.power_command import power_command
from pytest_r1perf.notify.commands import notify_group
from pytest_r1perf.parity.commands import parity_command
from pytest_r1perf.recommend.commands import recommend_command
from pytest_r1perf.rig.commands import dataset_group, model_group, rig_group
from pytest_r1perf.stress.commands import stress_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pytest-r1perf")
def cli() -> None:
    """Performance regression tests of DeepSeek-R1 on SGLang: what goes on beside `pytest -m perf`."""


cli.add_command(rig_group)
cli.add_command(model_group)
cli.add_command(dataset_group)
cli.add_command(doctor_command)
cli.add_command(notify_group)
for _command in (
    *(noise_command, power_command, trend_command, compare_command, bisect_command),
    *(parity_command, recommend_command, claims_command, stress_command, report_command),
):
    cli.add_command(_command)


@cli.command("plan", context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]})
@click.argument("pytest_arguments", nargs=-1, type=click.UNPROCESSED)
def plan(pytest_arguments: tuple[str, ...]) -> None:
    """Print what perf tests would run, without running them. PYTEST_ARGUMENTS select them as for pytest.

    For each test: the exact commands of all nodes, the environment, GPUs used and allocated, memory, whether the
    workload fits, the expected time, anti-patterns and findings. Exit status 1 when a finding refuses a test.

    Example: r1perf plan perf_tests --topology pp2 --perf-platform h200x16
    """
    import subprocess

    sys.exit(subprocess.call([sys.executable, "-m", "pytest", "--perf", "--perf-plan", *pytest_arguments]))


@cli.command("pbs-script", context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]})
@click.option("--nodes", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--ncpus", type=click.IntRange(min=1), required=True, help="Processors of one node.")
@click.option("--ngpus", type=click.IntRange(min=0), default=8, show_default=True, help="GPUs of one node.")
@click.option("--walltime", required=True, metavar="TIME", help="E.g. 2h or 45m, SGLang's start-up included.")
@click.option("--queue", help="PBS queue.")
@click.option("--project", help="PBS project to charge.")
@click.argument("pytest_arguments", nargs=-1, type=click.UNPROCESSED)
def pbs_script(
    nodes: int,
    ncpus: int,
    ngpus: int,
    walltime: str,
    queue: str | None,
    project: str | None,
    pytest_arguments: tuple[str, ...],
) -> None:
    """Print a PBS job script that runs pytest with PYTEST_ARGUMENTS on whole nodes; submit it with qsub.

    Example: r1perf pbs-script --ncpus 96 --walltime 2h -m perf --topology pp2 > nightly.pbs
    """
    from pytest_r1perf.launch.pbs import job_script
    from pytest_r1perf.options import parse_time

    try:
        text = job_script(
            (sys.executable, "-m", "pytest", *pytest_arguments),
            nodes=nodes,
            ncpus=ncpus,
            ngpus=ngpus,
            walltime_s=int(parse_time(walltime, "--walltime") or 0),
            queue=queue,
            project=project,
        )
    except ValueError as error:
        raise R1PerfError(str(error)) from None
    click.echo(text, nl=False)


@cli.group("baseline")
def baseline_group() -> None:
    """The stored baselines."""


@baseline_group.command("path")
@click.option("--platform", default="cpu", show_default=True, help="Platform whose hardware is looked for here.")
@click.option("--topology", required=True, help="Topology, e.g. tp1.")
@click.option("--baselines", default="baselines", show_default=True, type=click.Path(path_type=Path))
def baseline_path(platform: str, topology: str, baselines: Path) -> None:
    """Print where the baseline of a topology on this host's hardware lies (it may not exist yet)."""
    from pytest_r1perf import baseline
    from pytest_r1perf.catalog import USER_FILE, load_catalog
    from pytest_r1perf.hardware import hardware_for

    catalog = load_catalog([Path(USER_FILE)] if Path(USER_FILE).is_file() else [])
    catalog.topology(topology)
    found = hardware_for(is_cpu=catalog.platform(platform).is_cpu)
    if found is None:
        raise R1PerfError(f"platform {platform!r} needs a GPU, and this host has none")
    click.echo(baseline.path_of(baselines, found.key, topology))


@baseline_group.command("check")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def baseline_check(files: tuple[Path, ...]) -> None:
    """Read baseline FILES and refuse what is wrong in them, with file, line and key."""
    from pytest_r1perf import baseline

    for path in files:
        file = baseline.load(path)
        click.echo(f"{path}: {len(file.cells)} cells of {file.topology} on {file.hardware_name}")


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 1, never a traceback."""
    try:
        cli()
    except R1PerfError as error:
        click.echo(f"r1perf: {error}", err=True)
        sys.exit(1)
