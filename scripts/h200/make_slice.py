"""A slice of DeepSeek-R1 for one H200: its own layer shapes in FP8, four layers, no weights (`--load-format dummy`).

python make_slice.py FOLDER      writes FOLDER/r1-slice and FOLDER/sharegpt-like.json

36 GB on the GPU. Shapes are those of DeepSeek-R1's config.json; there are 4 layers instead of 61, 1 of them
dense instead of 3. The tokenizer is the CPU rig's, of 1,024 tokens.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pytest_r1perf.rig.dataset import make_dataset
from pytest_r1perf.rig.model import ModelSize, make_model

SIZE = ModelSize(
    hidden_size=7168,
    intermediate_size=18432,
    num_hidden_layers=4,
    first_k_dense_replace=1,
    num_attention_heads=128,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=256,
    num_experts_per_tok=8,
    n_group=8,
    topk_group=4,
    moe_intermediate_size=2048,
    max_position_embeddings=16384,
)
OVER = {
    "vocab_size": 129280,
    "rope_scaling": None,
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
}


def main(folder: Path) -> None:
    """Write both; what is there already is left alone."""
    model, dataset = folder / "r1-slice", folder / "sharegpt-like.json"
    if not (model / "config.json").exists():
        make_model(model, size=SIZE)
        config = model / "config.json"
        told = {**json.loads(config.read_text(encoding="utf-8")), **OVER}
        config.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    if not dataset.exists():
        print(make_dataset(dataset, num_conversations=4000, mean_input_tokens=90, mean_output_tokens=100, sigma=0.9))
    print(f"{model} and {dataset}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
