"""Runs inside the SGLang environment: keeps one engine up and times several cells in it, some windows of each.

Arguments: the plan (one JSON object, made by ``sglang/engine.py``), then SGLang's own server arguments. Standard
library and SGLang only, 0.4.3 to 0.5.23. What it finds out is appended to the plan's ``results`` file, one JSON
object a line; beside that it prints a line before and after every cell and window, so that the lines which
SGLang's processes print have their place. It judges nothing but whether the engine still works.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import inspect
import json
import logging
import os
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

# The texts of sample_workload.py and telling.py, filled in by sglang/engine.py: one file travels, and there is one
# sampler, and one way to tell.
SAMPLER = ""
TELLING = ""

MARK = "r1perf-engine:"

# How long requests of a failed window may take to come to their end before the engine counts as broken, in s.
FLUSH_S = 120.0

STARTED = time.monotonic()

telling = types.ModuleType("telling")
exec(TELLING, vars(telling))


class EngineBroken(telling.Said):  # type: ignore[misc,name-defined]
    """The engine doesn't answer as it should, whatever the cell."""


def main(argv: "list[str]") -> None:
    """Start the engine, measure cell after cell, and shut it down."""
    plan = json.loads(argv[0])
    results = Path(plan["results"])
    engine = start(argv[1:])
    greet(engine)
    pool, context = capacity(engine)
    telling.tell(results, "ready", startup_s=time.monotonic() - STARTED, max_total_num_tokens=pool, context_len=context)
    for cell in plan["cells"]:
        telling.note(MARK, "cell", cell["id"])
        begun = time.monotonic()
        try:
            measure(engine, cell, min([size for size in (pool, context) if size], default=None), results)
        except telling.CellFailed as failed:
            telling.tell(results, "cell_failed", cell=cell["id"], reason=failed.reason, error=telling.one_line(failed))
            settle(engine, cell["id"], results)
        except EngineBroken as broken:
            give_up(results, cell["id"], broken)
        except Exception as error:
            traceback.print_exc()
            telling.tell(results, "cell_failed", cell=cell["id"], reason="error", error=telling.one_line(error))
            settle(engine, cell["id"], results)
        else:
            telling.tell(results, "cell_done", cell=cell["id"], seconds=time.monotonic() - begun)
        telling.note(MARK, "over", cell["id"])
    telling.tell(results, "end")
    telling.note(MARK, "end")
    engine.shutdown()


# -- the engine ----------------------------------------------------------------------------------------------


def start(argv: "list[str]") -> Any:
    """An engine with these server arguments, made as this release's offline benchmark makes its own."""
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="engine_driver.py")
    ServerArgs.add_cli_args(parser)
    server_args = ServerArgs.from_cli_args(parser.parse_args(argv))
    if hasattr(server_args, "resolve_once"):  # from 0.5.19 on the record is passed; before, it was resolved twice
        server_args.resolve_once()
        given: Any = {"server_args": server_args}
    else:
        given = dataclasses.asdict(server_args)
    logging.basicConfig(level=getattr(logging, str(server_args.log_level).upper()), format="%(message)s")
    return Engine(**given)


