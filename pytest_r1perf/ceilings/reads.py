"""What decoding must read from a GPU's memory: weights a step, and KV cache. At least, not at most.

As if nothing were held twice and everything were spread evenly; :mod:`memory` has what SGLang really holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_r1perf.cell import Cell
from pytest_r1perf.memory import FP4_KV, kv_bytes_per_token, number
from pytest_r1perf.modelshape import ModelShape, bits_of
from pytest_r1perf.sglang.protocol import same
from pytest_r1perf.workload import SampledWorkload

LEAST_SHARE = 0.1
"""An expert is asked for at least this share of an even load, with trained weights: ours, and generous to the ceiling.

With random weights nothing is assumed: on one H200 a batch of 88 (R1's layers, dummy weights, SGLang 0.5.11) took
2.04 ms a step, and reading all experts would have taken 7.5 ms. Most tokens went to the same few.
"""

_FULL_ATTENTION = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "LlamaForCausalLM")
"""Every token attends to all before it, in every layer: not so with windows, or V3.2's sparse attention."""

_PLAIN_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
_KV_KINDS = ("auto", "bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2", *FP4_KV)


def decode_reads(lengths: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """KV tokens that decoding reads, in all: (of prompts, of the answers themselves).

    The first output token comes from prefill; the t-th (from 2 on) reads the prompt and t - 2 output tokens.
    """
    prompts = sum(given * max(0, out - 1) for given, out in lengths)
    answers = sum(max(0, out - 1) * max(0, out - 2) // 2 for _, out in lengths)
    return prompts, answers


def step_bytes(shape: ModelShape, cell: Cell, first: int, last: int, tokens: float) -> float:
    """Weights of layers ``first`` to ``last`` - 1 that one GPU reads in a step of so many tokens.

    An even share, as if nothing were held twice: what SGLang replicates (MLA's projections into the latent space, the
    routers) it could split. Scales and the second copy of an MLA projection are left out; of the embedding some rows
    are read, of the head all.
    """
    tp = cell.topology.tp_size
    attention_tp = max(1, tp // cell.topology.dp_size) if cell.topology.enable_dp_attention else tp
    plain = _plain_bytes(shape, cell)
    quantized = _linear_bytes(shape, cell, plain)
    total = 0.0
    for layer in range(first, last):
        mlp: float = shape.mlp(layer)
        if shape.is_moe(layer):
            every = shape.n_routed_experts + shape.n_shared_experts
            mlp *= (_touched(shape, cell, tokens) + shape.n_shared_experts) / every
        attention = shape.attention_replicated() / attention_tp + shape.attention_sharded(attention_tp)
        total += (attention + mlp / tp) * quantized + shape.router(layer) / tp * plain
    if last == shape.num_layers:
        total += shape.embedding / tp * plain
    return total


def _touched(shape: ModelShape, cell: Cell, tokens: float) -> float:
    """Routed experts that a step of so many tokens reads: those of one token at least."""
    chosen, every = shape.experts_per_token, shape.n_routed_experts
    if cell.flags.get("load_format") == "dummy":
        return chosen
    missed: float = (1 - LEAST_SHARE * chosen / every) ** tokens
    return max(chosen, every * (1 - missed))


def kv_tokens(
    shape: ModelShape,
    cell: Cell,
    workload: SampledWorkload,
    lengths: Sequence[tuple[int, int]] | None,
    assumed: list[str],
) -> tuple[float, str]:
    """KV tokens that decoding surely reads, over all requests; 0 and the reason where that isn't known."""
    if any((number(cell.flags, name) or 1) > 1 for name in ("dcp_size", "attn_cp_size")):
        return 0.0, "context parallelism spreads the KV cache over ranks in ways of its own"
    if shape.architecture not in _FULL_ATTENTION:
        return 0.0, f"whether {shape.architecture} attends to all tokens is not known"
    if lengths is None:
        assumed.append("the requests' single lengths are not known: what answers read of their prompts is not counted")
        mean = workload.total_output_tokens / workload.num_prompts
        # Of all lengths with this mean, equal ones read the least.
        return workload.num_prompts * max(0.0, mean - 1) * max(0.0, mean - 2) / 2, ""
    prompts, answers = decode_reads(lengths)
    if cell.flags.get("disable_radix_cache") is not True:
        assumed.append("the prefix cache is on: prompts may share their KV, and reading it is not counted")
        return answers, ""
    return prompts + answers, ""


def kv_bytes(shape: ModelShape, cell: Cell, layers: int) -> float:
    """Of one token on one GPU; of a type that isn't known, as few as any has."""
    if str(cell.flags.get("kv_cache_dtype", "auto")) in _KV_KINDS:
        return kv_bytes_per_token(shape, cell, layers)
    return kv_bytes_per_token(shape, replace(cell, flags={**cell.flags, "kv_cache_dtype": FP4_KV[0]}), layers)


def _plain_bytes(shape: ModelShape, cell: Cell) -> int:
    asked = str(same(cell.flags.get("dtype", "auto")))
    return _PLAIN_BYTES.get(asked) or _PLAIN_BYTES.get(shape.torch_dtype, 2)


def _linear_bytes(shape: ModelShape, cell: Cell, plain: int) -> float:
    """Bytes a weight of a linear layer; half a byte where a method is named that doesn't tell."""
    method = shape.quantization or cell.flags.get("quantization")
    if method is None:
        return plain
    bits = shape.weight_bits if shape.quantization is not None else bits_of(str(method))
    return (bits or 4) / 8
