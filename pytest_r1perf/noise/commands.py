"""The command line of noise: ``r1perf noise``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.noise.run import LEAST_RUNS, measure_noise

if TYPE_CHECKING:
    from pytest_r1perf.history.nights import Night, Round
    from pytest_r1perf.noise.components import Component, Estimate, Series
    from pytest_r1perf.platform import Noise, Platform


@click.command("noise", context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]})
@click.option("--platform", default="cpu", show_default=True, help="Platform whose noise it is.")
@click.option("--runs", default=LEAST_RUNS, show_default=True, help="Processes to measure of each cell, 10 at least.")
@click.option("--blocks", default=2, show_default=True, help="Sessions to measure them in, one after the other.")
@click.option(
    "--from",
    "recorded",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Measure nothing: evaluate the records of this output directory, session or file (and of ARGUMENTS).",
)
@click.option("--metric", default="total_throughput", show_default=True, help="Metric whose noise it is.")
@click.option("--cell", metavar="TEXT", help="Only cells with this in their topology and key, e.g. 'tp8 ' or n5000.")
@click.option(
    "--out", default=".r1perf/noise", show_default=True, type=click.Path(path_type=Path), help="Where records go."
)
@click.option(
    "--write",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    help="YAML file that the platform's `noise:` is written into (default: r1perf.yaml).",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be written.")
@click.option("--force", is_flag=True, help="Also replace figures that rest on more runs or sessions.")
@click.option("--baseline-rounds", type=click.IntRange(min=2), default=20, show_default=True, help="For the power.")
@click.option("--data", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="More YAML.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def noise_command(
    platform: str,
    runs: int,
    blocks: int,
    recorded: tuple[Path, ...],
    metric: str,
    cell: str | None,
    out: Path,
    target: Path | None,
    dry_run: bool,
    force: bool,
    baseline_rounds: int,
    data: tuple[Path, ...],
    arguments: tuple[str, ...],
) -> None:
    """Measure how much a platform's numbers move when nothing changes, and write it into r1perf.yaml.

    ARGUMENTS are pytest's: node ids of perf tests and, after `--`, options. Run it in pytest's rootdir. Verdicts don't
    matter here; a broken cell ends it. With --from, ARGUMENTS are further records.

    Examples: r1perf noise perf_tests/test_cpu.py::test_tp1 --runs 20 --blocks 4; r1perf noise --platform h200x8
    --from .r1perf
    """
    from pytest_r1perf.catalog import USER_FILE, load_catalog
    from pytest_r1perf.metrics import metric_named
    from pytest_r1perf.report.noise import change_lines

    user = [Path(USER_FILE)] if Path(USER_FILE).is_file() else []
    file = target or Path(USER_FILE)
    before, after = _around(file, user, data)
    catalog = load_catalog([*before, *([file] if file.is_file() else []), *after])
    chosen = catalog.platform(platform)
    metric_named(metric)
    if recorded:
        paths = [*recorded, *map(Path, arguments)]
        command = shlex.join(["r1perf", "noise", "--platform", platform, "--from", *map(str, paths)])
    else:
        folder = measure_noise(platform, runs, blocks, out, arguments)
        paths = [folder]
        options = ["--platform", platform, "--runs", str(runs), "--blocks", str(blocks)]
        command = shlex.join(["r1perf", "noise", *options, *arguments])
    nights = _nights(paths, platform, metric, cell)
    found, noise = _evaluate(chosen, nights, metric, command, force)
    _show_power(replace(chosen, noise=noise), baseline_rounds, nights)
    if found.session is None and chosen.noise is None:
        raise R1PerfError(
            f"nothing is written: platform {platform!r} has no session_cv yet, and one session tells none: measure in "
            f"two --blocks or more, or give the records of several sessions with --from"
        )
    if not dry_run:
        _refuse_fewer(file, platform, noise, force)
        from pytest_r1perf.noise.file import store_noise

        store_noise(file, platform, noise, before=before, after=after)
    click.echo(f"{file}: platforms.{platform}.noise{' would be' if dry_run else ''} written")
    for line in change_lines(chosen.noise, noise):
        click.echo(line)


def _around(file: Path, user: Sequence[Path], data: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The data files that are read before and after the one that is written."""
    files = [*user, *data]
    same = [path.resolve() for path in files]
    if file.resolve() not in same:
        return files, []
    place = same.index(file.resolve())
    return files[:place], files[place + 1 :]


