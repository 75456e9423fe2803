"""The command line of the doctor: ``r1perf doctor``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pytest_r1perf.errors import R1PerfError


@click.command("doctor")
@click.option("--platform", default="cpu", show_default=True, help="Platform that a run would be on.")
@click.option("--sglang", metavar="PATH", help="SGLang environment instead of the platform's.")
@click.option(
    "--n", type=click.IntRange(min=1), help="Prompts that the data set must hold (default: the platform's N)."
)
@click.option("--workload", default="sharegpt", show_default=True, help="Workload whose data set must be there.")
@click.option("--port", default=30000, show_default=True, help="HTTP port of a server.")
@click.option("--dist-port", type=int, help="First of the six rendezvous ports (default: HTTP port + 233).")
@click.option(
    "--out", default=".r1perf", show_default=True, type=click.Path(path_type=Path), help="Where results would go."
)
@click.option("--lease-dir", type=click.Path(path_type=Path), help="Directory of the device leases.")
@click.option("--data", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="More YAML.")
@click.option("--elsewhere", is_flag=True, help="Look at every host that the platform's launcher reaches, too.")
def doctor_command(
    platform: str,
    sglang: str | None,
    n: int | None,
    workload: str,
    port: int,
    dist_port: int | None,
    out: Path,
    lease_dir: Path | None,
    data: tuple[Path, ...],
    elsewhere: bool,
) -> None:
    """Look whether this host is ready to measure, and say how to mend what is not.

    With --elsewhere also every other host that the platform's `launch:` section reaches (through a batch system that
    means waiting for nodes).

    Nothing is ended, and nothing is changed but that a missing lease directory is made. The exit code is 0 when nothing
    FAILs, else 1.
    """
    from pytest_r1perf.catalog import USER_FILE, load_catalog
    from pytest_r1perf.doctor.check import Status
    from pytest_r1perf.doctor.local import Questions, examine
    from pytest_r1perf.nodeinfo import inspect_here
    from pytest_r1perf.report.doctor import doctor_text
    from pytest_r1perf.rig.home import home

    catalog = load_catalog([*([Path(USER_FILE)] if Path(USER_FILE).is_file() else []), *data])
    chosen = catalog.platform(platform)
    node = inspect_here()
    asked = Questions(
        platform=chosen,
        workload=catalog.workload(workload),
        n=n or chosen.min_conclusive_n,
        home=home(),
        sglang=sglang,
        out=out,
        lease_dir=lease_dir,
        http_port=port,
        dist_port=dist_port,
        recipes=tuple(catalog.recipe(recipe) for recipe in chosen.default_recipes.values()),
    )
    checks, hosts = examine(node, asked), [node.hostname]
    if elsewhere:
        from pytest_r1perf.doctor.elsewhere import examine_elsewhere, is_elsewhere

        if not is_elsewhere(asked):
            raise R1PerfError(
                f"platform {platform!r} runs on this host alone: leave --elsewhere out, or give it `launch:`"
            )
        more, others = examine_elsewhere(asked, lambda text: click.echo(text, err=True))
        checks, hosts = [*checks, *more], [*hosts, *others]
    click.echo(doctor_text(checks, platform=platform, hosts=hosts))
    sys.exit(1 if any(check.status is Status.FAIL for check in checks) else 0)
