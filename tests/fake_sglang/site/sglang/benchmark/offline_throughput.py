"""A fake ``python -m sglang.benchmark.offline_throughput``: a real process that prints what a real run printed.

Its log is a recorded run of SGLang 0.5.20 on a CPU (``../../../recorded.log``, shortened) with this run's
numbers in it, and its JSON line has the same keys. Nothing is computed and nothing is waited for: speed and
misbehaviour come from the JSON file named by ``FAKE_SGLANG_CONTROL``:

``{"cells": {"n50": {"speed": [4500, 2200], "mode": ["ok", "oom"]}}, "default": {...}}``

A cell is ``n<num_prompts>``, with ``+<flag>=<value>`` for a ``--max-running-requests``, and ``@rank1`` for what the
second node of two does. A list is used up call by
call; its last entry repeats. ``"compile": {"warm-up": ["TRITON_CACHE_DIR"]}`` writes a kernel into that cache in that
stage, and notes in ``caches.jsonl`` what lay there; ``"nccl"`` is what NCCL chooses and tells when asked
(``nccl_lines``). Every call is appended to ``calls.jsonl`` beside the control file.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from sglang.benchmark.datasets.sharegpt import sample_sharegpt_requests
from sglang.benchmark.utils import get_tokenizer
from sglang.srt.server_args import ServerArgs

STAMP = "[2026-11-30 10:00:50]"
DEFAULT_CACHES = {"TRITON_CACHE_DIR": "~/.triton/cache", "SGLANG_DG_CACHE_DIR": "~/.cache/deep_gemm"}
JITTER = (0.0, 0.002, -0.002, 0.001, -0.001)

RESOLVED: dict[str, object] = {
    "load_format": "dummy",
    "dtype": "auto",
    "quantization": None,
    "kv_cache_dtype": "auto",
    "mem_fraction_static": 0.716,
    "max_running_requests": None,
    "max_total_tokens": 16384,
    "chunked_prefill_size": 4096,
    "schedule_policy": "fcfs",
    "page_size": 1,
    "device": "cpu",
    "tp_size": 1,
    "attention_backend": "torch_native",
    "disable_cuda_graph": True,
    "disable_radix_cache": False,
    "enable_dp_attention": False,
}


def parse() -> argparse.Namespace:
    """The release's own server options, the benchmark's, and argparse's own way of refusing others."""
    parser = argparse.ArgumentParser(prog="offline_throughput.py")
    ServerArgs.add_cli_args(parser)
    for flag in ("--dataset-name", "--dataset-path", "--result-filename"):
        parser.add_argument(flag)
    for flag in ("--num-prompts", "--seed"):
        parser.add_argument(flag, type=int)
    args = parser.parse_args()
    args.given = {name: value for name, value in vars(args).items() if value != parser.get_default(name)}
    return args


def step(value: Any, call: int) -> Any:
    """The value of call number ``call`` (from 0)."""
    return value[min(call, len(value) - 1)] if isinstance(value, list) else value


def say(*lines: str) -> None:
    """Print log lines at once, as SGLang does."""
    for line in lines:
        print(line, flush=True)


def die(number: signal.Signals) -> NoReturn:
    """End by a signal, without Python's own way out."""
    os.kill(os.getpid(), number)
    time.sleep(600)
    raise SystemExit(1)


