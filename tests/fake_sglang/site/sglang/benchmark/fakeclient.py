"""What the two fake clients share: their release's options, the control file, and the server that they talk to.

``{"cells": {"n50": {"speed": [4500, 2200], "mode": ["ok", "die"]}, "b4-128-16": {...}}}``: traffic is ``n<requests>``,
a batch ``b<size>-<input>-<output>``; lists are used up a client at a time. Every client is appended to
``clients.jsonl`` beside the control file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang.benchmark.offline_throughput import JITTER, STAMP, enter, step
from sglang.srt.server_args import declare

MISSES = {"missing": 0, "duplicate": 2}
"""How many rows a client of this mode writes; 1 otherwise."""


def parser_of(name: str) -> argparse.ArgumentParser:
    """Every option as the release has it."""
    parser = argparse.ArgumentParser(prog=name)
    path = Path(__file__).parents[2] / f"{name}-options.json"
    for option in json.loads(path.read_text(encoding="utf-8")) if path.exists() else []:
        declare(parser, option)
    return parser


def post(url: str, body: Any = None) -> Any:
    """The server's answer, as JSON where it is that."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text.startswith((b"{", b"[")) else None


@dataclass
class Run:
    """One client's run: what it is told to do, and the server's account of itself."""

    url: str
    mode: str
    speed: float
    server: dict[str, Any]

    def misbehave(self) -> None:
        """What happens before there is a row."""
        if self.mode == "die":
            with_error(lambda: post(self.url + "/fake/die", {}))
            time.sleep(0.3)
            raise RuntimeError("Request has failed. ConnectionRefusedError: [Errno 111] Connection refused")
        if self.mode == "hang":
            time.sleep(600)
        if self.mode in ("error", "deaf"):
            if self.mode == "deaf":
                post(self.url + "/fake/deaf", {})
            raise RuntimeError("Request has failed. {'object': 'error', 'message': 'the prompt is too long'}")
        if self.mode == "retract":
            line = "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.5"
            post(self.url + "/fake/say", {"lines": [f"{STAMP} {line}"]})
        if self.mode == "jit":
            line = "Entering DeepGEMM JIT Single Kernel Compile session."
            post(self.url + "/fake/say", {"lines": [f"{STAMP} {line}"]})
        if self.mode == "compile":
            kernels = Path(os.environ["FAKE_SGLANG_CONTROL"]).parent / "kernels"
            kernels.mkdir(exist_ok=True)
            (kernels / f"kernel-{time.time_ns()}.so").write_text("compiled")

    def write(self, path: str, row: dict[str, Any]) -> None:
        """The row as often as the mode says, appended as SGLang does it."""
        line = json.dumps(row) + "\n"
        if self.mode == "truncated":
            line = line[: len(line) // 2]
        if self.mode == "garbage":
            line = "Segmentation fault\n"
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line * MISSES.get(self.mode, 1))
        if self.mode == "stale":
            os.utime(path, (1.0e9, 1.0e9))


def begun(cell: str, url: str, seed: Any) -> Run:
    """Note the run, and look up what it is to do."""
    control = Path(os.environ["FAKE_SGLANG_CONTROL"])
    settings = json.loads(control.read_text(encoding="utf-8"))
    own = {**settings.get("default", {}), **settings.get("cells", {}).get(cell, {})}
    server = post(url + "/fake/state")
    call = {"cell": cell, "pid": os.getpid(), "argv": sys.argv[1:], "flushes": server["flushes"], "seed": seed}
    number = enter(control.parent / "clients.jsonl", {**call, "proxy": os.environ.get("NO_PROXY")})
    speed = float(step(own.get("speed", 4500.0), number)) * (1 + JITTER[number % len(JITTER)])
    return Run(url, str(step(own.get("mode", "ok"), number)), speed, server)


def with_error(call: Any) -> None:
    """A server that dies answers nothing."""
    try:
        call()
    except OSError:
        return
