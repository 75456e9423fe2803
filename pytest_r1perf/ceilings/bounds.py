"""Ceilings: the most that the hardware can do with a workload, from the GPU's data sheet and the model's shape.

    ceilings = bounds(shape, gpu, cell, workload, facts=facts)
    ceilings.values["total_throughput"]         # tok/s; a number above it is no measurement
    ceilings.reached(sample.metrics)            # which share of it was reached, and what is in the way

All throughputs divide by the same time, so a ceiling is the least time that the workload can take, in three parts:
compute, reading weights, reading the KV cache. Compute may overlap with reading; the two kinds of reading share the
memory's bandwidth and add up. Every step errs towards too high a ceiling, since a number above it is called INVALID;
docs/ceilings.md has the formulas and what was left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_r1perf.ceilings.gpumodel import GpuModel
from pytest_r1perf.ceilings.reads import kv_bytes, kv_tokens, step_bytes
from pytest_r1perf.cell import Cell
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.memory import number, stages
from pytest_r1perf.modelshape import ModelShape, shape_of
from pytest_r1perf.sglang.facts import LogFacts
from pytest_r1perf.sglang.protocol import same
from pytest_r1perf.workload import SampledWorkload

COMPUTE, WEIGHTS, KV = "compute", "weight reads", "KV reads"

_RESOLVED = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "load_format",
    "disable_radix_cache",
    "speculative_algorithm",
    "max_running_requests",
    "dcp_size",
    "attn_cp_size",
)
"""Flags whose resolved value counts, where the run told it, and not the one that was asked for."""


@dataclass(frozen=True, slots=True)
class Part:
    """One lower bound on the time of the whole workload, in seconds; ``None`` and ``why`` where there is none."""

    name: str
    seconds: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reached:
    """How much of its ceiling a metric reached (0 to 1, above 1 it can't be true), and which part is in the way."""

    metric: str
    fraction: float
    bound: str

    def __str__(self) -> str:
        return f"{self.fraction:.1%} of the ceiling of {self.metric} ({self.bound})"


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The least time of a workload (``seconds``), its parts, and the ``values`` of metrics that follow from it.

    ``binding`` is the part that is the longest. ``assumed`` says what was not known and is in the ceiling's favour.
    """

    parts: tuple[Part, ...]
    seconds: float
    binding: str
    values: Mapping[str, float]
    assumed: tuple[str, ...] = ()

    def part(self, name: str) -> Part:
        """The part of that name."""
        return next(part for part in self.parts if part.name == name)

    def reached(self, metrics: Mapping[str, float], metric: str = "total_throughput") -> Reached:
        """The share of the ceiling that a measurement reached; the same for every throughput of one workload."""
        return Reached(metric, metrics[metric] / self.values[metric], self.binding)


@dataclass(frozen=True, slots=True)
class NoCeilings:
    """Why there is no ceiling, in words that end a sentence."""

    reason: str

    @property
    def values(self) -> Mapping[str, float]:
        """None."""
        return {}


def bounds(
    shape: ModelShape | None,
    gpu: GpuModel | None,
    cell: Cell,
    workload: SampledWorkload | None,
    *,
    facts: LogFacts | None = None,
    lengths: Sequence[tuple[int, int]] | None = None,
    cached_tokens: int | None = None,
) -> Ceilings | NoCeilings:
    """The ceilings of a cell's workload on the GPUs that its topology uses.

    ``facts``: what the run told; what it resolved counts instead of what was asked for. ``lengths``: (input, output)
    tokens of every request, where known: without them only what each answer reads of itself is counted as KV reads.
    ``cached_tokens``: prompt tokens that came from the prefix cache; they are not computed, so with that cache on and
    this not known, one token a prompt is all that surely was.
    """
    if cell.platform.is_cpu:
        return NoCeilings(f"platform {cell.platform.name!r} has no GPU")
    if gpu is None:
        return NoCeilings(f"no entry of gpus: is named {cell.platform.accelerator!r}: add one in your r1perf.yaml")
    if shape is None:
        return NoCeilings("the model's config.json is not known")
    if workload is None or workload.total_output_tokens <= 0:
        return NoCeilings("the workload's tokens were not counted beforehand")
    facts = facts or LogFacts()
    cell = _resolved(cell, facts)
    assumed: list[str] = []
    compute = _compute_s(shape, gpu, cell, workload, cached_tokens, assumed)
    weights, kv = _reads_s(shape, gpu, cell, workload, facts, lengths, assumed)
    reading = (weights.seconds or 0.0) + (kv.seconds or 0.0)
    seconds = max(compute, reading)
    slower = WEIGHTS if (weights.seconds or 0.0) >= (kv.seconds or 0.0) else KV
    tokens = workload.total_input_tokens + workload.total_output_tokens
    return Ceilings(
        parts=(Part(COMPUTE, compute), weights, kv),
        seconds=seconds,
        binding=COMPUTE if compute >= reading else slower,
        values={
            "total_throughput": tokens / seconds,
            "output_throughput": workload.total_output_tokens / seconds,
            "input_throughput": workload.total_input_tokens / seconds,
            "request_throughput": workload.num_prompts / seconds,
            "tokps_per_gpu": tokens / seconds / cell.topology.gpus_used,
        },
        assumed=tuple(assumed),
    )


def lowest(overrides: Mapping[str, float], ceilings: Ceilings | NoCeilings | None) -> dict[str, float]:
    """A platform's own ceilings over the computed ones: of two for a metric the lower holds."""
    computed = ceilings.values if ceilings is not None else {}
    return {**computed, **{name: min(value, computed.get(name, value)) for name, value in overrides.items()}}


def above(metrics: Mapping[str, float], ceilings: Mapping[str, float]) -> list[str]:
    """A sentence for each throughput that is above its ceiling, and so no measurement."""
    return [
        f"{name} is {value}; the hardware's ceiling is {ceilings[name]}"
        for name, value in sorted(metrics.items())
        if name in ceilings and not value <= ceilings[name]
    ]


def ceilings_of(
    config: object,
    gpu: GpuModel | None,
    cell: Cell,
    workload: SampledWorkload | None,
    *,
    facts: LogFacts | None = None,
    lengths: Sequence[tuple[int, int]] | None = None,
) -> Ceilings | NoCeilings:
    """:func:`bounds` from a model's parsed ``config.json``; one that can't be read gives no ceiling."""
    try:
        shape = None if config is None else shape_of(config, "config.json")
    except R1PerfError as error:
        return NoCeilings(str(error))
    return bounds(shape, gpu, cell, workload, facts=facts, lengths=lengths)


def _compute_s(
    shape: ModelShape,
    gpu: GpuModel,
    cell: Cell,
    workload: SampledWorkload,
    cached_tokens: int | None,
    assumed: list[str],
) -> float:
    """Two FLOP a token and active parameter; attention itself is left out.

    The output head is multiplied for output tokens only, and the last output token of a request never goes in.
    """
    given = workload.total_input_tokens
    if cell.flags.get("disable_radix_cache") is not True:
        if cached_tokens is None:
            assumed.append("the prefix cache is on and its hits are not known: one computed token a prompt is counted")
        given = max(workload.num_prompts, given - (given if cached_tokens is None else cached_tokens))
    computed = given + workload.total_output_tokens - workload.num_prompts
    body = shape.active_params - shape.embedding - shape.num_layers * shape.norms
    flop = 2 * (body * computed + shape.embedding * workload.total_output_tokens)
    unquantized = shape.quantization is None and cell.flags.get("quantization") is None
    rate = gpu.flops["bf16"] if unquantized else gpu.fastest
    return flop / (rate * cell.topology.gpus_used)


def _reads_s(
    shape: ModelShape,
    gpu: GpuModel,
    cell: Cell,
    workload: SampledWorkload,
    facts: LogFacts,
    lengths: Sequence[tuple[int, int]] | None,
    assumed: list[str],
) -> tuple[Part, Part]:
    """Reading weights and KV cache, on the pipeline stage that has the most to read."""
    if cell.flags.get("speculative_algorithm") is not None:
        why = "speculative decoding gives more than one token a step"
        return Part(WEIGHTS, None, why), Part(KV, None, why)
    each = stages(shape, cell)
    smallest = [step_bytes(shape, cell, *stage, 1) - gpu.l2_bytes for stage in each]
    if min(smallest) <= 0:
        why = "what a step reads may stay in the GPU's cache"
        return Part(WEIGHTS, None, why), Part(KV, None, why)
    held, why = kv_tokens(shape, cell, workload, lengths, assumed)
    outputs, dp = workload.total_output_tokens, cell.topology.dp_size
    at_once = _at_once(cell, workload, facts)
    # Of whole copies (data parallelism without DP attention) one gives its share of the tokens or more.
    share = outputs if cell.topology.enable_dp_attention else outputs / dp
    if shape.n_routed_experts and cell.flags.get("load_format") == "dummy":
        assumed.append("random weights: how many experts a batch needs is not known, those of one token are counted")
    times = []
    for (first, last), one in zip(each, smallest, strict=True):
        # A step of at most so many tokens; the more in one, the less is read for each.
        step = step_bytes(shape, cell, first, last, at_once) - gpu.l2_bytes
        weights = step * share / at_once
        if facts.max_total_num_tokens:  # as many steps as it takes for the cache to hold all that is read
            weights = max(weights, one * held / (facts.max_total_num_tokens * dp))
        times.append((weights / gpu.hbm_bytes_per_s, kv_bytes(shape, cell, last - first) * held / dp))
    weights_s, read = max(times, key=lambda pair: pair[0] + pair[1] / gpu.hbm_bytes_per_s)
    # The tokens of one request come one after another, each through all stages.
    longest = max(out for _, out in lengths) if lengths else outputs / workload.num_prompts
    in_turn = longest * sum(smallest) / gpu.hbm_bytes_per_s
    kv_s = read / gpu.hbm_bytes_per_s
    # In turn means without the KV reads of others, so the two bounds are alternatives, not a sum.
    weights_s = max(weights_s, in_turn - kv_s)
    return Part(WEIGHTS, weights_s), Part(KV, None if why else kv_s, why)


def _at_once(cell: Cell, workload: SampledWorkload, facts: LogFacts) -> float:
    """Requests in one step at most: of all ranks with DP attention, which go in step, else of one copy."""
    limits: list[float] = [workload.num_prompts]
    if facts.max_running_requests:  # of each data-parallel worker
        together = cell.topology.dp_size if cell.topology.enable_dp_attention else 1
        limits.append(facts.max_running_requests * together)
    asked = number(cell.flags, "max_running_requests")
    if asked is not None and asked >= 1:
        limits.append(asked)
    return min(limits)


def _resolved(cell: Cell, facts: LogFacts) -> Cell:
    """The cell with what its run resolved in place of what was asked for."""
    flags = dict(cell.flags)
    for name in _RESOLVED:
        if name in facts.server_args:
            flags.pop(name, None)
            value = same(facts.server_args[name])
            if isinstance(value, (bool, int, float, str)):
                flags[name] = value
    if facts.kv_cache_dtype is not None:
        flags["kv_cache_dtype"] = str(same(facts.kv_cache_dtype.removeprefix("torch.")))
    return replace(cell, flags=flags)
