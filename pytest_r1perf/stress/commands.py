"""The command line of the stress sweep: ``r1perf stress run``, ``report`` and ``convert``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_r1perf.errors import R1PerfError

if TYPE_CHECKING:
    from pytest_r1perf.stress.cases import Case
    from pytest_r1perf.stress.manifest import Asked, Manifest
    from pytest_r1perf.stress.run import Ended

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_INTERRUPTED = 130


@click.group("stress")
def stress_command() -> None:
    """The private-deployment guide's stress sweep: batch sizes x input lengths x output lengths, and what they say."""


@stress_command.command("run")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option("--base-url", metavar="URL", help="Server to measure, e.g. http://10.0.0.1:40000; it must be up.")
@click.option("--platform", metavar="NAME", help="Whose SGLang, data set and environment the client has.")
@click.option("--topology", metavar="NAME", help="Without --base-url: start a server of this layout on the platform.")
@click.option("--recipe", metavar="NAME", help="And with this recipe (default: the platform's for the topology).")
@click.option("--sglang", metavar="PATH", help="SGLang environment on this host that has the client.")
@click.option("--batch-sizes", metavar="LIST", help="Default: 1,4,8,16,32, or what the folder has.")
@click.option("--input-lens", metavar="LIST", help="Default: 128,256,512.")
@click.option("--output-lens", metavar="LIST", help="Default: 256,512,1024,2048,4096,8192.")
@click.option("--repeats", type=click.IntRange(1, 1000), help="Times that the whole grid is measured (default: 3).")
@click.option(
    "--order",
    type=click.Choice(["shuffled", "document"]),
    help="Of the cases of a repeat (default: shuffled, so that a drifting host does not pass for an effect).",
)
@click.option("--dataset", type=_FILE, help="ShareGPT-format file that prompts are made of.")
@click.option(
    "--tokenizer", metavar="PATH", help="The model's tokenizer on this host, where it is not as the server says."
)
@click.option("--seed", type=int, help="For the prompts (default: 1, or the platform's workload's).")
@click.option(
    "--no-warm-up", is_flag=True, help="Leave out the client's own batch of the same size before the timed one."
)
@click.option(
    "--case-timeout",
    default="1h",
    show_default=True,
    metavar="TIME",
    help="For one case; then: hangs. With a server of our own, whose start may be in it, never below the platform's.",
)
@click.option("--lease-dir", type=_FOLDER, help="Node-local directory for device leases, shared by all of a host.")
@click.option(
    "--data", "files", multiple=True, type=_FILE, help="Further YAML of platforms; ./r1perf.yaml is read by itself."
)
def run_command(folder: Path, **given: Any) -> None:
    """Measure what DIR lacks of a sweep, one result file a case, and keep what is there and whole.

    Run the same command again after a kill, Ctrl-C or a server's death: it goes on where it was. Files that are
    truncated, garbled, duplicated, or of another server, run or case are set aside under DIR/aside and measured again.
    Exit status: 0 nothing is missing; 1 something is; 130 interrupted.

    Example: r1perf stress run results --base-url http://10.0.0.1:40000 --sglang /opt/sglang --repeats 5
    """
    import pytest

    from pytest_r1perf.launch.stop import sigterm_as_interrupt
    from pytest_r1perf.report.stress import ended_lines

    try:
        with sigterm_as_interrupt():
            ended = _measured(folder, given)
    except (KeyboardInterrupt, pytest.exit.Exception):
        click.echo(
            f"r1perf stress: interrupted: what was measured is in {folder}; run the same command again", err=True
        )
        sys.exit(_INTERRUPTED)
    for line in ended_lines(ended, str(folder)):
        click.echo(line)
    sys.exit(1 if ended.missing or ended.why is not None else 0)


