"""The SGLang environment and the model, as a run on this host would take them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pytest_r1perf.childenv import compose
from pytest_r1perf.doctor.check import Check, fail, ok, skip, told, warn
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.platform import Platform, expand
from pytest_r1perf.recipe import Recipe
from pytest_r1perf.siteplace import IMAGE, environment_named

_CONTAINER_NOTE = "it runs in a container, which is asked when a run starts"


def environment_check(platform: Platform, given: str | None, home: Path) -> Check:
    """Probe the environment that a run would take, on this host."""
    from pytest_r1perf.sglang.environment import local_place, probe

    name = "sglang"
    try:
        filled = environment_named(platform, given)
        if filled.startswith(IMAGE):
            return skip(name, f"{filled.removeprefix(IMAGE)}: {_CONTAINER_NOTE}")
        found = probe(local_place(filled), compose(platform.env), cache=home / "probes")
    except R1PerfError as error:
        return fail(*told(name, error, "name a virtual environment or a Python that has SGLang"))
    versions = ", ".join(f"{package} {version}" for package, version in found.versions.items())
    return ok(name, f"{filled}: {versions}; benchmark {found.offline_module}")


def model_check(platform: Platform, home: Path, recipes: Iterable[Recipe] = ()) -> Check:
    """config.json, and the weights unless the platform's own flags or its default ``recipes`` load random ones.

    Where neither says anything about the weights, missing ones are a warning: a test's recipe decides.
    """
    name = "model"
    try:
        folder = Path(expand(platform.model_path, what=f"platform {platform.name!r}: model_path", home=home))
    except R1PerfError as error:
        return fail(*told(name, error, "state model_path in your r1perf.yaml"))
    mend = "`r1perf model make` writes one" if platform.is_cpu else "name a folder with config.json and the weights"
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = ", ".join(config.get("architectures") or ()) or config.get("model_type", "unknown")
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no model's JSON"
        return fail(name, f"{folder}/config.json: {reason}", mend)
    text = f"{folder}: {kind}, {config.get('num_hidden_layers', 'unknown')} layers"
    if not any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer.model")):
        return fail(name, f"{text}; it has no tokenizer", mend)
    read = _reads_weights(platform, recipes)
    if read is False:
        return ok(name, f"{text}; random weights, none are read")
    complain = warn if read is None else fail
    missing = _missing_weights(folder)
    if missing is None:
        return complain(name, f"{text}; it has no *.safetensors", "fetch the weights, or set load_format: dummy")
    if missing:
        return complain(
            name,
            f"{text}; {len(missing)} files of the weights' index are missing, as {missing[0]}",
            "fetch them again: the download was not complete",
        )
    return ok(name, f"{text}; weights are there")


def _reads_weights(platform: Platform, recipes: Iterable[Recipe]) -> bool | None:
    """Whether a run with one of the recipes reads weights; ``None``: no recipe, and the platform doesn't say."""
    every = [{**platform.flags, **recipe.protocol, **recipe.flags} for recipe in recipes]
    if not every and "load_format" not in platform.flags:
        return None
    return any(flags.get("load_format") != "dummy" for flags in every or [dict(platform.flags)])


def _missing_weights(folder: Path) -> list[str] | None:
    """Files that the index names and that are not there, or empty ones; ``None`` without any weights."""
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        names = sorted(set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        if not names:
            return None
    return [name for name in names if not (folder / name).is_file() or (folder / name).stat().st_size == 0]
