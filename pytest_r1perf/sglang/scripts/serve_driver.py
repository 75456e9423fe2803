"""Runs beside an SGLang server: starts it, runs SGLang's own clients against it one after another, and ends it.

Argument: the plan (one JSON object, made by ``sglang/serve.py``). Standard library only, for the Pythons of SGLang
0.4.3 to 0.5.23. What it finds out is appended to the plan's ``results`` file, one JSON object a line; beside that it
prints a line before and after every cell and window, so that the lines which the server prints have their place. What
the clients print goes to a file of its own. It judges nothing but whether the server is ours and still works.

A server is ready when it generated what it was asked for, and is ours when it goes by the name that we made up for it:
that it logs "ready to roll" or answers on /health is no proof, for another server may have answered there.
"""

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import traceback
import types
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

# The text of telling.py, filled in by sglang/serve.py: one file travels, and both drivers speak alike.
TELLING = ""

MARK = "r1perf-serve:"
HOST = "127.0.0.1"

# How long requests of a failed client may take to come to their end before the server counts as broken, in s.
FLUSH_S = 120.0
# How long a server that answers no request may leave a connection open before it counts as broken, in s.
ANSWER_S = 600.0
# How long the server may take for its own end before it is killed, in s: it drains requests, and there are none.
STOP_S = 30.0
# Releases whose answer to a flush says nothing of whether there was one.
CONFIRMS_NOTHING = ("0.4.3", "0.4.4")
# What the server takes beside its port. One we give it for its ranks among themselves: by itself it takes one of those
# that outgoing connections get, looks whether it is free, and listens much later (seen to fail). From the others SGLang
# counts for itself (ZMQ_TCP_PORT_DELTA).
RANKS = 1
DERIVED = range(233, 249)

# What nobody may read in a file of ours; numbers of tokens are none.
SECRET = re.compile(r"api_?key|password|passwd|secret|credential|(?:hf|auth|access|bearer)_?token", re.IGNORECASE)

STARTED = time.monotonic()

# A proxy of this host is none for a server of this host.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

telling = types.ModuleType("telling")
exec(TELLING, vars(telling))


class ServerBroken(telling.Said):  # type: ignore[misc,name-defined]
    """The server doesn't answer as it should, whatever the cell."""


class Refused(telling.Said):  # type: ignore[misc,name-defined]
    """There won't be a server that is ours; ``reason`` is a word that the parent knows."""

    def __init__(self, reason: str, error: str, code: "int | None") -> None:
        super().__init__(error)
        self.reason = reason
        self.code = code