def _nights(paths: Sequence[Path], platform: str, metric: str, cell: str | None) -> list[Night]:
    """The platform's recorded nights; what of the records could not be used is told."""
    from pytest_r1perf.history.nights import read_history

    history = read_history(paths)
    for problem in history.problems:
        click.echo(f"r1perf noise: {problem}", err=True)
    own = [night for night in history.nights if night.platform == platform]
    if not own:
        others = sorted({night.platform for night in history.nights})
        hint = f" (they are of {', '.join(others)})" if others else ""
        raise R1PerfError(f"{', '.join(map(str, paths))}: no samples of platform {platform!r}{hint}")
    chosen = [night for night in own if cell is None or cell in f"{night.topology} {night.cell}"]
    nights = [night for night in chosen if night.values(metric)]
    if not nights:
        cells = sorted({f"{night.topology} {night.cell}" for night in own})
        what = f"--cell {cell!r}" if not chosen else f"metric {metric!r}"
        raise R1PerfError(f"no samples with {what}; the cells are: {', '.join(cells)}")
    return nights


def _evaluate(
    platform: Platform, nights: Sequence[Night], metric: str, command: str, force: bool
) -> tuple[Estimate, Noise]:
    """Print the components and remarks; gives the estimate, and what the platform's file will say."""
    from pytest_r1perf.noise.components import estimate, series_of
    from pytest_r1perf.report.noise import noise_table, remarks

    nights, discard, learned = _settled(nights, metric)
    series = series_of(nights, metric)
    processes = sum(len(one.runs) for one in series)
    if processes < LEAST_RUNS:
        raise R1PerfError(f"only {processes} processes are recorded: noise takes {LEAST_RUNS} at least")
    _one_kind(nights, series)
    found = estimate(series)
    cells = sorted({f"{night.topology} {night.cell}" for night in nights})
    click.echo(f"{metric} of {', '.join(cells)}")
    click.echo(noise_table(found))
    for line in [*learned, *remarks(found, series)]:
        click.echo(f"- {line}")
    hosts = sorted({f"{night.host} ({night.hardware})" if night.host else night.hardware for night in nights})
    days = sorted({night.time.date().isoformat() for night in nights})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    sessions = len({night.session for night in nights})
    source = (
        f"{when}, {', '.join(hosts)}: {processes} processes in {sessions} session{'' if sessions == 1 else 's'}, "
        f"{metric} (counts are degrees of freedom + 1); {command}"
    )
    return found, _noise(found, platform.noise, discard, source, force)


def _settled(nights: Sequence[Night], metric: str) -> tuple[list[Night], int | None, list[str]]:
    """The nights without windows that still warm the engine up, how many to discard, and what to say of it."""
    from pytest_r1perf.warm import learned_discard

    engines = [
        one
        for night in nights
        for one in night.rounds
        if len(one.windows) > 1 and all(metric in w for w in one.windows)
    ]
    if not engines:
        return list(nights), None, []
    already = min(one.discarded for one in engines)
    learned = learned_discard([[window[metric] for window in one.windows] for one in engines])
    if not learned.processes:
        return list(nights), None, [f"discard: {learned.note}"]
    discard = learned.discard if not already else already + learned.discard - 1
    extra = discard - already
    shown = f"discard: the first {discard} window{'' if discard == 1 else 's'} of an engine"
    note = f"{shown}, learned from {learned.processes} processes of {learned.windows} windows"
    trimmed = [replace(night, rounds=tuple(_without_first(one, extra) for one in night.rounds)) for night in nights]
    return trimmed, discard, [f"{note}{f'; {learned.note}' if learned.note else ''}"]