def daemon(folder: Path) -> None:
    """Leave a process behind that has its own session."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    (folder / "daemon.pid").write_text(str(os.getpid()))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    time.sleep(600)
    os._exit(0)


def reach(stage: str, mode: str, folder: Path) -> None:
    """Note that a stage was reached, and stay in it where the mode says so."""
    (folder / "stage").write_text(stage)
    if mode == f"hang-{stage}":
        time.sleep(600)
    while mode == f"wait-{stage}" and not (folder / "go").exists():
        time.sleep(0.02)


def enter(path: Path, call: dict[str, object]) -> int:
    """Append a call; return how many of its cell came before. The ranks of a run do so at the same moment."""
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = sum(json.loads(line)["cell"] == call["cell"] for line in file)
        file.write(json.dumps(call) + "\n")
    return number


def main() -> None:
    """One run."""
    start = time.time()
    control = Path(os.environ["FAKE_SGLANG_CONTROL"])
    folder = control.parent
    args = parse()
    cell = f"n{args.num_prompts}"
    if args.max_running_requests is not None:
        cell += f"+max_running_requests={args.max_running_requests}"
    if args.node_rank:
        cell += f"@rank{args.node_rank}"
    settings = json.loads(control.read_text(encoding="utf-8"))
    own = {**settings.get("default", {}), **settings.get("cells", {}).get(cell, {})}
    call = {"cell": cell, "pid": os.getpid(), "argv": sys.argv[1:], "env": sorted(os.environ)}
    call["wild"] = os.environ.get("WILD")
    number = enter(folder / "calls.jsonl", call)
    mode = str(step(own.get("mode", "ok"), number))
    speed = float(step(own.get("speed", 4500.0), number)) * (1 + JITTER[number % len(JITTER)] * own.get("jitter", 1))
    args.given = {**args.given, **dict(step(own.get("resolved", {}), number))}
    own["compile"] = step(own.get("compile", {}), number)
    run(args, mode, speed, folder, own)
    with (folder / "spans.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"cell": cell, "start": start, "end": time.time()}) + "\n")


def follow(mode: str, resolved: dict[str, object]) -> NoReturn:
    """A rank that is not 0: it works until it is ended."""
    say(f"{STAMP} server_args={resolved}")
    if mode == "port":
        say(
            "Traceback (most recent call last):",
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 5000, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        )
        raise SystemExit(1)
    if mode == "oom":
        say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 0.5 GiB free.")
        raise SystemExit(1)
    time.sleep(600)
    raise SystemExit(1)


def compile_kernels(stage: str, own: dict[str, Any], folder: Path) -> None:
    """Write a new kernel into each of the caches, and note where that is and what was there before."""
    for variable in own["compile"].get(stage, ()):
        cache = Path(os.environ.get(variable) or DEFAULT_CACHES[variable]).expanduser()
        there = sorted(path.name for path in cache.rglob("*") if path.is_file())
        with (folder / "caches.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"variable": variable, "path": str(cache), "there": there}) + "\n")
        kernel = cache / "kernels" / f"{os.getpid()}.cubin"
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.write_bytes(b"kernel")


def nccl_lines(own: dict[str, Any]) -> list[str]:
    """NCCL's lines as 2.28 prints them: nothing unless asked, and each kind for its own subsystem."""
    chosen = own.get("nccl")
    if chosen is None or os.environ.get("NCCL_DEBUG") != "INFO":
        return []
    given = [name for name in os.environ if name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG")]
    lines = {
        "ENV": [f"{name} set by environment to {os.environ[name]}." for name in given],
        "NET": ["NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>", "Using network IB"],
        "INIT": ["Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"],
        "TUNING": [f"AllReduce: 524288 Bytes -> Algo {chosen[0]} proto {chosen[1]} channel{{Lo..Hi}}={{0..15}}"],
    }
    asked = os.environ.get("NCCL_DEBUG_SUBSYS", "INIT,ENV").split(",")
    return [f"cn01:7:9 [0] NCCL INFO {line}" for kind in lines if kind in asked for line in lines[kind]]


def run(args: argparse.Namespace, mode: str, speed: float, folder: Path, own: dict[str, Any]) -> None:
    """Print a run's log, and leave its result, in SGLang's order."""
    text = (Path(__file__).parents[2] / "recorded.log").read_text(encoding="utf-8")
    start, ready, warm_up, benchmark, _ = text.split("%%\n")
    resolved = {**RESOLVED, "model_path": args.model_path}
    resolved.update((name, value) for name, value in args.given.items() if name in RESOLVED)
    if args.node_rank:
        follow(mode, resolved)
    reach("start", mode, folder)
    if mode == "argparse":
        sys.stderr.write("usage: offline_throughput.py [-h] --model-path MODEL_PATH\n")
        sys.stderr.write("offline_throughput.py: error: unrecognized arguments: --no-such-flag 1\n")
        raise SystemExit(2)
    say(start.rstrip(), f"{STAMP} server_args={resolved}")
    if mode == "oom":
        say(
            f"{STAMP} Load weight begin. avail mem=21.89 GB",
            "Traceback (most recent call last):",
            '  File "/opt/sglang/srt/model_executor/model_runner.py", line 900, in initialize',
            "    self.load_model()",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 0.5 GiB free.",
        )
        raise SystemExit(1)
    if mode == "sigquit":
        say(
            f"{STAMP} Scheduler hit an exception: Traceback (most recent call last):",
            '  File "/opt/sglang/srt/managers/scheduler.py", line 2400, in run_scheduler_process',
            "    scheduler = Scheduler(server_args)",
            "RuntimeError: the fake kernel is not there",
            "",
            f"{STAMP} Received sigquit from a child process. It usually means the child failed.",
        )
        die(signal.SIGKILL)
    if mode == "silent-kill":
        die(signal.SIGKILL)
    rows = sample_sharegpt_requests(args.dataset_path, args.num_prompts, get_tokenizer(args.model_path))
    n, inputs, outputs = len(rows), sum(row.prompt_len for row in rows), sum(row.output_len for row in rows)
    say(ready.rstrip(), f"#Input tokens: {inputs}", f"#Output tokens: {outputs}")
    say("#Input tokens: 4096", "#Output tokens: 256", warm_up.rstrip())
    reach("warm-up", mode, folder)
    compile_kernels("warm-up", own, folder)
    say(*nccl_lines(own))
    say(benchmark.rstrip())
    if mode == "jit":
        say(f"{STAMP} Entering DeepGEMM JIT Single Kernel Compile session.")
    reach("benchmark", mode, folder)
    if mode == "retract":
        say(f"{STAMP} KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.5")
    if mode == "slow":
        time.sleep(0.5)
    compile_kernels("benchmark", own, folder)
    say(f"{STAMP} kill_process_tree called: parent_pid=1, include_parent=False, pid=1", "")
    finish(args, mode, speed, folder, (n, inputs, outputs))


def finish(args: argparse.Namespace, mode: str, speed: float, folder: Path, counts: tuple[int, int, int]) -> None:
    """The JSON line, the table, and the way out."""
    n, inputs, outputs = counts
    if mode == "fewer":
        n -= 1
    if mode == "tokens":
        outputs -= 5
    latency = (inputs + outputs) / speed
    result: dict[str, Any] = {
        "backend": "engine",
        "successful_requests": n,
        "total_latency": latency,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": n / latency,
        "input_throughput": inputs / latency,
        "output_throughput": outputs / latency,
        "total_throughput": (inputs + outputs) / latency,
        "last_gen_throughput": 1465.4560259398995,
    }
    wrong = {"nan": float("nan"), "minus-one": -1.0, "zero": 0.0, "wrong-total": 2 * speed}
    if mode in wrong:
        result["total_throughput"] = wrong[mode]
    line = json.dumps(result) + "\n"
    if mode == "truncated":
        line = line[: len(line) // 2]
    if mode != "no-line":
        with Path(args.result_filename).open("a", encoding="utf-8") as file:
            file.write(line * (2 if mode == "two-lines" else 1))
    if mode == "daemon":
        daemon(folder)
    if mode != "no-table":
        print_table(result, garbled=mode == "garbled")
    reach("result", mode, folder)
    if mode == "teardown-kill":
        die(signal.SIGKILL)


def print_table(result: dict[str, Any], *, garbled: bool) -> None:
    """SGLang's own labels and widths."""
    rows = (
        ("Backend:", result["backend"]),
        ("Successful requests:", result["successful_requests"]),
        ("Benchmark duration (s):", result["total_latency"]),
        ("Total input tokens:", result["total_input_tokens"]),
        ("Total generated tokens:", result["total_output_tokens"]),
        ("Last generation throughput (tok/s):", result["last_gen_throughput"]),
        ("Request throughput (req/s):", result["request_throughput"]),
        ("Input token throughput (tok/s):", result["input_throughput"]),
        ("Output token throughput (tok/s):", result["output_throughput"]),
        ("Total token throughput (tok/s):", "4[2026-11-30" if garbled else result["total_throughput"]),
    )
    say("", " Offline Throughput Benchmark Result ".center(50, "="))
    for label, value in rows:
        shown = f"{value:.2f}" if isinstance(value, float) else str(value)
        say(f"{label:<40} {shown:<10}")
    say("=" * 50)


if __name__ == "__main__":
    main()