class Server:
    """Our server: its process, its port and the name that only it has."""

    def __init__(self, plan: "dict[str, Any]") -> None:
        self.port = plan["port"] or free_port(set(plan["avoid"]))
        self.url = f"http://{HOST}:{self.port}"
        self.name = "r1perf-" + secrets.token_hex(8)
        self.version = ""
        own = ["--host", HOST, "--port", str(self.port), "--served-model-name", self.name]
        if plan["own_ranks_port"]:
            own += ["--nccl-port", str(self.port + RANKS)]
        self.process = subprocess.Popen([*plan["server"], *own])

    def ended(self) -> "int | None":
        """Its exit code, if it ended."""
        return self.process.poll()

    def wait_ready(self) -> "dict[str, Any]":
        """What it says of itself when it generated something; Refused when that will never be. Ends by no clock."""
        while True:
            code = self.ended()
            said = info(self.url)
            name = None if said is None else named(said)
            if said is not None and (code is not None or (name is not None and name != self.name)):
                raise Refused("foreign", self.foreign(name, code), code)
            if code is not None:
                raise Refused("died", f"the server ended with {told(code)} before it was ready", code)
            if said is not None and name == self.name and self.generates():
                self.version = str(said.get("version") or "")
                return said
            time.sleep(0.2)

    def generates(self) -> bool:
        """Whether it answers a real request, with as many tokens as were asked for."""
        params = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
        _, answer = ask(self.url + "/generate", {"input_ids": [3, 4, 5, 6], "sampling_params": params}, ANSWER_S)
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        return isinstance(meta, dict) and meta.get("completion_tokens") == 4

    def foreign(self, name: "str | None", code: "int | None") -> str:
        """The sentence for a port that somebody else answers on."""
        who = "one that does not say its name" if name is None else f"one that calls itself {name[:80]!r}"
        ours = "ours is still starting" if code is None else "ours ended with " + told(code)
        return f"another server answers on port {self.port} of this host ({who}), and {ours}"

    def still_ours(self) -> None:
        """ServerBroken when it ended, or when somebody else answers in its place."""
        code = self.ended()
        if code is not None:
            raise ServerBroken("the server ended with " + told(code))
        said = info(self.url)
        name = None if said is None else named(said)
        if name is not None and name != self.name:
            raise ServerBroken(self.foreign(name, None))

    def flush(self, patience_s: float = FLUSH_S) -> bool:
        """Empty the cache, and wait until that is true: it is refused while a request is in flight.

        False where this server has no such thing. Up to 0.4.4 it is answered in any case, so it is asked for twice
        there. Raises ServerBroken.
        """
        deadline = time.monotonic() + patience_s
        while True:
            status, _ = ask(self.url + "/flush_cache", {}, ANSWER_S)
            if status == 200:
                if self.version.startswith(CONFIRMS_NOTHING):
                    ask(self.url + "/flush_cache", {}, ANSWER_S)
                return True
            if status in (404, 405):
                return False
            if self.ended() is not None or time.monotonic() > deadline:
                self.still_ours()
                raise ServerBroken(f"the cache could not be flushed in {patience_s:g} s (HTTP {status})")
            time.sleep(0.2)

    def stop(self) -> None:
        """End it; what its end leaves behind is the parent's."""
        with contextlib.suppress(OSError):
            self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def main(argv: "list[str]") -> None:
    """Start the server, measure cell after cell, and end it."""
    plan = json.loads(argv[0])
    results = Path(plan["results"])
    server = Server(plan)
    try:
        said = server.wait_ready()
    except Refused as refused:
        telling.tell(results, "refused", reason=refused.reason, error=telling.one_line(refused))
        server.stop()
        sys.exit(exit_code(refused.code))
    Path(plan["account"]).write_text(json.dumps(without_secrets(said), default=str) + "\n", encoding="utf-8")
    telling.tell(results, "ready", startup_s=time.monotonic() - STARTED, **described(server, said))
    for cell in plan["cells"]:
        telling.note(MARK, "cell", cell["id"])
        begun = time.monotonic()
        try:
            measure(server, cell, results, Path(plan["clients"]))
        except telling.CellFailed as failed:
            telling.tell(results, "cell_failed", cell=cell["id"], reason=failed.reason, error=telling.one_line(failed))
            settle(server, cell["id"], results)
        except ServerBroken as broken:
            give_up(server, results, cell["id"], broken)
        except Exception as error:
            traceback.print_exc()
            telling.tell(results, "cell_failed", cell=cell["id"], reason="error", error=telling.one_line(error))
            settle(server, cell["id"], results)
        else:
            telling.tell(results, "cell_done", cell=cell["id"], seconds=time.monotonic() - begun)
        telling.note(MARK, "over", cell["id"])
    telling.tell(results, "end")
    telling.note(MARK, "end")
    server.stop()


def settle(server: Server, cell: str, results: Path) -> None:
    """After a failed cell: end what it left in flight, or give the server up."""
    ask(server.url + "/abort_request", {"rid": "", "abort_all": True}, ANSWER_S)
    try:
        server.flush()
        server.still_ours()
        if not server.generates():
            raise ServerBroken("the server does not answer a request any more")
    except Exception as error:
        give_up(server, results, cell, error)


def give_up(server: Server, results: Path, cell: str, error: BaseException) -> None:
    """Say that the server is broken, and end."""
    telling.tell(results, "broken", cell=cell, error=telling.one_line(error))
    code = server.ended()
    server.stop()
    sys.stdout.flush()
    os._exit(exit_code(code))


# -- a cell --------------------------------------------------------------------------------------------------


def measure(server: Server, cell: "dict[str, Any]", results: Path, output: Path) -> None:
    """All windows of one cell, a client each."""
    telling.tell(results, "cell", cell=cell["id"])
    for number in range(cell["discard"] + cell["windows"]):
        discarded = number < cell["discard"]
        index = number if discarded else number - cell["discard"]
        flushed = server.flush()
        result = Path(cell["result"].replace("@N@", str(number)))
        argv = [word.replace("@URL@", server.url).replace("@RESULT@", str(result)) for word in cell["argv"]]
        before = output.stat().st_size if output.exists() else 0
        telling.note(MARK, "window", cell["id"], index, "Warmup..." if discarded else "Benchmark...")
        at, start = time.time(), time.monotonic()
        code = client(argv, server, output)
        end = time.monotonic()
        telling.note(MARK, "window-over", cell["id"], index)
        text = said_since(output, before)
        if code != 0:
            raise telling.CellFailed("client", f"the client ended with {told(code)}: {last_words(text)}")
        skipped = re.search(r"Skip benchmark [^\n]*?(?==*\s*$)", text, re.MULTILINE)
        if skipped:
            raise telling.CellFailed("skipped", skipped.group(0))
        telling.tell(
            results,
            "window",
            cell=cell["id"],
            index=index,
            discarded=discarded,
            time=at,
            start=start,
            end=end,
            written=written(result),
            result=result.name,
            flushed=flushed,
        )
    server.still_ours()


