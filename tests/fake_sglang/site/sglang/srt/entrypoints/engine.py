"""A fake ``sglang.Engine``: it answers with counts, and does what ``FAKE_SGLANG_CONTROL`` says window by window.

``{"cells": {"n50": {"speed": [4500, 2200], "mode": ["ok", "die"]}}, "engine": {"mode": ["ok", "oom"]}}``

A cell is ``n<number of prompts>``, as for the offline benchmark; its lists are used up a window at a time, the
thrown away ones included, through all engines of a test. Those of ``engine`` are used up an engine at a time. What
the window takes is its tokens over ``speed``, by a clock that is moved and not waited for. Every engine is appended
to ``engines.jsonl`` beside the control file, every window to ``windows.jsonl``.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from sglang.benchmark.offline_throughput import JITTER, RESOLVED, STAMP, die, enter, say, step
from sglang.benchmark.utils import Tokenizer
from sglang.srt.server_args import ServerArgs

CLOCK = [1000.0]
time.perf_counter = lambda: CLOCK[0]


class Answer:
    """What ``flush_cache`` gives."""

    def __init__(self, success: bool) -> None:
        self.success = success


class ModelConfig:
    """What the greedy answers are computed in."""

    dtype = "torch.float32"
    quantization = None


class TokenizerManager:
    """What is asked of it."""

    context_len = 4096
    tokenizer = Tokenizer()
    model_config = ModelConfig()

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        """Nothing is in flight."""


class Engine:
    """Answers one batch after the other."""

    def __init__(self, server_args: ServerArgs) -> None:
        control = Path(os.environ["FAKE_SGLANG_CONTROL"])
        self.folder = control.parent
        self.settings = json.loads(control.read_text(encoding="utf-8"))
        self.given = server_args.given
        self.tokenizer_manager = TokenizerManager()
        self.flushes = 0
        self.greeted = False
        self.refusals = 0
        number = enter(self.folder / "engines.jsonl", {"cell": "engine", "pid": os.getpid()})
        self.mode = str(step(self.settings.get("engine", {}).get("mode", "ok"), number))
        self.other = dict(step(self.settings.get("engine", {}).get("resolved", {}), number))
        self.start()

    def start(self) -> None:
        """The log of a start."""
        start, ready, *_ = (Path(__file__).parents[3] / "recorded.log").read_text(encoding="utf-8").split("%%\n")
        resolved = {**RESOLVED, **{name: value for name, value in self.given.items() if name in RESOLVED}}
        resolved.update({"model_path": self.given["model_path"], **self.other})
        say(start.rstrip(), f"{STAMP} server_args={resolved}")
        if self.mode == "oom":
            say("Traceback (most recent call last):", OUT_OF_MEMORY)
            die(signal.SIGKILL)
        if self.mode == "hang":
            time.sleep(600)
        say(ready.rstrip())

    def generate(
        self, input_ids: list[list[int]], sampling_params: list[dict[str, Any]], return_logprob: bool = False
    ) -> Any:
        """Counts, or what the mode of this window says."""
        assert not return_logprob
        if isinstance(sampling_params, dict):
            return self.greedy(input_ids, sampling_params["max_new_tokens"])
        outputs = [params["max_new_tokens"] for params in sampling_params]
        if not self.greeted:
            self.greeted = True
            return [answer(len(ids), output) for ids, output in zip(input_ids, outputs, strict=True)]
        cell = f"n{len(input_ids)}"
        if self.given.get("max_running_requests") is not None:
            cell += f"+max_running_requests={self.given['max_running_requests']}"
        number = enter(
            self.folder / "windows.jsonl",
            {"cell": cell, "pid": os.getpid(), "flushes": self.flushes, "ids": input_ids, "params": sampling_params},
        )
        own = {**self.settings.get("default", {}), **self.settings.get("cells", {}).get(cell, {})}
        mode = str(step(own.get("mode", "ok"), number))
        answers = [answer(len(ids), output) for ids, output in zip(input_ids, outputs, strict=True)]
        odd = self.misbehave(mode, answers)
        if odd is not None:
            return odd[0]
        speed = float(step(own.get("speed", 4500.0), number)) * (1 + JITTER[number % len(JITTER)])
        CLOCK[0] += (sum(map(len, input_ids)) + sum(outputs)) / speed
        return answers

    def greedy(self, input_ids: list[list[int]], count: int) -> list[dict[str, Any]]:
        """Answers that the prompt decides; ``{"greedy": {"from": 5}}`` has other ones from token 5 on."""
        mode = self.settings.get("greedy", {}).get("mode", "ok")
        if mode == "die":
            die(signal.SIGKILL)
        other = int(self.settings.get("greedy", {}).get("from", count))
        return [
            {**answer(len(ids), count), "output_ids": [sum(ids) % 97 + k + 1000 * (k >= other) for k in range(count)]}
            for ids in input_ids
        ]

    def misbehave(self, mode: str, answers: list[dict[str, Any]]) -> tuple[Any] | None:
        """What comes instead of the answers; some modes change them."""
        first = answers[0]["meta_info"]
        if mode == "hang":
            time.sleep(600)
        if mode == "die":
            die(signal.SIGKILL)
        if mode == "oom":
            say(f"{STAMP} Scheduler hit an exception: Traceback (most recent call last):", OUT_OF_MEMORY, "")
            say(f"{STAMP} Received sigquit from a child process. It usually means the child failed.")
            die(signal.SIGKILL)
        if mode == "exit":
            os._exit(0)
        if mode in ("error", "wedge"):
            self.refusals = 1 << 30 if mode == "wedge" else 3
            raise ValueError("the fake engine does not like this request")
        if mode == "text":
            return (["some", "words"],)
        if mode == "nothing":
            return (None,)
        if mode == "no-counts":
            first["completion_tokens"] = "many"
        if mode == "fewer":
            answers.pop()
        if mode == "few-tokens":
            first["completion_tokens"] -= 1
        if mode == "abort":
            first.update(completion_tokens=0, finish_reason={"type": "abort", "message": "no room for it"})
        if mode == "cached":
            for one in answers:
                one["meta_info"]["cached_tokens"] = one["meta_info"]["prompt_tokens"]
        if mode == "jit":
            say(f"{STAMP} Entering DeepGEMM JIT Single Kernel Compile session.")
        if mode == "compile":
            (self.folder / "kernels").mkdir(exist_ok=True)
            (self.folder / "kernels" / f"kernel-{time.time_ns()}.so").write_text("compiled")
            time.sleep(0.1)  # a stamp may be a clock tick early: the next window is not to be that near
        if mode == "retract":
            say(f"{STAMP} KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.5")
        if mode == "standing":  # the clock does not move
            return (answers,)
        return None

    def flush_cache(self) -> Answer:
        """Refused for a while after a request that failed."""
        if self.refusals >= 1 << 30:
            raise RuntimeError("the fake scheduler does not answer")
        if self.refusals:
            self.refusals -= 1
            return Answer(False)
        self.flushes += 1
        return Answer(True)

    def get_server_info(self) -> dict[str, Any]:
        """Only what is asked for."""
        return {"max_total_num_tokens": int(str(self.given.get("max_total_tokens", 16384)))}

    def shutdown(self) -> None:
        """As SGLang says it."""
        say(f"{STAMP} kill_process_tree called: parent_pid=1, include_parent=False, pid=1", "")
        if self.mode == "late-end":
            time.sleep(600)
        if self.mode == "teardown-kill":
            die(signal.SIGKILL)


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 0.5 GiB free."


def answer(given: int, output: int) -> dict[str, Any]:
    """As SGLang's, without the text."""
    counts = {"prompt_tokens": given, "completion_tokens": output, "cached_tokens": 0}
    return {"text": "", "meta_info": {**counts, "finish_reason": {"type": "length", "length": output}}}
