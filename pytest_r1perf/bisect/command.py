"""``r1perf bisect``: from a fast release and a slow one to the first slow one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_r1perf.errors import R1PerfError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_r1perf.bisect.environments import Environments
    from pytest_r1perf.bisect.evidence import Rules
    from pytest_r1perf.bisect.search import Outcome, Plan
    from pytest_r1perf.platform import Platform

HALF = "half"
ERROR_RATE = 0.05
"""That the answer is wrong (ours: one bisection in twenty)."""

SGLANG_DEFAULTS = "--perf-sglang-defaults"
"""pytest's option that asks for SGLang's own defaults."""

EXIT_FOUND, EXIT_MISTAKE, EXIT_NOT_WORSE, EXIT_UNCLEAR = 0, 1, 3, 4


@click.command("bisect", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("nodeid")
@click.argument("pytest_options", nargs=-1, type=click.UNPROCESSED)
@click.option("--good", metavar="V", help="The release that is fast (with --env: one of them; default the first).")
@click.option("--bad", metavar="V", help="The release that is slower (with --env: one of them; default the last).")
@click.option("--versions", metavar="V,V", help="The releases to look at, in order (default: all known between).")
@click.option("--env", "places", multiple=True, metavar="PATH", help="Instead of releases: environments, in order.")
@click.option("--env-template", metavar="PATH", help="A release's environment, e.g. /opt/sglang-{version}.")
@click.option(
    "--make", metavar="COMMAND", help="Makes a missing environment; has {version} and {path} in it, no shell."
)
@click.option("--pip-arg", "pip_args", multiple=True, metavar="ARG", help="For pip where CPU rigs are made.")
@click.option("--platform", "platform_name", default="cpu", show_default=True, metavar="NAME")
@click.option("--rounds", metavar="MIN:MAX", help="Rounds a side: MIN at first, doubled while undecided, at most MAX.")
@click.option(
    "--tolerance", metavar="D", help="A drop that is none, e.g. 0.03; or 'half' of the drop between the ends."
)
@click.option("--metric", metavar="NAME", help="Metric to judge (default: the test's first).")
@click.option(
    "--error-rate",
    default=ERROR_RATE,
    show_default=True,
    type=click.FloatRange(0, 0.5, min_open=True, max_open=True),
    help="Of a wrong answer in the end; shared over the steps.",
)
@click.option("--check-good", is_flag=True, help="First compare the good end with itself.")
@click.option("--no-confirm", is_flag=True, help="Believe the boundary without asking both its sides once more.")
@click.option(
    "--data",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Further YAML file of platforms; ./r1perf.yaml is read by itself.",
)
@click.option(
    "--state",
    "state_file",
    default=".r1perf/bisect.json",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="What is known so far; the sessions lie beside it.",
)
@click.option("--resume", is_flag=True, help="Go on with the state, after a kill or a mended mistake.")
def bisect_command(state_file: Path, resume: bool, **given: Any) -> None:
    """Find the first SGLang release that makes the test NODEID slower; PYTEST_OPTIONS come after --.

    Every step measures the good release and another one interleaved, in a pytest of its own, and takes the verdict:
    REGRESSED is bad, PASS is good; one that is UNDECIDED gets more rounds, all of them pooled; one that can't start
    or can't be compared is skipped. Needs a test of one cell.

    Exit status: 0 found; 1 a mistake or a broken good end; 3 the bad end is not worse; 4 it could not be told.

    Example: r1perf bisect perf_tests/test_tp8.py::test_tp8_champion --good 0.5.9 --bad 0.5.17 --platform h200x8
    --env-template /opt/sglang-{version} --tolerance half
    """
    from filelock import FileLock, Timeout

    state_file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{state_file}.lock", timeout=0):
            status = _bisect(state_file, resume, given)
    except Timeout:
        raise R1PerfError(f"--state {state_file}: another bisect is at work on it: wait, or choose another") from None
    sys.exit(status)


def _bisect(state_file: Path, resume: bool, given: dict[str, Any]) -> int:
    from pytest_r1perf.bisect import state as states
    from pytest_r1perf.bisect.run import bisect, planned_looks
    from pytest_r1perf.bisect.search import Found, Plan
    from pytest_r1perf.bisect.step import PytestStep
    from pytest_r1perf.report.bisect import result_lines

    platform = _platform(given["platform_name"], given["files"])
    names = _candidates(given)
    looks = planned_looks(*_rounds(given["rounds"], platform))
    plan = Plan(names, len(looks), check_good=given["check_good"], confirm=not given["no_confirm"])
    question = {
        "nodeid": given["nodeid"],
        "good": plan.good,
        "bad": plan.bad,
        "candidates": list(names),
        "platform": platform.name,
        "rounds": list(looks),
        "tolerance": _tolerance(given["tolerance"]),
        "metric": _metric(given["metric"]),
        "error_rate": given["error_rate"],
        "check_good": plan.check_good,
        "confirm": plan.confirm,
        "env_template": given["env_template"],
        "pytest_options": list(given["pytest_options"]),
    }
    state = states.begin(state_file, question, resume=resume)
    folder = state_file.with_suffix(".runs")
    step = PytestStep(
        given["nodeid"],
        plan.good,
        _environments(given, platform, names, folder),
        folder,
        _rules(question, platform, plan),
        _check_of(platform, released=not given["places"]),
        tuple(given["pytest_options"]),
    )
    error = given["error_rate"] / plan.expected_steps
    click.echo(
        f"{len(names)} versions from {plan.good} (good) to {plan.bad} (bad): about {plan.expected_steps} to tell, each "
        f"wrong with probability {error:.2g} at most; {', '.join(map(str, looks))} rounds a side\n"
        f"state: {state_file}; sessions and pytest's output: {folder}"
    )
    states.save(state_file, state)
    state, end = bisect(plan, state, step, save=lambda now: states.save(state_file, now), echo=click.echo)
    for line in result_lines(plan, state.log, end, error=error):
        click.echo(line)
    if isinstance(end, Found):
        return EXIT_UNCLEAR if end.contradictions else EXIT_FOUND
    return EXIT_NOT_WORSE if end.solved else EXIT_UNCLEAR


def _platform(name: str, files: Sequence[Path]) -> Platform:
    from pytest_r1perf.catalog import USER_FILE, load_catalog

    return load_catalog([*([Path(USER_FILE)] if Path(USER_FILE).is_file() else []), *files]).platform(name)


def _candidates(given: dict[str, Any]) -> tuple[str, ...]:
    """The versions or environments from the good end to the bad one."""
    from pytest_r1perf.bisect.releases import between, candidates

    good, bad, places = given["good"], given["bad"], given["places"]
    versions = tuple(filter(None, (name.strip() for name in (given["versions"] or "").split(","))))
    if places:
        if versions or given["env_template"] or given["make"]:
            raise R1PerfError("--env names environments, not releases: leave out --versions, --env-template and --make")
        if len(places) < 2:
            raise R1PerfError("one --env is given: bisect needs two or more, from the good one to the bad one")
        for option, name in (("--good", good), ("--bad", bad)):
            if name is not None and name not in places:
                raise R1PerfError(f"{option} {name!r} is none of the --env: give one of them, or leave it out")
        return between(good or places[0], bad or places[-1], places)
    if good is None or bad is None:
        raise R1PerfError("--good and --bad are needed: the release that is fast and the one that is slower")
    return candidates(good, bad, versions=versions)


def _rounds(text: str | None, platform: Platform) -> tuple[int, int]:
    """MIN and MAX; the platform's by default, with room to go on where it has a fixed number."""
    from pytest_r1perf.marker import parse_rounds

    try:
        low, high = parse_rounds(text) if text is not None else platform.rounds
    except R1PerfError as error:
        raise R1PerfError(f"--rounds: {error}") from None
    if low < 2:
        raise R1PerfError(f"--rounds {text}: one round a side says nothing about the spread: give 2 or more")
    return (low, high) if text is not None or high > low else (low, 4 * low)