def greet(engine: Any) -> None:
    """One short request: up to 0.5.9 nothing reads the engine's other answers before there was one (seen to hang)."""
    params = [{"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}]
    counted(engine.generate(input_ids=[[3, 4, 5, 6]], sampling_params=params, return_logprob=False), 1)


def capacity(engine: Any) -> "tuple[int | None, int | None]":
    """How many tokens the KV pool takes and how long a request may be, as far as this release tells."""
    info = settled(engine, engine.get_server_info())
    pool = info.get("max_total_num_tokens") if isinstance(info, dict) else None
    context = getattr(engine.tokenizer_manager, "context_len", None)
    return tuple(size if isinstance(size, int) else None for size in (pool, context))  # type: ignore[return-value]


def settled(engine: Any, value: Any) -> Any:
    """The value, waited for where a release gives an awaitable."""
    if not inspect.isawaitable(value):
        return value
    import asyncio

    loop = getattr(engine, "loop", None) or asyncio.get_event_loop()
    return loop.run_until_complete(value)


def flush(engine: Any, patience_s: float = FLUSH_S) -> None:
    """Empty the radix cache, and wait until that is true: it is refused while a request is in flight.

    Up to 0.4.4 nothing tells whether it was done. It is asked for twice then, and the scheduler reads that before the
    requests that come after it. Raises EngineBroken.
    """
    call = getattr(engine, "flush_cache", None) or engine.tokenizer_manager.flush_cache
    deadline = time.monotonic() + patience_s
    while True:
        said = settled(engine, call())
        if said is None:
            time.sleep(0.5)
            call()
            time.sleep(0.5)
            return
        if getattr(said, "success", False) is True:
            return
        if time.monotonic() > deadline:
            raise EngineBroken(f"the cache could not be flushed in {patience_s:g} s: requests are still in flight")
        time.sleep(0.1)


def settle(engine: Any, cell: str, results: Path) -> None:
    """After a failed cell: end what it left in flight, or give the engine up."""
    with contextlib.suppress(Exception):
        engine.tokenizer_manager.abort_request(abort_all=True)
    try:
        flush(engine)
    except Exception as error:
        give_up(results, cell, error)


def give_up(results: Path, cell: str, error: BaseException) -> None:
    """Say that the engine is broken, and end: the parent ends what is left of it."""
    traceback.print_exc()
    telling.tell(results, "broken", cell=cell, error=telling.one_line(error))
    os._exit(3)


# -- a cell --------------------------------------------------------------------------------------------------


def measure(engine: Any, cell: "dict[str, Any]", room: "int | None", results: Path) -> None:
    """All windows of one cell."""
    requests = requests_of(cell)
    longest = max(len(ids) + output for ids, output in requests)
    if room is not None and longest > room:
        raise telling.CellFailed(
            "unfit", f"the longest request has {longest} tokens, and this engine has room for {room}"
        )
    telling.tell(
        results,
        "cell",
        cell=cell["id"],
        requests=len(requests),
        input_tokens=sum(len(ids) for ids, _ in requests),
        output_tokens=sum(output for _, output in requests),
        longest_tokens=longest,
        shared_tokens=shared([ids for ids, _ in requests]),
        ids_digest=hashlib.sha256(json.dumps(requests).encode()).hexdigest(),
    )
    for number in range(cell["discard"] + cell["windows"]):
        discarded = number < cell["discard"]
        index = number if discarded else number - cell["discard"]
        window(engine, cell["id"], requests, index, discarded, results)


def requests_of(cell: "dict[str, Any]") -> "list[tuple[list[int], int]]":
    """The exact token ids of every prompt, each with the number of tokens of its answer."""
    if cell["ids"] is not None:
        pairs = json.loads(Path(cell["ids"]).read_text(encoding="utf-8"))
        return [(list(map(int, ids)), int(output)) for ids, output in pairs]
    sampler = types.ModuleType("sample_workload")
    exec(SAMPLER, vars(sampler))
    tokenizer, rows = sampler.sampled(
        cell["model"], cell["dataset"], cell["num_prompts"], cell["seed"], cell["output_len"], cell["context_len"]
    )
    requests = []
    for row in rows:
        given, output = sampler.lengths(row)
        ids = list(map(int, tokenizer.encode(row[0] if isinstance(row, tuple) else row.prompt)))
        if len(ids) != given:
            raise telling.CellFailed("sampling", f"a prompt has {len(ids)} token ids, and the sampler counted {given}")
        requests.append((ids, output))
    if not requests:
        raise telling.CellFailed("sampling", "no prompt was sampled")
    return requests


def shared(prompts: "list[list[int]]") -> int:
    """The most tokens that prompts can find in the cache from prompts beside them: longest common prefixes.

    Of prompts in lexicographic order each shares the most with a neighbour.
    """
    ordered = sorted(prompts)
    same = [0, *(common(ordered[n], ordered[n + 1]) for n in range(len(ordered) - 1)), 0]
    return sum(max(same[n : n + 2]) for n in range(len(ordered)))


def common(left: "list[int]", right: "list[int]") -> int:
    """How long the common prefix is."""
    shorter = min(len(left), len(right))
    return next((n for n in range(shorter) if left[n] != right[n]), shorter)


def window(
    engine: Any, cell: str, requests: "list[tuple[list[int], int]]", index: int, discarded: bool, results: Path
) -> None:
    """All requests at once, as the offline benchmark sends them, timed as it times them."""
    flush(engine)
    prompts = [ids for ids, _ in requests]
    params = [{"temperature": 0, "max_new_tokens": output, "ignore_eos": True} for _, output in requests]
    telling.note(MARK, "window", cell, index, "Warmup..." if discarded else "Benchmark...")
    at, start = time.time(), time.monotonic()
    begin = time.perf_counter()
    answers = engine.generate(input_ids=prompts, sampling_params=params, return_logprob=False)
    latency = time.perf_counter() - begin
    end = time.monotonic()
    telling.note(MARK, "window-over", cell, index)
    telling.tell(
        results,
        "window",
        cell=cell,
        index=index,
        discarded=discarded,
        time=at,
        start=start,
        end=end,
        total_latency=latency,
        **counted(answers, len(requests)),
    )


def counted(answers: Any, requests: int) -> "dict[str, Any]":
    """What the engine says of its answers, added up; telling.CellFailed when it is nothing that can be added up."""
    if not isinstance(answers, list) or len(answers) != requests:
        got = f"{len(answers)} answers" if isinstance(answers, list) else f"a {type(answers).__name__}"
        raise telling.CellFailed("answer", f"the engine gave {got} for {requests} requests")
    total = {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}
    aborted = ""
    for number, answer in enumerate(answers):
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        if not isinstance(meta, dict):
            raise telling.CellFailed("answer", f"answer {number} of the engine has no meta_info: {repr(answer)[:120]}")
        for key in total:
            value = meta.get(key, 0 if key == "cached_tokens" else None)
            if isinstance(value, bool) or not isinstance(value, int):
                raise telling.CellFailed(
                    "answer", f"answer {number} of the engine has {key} {value!r}, which is no count"
                )
            total[key] += value
        reason = meta.get("finish_reason")
        if not aborted and isinstance(reason, dict) and reason.get("type") == "abort":
            aborted = str(reason.get("message") or "no reason given")[:300]
    return {
        "requests": requests,
        "total_input_tokens": total["prompt_tokens"],
        "total_output_tokens": total["completion_tokens"],
        "cached_tokens": total["cached_tokens"],
        "aborted": aborted,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
