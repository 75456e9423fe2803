"""``r1perf compare``: two result files or folders, judged outside pytest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_r1perf.errors import R1PerfError

if TYPE_CHECKING:
    from pytest_r1perf.compare.cells import Comparison


@click.command("compare")
@click.argument("reference", metavar="A")
@click.argument("new", metavar="[B]", required=False)
@click.option("--same-session", is_flag=True, help="A and B were measured interleaved: add no noise between sessions.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Metric to judge; may be repeated.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, max_open=True),
    help="A fraction, e.g. 0.05, over the baseline's and the platform's.",
)
@click.option("--platform", metavar="NAME", help="Whose tolerance, error rate and noise to use (default: the cell's).")
@click.option(
    "--data",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Further YAML file of platforms; ./r1perf.yaml is read by itself.",
)
@click.option("--gate", is_flag=True, help="Fail what could not be decided (UNDECIDED, INCOMPARABLE, NO BASELINE).")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
def compare_command(
    reference: str,
    new: str | None,
    same_session: bool,
    metrics: tuple[str, ...],
    tolerance: float | None,
    platform: str | None,
    files: tuple[Path, ...],
    gate: bool,
    as_json: bool,
) -> None:
    """Judge the rounds of B (new) against those of A (reference), cell by cell, as a session judges a baseline.

    A and B are each a session's folder, an output directory (its newest session counts), one samples-*.jsonl, or a
    baseline file. Of a session that compared two environments PATH:old and PATH:new are the sides, and given alone
    as A its new side is judged against its old one.

    Exit status: 0 decided and none fails; 1 a cell REGRESSED, broke or is INVALID (with --gate also: could not be
    decided); 2 an input cannot be read; 3 nothing could be decided.
    """
    from pytest_r1perf.parity.sides import between

    try:
        done = _compared(reference, new, same_session, metrics, tolerance, platform, files)
        parity = between(reference, new)
    except R1PerfError as error:
        click.echo(f"r1perf: {error}", err=True)
        sys.exit(2)
    from pytest_r1perf.report.compare import as_text, comparison_lines

    status = done.exit_status(gate=gate)
    click.echo(as_text(done, status, parity) if as_json else "\n".join(comparison_lines(done, parity)))
    sys.exit(status)


def _compared(
    reference: str,
    new: str | None,
    same_session: bool,
    metrics: tuple[str, ...],
    tolerance: float | None,
    platform: str | None,
    files: tuple[Path, ...],
) -> Comparison:
    from pytest_r1perf.catalog import USER_FILE, load_catalog
    from pytest_r1perf.compare.cells import Conditions, compare
    from pytest_r1perf.compare.sides import read_both_sides, read_side
    from pytest_r1perf.metrics import metric_named

    catalog = load_catalog([*([Path(USER_FILE)] if Path(USER_FILE).is_file() else []), *files])
    if platform is not None:
        catalog.platform(platform)
    a, b = read_both_sides(reference) if new is None else (read_side(reference), read_side(new))
    conditions = Conditions(
        platform_of=lambda cell: catalog.platform(platform or cell.platform),
        metrics=tuple(metric_named(name).name for name in dict.fromkeys(metrics)),
        tolerance=tolerance,
        same_session=same_session or (bool(a.session) and a.session == b.session),
    )
    return compare(a, b, conditions)
