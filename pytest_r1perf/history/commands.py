"""The command line of trends: ``r1perf trend``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pytest_r1perf.errors import R1PerfError


@click.command("trend")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--cell", default="*", show_default=True, metavar="GLOB", help="Cells by key, e.g. '*/n5000/*'.")
@click.option("--metric", "metric_name", default="total_throughput", show_default=True, metavar="NAME")
@click.option(
    "--alpha",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0.0001, 0.5),
    help="Probability of a false step or drift in a report on unchanged cells.",
)
@click.option(
    "--nights",
    default=90,
    show_default=True,
    type=click.IntRange(min=2),
    help="How many of a cell's latest nights to look at.",
)
@click.option(
    "--baselines",
    default="baselines",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Stored baselines to put beside the latest nights, where there are any.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of the table.")
@click.option("--fail", is_flag=True, help="Exit 1 when a cell is surely worse than before a change.")
def trend_command(
    paths: tuple[Path, ...],
    cell: str,
    metric_name: str,
    alpha: float,
    nights: int,
    baselines: Path,
    as_json: bool,
    fail: bool,
) -> None:
    """Look for steps and drifts of each cell over the recorded nights.

    PATHS are output directories, sessions' folders or single .jsonl files (default: .r1perf). A step or a drift is
    named with its size, when it began, and what the records say changed then. The exit code is 0, or with --fail 1
    when some cell is surely worse now than before a step or a drift.

    Example: r1perf trend --cell '*/n5000/*' --fail
    """
    from pytest_r1perf.history.nights import read_history
    from pytest_r1perf.history.trend import Terms, as_dict, trends
    from pytest_r1perf.metrics import metric_named

    metric = metric_named(metric_name)
    paths = paths or (Path(".r1perf"),)
    for path in paths:
        try:
            path.stat()
        except OSError as error:
            raise R1PerfError(
                f"{path}: cannot be read ({error.strerror}): name an output directory, a session's folder or a file"
            ) from None
    history = read_history(paths)
    if not history.nights and history.problems:
        more = f", and {len(history.problems) - 1} more such files" if len(history.problems) > 1 else ""
        raise R1PerfError(f"no night was found: {history.problems[0]}{more}")
    found = trends(history, Terms(metric, cell, alpha, nights, baselines))
    if as_json:
        import json

        page = {
            "metric": metric.name,
            "unit": metric.unit,
            "alpha": alpha,
            "trends": [as_dict(trend) for trend in found],
            "problems": list(history.problems),
        }
        click.echo(json.dumps(page, indent=2, allow_nan=False))
    else:
        from pytest_r1perf.report.trend import trend_text

        click.echo(trend_text(found, history.problems, metric, alpha=alpha))
    sys.exit(1 if fail and any(trend.surely_worse for trend in found) else 0)
