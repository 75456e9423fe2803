"""Run with the rig's Python: transformers' greedy tokens, with the arguments and the output of greedy_sglang.py."""

import json
import sys

sys.path.pop(0)

import torch
from transformers import DeepseekV3ForCausalLM

directory, prompts, num_tokens = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
model = DeepseekV3ForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
answers = []
for prompt in prompts:
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(num_tokens):
            # Without a cache: the plainest computation there is.
            tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    answers.append(tokens[len(prompt) :])
print("TOKENS", json.dumps(answers), flush=True)
