"""A small server and a benchmark client, both real processes, for the tests of `stress/`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_r1perf.stress.bencher import Done
from pytest_r1perf.stress.cases import Case
from tests.processes import wait_until

SERVER = """
import http.server, json, os, sys, time
from pathlib import Path
control, ready = Path(sys.argv[1]), Path(sys.argv[2])
served = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass
    def say(self, data, status=200):
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        told = json.loads(control.read_text())
        if self.path != told.get("path", "/server_info"):
            return self.say({}, 404)
        if "answer" in told:
            return self.say(told["answer"])
        info = told["info"]
        if served >= told.get("changes_at", 10**9):
            info["random_seed"] += 1
        self.say(info)
    def do_POST(self):
        global served
        told = json.loads(control.read_text())
        case = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        served += 1
        if served == told.get("die_at"):
            os._exit(1)
        if served == told.get("hang_at"):
            time.sleep(600)
        self.say({"latency": case["output_len"] * (0.02 + 0.001 * case["batch_size"])})
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), Handler)
ready.write_text(str(server.server_port))
server.serve_forever()
"""

# Rows as SGLang 0.5.20 writes them, without early stops.
CLIENT = """
import http.client, json, os, sys, time
host, port, batch, inputs, outputs, result, control = sys.argv[1:]
batch, inputs, outputs = int(batch), int(inputs), int(outputs)
told = json.loads(open(control).read())
name = f"{batch}-{inputs}-{outputs}"
if batch > told.get("max_running", 10**9):
    print("=" * 8 + f"Skip benchmark batch_size={batch} > skip_max_running_requests_threshold={told['max_running']} "
          "due to max running requests limit." + "=" * 8)
    print("Results are saved to", result)
    sys.exit(0)
if name in told.get("fail", []):
    sys.exit("RuntimeError: Request has failed.")
if name in told.get("silent", []):
    sys.exit(0)
if name in told.get("sleep", []):
    open(told["slept"], "w").write(str(os.getpid()))
    time.sleep(600)
connection = http.client.HTTPConnection(host, int(port))
connection.request("POST", "/generate", json.dumps({"batch_size": batch, "output_len": outputs}))
latency = json.loads(connection.getresponse().read())["latency"]
tokens = batch * outputs
if name in told.get("short", []):
    tokens -= 1
first = latency / 10
row = {"run_name": "default", "batch_size": batch, "input_len": inputs, "output_len": outputs,
       "latency": round(latency, 4), "input_throughput": round(batch * inputs / first, 2),
       "output_throughput": round(tokens / (latency - first), 2),
       "overall_throughput": round((batch * inputs + tokens) / latency, 2), "last_ttft": round(first, 4),
       "last_gen_throughput": 1.0, "acc_length": -1.0, "total_output_tokens": tokens, "num_early_stopped": None}
row.update(told.get("rows", {}).get(name, {}))
with open(result, "a") as file:
    for _ in range(told.get("lines", {}).get(name, 1)):
        file.write(json.dumps(row) + "\\n")
"""

# A whole run in a process of its own: folder, port, control file, state folder, repeats, names of cases.
SWEEP = """
import sys
from pathlib import Path
from pytest_r1perf.childenv import compose
from pytest_r1perf.stress.cases import case_named
from pytest_r1perf.stress.local import LocalBencher
from pytest_r1perf.stress.manifest import Asked
from pytest_r1perf.stress.run import run_sweep
from pytest_r1perf.sglang.server_kind import read_server
from tests.stresses import PlainBencher, client_command
folder, port, control, state, repeats, *names = sys.argv[1:]
url = f"http://127.0.0.1:{port}"
def command(case, result):
    return client_command(int(port), case, result, Path(control))
if state == "plain":
    bencher = PlainBencher(int(port), Path(control), Path(control).parent)
else:
    bencher = LocalBencher(url, command, compose({}), Path(folder) / "logs" / "one", Path(state), 60)
asked = Asked(tuple(case_named(name) for name in names), int(repeats), "document")
run_sweep(Path(folder), asked, bencher, lambda: read_server(url), lambda text: print(text, flush=True))
"""

INFO: Mapping[str, Any] = {
    "model_path": "/models/r1",
    "version": "0.5.20",
    "random_seed": 7,
    "served_model_name": "r1",
    "tp_size": 16,
    "port": 40000,
    "api_key": "sesame",
    "attention_backend": None,
    "internal_states": [{"attention_backend": "fa3", "effective_max_running_requests_per_dp": 48}],
    "status": "ready",
}


@dataclass(slots=True)
class StressLab:
    """A server that answers on ``port``, and a client for it; both look into ``control`` at every case."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def control(self) -> Path:
        return self.folder / "control.json"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def tell(self, **changes: Any) -> None:
        """What the server and the clients do from now on; an ``info`` is laid over the server's own."""
        info = {**INFO, **changes.pop("info", {})}
        scratch = self.control.with_suffix(".tmp")
        scratch.write_text(json.dumps({"info": info, **changes}))
        scratch.replace(self.control)

    def start(self) -> None:
        """Start the server, on its old port if it had one."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        self.process = subprocess.Popen([sys.executable, "-c", SERVER, str(self.control), str(ready), str(self.port)])
        wait_until(lambda: ready.exists() and ready.read_text(), "the server")
        self.port = int(ready.read_text())

    def stop(self) -> None:
        """End the server, if it still runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def command(self, case: Case, result: str) -> Sequence[str]:
        """A client of one case."""
        return client_command(self.port, case, result, self.control)


def client_command(port: int, case: Case, result: str, control: Path) -> list[str]:
    return [sys.executable, "-S", "-c", CLIENT, "127.0.0.1", str(port), *map(str, case.key), result, str(control)]


@dataclass(frozen=True, slots=True)
class PlainBencher:
    """Clients as plain children, for what files become: nobody ends them when we are killed."""

    port: int
    control: Path
    folder: Path

    def measure(self, cases: Sequence[Case], done: Done) -> str | None:
        result = self.folder / "row"
        for case in cases:
            result.unlink(missing_ok=True)
            subprocess.run(client_command(self.port, case, str(result), self.control), check=True)
            done(case, [json.loads(line) for line in result.read_text().splitlines()])
        return None


@contextmanager
def stress_lab(folder: Path) -> Iterator[StressLab]:
    folder.mkdir(exist_ok=True)
    lab = StressLab(folder)
    lab.tell()
    lab.start()
    try:
        yield lab
    finally:
        lab.stop()


def guide_row(case: Case, latency: float) -> dict[str, Any]:
    """A row in the guide's format, by its two formulas."""
    batch, inputs, outputs = case.key
    return {
        "run_name": "default",
        "batch_size": batch,
        "input_len": inputs,
        "output_len": outputs,
        "latency": round(latency, 4),
        "output_throughput": round(batch * outputs / round(latency, 4), 2),
        "overall_throughput": round(batch * (inputs + outputs) / round(latency, 4), 2),
    }


def write_rows(folder: Path, case: Case, *rows: Mapping[str, Any]) -> Path:
    path = folder / f"{case.name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
