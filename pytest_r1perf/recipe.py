"""Recipes: a named set of server flags and environment variables, with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pytest_r1perf.childenv import is_secret
from pytest_r1perf.datafile import Section, is_finite_number
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.topology import LAYOUT_FLAGS

FlagValue: TypeAlias = str | int | float | bool
"""A logical flag's value: ``True`` is a bare switch, ``False`` leaves the switch out."""


@dataclass(frozen=True, slots=True)
class Published:
    """A figure that a seed document reports for a recipe.

    ``assumed`` says what the document leaves open (the metric, for all of them).
    """

    metric: str
    value: float
    n: int
    assumed: str
    source: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """Tuning flags and protocol of a run, kept apart.

    ``flags`` and ``env`` are the tuning, exactly as published. ``protocol`` holds what makes runs comparable
    (dummy weights, dtype): from the documents' prose, not from their command lines. Rendezvous (node rank,
    head address) belongs to the launch and stands in neither.
    """

    name: str
    topology: str | None
    flags: Mapping[str, FlagValue]
    env: Mapping[str, str]
    protocol: Mapping[str, FlagValue]
    published: Published | None
    source: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)


DEFAULT_RECIPE = Recipe("default", None, {}, {}, {}, None, "the platform's own flags and nothing more")


_OWNERS: Mapping[str, frozenset[str]] = {
    "the topology: choose or define another topology": LAYOUT_FLAGS
    | {"tp", "pp", "dp", "ep", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"}
    | {"expert_parallel_size", "attn_dp_size"},
    "the workload: give n, or another workload": frozenset(
        {"num_prompts", "seed", "dataset_name", "dataset_path", "sharegpt_output_len", "sharegpt_context_len"}
    ),
    "the platform: give it in its entry of your r1perf.yaml": frozenset({"model", "model_path"}),
    "the plugin, which sets it itself": frozenset({"result_filename", "backend", "skip_warmup", "profile"})
    | {"host", "port", "nccl_port", "served_model_name"},
}


def owner_of(flag: str) -> str | None:
    """Who sets a flag that neither a recipe nor a marker may give: the later of two on a command line wins.

    Other spellings of the same flag are SGLang's own (``add_cli_args`` of 0.4.3 to 0.5.23).
    """
    return next((owner for owner, names in _OWNERS.items() if flag in names), None)


_ENV_OWNERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
        "belongs to the plugin, which gives each rank the GPUs that it leases: to choose among this host's, export "
        "CUDA_VISIBLE_DEVICES before pytest",
    ),
    **dict.fromkeys(
        ("R1PERF_RUN_ID", "SPT_NOENV"),
        "belongs to the plugin, which finds a run's processes by it: leave it out",
    ),
}


def env_refused(name: str) -> str | None:
    """Why a platform, recipe or marker may not give this environment variable; ``None`` when it may.

    What is given there goes over the plugin's own value: ranks would share GPUs that nobody holds a lease on, and
    processes would outlive their run.
    """
    return _ENV_OWNERS.get(name)


def load_recipe(name: str, data: Section) -> Recipe:
    """One entry of ``recipes:``."""
    protocol: dict[str, FlagValue] = {}
    sources: dict[str, str] = {}
    for key, entry in data.section("protocol").sections():
        protocol[key] = flag_value(entry, "value")
        sources[key] = entry.text("source")
        entry.done()
    recipe = Recipe(
        name=name,
        topology=data.optional_text("topology"),
        flags=load_flags(data.section("flags")),
        env=load_env(data.section("env")),
        protocol=protocol,
        published=_published(data.section("published")) if "published" in data else None,
        source=data.text("source"),
        sources=sources,
    )
    data.done()
    return recipe


def load_flags(data: Section) -> dict[str, FlagValue]:
    """A mapping of logical flags; those of another owner (:func:`owner_of`) are refused."""
    flags: dict[str, FlagValue] = {}
    for key in data:
        owner = owner_of(key)
        if owner is not None:
            data.fail(f"belongs to {owner}", key)
        if is_secret(key):
            data.fail("looks like a secret, and a command line is seen by all: use env", key)
        flags[key] = flag_value(data, key)
    return flags


def load_env(data: Section) -> dict[str, str]:
    """A mapping of environment variables; YAML numbers become their text, the plugin's own are refused."""
    env: dict[str, str] = {}
    for key in data:
        refused = env_refused(key)
        if refused is not None:
            data.fail(refused, key)
        value = data.get(key)
        if not isinstance(value, str) and not is_finite_number(value):
            data.fail(f"must be a text or a number, got {value!r}", key)
        env[key] = str(value)
    return env


def flag_value(data: Section, key: str) -> FlagValue:
    """One scalar of YAML that can stand behind a flag."""
    value = data.need(key)
    if not isinstance(value, (str, int, float, bool)) or (isinstance(value, float) and not is_finite_number(value)):
        data.fail(f"must be a text, a number, true or false, got {value!r}", key)
    return value


def _published(data: Section) -> Published:
    metric = data.text("metric")
    if metric not in METRICS:
        data.fail(f"metric {metric!r} is not known", "metric")
    published = Published(
        metric=metric,
        value=data.number("value"),
        n=data.integer("n"),
        assumed=data.text("assumed", ""),
        source=data.text("source"),
    )
    data.done()
    return published