@stress_command.command("report")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option(
    "--metric",
    type=click.Choice(["output_throughput", "overall_throughput"]),
    default="output_throughput",
    show_default=True,
    help="tok/s: output tokens, or input and output tokens, over the whole latency.",
)
@click.option(
    "--pays", type=click.FloatRange(0, 1), default=0.25, show_default=True, help="Gain that a doubling needs to pay."
)
@click.option("--json", "as_object", is_flag=True, help="One JSON object, with the values of the charts.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write one self-contained page with the charts.")
def report_command(folder: Path, metric: Any, pays: float, as_object: bool, page: Path | None) -> None:
    """Say what the results in DIR show, and which of the guide's conclusions hold on them.

    DIR is a sweep's folder, or one that the guide's own script wrote. Nothing in it is changed.
    """
    from pytest_r1perf.report.stress import as_json, report_lines
    from pytest_r1perf.stress.analysis import analyse
    from pytest_r1perf.stress.folder import contents

    found = contents(folder)
    try:
        done = analyse(found, metric=metric, pays=pays)
    except R1PerfError as error:
        raise R1PerfError(f"{folder}: {error}") from None
    if page is not None:
        from pytest_r1perf.report.html.stress import stress_page
        from pytest_r1perf.wholefile import write_whole

        try:
            write_whole(page, stress_page(found, done, folder.name))
        except OSError as error:
            raise R1PerfError(
                f"--html {page}: cannot be written ({error.strerror or error}): name another file"
            ) from None
    click.echo(as_json(found, done) if as_object else "\n".join(report_lines(found, done)))


@stress_command.command("convert")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.argument("target", metavar="OUT", type=_FOLDER)
@click.option(
    "--repeat", type=click.IntRange(min=1), help="Only this repeat: one row a file, as the guide's script has it."
)
def convert_command(folder: Path, target: Path, repeat: int | None) -> None:
    """Write the results in DIR into OUT in the guide's format: seven keys, rates recomputed by its two formulas."""
    from pytest_r1perf.stress.document import convert

    files, rows, left_out = convert(folder, target, repeat=repeat)
    for line in left_out:
        click.echo(f"left out: {line}", err=True)
    click.echo(f"{target}: {files} files, {rows} rows")


def _measured(folder: Path, given: dict[str, Any]) -> Ended:
    from pytest_r1perf.stress.clientside import client_side
    from pytest_r1perf.stress.manifest import read_manifest
    from pytest_r1perf.stress.run import run_sweep

    url = given["base_url"]
    if url is None and (given["platform"] is None or given["topology"] is None):
        raise R1PerfError(
            "name the server: --base-url URL for one that is up, or --platform NAME --topology NAME to start one"
        )
    if url is not None and (given["topology"] is not None or given["recipe"] is not None):
        raise R1PerfError("--base-url is a server that is up: leave --topology and --recipe out, or the URL")
    known = read_manifest(folder) if folder.is_dir() else None
    cases = _cases(given, known)  # mistakes first: asking an SGLang takes seconds
    with contextlib.ExitStack() as stack:
        if url is None:
            from pytest_r1perf.stress.ownserver import own_server

            side = stack.enter_context(own_server(given, folder, click.echo))
        else:
            side = client_side(given, folder)
        asked = _asked(given, known, cases, side.conditions)
        for note in side.notes:
            click.echo(f"note: {note}")
        return run_sweep(folder, asked, side.bencher, side.identify, click.echo)


def _cases(given: dict[str, Any], known: Manifest | None) -> tuple[Case, ...]:
    """What the options say; without any, what the folder's sweep has, or the guide's grid."""
    from pytest_r1perf.stress import cases

    axes = {
        "batch_sizes": cases.BATCH_SIZES,
        "input_lens": cases.INPUT_LENS,
        "output_lens": cases.OUTPUT_LENS,
    }
    if known is not None and all(given[name] is None for name in axes):
        return known.cases
    chosen = [
        default if given[name] is None else cases.numbers(given[name], f"--{name.replace('_', '-')}")
        for name, default in axes.items()
    ]
    return cases.grid(*chosen)


def _asked(given: dict[str, Any], known: Manifest | None, cases: tuple[Case, ...], conditions: dict[str, str]) -> Asked:
    from pytest_r1perf.stress.manifest import Asked

    repeats, order = given["repeats"], given["order"]
    if known is not None and order not in (None, known.order):
        raise R1PerfError(f"--order {order}: this sweep's is {known.order}, and stays so: name a new folder")
    if repeats is None:
        repeats = 3 if known is None else known.repeats
    return Asked(cases, repeats, order or (known.order if known is not None else "shuffled"), conditions)