def client(argv: "list[str]", server: Server, output: Path) -> int:
    """Run one client to its end; ServerBroken, and no client left, when the server ends meanwhile."""
    with output.open("ab") as file:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=direct())
        try:
            while process.poll() is None:
                ended = server.ended()
                if ended is not None:
                    raise ServerBroken(f"the server ended with {told(ended)} while a client was running")
                time.sleep(0.05)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return process.returncode


def direct() -> "dict[str, str]":
    """The variables of a client, which meets the server without a proxy, and others as the user wants it.

    Both spellings say the same: a client that finds both heeds only one.
    """
    names = ("NO_PROXY", "no_proxy")
    hosts = ",".join(dict.fromkeys(filter(None, (*map(os.environ.get, names), HOST))))
    return {**os.environ, **dict.fromkeys(names, hosts)}


def written(result: Path) -> "float | None":
    """When the client wrote its result, by the monotonic clock."""
    try:
        return result.stat().st_mtime - time.time() + time.monotonic()
    except OSError:
        return None


def said_since(output: Path, position: int) -> str:
    """What the clients printed from a position of their file on."""
    with output.open("rb") as file:
        file.seek(position)
        return file.read().decode("utf-8", "replace")


def last_words(text: str) -> str:
    """The last line that says anything."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" =*-")]
    return lines[-1] if lines else "it printed nothing"


# -- what the server says ------------------------------------------------------------------------------------


def ask(url: str, body: "dict[str, Any] | None", timeout_s: float) -> "tuple[int | None, Any]":
    """(HTTP status, JSON): no status where nobody answered, no JSON where that is none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    try:
        with OPENER.open(request, timeout=timeout_s) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, None
    except (OSError, ValueError, urllib.error.URLError):
        return None, None
    except Exception:  # http.client's own, of a server that breaks off or talks another protocol
        return None, None
    try:
        return status, json.loads(text)
    except ValueError:
        return status, None


def info(url: str) -> "dict[str, Any] | None":
    """What a server on this port says of itself; nothing in it where it answers with something else.

    ``/get_server_info`` is the older name; both are there in the releases between.
    """
    answered = False
    for path in ("/server_info", "/get_server_info"):
        status, said = ask(url + path, None, 30.0)
        if isinstance(said, dict) and status == 200:
            return said
        answered = answered or status is not None
    return {} if answered else None


def named(said: "dict[str, Any]") -> "str | None":
    """The name that the server goes by."""
    name = said.get("served_model_name")
    return name if isinstance(name, str) else None


def described(server: Server, said: "dict[str, Any]") -> "dict[str, Any]":
    """The little of it that the parent needs: the rest has paths, and may have an API key."""
    states = said.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    running = [state.get("effective_max_running_requests_per_dp"), said.get("max_running_requests")]
    pool = said.get("max_total_num_tokens")
    # 0.5.22 rewrites --dp-size N --enable-dp-attention to attn_dp_size N and dp_size 1.
    ranks = [size for size in (said.get("dp_size"), said.get("attn_dp_size")) if isinstance(size, int)]
    return {
        "name": server.name,
        "answered": named(said),
        "port": server.port,
        "version": server.version,
        "max_total_num_tokens": pool if isinstance(pool, int) else None,
        "max_running_requests": next((one for one in running if isinstance(one, int)), None),
        "dp_size": max(ranks, default=1),
    }


def without_secrets(said: Any) -> Any:
    """The same without whatever has a secret's name, at any depth."""
    if isinstance(said, dict):
        return {key: without_secrets(value) for key, value in said.items() if not SECRET.search(str(key))}
    return [without_secrets(one) for one in said] if isinstance(said, list) else said


# -- small things --------------------------------------------------------------------------------------------


def free_port(avoid: "set[int]") -> int:
    """A port of this host that nobody listens on, with those that SGLang derives from it.

    Below those that outgoing connections are given.
    """
    first = secrets.randbelow(1000)
    for step in range(1000):
        port = 20000 + (first + step) % 1000 * 11
        if port not in avoid and all(is_free(port + delta) for delta in (0, RANKS, *DERIVED)):
            return port
    raise SystemExit("no port from 20000 to 31000 is free on this host: end what holds them")


def is_free(port: int) -> bool:
    """Whether it can be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def told(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def exit_code(code: "int | None") -> int:
    """With what to end where the server broke: as it did, and never as if all were well."""
    if code is None or code == 0:
        return 3
    return code if code > 0 else 128 - code


if __name__ == "__main__":
    main(sys.argv[1:])