def _tolerance(text: str | None) -> float | str | None:
    if text is None or text == HALF:
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise R1PerfError(f"--tolerance must be a fraction from 0 to below 1 (0.05 is 5 %) or {HALF!r}, got {text!r}")
    return value


def _metric(name: str | None) -> str | None:
    from pytest_r1perf.metrics import metric_named

    return None if name is None else metric_named(name).name


def _environments(given: dict[str, Any], platform: Platform, names: Sequence[str], folder: Path) -> Environments:
    from pytest_r1perf.bisect.environments import CpuRigs, Listed, Templated, default_template

    if given["places"]:
        return Listed({name: name for name in names})
    if given["env_template"] or given["make"]:
        template = given["env_template"] or default_template()
        if "{version}" not in template:
            raise R1PerfError(f"--env-template {template!r} has no {{version}} in it: all releases would be the same")
        return Templated(template, given["make"], folder, click.echo)
    if not platform.is_cpu:
        raise R1PerfError(
            f"platform {platform.name!r} has GPUs, for which no SGLang is installed here: say where the releases are, "
            "e.g. --env-template /opt/sglang-{version}, or how they are made (--make)"
        )
    return CpuRigs(click.echo, given["pip_args"])


def _rules(question: dict[str, Any], platform: Platform, plan: Plan) -> Callable[[str, Sequence[Outcome]], Rules]:
    """The rules for a version: the error rate's share of a step, and half of the drop where that is asked for."""
    from pytest_r1perf.bisect.evidence import Rules
    from pytest_r1perf.bisect.run import half_of_the_drop

    tolerance = question["tolerance"]

    def rules_for(candidate: str, log: Sequence[Outcome]) -> Rules:
        half = half_of_the_drop(plan, log) if tolerance == HALF and candidate not in (plan.good, plan.bad) else None
        return Rules(
            platform,
            tuple(question["rounds"]),
            question["error_rate"] / plan.expected_steps,
            half if tolerance == HALF else tolerance,
            question["metric"],
            exact=half is not None,
            sglang_defaults=SGLANG_DEFAULTS in question["pytest_options"],
        )

    return rules_for


def _check_of(platform: Platform, *, released: bool) -> Callable[[str, str], None]:
    """Refuses an environment of this host that is none, or that holds another release than its name says."""
    from pytest_r1perf.bisect.environments import Unavailable
    from pytest_r1perf.childenv import compose
    from pytest_r1perf.launchsettings import AUTO
    from pytest_r1perf.platform import expand
    from pytest_r1perf.rig.home import home
    from pytest_r1perf.sglang.environment import local_place, probe
    from pytest_r1perf.siteplace import IMAGE

    here = platform.launch.by in (AUTO, "local")

    def check(candidate: str, place: str) -> None:
        if not here or place.startswith(IMAGE):
            return
        try:
            where = local_place(expand(place, what="the environment", home=home()))
            found = probe(where, compose(platform.env), cache=home() / "probes").version
        except R1PerfError as error:
            raise Unavailable(str(error)) from None
        if released and found.partition("+")[0] != candidate.partition("+")[0]:  # a build's local part
            raise Unavailable(f"{place} holds SGLang {found}, not {candidate}: it is another release's environment")

    return check
