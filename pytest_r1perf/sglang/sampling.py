"""What a workload comes to: SGLang's own sampler, run beforehand in its environment, cached by content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_r1perf import inputs, jsoncache
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.place import LocalPlace, PlaceBroken
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.workload import SampledWorkload, Workload

_SCRIPT = Path(__file__).parent / "scripts" / "sample_workload.py"


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
    timeout_s: float = 600,
) -> SampledWorkload:
    """Number of prompts, token totals and digest of the workload.

    Raises :class:`R1PerfError` for a data set that is shorter than ``num_prompts`` and a model without a
    tokenizer.
    """
    entry = jsoncache.entry(
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
    lengths = jsoncache.read(entry)
    if not _well_formed(lengths):
        lengths = _ask_sglang(workload, num_prompts, environment, given, env, timeout_s)
        jsoncache.write(entry, lengths)
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


def _ask_sglang(
    workload: Workload,
    num_prompts: int,
    environment: SglangEnvironment,
    given: Inputs,
    env: Mapping[str, str],
    timeout_s: float,
) -> list[list[int]]:
    arguments = [given.model_path, given.dataset_path, str(num_prompts), str(workload.seed)]
    options = (workload.sharegpt_output_len, workload.sharegpt_context_len)
    arguments += ["-" if option is None else str(option) for option in options]
    try:
        needs = (given.model_path, given.dataset_path)
        said = environment.place.script(_SCRIPT, arguments, env=env, timeout_s=timeout_s, needs=needs)
    except PlaceBroken as error:
        raise R1PerfError(f"the workload could not be sampled with {environment.python}: {error}") from None
    try:
        lengths: list[list[int]] = said.json()
        return lengths
    except ValueError:
        raise R1PerfError(
            f"the workload could not be sampled by sglang {environment.version} with the tokenizer of "
            f"{given.model_path}: {said.last_words}"
        ) from None


def _well_formed(lengths: object) -> bool:
    return isinstance(lengths, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in lengths)
