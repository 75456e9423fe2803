"""Run with the rig's Python: write random float32 weights for the config.json in argv[1], of the seed in argv[2].

Names and shapes are those of transformers' ``DeepseekV3ForCausalLM``, which are the checkpoint's that SGLang reads.
Norms stay near 1, matrices are normal with the config's ``initializer_range`` times 4: with 0.02 the logits of a
model this small are nearly equal, and a greedy answer would say little.
"""

import json
import sys
from pathlib import Path

# Sibling scripts must not shadow packages.
sys.path.pop(0)

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

directory, seed = Path(sys.argv[1]), int(sys.argv[2])
config = AutoConfig.from_pretrained(directory)
generator = torch.Generator().manual_seed(seed)
std = 4 * config.initializer_range


def matrix(rows: int, columns: int) -> torch.Tensor:
    """A normal matrix."""
    return torch.randn(rows, columns, generator=generator) * std


def norm(size: int) -> torch.Tensor:
    """The weight of an RMS norm."""
    return 1 + torch.randn(size, generator=generator) * 0.05


def mlp(prefix: str, inner: int) -> dict[str, torch.Tensor]:
    """A gated MLP."""
    return {
        f"{prefix}.gate_proj.weight": matrix(inner, hidden),
        f"{prefix}.up_proj.weight": matrix(inner, hidden),
        f"{prefix}.down_proj.weight": matrix(hidden, inner),
    }


hidden, heads = config.hidden_size, config.num_attention_heads
nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim

weights = {
    "model.embed_tokens.weight": matrix(config.vocab_size, hidden),
    "model.norm.weight": norm(hidden),
    "lm_head.weight": matrix(config.vocab_size, hidden),
}
for layer in range(config.num_hidden_layers):
    at = f"model.layers.{layer}"
    weights |= {
        f"{at}.input_layernorm.weight": norm(hidden),
        f"{at}.post_attention_layernorm.weight": norm(hidden),
        f"{at}.self_attn.q_a_proj.weight": matrix(config.q_lora_rank, hidden),
        f"{at}.self_attn.q_a_layernorm.weight": norm(config.q_lora_rank),
        f"{at}.self_attn.q_b_proj.weight": matrix(heads * (nope + rope), config.q_lora_rank),
        f"{at}.self_attn.kv_a_proj_with_mqa.weight": matrix(config.kv_lora_rank + rope, hidden),
        f"{at}.self_attn.kv_a_layernorm.weight": norm(config.kv_lora_rank),
        f"{at}.self_attn.kv_b_proj.weight": matrix(heads * (nope + value), config.kv_lora_rank),
        f"{at}.self_attn.o_proj.weight": matrix(hidden, heads * value),
    }
    if layer < config.first_k_dense_replace:
        weights |= mlp(f"{at}.mlp", config.intermediate_size)
        continue
    weights[f"{at}.mlp.gate.weight"] = matrix(config.n_routed_experts, hidden)
    weights[f"{at}.mlp.gate.e_score_correction_bias"] = matrix(1, config.n_routed_experts)[0]
    for expert in range(config.n_routed_experts):
        weights |= mlp(f"{at}.mlp.experts.{expert}", config.moe_intermediate_size)
    weights |= mlp(f"{at}.mlp.shared_experts", config.moe_intermediate_size * config.n_shared_experts)

save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(sorted(weights), "model.safetensors")}
(directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
