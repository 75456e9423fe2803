"""A recipe as a command line for a person: in the words of one release, or in its own as published."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from pytest_r1perf.recipe import FlagValue, Recipe
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.translate import translate
from pytest_r1perf.sglang.translate_nouns import option_of
from pytest_r1perf.topology import Topology
from pytest_r1perf.workload import Workload

_MODULE = "sglang.bench_offline_throughput"
"""Its name up to 0.5.20, which is the published commands'."""


def recipe_command(
    recipe: Recipe, topology: Topology, n: int, workload: Workload, environment: SglangEnvironment | None = None
) -> str:
    """The offline benchmark of N prompts with the recipe, model and data set as ``$VARIABLES``; one line.

    With an environment in its release's own words: :class:`CannotExpress` where it has none for a flag. Of several
    nodes it is each one's, rank and head address left to be filled in.
    """
    flags: Mapping[str, FlagValue] = {**recipe.protocol, **recipe.flags, **topology.flags()}
    if environment is None:
        argv = [word for flag, value in flags.items() for word in _as_written(flag, value)]
        module, variables, python = _MODULE, recipe.env, "python"
    else:
        said = translate(flags, recipe.env, environment.options)
        argv, module, variables, python = list(said.argv), environment.offline_module, said.env, environment.python
    words = ["--dataset-name", "sharegpt", "--num-prompts", str(n), "--seed", str(workload.seed), *argv]
    given = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    places = ["--model-path", "$MODEL", "--dataset-path", "$SHAREGPT"]
    if topology.nnodes > 1:
        places += ["--node-rank", "$RANK", "--dist-init-addr", "$HEAD:PORT"]
    return " ".join([*given, shlex.quote(python), "-m", module, *places, *map(shlex.quote, words)])


def _as_written(flag: str, value: FlagValue) -> list[str]:
    if value is False:
        return []
    return [option_of(flag)] if value is True else [option_of(flag), str(value)]
