"""Run with the rig's Python: print SGLang's greedy tokens for the prompts in argv[2], of the model in argv[1], as JSON.

argv[3] is the number of new tokens.
"""

import json
import sys


def main() -> None:
    """Generate and print; behind ``__main__`` because SGLang spawns its processes."""
    sys.path.pop(0)
    import sglang

    engine = sglang.Engine(
        model_path=sys.argv[1],
        device="cpu",
        dtype="float32",
        max_total_tokens=2048,
        random_seed=1,
        log_level="error",
    )
    num_tokens = int(sys.argv[3])
    answers = engine.generate(
        input_ids=json.loads(sys.argv[2]),
        sampling_params={"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True},
    )
    print("TOKENS", json.dumps([answer["output_ids"][-num_tokens:] for answer in answers]), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
