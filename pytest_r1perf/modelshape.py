"""The shape of a model as its ``config.json`` gives it, and the parameters that follow from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pytest_r1perf.errors import R1PerfError

_EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts")
"""What DeepSeek, Qwen-MoE and Mixtral call the number of routed experts."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Layer shapes of a decoder; sizes are in elements, names are ``config.json``'s own.

    ``kv_lora_rank`` is ``None`` where attention is plain (MHA, GQA); then ``head_dim`` and ``num_kv_heads``
    count, and the four MLA sizes are 0. ``n_routed_experts`` is 0 for a dense model. ``weight_block`` is the
    block that shares one float32 scale, ``None`` where weights have none.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_lora_rank: int | None
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    n_routed_experts: int
    n_shared_experts: int
    experts_per_token: int
    moe_intermediate_size: int
    first_k_dense_replace: int
    nextn_layers: int
    tied_embeddings: bool
    torch_dtype: str
    quantization: str | None
    weight_bits: int | None
    weight_block: tuple[int, int] | None

    @property
    def is_mla(self) -> bool:
        """Whether keys and values are kept as one latent vector a token."""
        return self.kv_lora_rank is not None

    def is_moe(self, layer: int) -> bool:
        """Whether a layer (from 0) has experts."""
        return self.n_routed_experts > 0 and layer >= self.first_k_dense_replace

    def attention_replicated(self) -> int:
        """Attention parameters of a layer that every rank holds: MLA's projections into the latent space.

        SGLang: ``fused_qkv_a_proj_with_mqa`` is a ``ReplicatedLinear`` (models/deepseek_v2.py, 0.5.9).
        """
        if self.kv_lora_rank is None:
            return 0
        return self.hidden_size * ((self.q_lora_rank or 0) + self.kv_lora_rank + self.qk_rope_head_dim)

    def attention_sharded(self, ranks: int = 1) -> int:
        """Attention parameters of a layer on one of ``ranks`` ranks that split its heads."""
        if self.kv_lora_rank is not None:
            query = (self.q_lora_rank or self.hidden_size) * (self.qk_nope_head_dim + self.qk_rope_head_dim)
            expand = self.kv_lora_rank * (self.qk_nope_head_dim + self.v_head_dim)
            out = self.v_head_dim * self.hidden_size
            return self.num_heads * (query + expand + out) // ranks
        query_and_out = 2 * self.hidden_size * self.num_heads * self.head_dim
        return query_and_out // ranks + 2 * self.hidden_size * self._kv_heads(ranks) * self.head_dim

    def absorbed(self, ranks: int = 1) -> int:
        """Elements of the second copy of ``kv_b_proj`` that SGLang keeps in BF16 beside an MLA layer.

        ``w_kc`` and ``w_vc`` in ``deepseek_weight_loader.py`` of 0.5.9: decoding multiplies by them directly.
        """
        if self.kv_lora_rank is None:
            return 0
        return self.num_heads * self.kv_lora_rank * (self.qk_nope_head_dim + self.v_head_dim) // ranks

    def mlp(self, layer: int) -> int:
        """Parameters of a layer's MLP: dense, or all its experts and the shared ones."""
        if not self.is_moe(layer):
            return 3 * self.hidden_size * self.intermediate_size
        return (self.n_routed_experts + self.n_shared_experts) * self._expert

    def router(self, layer: int) -> int:
        """Parameters that choose a layer's experts, with one bias an expert."""
        return self.n_routed_experts * (self.hidden_size + 1) if self.is_moe(layer) else 0

    @property
    def norms(self) -> int:
        """Parameters of a layer's norms."""
        return 2 * self.hidden_size + (self.q_lora_rank or 0) + (self.kv_lora_rank or 0)

    @property
    def embedding(self) -> int:
        """Parameters of the input embedding; the output head has as many, unless it is tied to it."""
        return self.vocab_size * self.hidden_size

    @property
    def head(self) -> int:
        """Parameters of the output head: 0 where the embedding serves as one."""
        return 0 if self.tied_embeddings else self.embedding

    @property
    def total_params(self) -> int:
        """Parameters of the main model, without multi-token prediction (MTP)."""
        layers = sum(self._layer(layer, self.mlp(layer)) for layer in range(self.num_layers))
        return layers + self.embedding + self.head + self.hidden_size

    @property
    def active_params(self) -> int:
        """Parameters that a token is multiplied by: its experts of each layer, and the output head.

        The input embedding is looked up, not multiplied.
        """
        chosen = (self.experts_per_token + self.n_shared_experts) * self._expert
        layers = range(self.num_layers)
        found = sum(self._layer(n, chosen if self.is_moe(n) else self.mlp(n)) for n in layers)
        return found + self.embedding + self.hidden_size

    @property
    def mtp_params(self) -> int:
        """Parameters of the MTP modules, the embedding and head that they share with the model left out.

        One more layer and a projection of two hidden vectors to one (DeepSeek-V3, README_WEIGHTS.md).
        """
        one = self._layer(self.num_layers, self.mlp(self.num_layers)) + 2 * self.hidden_size**2 + 3 * self.hidden_size
        return self.nextn_layers * one

    def kv_elements(self, ranks: int = 1) -> int:
        """Elements that one token keeps of one layer on one of ``ranks`` ranks.

        MLA's latent vector belongs to all heads, so every rank keeps the whole of it.
        """
        if self.kv_lora_rank is not None:
            return self.kv_lora_rank + self.qk_rope_head_dim
        return 2 * self._kv_heads(ranks) * self.head_dim

    @property
    def _expert(self) -> int:
        return 3 * self.hidden_size * self.moe_intermediate_size

    def _kv_heads(self, ranks: int) -> int:
        """KV heads of a rank; fewer heads than ranks are replicated."""
        return max(1, self.num_kv_heads // ranks)

    def _layer(self, layer: int, mlp: int) -> int:
        return self.attention_replicated() + self.attention_sharded() + mlp + self.router(layer) + self.norms


def read_shape(model_path: Path) -> ModelShape:
    """The shape of the model in a folder; :class:`R1PerfError` names what is missing or wrong."""
    path = model_path / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise R1PerfError(
            f"{path} cannot be read ({error.strerror or error}): give the platform's model_path a model's folder"
        ) from None
    except ValueError:
        raise R1PerfError(f"{path} is not JSON: fetch the model's config.json again") from None
    return shape_of(config, str(path))


def shape_of(config: object, what: str) -> ModelShape:
    """The shape that a parsed ``config.json`` describes; ``what`` names it in errors.

    A multimodal model's ``text_config`` counts. Raises :class:`R1PerfError`.
    """
    if not isinstance(config, dict):
        raise R1PerfError(f"{what} is no JSON object: fetch the model's config.json again")
    outer = config
    if "hidden_size" not in config and isinstance(config.get("text_config"), dict):
        config = {**config, **config["text_config"]}
    read = _Reader(config, what)
    heads = read.size("num_attention_heads")
    hidden = read.size("hidden_size")
    latent = read.optional("kv_lora_rank")
    experts = next((read.count(key) for key in _EXPERT_KEYS if config.get(key)), 0)
    intermediate = read.size("intermediate_size") if "intermediate_size" in config or not experts else 0
    method, bits, block = _quantization(outer.get("quantization_config") or config.get("quantization_config"))
    return ModelShape(
        architecture=str((config.get("architectures") or outer.get("architectures") or ["unknown"])[0]),
        num_layers=read.size("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=intermediate,
        vocab_size=read.size("vocab_size"),
        num_heads=heads,
        num_kv_heads=read.optional("num_key_value_heads") or heads,
        head_dim=read.optional("head_dim") or hidden // heads,
        kv_lora_rank=latent,
        q_lora_rank=read.optional("q_lora_rank") if latent else None,
        qk_nope_head_dim=read.size("qk_nope_head_dim") if latent else 0,
        qk_rope_head_dim=read.size("qk_rope_head_dim") if latent else 0,
        v_head_dim=read.size("v_head_dim") if latent else 0,
        n_routed_experts=experts,
        n_shared_experts=read.count("n_shared_experts"),
        experts_per_token=read.size("num_experts_per_tok") if experts else 0,
        moe_intermediate_size=(read.optional("moe_intermediate_size") or intermediate) if experts else 0,
        first_k_dense_replace=read.count("first_k_dense_replace"),
        nextn_layers=read.count("num_nextn_predict_layers"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        torch_dtype=str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch."),
        quantization=method,
        weight_bits=bits,
        weight_block=block,
    )


class _Reader:
    """Whole numbers of a config, with an error that names the key."""

    def __init__(self, config: Mapping[str, Any], what: str) -> None:
        self._config = config
        self._what = what

    def optional(self, key: str) -> int | None:
        """A number above 0, or ``None`` where it is left out, null or 0."""
        return self.count(key) or None

    def count(self, key: str) -> int:
        """A number from 0; 0 where it is left out or null."""
        value = self._config.get(key)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self._fail(key, f"must be a whole number, got {value!r}")
        return value

    def size(self, key: str) -> int:
        """A number above 0 that must be there."""
        if self._config.get(key) is None:
            self._fail(key, "is missing")
        value = self.count(key)
        if not value:
            self._fail(key, "must be above 0")
        return value

    def _fail(self, key: str, problem: str) -> NoReturn:
        raise R1PerfError(f"{self._what}: {key} {problem}: the memory of such a model cannot be estimated")


_BITS: Mapping[str, int] = {"fp8": 8, "modelopt_fp8": 8, "w8a8_fp8": 8, "modelopt_fp4": 4, "mxfp4": 4, "nvfp4": 4}
"""Bits a weight of the methods whose config does not say them."""


def bits_of(method: str) -> int | None:
    """Bits a weight of a quantization method, ``None`` where its name does not tell."""
    return _BITS.get(method)


def _quantization(config: object) -> tuple[str | None, int | None, tuple[int, int] | None]:
    if not isinstance(config, dict):
        return None, None, None
    method = str(config.get("quant_method", "unknown"))
    bits = config.get("bits", bits_of(method))
    block = config.get("weight_block_size")
    shaped = isinstance(block, list) and len(block) == 2 and all(isinstance(side, int) and side > 0 for side in block)
    return method, bits if isinstance(bits, int) else None, (block[0], block[1]) if block and shaped else None
