"""``r1perf recommend``: the deployment decision matrix."""

from __future__ import annotations

from pathlib import Path

import click

_GOALS = ("throughput", "efficiency", "reference")
_COMPARISON_N = 5000
"""best-practice guide: 'Standard comparison load: N=5000'; for a recipe without a published figure."""


@click.command("recommend")
@click.option(
    "--goal", required=True, type=click.Choice(_GOALS), help="Tokens in all, tokens a GPU, or TP's reference."
)
@click.option("--gpus", required=True, type=click.Choice(("8", "16")), help="GPUs of one node, or of two.")
@click.option(
    "--baselines",
    default="baselines",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Stored baselines that may answer.",
)
@click.option("--sglang", metavar="PATH", help="Say the command in the words of this SGLang environment.")
@click.option(
    "--data",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Further YAML file of platforms and recipes; ./r1perf.yaml is read by itself.",
)
def recommend_command(goal: str, gpus: str, baselines: Path, sglang: str | None, files: tuple[Path, ...]) -> None:
    """Say which stack serves a goal on 8 or 16 GPUs, what that rests on, and the command to run.

    Measured baselines answer first: those of hardware that makes the GPUs with one node or two, at one conclusive load,
    with the guide's own stack among them. Else the best-practice guide's published figures do, and it is said. What
    neither can answer is one sentence, with exit status 1.

    Example: r1perf recommend --goal throughput --gpus 16
    """
    from pytest_r1perf.catalog import USER_FILE, load_catalog
    from pytest_r1perf.childenv import compose
    from pytest_r1perf.recommend.answer import recommend
    from pytest_r1perf.report.recommend import answer_lines
    from pytest_r1perf.rig.home import home
    from pytest_r1perf.sglang.environment import local_place, probe
    from pytest_r1perf.sglang.recipe_command import recipe_command

    catalog = load_catalog([*([Path(USER_FILE)] if Path(USER_FILE).is_file() else []), *files])
    answers = recommend(goal, int(gpus), catalog, baselines)
    environment = probe(local_place(sglang), compose({}), cache=home() / "probes") if sglang is not None else None
    for number, answer in enumerate(answers):
        recipe = catalog.recipes.get(answer.recipe)
        command = ""
        if recipe is not None:
            published = answer.published.n if answer.published is not None else _COMPARISON_N
            n = answer.best.n if answer.best is not None else published
            workload = catalog.workload("sharegpt")
            command = recipe_command(recipe, answer.topology, n, workload, environment)
        click.echo("\n".join([*([""] if number else []), *answer_lines(answer, command)]))
