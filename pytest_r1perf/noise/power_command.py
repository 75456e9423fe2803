"""The command line of power: ``r1perf power``."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_r1perf.errors import R1PerfError

_FRACTION = click.FloatRange(0, 1, min_open=True, max_open=True)
_FRACTION_OR_0 = click.FloatRange(0, 1, max_open=True)


@click.command("power")
@click.option("--platform", default="cpu", show_default=True, help="Platform with its noise, tolerance and error rate.")
@click.option("--rounds", metavar="MIN:MAX", help="Processes a cell, e.g. 5 or 2:10 (default: a table of several).")
@click.option("--drop", type=_FRACTION, help="Say how many rounds see this drop.")
@click.option("--budget", metavar="TIME", help="Time of a night, e.g. 2h: say what its rounds see.")
@click.option("--cells", type=click.IntRange(min=1), help="Cells that share the budget (default: the suite's size).")
@click.option("--round-time", metavar="TIME", help="Wall time of one process (default: the median of the records).")
@click.option("--baseline-rounds", type=click.IntRange(min=2), default=20, show_default=True)
@click.option("--two-environments", is_flag=True, help="Both sides in one session, in turn: no baseline.")
@click.option("--detect", type=_FRACTION, help="Drop that a PASS must exclude, instead of the platform's.")
@click.option("--tolerance", type=_FRACTION_OR_0, help="Instead of the platform's.")
@click.option("--cv", type=_FRACTION, help="Run CV instead of the platform's, e.g. 0.02.")
@click.option("--session-cv", type=_FRACTION_OR_0, help="Session CV instead of the platform's.")
@click.option(
    "--nights",
    type=click.IntRange(min=100, max=100_000),
    help="Nights to simulate (default: 1000, fewer with many looks).",
)
@click.option(
    "--from",
    "records",
    multiple=True,
    default=[".r1perf"],
    show_default=True,
    type=click.Path(path_type=Path),
    help="Records that tell the wall time of a process.",
)
@click.option("--data", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="More YAML.")
def power_command(
    platform: str,
    rounds: str | None,
    drop: float | None,
    budget: str | None,
    cells: int | None,
    round_time: str | None,
    baseline_rounds: int,
    two_environments: bool,
    detect: float | None,
    tolerance: float | None,
    cv: float | None,
    session_cv: float | None,
    nights: int | None,
    records: tuple[Path, ...],
    data: tuple[Path, ...],
) -> None:
    """Say what drop a number of rounds detects with 95 % power, and how many rounds a wanted drop takes.

    By the rule that verdicts are taken by, simulated with a fixed seed from the platform's noise, error rates,
    tolerance and rounds; the formula for a fixed number of rounds stands beside it. Fractions: 0.05 is 5 %.

    Examples: r1perf power --platform h200x8 --cv 0.02 --drop 0.05; r1perf power --budget 2h --cells 40
    """
    from pytest_r1perf.catalog import USER_FILE, load_catalog
    from pytest_r1perf.marker import parse_rounds
    from pytest_r1perf.measure import RoundPlan
    from pytest_r1perf.noise.power import MOST_ROUNDS, power_of, rounds_for, setting_for
    from pytest_r1perf.options import parse_time
    from pytest_r1perf.report.numbers import percent
    from pytest_r1perf.report.power import duration, power_legend, power_table

    catalog = load_catalog([*([Path(USER_FILE)] if Path(USER_FILE).is_file() else []), *data])
    chosen = catalog.platform(platform)
    setting = setting_for(
        chosen,
        baseline_rounds=None if two_environments else baseline_rounds,
        tolerance=tolerance,
        detect=detect,
        run_cv=cv,
        session_cv=session_cv,
    )
    low, high = parse_rounds(rounds) if rounds is not None else chosen.rounds
    if high < 2:
        raise R1PerfError(f"--rounds {rounds}: a spread takes two rounds at least")
    if high > MOST_ROUNDS:
        raise R1PerfError(
            f"{high} rounds: {MOST_ROUNDS} are the most that are simulated: give --rounds {low}:{MOST_ROUNDS}"
        )
    low = max(low, 2)
    round_s = parse_time(round_time, "--round-time") or wall_time(records, platform)
    highest = [high] if rounds is not None else sorted({high, *_USUAL})
    said: list[str] = []
    if budget is not None:
        if round_s is None:
            raise R1PerfError(
                f"no record tells how long a process takes on {platform!r}: give it with --round-time, e.g. 90s"
            )
        shared = cells or chosen.error_rate.suite_size
        total = parse_time(budget, "--budget") or 0.0
        affordable = int(total / (shared * round_s))
        said.append(
            f"{budget} for {shared} cells at {duration(round_s)} a process: "
            f"{affordable} round{'' if affordable == 1 else 's'} a cell"
        )
        if affordable < 2:
            raise R1PerfError(f"{said[0]}: two are the least that a verdict takes: more time, or fewer --cells")
        if affordable > MOST_ROUNDS:
            said[0] += f"; {MOST_ROUNDS} are reckoned with"
        highest = [min(affordable, MOST_ROUNDS)]
    if drop is not None:
        if drop <= setting.terms.tolerance:
            raise R1PerfError(
                f"--drop {drop:g} is within the tolerance {setting.terms.tolerance:g}, which is no drop by definition: "
                f"ask for a larger one, or give a smaller --tolerance"
            )
        needed, formula = rounds_for(setting, drop, minimum=low)
        said.append(f"a drop of {percent(drop)} takes {_many(needed)} (fixed number, by the formula: {_many(formula)})")
        if needed is not None and rounds is None and budget is None:
            highest = [needed]
    found = [power_of(setting, RoundPlan(min(low, most), most), nights=nights) for most in highest]
    for line in said:
        click.echo(line)
    click.echo(power_table(found, round_s))
    for line in power_legend(setting):
        click.echo(line)


_USUAL = (3, 5, 8, 12)
"""Rows of the table beside the platform's own."""


def wall_time(paths: tuple[Path, ...], platform: str) -> float | None:
    """Median wall time of the platform's recorded processes in seconds; ``None`` where there are no records."""
    import statistics

    from pytest_r1perf.history.nights import read_history

    there = [path for path in paths if path.exists()]
    nights = read_history(there).nights if there else ()
    walls = [one.wall_s for night in nights if night.platform == platform for one in night.rounds if one.wall_s > 0]
    return statistics.median(walls) if walls else None


def _many(rounds: int | None) -> str:
    from pytest_r1perf.noise.power import MOST_ROUNDS

    return f"more than {MOST_ROUNDS} rounds" if rounds is None else f"up to {rounds} rounds"
