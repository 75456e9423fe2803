"""The tiny model of R1's architecture: ``DeepseekV3ForCausalLM`` with MLA, routed and shared experts, yarn.

Written in plain Python: no weights are needed for ``--load-format dummy``, and with ``weights`` a script that runs in
the rig writes random ones, for comparing greedy tokens.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_r1perf.errors import EnvironmentBroken
from pytest_r1perf.rig.tokenizer import BOS, EOS, PAD, SPECIAL, VOCAB_SIZE, train

WEIGHTS_SEED = 2025
_SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The sizes of the tiny model; names are those of DeepSeek-V3's ``config.json``.

    The ratios of the MLA dimensions and the layout (first layer dense, experts in groups, one shared expert) are
    R1's (hidden 7168, 61 layers, 128 heads, kv_lora_rank 512, 256 experts, 8 groups). The sizes are chosen so that
    50 prompts of the default data set take 2 to 3 s on 2 cores.
    """

    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 3
    first_k_dense_replace: int = 1
    num_attention_heads: int = 8
    q_lora_rank: int = 96
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 32
    n_routed_experts: int = 8
    n_shared_experts: int = 1
    num_experts_per_tok: int = 2
    n_group: int = 4
    topk_group: int = 2
    moe_intermediate_size: int = 64
    max_position_embeddings: int = 4096


DEFAULT_SIZE = ModelSize()


def make_model(
    directory: Path,
    *,
    size: ModelSize = DEFAULT_SIZE,
    dtype: str = "bfloat16",
    weights: bool = False,
    python: Path | None = None,
) -> Path:
    """Write config.json and the tokenizer to ``directory``, byte for byte the same every time, and return it.

    With ``weights``, float32 random weights of a fixed seed too, written by ``python``, an interpreter of the rig.

    Raises:
        EnvironmentBroken: the script that writes the weights failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, Mapping[str, object]] = {
        "config.json": _config(size, dtype),
        "generation_config.json": {"bos_token_id": _id(BOS), "eos_token_id": _id(EOS), "do_sample": False},
        "tokenizer.json": train().as_json(),
        "tokenizer_config.json": _tokenizer_config(size),
        "special_tokens_map.json": {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD},
    }
    for name, content in files.items():
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (directory / name).write_text(text, encoding="utf-8")
    if weights:
        _write_weights(directory, python)
    return directory


def _id(token: str) -> int:
    return SPECIAL.index(token)


def _config(size: ModelSize, dtype: str) -> dict[str, object]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        **asdict(size),
        "vocab_size": VOCAB_SIZE,
        "num_key_value_heads": size.num_attention_heads,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "ep_size": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "initializer_range": 0.02,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_theta": 10000,
        # SGLang's CPU path needs yarn. R1 has factor 40 over 4096; here the window is the whole context of 4096.
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": size.max_position_embeddings // 4,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "tie_word_embeddings": False,
        "use_cache": True,
        "torch_dtype": dtype,
        "bos_token_id": _id(BOS),
        "eos_token_id": _id(EOS),
        "pad_token_id": _id(PAD),
    }


def _tokenizer_config(size: ModelSize) -> dict[str, object]:
    return {
        # transformers 4.57 (SGLang 0.5.9) and 5.12 (0.5.20) both load this class.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": size.max_position_embeddings,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message['content'] }} {% endfor %}",
    }


def _write_weights(directory: Path, python: Path | None) -> None:
    if python is None:
        raise EnvironmentBroken("weights are written inside the rig: give its interpreter (`r1perf rig install`)")
    command = [str(python), str(_SCRIPTS / "make_weights.py"), str(directory), str(WEIGHTS_SEED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentBroken(f"{python} could not write the weights of {directory}: {last}")