def _without_first(one: Round, windows: int) -> Round:
    return replace(one, windows=one.windows[min(windows, len(one.windows) - 1) :]) if len(one.windows) > 1 else one


def _one_kind(nights: Sequence[Night], series: Sequence[Series]) -> None:
    """A round of one window and a round of several have different noise: no one figure holds for both."""
    several = [any(len(run) > 1 for run in one.runs) for one in series]
    if any(several) and not all(several):
        cells = sorted({f"{night.topology} {night.cell}" for night in nights})
        raise R1PerfError(
            f"some cells have one window a process and others several, whose noise differs: choose with --cell "
            f"(cells: {', '.join(cells)})"
        )


def _noise(found: Estimate, old: Noise | None, discard: int | None, source: str, force: bool) -> Noise:
    """What is written; a level that was not measured keeps what the platform had.

    So does ``session_cv`` where the old one is from more sessions, unless ``force``: blocks within an hour say little
    of nights, and too small a figure raises false alarms.
    """
    from pytest_r1perf.noise.file import LEAST_CV
    from pytest_r1perf.platform import Noise

    session_cv, sessions = LEAST_CV, 2
    if found.session is not None:
        session_cv, sessions = max(LEAST_CV, found.session.cv), _counted(found.session)
    if old is not None and (found.session is None or (old.sessions > sessions and not force)):
        session_cv, sessions = old.session_cv, old.sessions
        said = "" if found.session is None else f", the one measured here is {found.session.cv:.2%}"
        click.echo(f"- session_cv stays {session_cv:.3g}: it is from {sessions} sessions{said}")
        source += f"; session_cv from before: {old.source}"
    return Noise(
        run_cv=max(LEAST_CV, found.round.cv),
        runs=_counted(found.round),
        session_cv=session_cv,
        sessions=sessions,
        source=source,
        sample_cv=max(LEAST_CV, found.window.cv) if found.window is not None else None,
        samples=_counted(found.window) if found.window is not None else None,
        discard=discard if discard is not None else old.discard if old is not None else 1,
        host_cv=max(LEAST_CV, found.host.cv) if found.host is not None else None,
        hosts=_counted(found.host) if found.host is not None else None,
    )


def _counted(component: Component) -> int:
    """Degrees of freedom + 1: what verdicts may count on, which is less than the processes of several sessions."""
    return max(2, round(component.df) + 1)


def _show_power(platform: Platform, baseline_rounds: int, nights: Sequence[Night]) -> None:
    """What the noise means for verdicts at the platform's tolerance and rounds."""
    import statistics

    from pytest_r1perf.measure import RoundPlan
    from pytest_r1perf.noise.power import MOST_ROUNDS, power_of, setting_for
    from pytest_r1perf.report.power import power_legend, power_table

    low, high = platform.rounds
    if high < 2 or low > MOST_ROUNDS:
        return
    setting = setting_for(platform, baseline_rounds=baseline_rounds)
    plan = RoundPlan(max(2, low), min(high, MOST_ROUNDS))
    round_s = statistics.median(one.wall_s for night in nights for one in night.rounds)
    click.echo(power_table([power_of(setting, plan, nights=400)], round_s))
    for line in power_legend(setting):
        click.echo(line)


def _refuse_fewer(file: Path, platform: str, noise: Noise, force: bool) -> None:
    """Figures of the user's own file that rest on more are kept; the package's were another machine's anyway."""
    from pytest_r1perf.noise.file import own_noise

    before = own_noise(file, platform).get("runs")
    if isinstance(before, int) and noise.runs < before and not force:
        raise R1PerfError(
            f"{file}: platforms.{platform}.noise rests on runs: {before}, this measurement on {noise.runs}: nothing is "
            f"written (--force replaces it)"
        )
