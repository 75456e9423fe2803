"""A fake ``python -m sglang.launch_server``: a real process that answers HTTP as far as drivers and clients ask.

Its log is that of a recorded server (SGLang 0.5.20 on a CPU, shortened). What it does comes from the JSON file named by
``FAKE_SGLANG_CONTROL``: ``{"server": {"mode": ["ok", "oom"], "info": {...}}}``, a list used up a server at a time
(other ranks not counted). Every server is appended to ``servers.jsonl`` beside the control file. A client may end it
(``/fake/die``) or make it deaf (``/fake/deaf``).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sglang.benchmark.offline_throughput import RESOLVED, STAMP, die, enter, say, step
from sglang.srt.server_args import ServerArgs

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 0.5 GiB free."
IMPOSTOR = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"served_model_name": "somebody-elses"} if sys.argv[2] == "sglang" else []).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("up", flush=True)
server.serve_forever()
"""


class Server(ThreadingHTTPServer):
    """What it says of itself, and what was done to it."""

    daemon_threads = True
    # http.server looks its own address up, which may take seconds where there is no name service.
    mode = "ok"
    deaf = False
    flushes = 0
    info: dict[str, Any]

    def server_bind(self) -> None:
        """As the base of HTTPServer does it."""
        self.socket.setsockopt(1, 2, 1)  # SOL_SOCKET, SO_REUSEADDR
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]


class Handler(BaseHTTPRequestHandler):
    """The addresses that are asked for."""

    server: Server

    def do_GET(self) -> None:
        """What needs no body."""
        names = ["/get_server_info"] if self.server.mode == "old" else ["/server_info", "/get_server_info"]
        if self.path in names:
            name = {"served_model_name": "another"} if self.server.mode == "renamed" and self.server.flushes else {}
            self.answer(200, {**self.server.info, **name})
        elif self.path == "/fake/state":
            self.answer(200, {"flushes": self.server.flushes, **self.server.info})
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        """Requests, and what clients make happen."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/generate":
            self.generate(json.loads(body))
        elif self.path == "/flush_cache":
            if self.server.mode == "no-flush":
                self.answer(404, {})
            else:
                self.server.flushes += 1
                self.answer(200, None)
        elif self.path == "/fake/die":
            say(f"{STAMP} Scheduler hit an exception: Traceback (most recent call last):", OUT_OF_MEMORY, "")
            say(f"{STAMP} Received sigquit from a child process. It usually means the child failed.")
            die(signal.SIGKILL)
        elif self.path == "/fake/deaf":
            self.server.deaf = True
            self.answer(200, {})
        elif self.path == "/fake/say":
            say(*json.loads(body)["lines"])
            self.answer(200, {})
        else:
            self.answer(404, {})

    def generate(self, asked: dict[str, Any]) -> None:
        """Counts, as SGLang gives them."""
        if self.server.deaf or self.server.mode == "mute":
            self.answer(500, {"error": "the fake server does not like this request"})
            return
        params = asked["sampling_params"]
        counts = {"prompt_tokens": len(asked.get("input_ids", ())), "completion_tokens": params["max_new_tokens"]}
        self.answer(200, {"text": "", "meta_info": {**counts, "cached_tokens": 0}})

    def answer(self, status: int, body: Any) -> None:
        """JSON, or words where it is None."""
        data = b"Cache flushed.\n" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        """As uvicorn logs it."""
        if not self.path.startswith("/fake"):
            say(f'{STAMP} INFO:     127.0.0.1:36064 - "{self.command} {self.path} HTTP/1.1" {words[2]} OK')


def main() -> None:
    """One server, or another rank of one."""
    parser = argparse.ArgumentParser(prog="launch_server.py")
    ServerArgs.add_cli_args(parser)
    args = parser.parse_args()
    given = {name: value for name, value in vars(args).items() if value != parser.get_default(name)}
    control = Path(os.environ["FAKE_SGLANG_CONTROL"])
    rank = int(args.node_rank or 0)
    call = {"cell": f"rank{rank}", "pid": os.getpid(), "argv": sys.argv[1:], "port": args.port, "at": time.time()}
    number = enter(control.parent / "servers.jsonl", call)
    settings = json.loads(control.read_text(encoding="utf-8")).get("server", {})
    mode = str(step(settings.get("rank1" if rank else "mode", "ok"), number))
    resolved = {**RESOLVED, **{name: value for name, value in given.items() if name in RESOLVED}}
    resolved.update({"model_path": args.model_path, **dict(step(settings.get("resolved", {}), number))})
    start, ready, *_ = (Path(__file__).parents[1] / "recorded.log").read_text(encoding="utf-8").split("%%\n")
    if mode == "argparse":
        sys.stderr.write("launch_server.py: error: unrecognized arguments: --no-such-flag 1\n")
        raise SystemExit(2)
    secret = "hunter2-not-for-logs"
    say(start.rstrip(), f"{STAMP} server_args={resolved}")
    if rank:
        if mode == "oom":
            say("Traceback (most recent call last):", OUT_OF_MEMORY)
            raise SystemExit(1)
        time.sleep(600)
    if mode == "oom":
        say("Traceback (most recent call last):", OUT_OF_MEMORY)
        die(signal.SIGKILL)
    if mode == "hang":
        time.sleep(600)
    if mode.startswith("foreign"):
        beside = subprocess.Popen(
            [sys.executable, "-S", "-c", IMPOSTOR, str(args.port), mode.partition("-")[2]], stdout=subprocess.PIPE
        )
        assert beside.stdout is not None
        beside.stdout.readline()
        # Another server that answers is taken for ours by SGLang's own warm-up (seen: rc 3, and this line).
        say(f"{STAMP} The server is fired up and ready to roll!")
        say(f"{STAMP} ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', {args.port})")
        time.sleep(0.5 if mode == "foreign-late" else 0)
        raise SystemExit(3)
    say(ready.rstrip())
    running = args.max_running_requests or 64
    server = Server((args.host, args.port), Handler)
    server.mode = mode
    server.info = {
        **resolved,
        "served_model_name": args.served_model_name,
        "api_key": secret,
        "max_total_num_tokens": int(args.max_total_tokens or 16384),
        "internal_states": [{"admin_api_key": secret, "effective_max_running_requests_per_dp": running}],
        "dp_size": 1,
        "version": next(Path(__file__).parents[1].glob("sglang-*.dist-info")).name[len("sglang-") : -len(".dist-info")],
        **dict(step(settings.get("info", {}), number)),
    }
    say(f"{STAMP} The server is fired up and ready to roll!")
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
