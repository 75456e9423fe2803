"""How much of a GPU's memory a cell takes: weights, KV cache, graphs. An estimate, from the model's shape.

Simplifications: ranks are even, activations are not modelled, a draft model is not counted, alignment and
allocator rounding are left out. tests/test_memory.py states the error against recorded H200 logs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_r1perf.cell import Cell
from pytest_r1perf.modelshape import ModelShape, bits_of
from pytest_r1perf.recipe import FlagValue
from pytest_r1perf.workload import SampledWorkload

GIB = 2**30
MIB = 2**20

CONTEXT_BYTES = int(1.3 * GIB)
"""Taken before any weight is loaded: CUDA context and communication buffers.

Recorded on one H200, SGLang 0.5.11: 139.11 and 139.13 GiB of 140.40 were free at "Load weight begin". More
with many NCCL channels.
"""

FIRST_GRAPH_BYTES = int(1.7 * GIB)
GRAPH_BYTES_PER_REQUEST = 2 * MIB
"""Graph memory: so much for the first capture's workspaces, and so much a request of the largest batch.

2 MiB a request is SGLang's own rule (``server_args.py``, 0.5.3.post3 to 0.5.20). The fixed part is what one
recorded capture took beside it (R1's layer shapes, batch 128, 1.95 GiB): one point, so good to a factor of two.
"""

GPU_BYTES: Mapping[str, int] = {"NVIDIA H200": 143771 * MIB, "NVIDIA H100 80GB HBM3": 81559 * MIB}
"""Memory of a GPU by its exact name, as nvidia-smi has it: for a plan made where there is no such GPU."""

_DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float": 4,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "half": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
FP4_KV = ("fp4_e2m1", "nvfp4", "fp4_mx_block16")
"""KV types of half a byte, with one scale byte for every 16 elements (``get_cell_size_per_token`` of 0.5.9)."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """One GPU's memory in bytes, on the stage that has the least room for KV.

    SGLang gives weights and KV cache together ``mem_fraction_static`` of what is free before loading; graphs
    and activations live in ``outside_bytes``. ``max_tokens`` is one KV pool; ``pools`` are there, each for
    requests of its own (data parallelism). ``assumed`` says what was filled in.
    """

    gpu_bytes: int
    mem_fraction_static: float
    weights_bytes_per_gpu: int
    kv_bytes_per_token_per_gpu: int
    graph_bytes: int
    free_for_kv: int
    max_tokens: int
    pools: int
    assumed: tuple[str, ...] = ()

    @property
    def static_bytes(self) -> int:
        """What weights and KV cache may take together."""
        return int((self.gpu_bytes - CONTEXT_BYTES) * self.mem_fraction_static)

    @property
    def outside_bytes(self) -> int:
        """What is left for graphs and activations."""
        return self.gpu_bytes - CONTEXT_BYTES - self.static_bytes


def estimate(shape: ModelShape, cell: Cell, gpu_bytes: int) -> MemoryEstimate:
    """The estimate for a cell on GPUs of ``gpu_bytes`` each; weights that don't fit leave no KV (0 tokens)."""
    fraction, assumed = _fraction(cell, gpu_bytes)
    static = int((gpu_bytes - CONTEXT_BYTES) * fraction)
    tightest: tuple[int, int, int] | None = None
    for first, last in stages(shape, cell):
        weights = weights_bytes(shape, cell, first, last)
        per_token = kv_bytes_per_token(shape, cell, last - first)
        tokens = max(0, static - weights) // max(1, per_token)  # a stage without layers keeps nothing
        if tightest is None or tokens < tightest[0]:
            tightest = tokens, weights, per_token
    assert tightest is not None
    tokens, weights, per_token = tightest
    if "speculative_algorithm" in cell.flags:
        assumed = (*assumed, "the draft model's weights and KV cache are not counted")
    limit = number(cell.flags, "max_total_tokens")
    if limit is not None and limit < tokens:
        tokens = int(limit)
        assumed = (*assumed, f"max_total_tokens={tokens} is below what would fit")
    return MemoryEstimate(
        gpu_bytes=gpu_bytes,
        mem_fraction_static=fraction,
        weights_bytes_per_gpu=weights,
        kv_bytes_per_token_per_gpu=per_token,
        graph_bytes=graph_bytes(cell, gpu_bytes),
        free_for_kv=max(0, static - weights),
        max_tokens=tokens,
        pools=cell.topology.dp_size,
        assumed=assumed,
    )


def partition(shape: ModelShape, cell: Cell) -> tuple[int, ...]:
    """Layers of each pipeline stage: ``SGLANG_PP_LAYER_PARTITION`` where it is sound, else SGLang's own split.

    SGLang gives the last stages one layer more where the division has a remainder (``get_pp_indices``).
    """
    size = cell.topology.pp_size
    given = parsed_partition(cell.env.get("SGLANG_PP_LAYER_PARTITION"))
    if given is not None and len(given) == size and sum(given) == shape.num_layers and min(given) > 0:
        return given
    base, extra = divmod(shape.num_layers, size)
    return tuple(base + (stage >= size - extra) for stage in range(size))


def parsed_partition(text: str | None) -> tuple[int, ...] | None:
    """``"32,29"`` is (32, 29); ``None`` for what SGLang cannot read."""
    try:
        return tuple(int(part) for part in text.split(",")) if text is not None else None
    except ValueError:
        return None


def stages(shape: ModelShape, cell: Cell) -> list[tuple[int, int]]:
    """(first layer, one after the last) of each pipeline stage."""
    ends = [0]
    for layers in partition(shape, cell):
        ends.append(ends[-1] + layers)
    return list(itertools.pairwise(ends))


def weights_bytes(shape: ModelShape, cell: Cell, first: int, last: int) -> int:
    """Weights of layers ``first`` to ``last`` - 1 on one GPU, with embedding or head on the outer stages.

    Attention is split over the ranks of one DP-attention group (tp / dp), MLPs and experts over all tp ranks
    whatever ``ep_size`` is. A data-parallel replica without DP attention is a whole copy: dp divides nothing.
    """
    tp = cell.topology.tp_size
    attention_tp = max(1, tp // cell.topology.dp_size) if cell.topology.enable_dp_attention else tp
    plain = _dtype_bytes(shape, cell)
    quantized = _weight_bytes(shape, cell, plain)
    layers = range(first, last)
    linear = sum(
        shape.attention_replicated() + shape.attention_sharded(attention_tp) + shape.mlp(layer) / tp for layer in layers
    )
    unquantized = sum(shape.router(layer) + shape.norms for layer in layers)
    if first == 0:
        unquantized += shape.embedding // attention_tp
    if last == shape.num_layers:
        unquantized += shape.head // (attention_tp if cell.flags.get("enable_dp_lm_head") is True else tp)
    return int(linear * quantized + unquantized * plain + (last - first) * shape.absorbed(attention_tp) * 2)


def kv_bytes_per_token(shape: ModelShape, cell: Cell, layers: int) -> int:
    """KV cache of one token on one GPU that holds so many layers.

    R1: 61 layers x (512 + 64) x 2 bytes = 70,272 in BF16 and 35,136 in FP8, on every GPU of a plain TP group.
    """
    tp = cell.topology.tp_size
    ranks = max(1, tp // cell.topology.dp_size) if cell.topology.enable_dp_attention else tp
    elements = shape.kv_elements(ranks) * layers
    kind = str(cell.flags.get("kv_cache_dtype", "auto"))
    if kind in FP4_KV:
        return elements // 2 + elements // 16
    return elements * (_DTYPE_BYTES.get(kind) or _dtype_bytes(shape, cell))


def graph_bytes(cell: Cell, gpu_bytes: int) -> int:
    """Memory of CUDA graphs, roughly (:data:`GRAPH_BYTES_PER_REQUEST`); 0 where they are off."""
    if cell.flags.get("disable_cuda_graph") is True or cell.platform.is_cpu:
        return 0
    return FIRST_GRAPH_BYTES + int(_largest_graph(cell, gpu_bytes)) * GRAPH_BYTES_PER_REQUEST


def number(flags: Mapping[str, FlagValue], *names: str) -> float | None:
    """The first of these flags that is given as a number, also in quotes; a switch is none."""
    for name in names:
        value = flags.get(name)
        if value is None or isinstance(value, bool):
            continue
        try:
            found = float(value)
        except ValueError:
            continue
        if math.isfinite(found):
            return found
    return None


def default_chunk(gpu_bytes: int | None) -> int:
    """``chunked_prefill_size`` where none is given, by the GPU's memory (SGLang 0.5.3.post3 to 0.5.20)."""
    if gpu_bytes is None:
        return 4096
    tiers = ((35, 2048), (60, 4096), (160, 8192))
    return next((chunk for limit, chunk in tiers if gpu_bytes < limit * GIB), 16384)


def _largest_graph(cell: Cell, gpu_bytes: int) -> float:
    """The largest batch with a graph; SGLang's default by memory and tp (0.5.9, ``server_args.py``)."""
    given = number(cell.flags, "cuda_graph_max_bs", "cuda_graph_max_bs_decode")
    if given is not None:
        return given
    few = cell.topology.tp_size < 4
    tiers = ((20, 8, 8), (35, 24, 80), (60, 32, 160), (160, 256, 512))
    return next((small if few else large for limit, small, large in tiers if gpu_bytes < limit * GIB), 512)


def _fraction(cell: Cell, gpu_bytes: int) -> tuple[float, tuple[str, ...]]:
    """``mem_fraction_static``, given or by SGLang's rule of 0.5.3.post3 to 0.5.16 (MiB kept free, over all)."""
    given = number(cell.flags, "mem_fraction_static")
    if given is not None:
        return given, ()
    topology = cell.topology
    chunk = number(cell.flags, "chunked_prefill_size")
    if chunk is not None and chunk <= 0:
        chunk = number(cell.flags, "max_prefill_tokens") or 16384
    graph = _largest_graph(cell, gpu_bytes)
    kept = 512 + 1.5 * max(chunk or default_chunk(gpu_bytes), 2048) + 2 * graph
    kept += topology.tp_size * topology.pp_size / 8 * 1024
    if topology.enable_dp_attention:
        kept += graph * topology.dp_size * (4.5 if graph > 300 else 3)
    if gpu_bytes > 60 * GIB:
        kept = max(kept, 10 * 1024)
    whole = gpu_bytes / MIB
    fraction = round(max(0.0, whole - kept) / whole, 3)
    return fraction, (f"mem_fraction_static is not given: {fraction:g} by SGLang's rule, which moves between releases",)


def _dtype_bytes(shape: ModelShape, cell: Cell) -> int:
    asked = str(cell.flags.get("dtype", "auto"))
    return _DTYPE_BYTES.get(asked) or _DTYPE_BYTES.get(shape.torch_dtype, 2)


def _weight_bytes(shape: ModelShape, cell: Cell, plain: int) -> float:
    """Bytes a weight of a linear layer, its block's float32 scale included; an unknown method counts in full."""
    bits, block = shape.weight_bits, shape.weight_block
    if shape.quantization is None:
        bits = bits_of(str(cell.flags.get("quantization", "")))
    if bits is None:
        return plain
    return bits / 8 + (4 / (block[0] * block[1]) if block else 0)


@dataclass(frozen=True, slots=True)
class Load:
    """The tokens of a workload's requests, prompt and answer together; ``longest`` where it is known."""

    requests: int
    total_tokens: int
    longest: int | None = None

    @property
    def mean(self) -> float:
        """Tokens a request."""
        return self.total_tokens / self.requests


def load_of(workload: SampledWorkload | None) -> Load | None:
    """The load that a sampled workload is; ``None`` when it was not sampled."""
    if workload is None:
        return None
    tokens = workload.total_input_tokens + workload.total_output_tokens
    return Load(workload.num_prompts, tokens, workload.longest_tokens)


@dataclass(frozen=True, slots=True)
class Fit:
    """How many of a workload's requests the KV pools hold at once, at their full length."""

    requests: int
    at_once: int
    longest_fits: bool

    @property
    def all_at_once(self) -> bool:
        """Whether none has to wait for memory."""
        return self.at_once >= self.requests


def fits(max_tokens: int, pools: int, load: Load) -> Fit:
    """Lay a workload against KV pools of ``max_tokens`` each.

    That some requests queue is normal; that the longest does not fit into an empty pool is not. Where the
    longest is not known the mean stands for it, which no workload's longest is below.
    """
    at_once = pools * int(max_tokens // load.mean) if load.total_tokens else load.requests
    longest = load.longest if load.longest is not None else math.ceil(load.mean)
    return Fit(load.requests, min(at_once, load.requests), longest <= max_tokens)
