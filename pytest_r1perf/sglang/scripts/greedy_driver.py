"""Runs inside the SGLang environment: answers a set of prompts greedily, twice in one engine.

Arguments: the request (one JSON object, made by ``sglang/greedy.py``), then SGLang's own server arguments. One JSON
line is appended to the request's ``result`` file before the engine is shut down. Standard library and SGLang only,
0.4.3 to 0.5.23. It judges nothing.

The second time the prompts come in reversed order: what depends on the batch that a prompt is in shows as a
difference of the environment with itself.
"""

import argparse
import contextlib
import dataclasses
import inspect
import json
import logging
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

# The line after which the process has nothing left to do but to end.
WRITTEN = "r1perf-greedy: written"

# How long the cache's flush may be refused for a request that is still in flight, in s.
FLUSH_S = 60.0

PACKAGES = ("sglang", "torch", "transformers")


def main(argv: "list[str]") -> None:
    """Start the engine, ask twice, write, shut it down."""
    request = json.loads(argv[0])
    server_args = server_args_of([*argv[1:], *files_first(argv[1:])])
    engine = start(server_args)
    tokenizer = engine.tokenizer_manager.tokenizer
    prompts = request["prompts"]
    ids = None if tokenizer is None else [[int(one) for one in tokenizer.encode(text)] for text in prompts]
    passes: list[list[list[int]]] = []
    for step in (1, -1):
        # Never before the first request: up to 0.5.9 at least nobody reads the answer then, and it waits for ever.
        if passes:
            flush(engine)
        asked: Any = {"prompt": prompts[::step]} if ids is None else {"input_ids": ids[::step]}
        passes.append(answers(engine, asked, request["max_new_tokens"])[::step])
    model = engine.tokenizer_manager.model_config
    line = {
        "prompts": request["digest"],
        "passes": passes,
        "input_ids": ids,
        "tokens": words(tokenizer, passes),
        "dtype": str(getattr(model, "dtype", "unknown")).replace("torch.", ""),
        "quantization": getattr(model, "quantization", None),
        "load_format": str(getattr(server_args.load_format, "value", server_args.load_format)),
        "versions": {name: version(name) for name in PACKAGES},
    }
    with Path(request["result"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(WRITTEN, flush=True)
    engine.shutdown()


def files_first(argv: "list[str]") -> "list[str]":
    """Arguments that put the model's own weights in the place of dummy ones, where its folder has any.

    Dummy weights serve the benchmark, whose speed they don't change. Answers want real ones: with dummy weights a
    token depends on the one before it and on little else.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--load-format")
    parser.add_argument("--model-path")
    known, _ = parser.parse_known_args(argv)
    folder = Path(known.model_path)
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")] if folder.is_dir() else []
    return ["--load-format", "auto"] if known.load_format == "dummy" and files else []


def server_args_of(argv: "list[str]") -> Any:
    """The arguments as this SGLang's own parser and resolution read them."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="greedy_driver.py")
    ServerArgs.add_cli_args(parser)
    return ServerArgs.from_cli_args(parser.parse_args(argv))


def start(server_args: Any) -> Any:
    """An engine with these arguments, made as this release's offline benchmark makes its own."""
    from sglang.srt.entrypoints.engine import Engine

    if hasattr(server_args, "resolve_once"):  # from 0.5.19 on the record is passed; before, it was resolved twice
        server_args.resolve_once()
        given: Any = {"server_args": server_args}
    else:
        given = dataclasses.asdict(server_args)
    logging.basicConfig(level=getattr(logging, str(server_args.log_level).upper()), format="%(message)s")
    return Engine(**given)


def flush(engine: Any) -> None:
    """Empty the radix cache; it is refused while a request is in flight, and 0.4.3 tells nothing."""
    import asyncio

    until = time.monotonic() + FLUSH_S
    while True:
        told = engine.flush_cache()
        if inspect.isawaitable(told):
            told = (getattr(engine, "loop", None) or asyncio.get_event_loop()).run_until_complete(told)
        if getattr(told, "success", True):
            return
        if time.monotonic() > until:
            raise SystemExit(f"the cache could not be flushed within {FLUSH_S:g} s")
        time.sleep(0.2)


def answers(engine: Any, asked: "dict[str, Any]", max_new_tokens: int) -> "list[list[int]]":
    """The new tokens, prompt by prompt."""
    asked["sampling_params"] = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True}
    found = engine.generate(**asked)
    if "output_ids" not in found[0]:  # an old release gives the tokens only beside their probabilities
        flush(engine)
        found = engine.generate(**asked, return_logprob=True)
    return [ids_of(answer) for answer in found]


def ids_of(answer: "dict[str, Any]") -> "list[int]":
    """The new tokens of one answer."""
    if "output_ids" in answer:
        return [int(one) for one in answer["output_ids"]]
    return [int(entry[1]) for entry in answer["meta_info"]["output_token_logprobs"]]


def words(tokenizer: Any, passes: "list[list[list[int]]]") -> "dict[str, str]":
    """The text of every token that was answered, by its number."""
    if tokenizer is None:
        return {}
    return {str(one): tokenizer.decode([one]) for one in {one for each in passes for ids in each for one in ids}}


def version(name: str) -> "str | None":
    """That of an installed package."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


# SGLang's processes are spawned, and read this file again when it was started as one.
if __name__ == "__main__":
    main(sys.argv[1:])
