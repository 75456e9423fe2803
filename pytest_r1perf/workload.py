"""Workloads: which prompts, how many, in which order."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_r1perf.datafile import Section


@dataclass(frozen=True, slots=True)
class Workload:
    """A rule for sampling prompts from a ShareGPT-format file.

    ``dataset`` names the key of the platform's ``datasets:`` that has the file's path on its hosts.
    ``seed`` is the benchmark's sampling seed; it is always passed, since SGLang's default moved from 1 to 42
    in 0.5.14. ``sharegpt_output_len`` (tokens) fixes every answer's length when given.
    """

    name: str
    dataset: str
    seed: int
    sharegpt_output_len: int | None
    sharegpt_context_len: int | None
    source: str


@dataclass(frozen=True, slots=True)
class SampledWorkload:
    """What a workload comes to for one N, tokenizer and SGLang: counted before the run, not after.

    ``digest`` identifies the sampled (input, output) token lengths in their order; ``longest_tokens`` is the
    longest request, input and output together.
    """

    num_prompts: int
    total_input_tokens: int
    total_output_tokens: int
    digest: str
    longest_tokens: int | None = None


def load_workload(name: str, data: Section) -> Workload:
    """One entry of ``workloads:``."""
    workload = Workload(
        name=name,
        dataset=data.text("dataset"),
        seed=data.integer("seed", minimum=0),
        sharegpt_output_len=data.integer("sharegpt_output_len", minimum=4) if "sharegpt_output_len" in data else None,
        sharegpt_context_len=data.integer("sharegpt_context_len", minimum=8)
        if "sharegpt_context_len" in data
        else None,
        source=data.text("source"),
    )
    data.done()
    return workload
