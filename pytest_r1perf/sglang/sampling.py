"""What a workload comes to: SGLang's own sampler, run beforehand in its environment, cached by content."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pytest_r1perf import inputs, jsoncache
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.place import LocalPlace, PlaceBroken
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.workload import SampledWorkload, Workload

_SCRIPT = Path(__file__).parent / "scripts" / "sample_workload.py"

Sampling: TypeAlias = tuple[Workload, int]
"""A workload and its number of prompts."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """A model's folder and a data set as they are on the host of the run: paths there, and digests."""

    model_path: str
    dataset_path: str
    dataset_digest: str
    tokenizer_digest: str
    config_digest: str
    config: Mapping[str, Any]


def look_at(environment: SglangEnvironment, model_path: str, dataset_path: str, env: Mapping[str, str]) -> Inputs:
    """The inputs of a run, read where it will run.

    Raises :class:`R1PerfError` for a data set that is missing, empty or not in ShareGPT's format, and for a
    model that is no model's folder.
    """
    place = environment.place
    if isinstance(place, LocalPlace):
        found = inputs.inspect(model_path, dataset_path)
    else:
        try:
            paths = (model_path, dataset_path)
            said = place.script(Path(inputs.__file__), paths, env=env, timeout_s=600, needs=paths)
            found = said.json()
        except (PlaceBroken, ValueError) as error:
            raise R1PerfError(f"{place.label}: the model and data set could not be looked at ({error})") from None
    if found["problem"] is not None:
        raise R1PerfError(str(found["problem"]))
    del found["problem"]
    return Inputs(model_path, dataset_path, **found)


def sample(
    workload: Workload,
    num_prompts: int,
    *,
    environment: SglangEnvironment,
    given: Inputs,
    cache: Path,
    env: Mapping[str, str],
    also: Callable[[], Sequence[Sampling]] = tuple,
    timeout_s: float = 600,
) -> SampledWorkload:
    """Number of prompts, token totals and digest of the workload.

    ``also`` gives what else will be needed with this model and platform. It is asked when the workload is not in the
    cache: SGLang, whose import takes longer than sampling, is then started once for all that are not. ``timeout_s``
    (seconds) is the limit for each of them.

    Raises :class:`R1PerfError` for a data set that is shorter than ``num_prompts`` and a model without a
    tokenizer. What cannot be sampled of ``also`` is told when its turn comes.
    """

    def entry(one: Sampling) -> Path:
        return _entry(one, environment, given, cache)

    own = workload, num_prompts
    lengths = jsoncache.read(entry(own))
    if not _well_formed(lengths):
        others = dict.fromkeys(one for one in also() if one[0].dataset == workload.dataset)
        lacking = {entry(one): one for one in others if not _well_formed(jsoncache.read(entry(one)))}
        asked = {entry(own): own, **lacking}
        found = _ask_sglang(tuple(asked.values()), environment, given, env, timeout_s * len(asked))
        lengths = found[0]
        for path, one in zip(asked, found, strict=True):
            if _well_formed(one):
                jsoncache.write(path, one)
    if len(lengths) != num_prompts:
        raise R1PerfError(
            f"data set {given.dataset_path} gives {len(lengths)} usable prompts, and n={num_prompts} asks for more: "
            f"take a longer one, or make one with `r1perf dataset make --num {num_prompts * 2}`"
        )
    return SampledWorkload(
        num_prompts=num_prompts,
        total_input_tokens=sum(pair[0] for pair in lengths),
        total_output_tokens=sum(pair[1] for pair in lengths),
        digest=hashlib.sha256(json.dumps(lengths).encode()).hexdigest()[:16],
        longest_tokens=max(sum(pair) for pair in lengths),
    )


def _entry(one: Sampling, environment: SglangEnvironment, given: Inputs, cache: Path) -> Path:
    workload, num_prompts = one
    return jsoncache.entry(
        cache,
        given.dataset_digest,
        given.tokenizer_digest,
        environment.versions.get("sglang"),
        environment.versions.get("transformers"),
        num_prompts,
        workload.seed,
        workload.sharegpt_output_len,
        workload.sharegpt_context_len,
    )


def _ask_sglang(
    asked: Sequence[Sampling],
    environment: SglangEnvironment,
    given: Inputs,
    env: Mapping[str, str],
    timeout_s: float,
) -> list[Any]:
    """The lengths of each, the first one's for sure."""
    jobs = [[n, one.seed, one.sharegpt_output_len, one.sharegpt_context_len] for one, n in asked]
    arguments = (given.model_path, given.dataset_path, json.dumps(jobs))
    try:
        needs = (given.model_path, given.dataset_path)
        said = environment.place.script(_SCRIPT, arguments, env=env, timeout_s=timeout_s, needs=needs)
    except PlaceBroken as error:
        raise R1PerfError(f"the workload could not be sampled with {environment.python}: {error}") from None
    with contextlib.suppress(ValueError):
        found = said.json()
        if isinstance(found, list) and len(found) == len(asked) and _well_formed(found[0]):
            return found
    raise R1PerfError(
        f"the workload could not be sampled by sglang {environment.version} with the tokenizer of "
        f"{given.model_path}: {said.last_words}"
    )


def _well_formed(lengths: object) -> bool:
    return isinstance(lengths, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in lengths)
