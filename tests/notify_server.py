"""A real HTTP server for notices: a small GitHub with a state of its own, and every way to answer badly."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pytest_r1perf.document.model import Cell, Document
from pytest_r1perf.results import CellResult
from pytest_r1perf.statistics import Interval
from pytest_r1perf.verdict import Judgement, Verdict

TOKEN = "ghs_secretsecretsecret"
BOT = "github-actions[bot]"
REPOSITORY = "acme/r1"

Behaviour = Callable[["Handler", Callable[[], tuple[int, Any]]], None]


class FakeClock:
    """Time goes on as it does, and a sleep is a jump."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return time.time() + sum(self.slept)

    def monotonic(self) -> float:
        return time.monotonic() + sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def jitter(self) -> float:
        return 0.5


@dataclass
class Seen:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


@dataclass
class State:
    """``planned`` are (method, pattern of the path, behaviour): each is used once, in order."""

    seen: list[Seen] = field(default_factory=list)
    planned: list[tuple[str, str, Behaviour]] = field(default_factory=list)
    issues: dict[int, dict[str, Any]] = field(default_factory=dict)
    comments: dict[int, dict[str, Any]] = field(default_factory=dict)
    labels: set[str] = field(default_factory=set)
    login: str = BOT
    user_status: int = 200
    closing: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def plan(self, method: str, pattern: str, *behaviours: Behaviour) -> None:
        self.planned += [(method, pattern, one) for one in behaviours]

    def of(self, method: str, pattern: str = "") -> list[Seen]:
        return [one for one in self.seen if one.method == method and re.search(pattern, one.path)]

    def writes(self) -> list[Seen]:
        return [one for one in self.seen if one.method != "GET"]

    def add_comment(self, number: int, body: str, login: str | None = None) -> dict[str, Any]:
        made = {
            "id": 1000 + len(self.comments),
            "issue": number,
            "body": body,
            "user": {"login": login or self.login},
            "html_url": f"https://github.test/c{1000 + len(self.comments)}",
        }
        self.comments[int(made["id"])] = made  # type: ignore[call-overload]
        return made

    def add_issue(self, **data: Any) -> dict[str, Any]:
        number = len(self.issues) + 1
        made = {
            "number": number,
            "state": "open",
            "state_reason": None,
            "user": {"login": self.login},
            "html_url": f"https://github.test/i{number}",
            **data,
            "labels": [{"name": name} for name in data.get("labels", ())],
        }
        self.issues[number] = made
        return made

    def answer(self, method: str, url: str, body: bytes) -> tuple[int, Any]:
        """GitHub's, for the paths that are asked."""
        parts = urlsplit(url)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        data = json.loads(body) if body else {}
        path = parts.path
        if path == "/user":
            return self.user_status, {"login": self.login, "message": "Resource not accessible by integration"}
        if not path.startswith(f"/repos/{REPOSITORY}/"):
            return 404, {"message": "Not Found"}
        path = path.removeprefix(f"/repos/{REPOSITORY}")
        if len(data.get("body") or "") > 65_536:
            return 422, {"message": "Validation Failed: body is too long"}
        if found := re.fullmatch(r"/issues/(\d+)/comments", path):
            number = int(found[1])
            if method == "POST":
                return 201, self.add_comment(number, data["body"])
            return 200, self._page([one for one in self.comments.values() if one["issue"] == number], query)
        if found := re.fullmatch(r"/issues/comments/(\d+)", path):
            if int(found[1]) not in self.comments:
                return 404, {"message": "Not Found"}
            self.comments[int(found[1])].update(data)
            return 200, self.comments[int(found[1])]
        if path == "/issues":
            if method == "POST":
                return 201, self.add_issue(**data)
            wanted = [one for one in self.issues.values() if {"name": query["labels"]} in one["labels"]]
            return 200, self._page(wanted, query)
        if found := re.fullmatch(r"/issues/(\d+)", path):
            self.issues[int(found[1])].update(data)
            return 200, self.issues[int(found[1])]
        if path == "/labels":
            self.labels.add(data["name"])
            return 201, data
        if path.startswith("/labels/"):
            there = unquote(path.removeprefix("/labels/")) in self.labels
            return (200, {}) if there else (404, {"message": "Not Found"})
        return 404, {"message": "Not Found"}

    @staticmethod
    def _page(items: list[Any], query: Mapping[str, str]) -> list[Any]:
        size = int(query.get("per_page", 30))
        start = (int(query.get("page", 1)) - 1) * size
        return items[start : start + size]


class Handler(BaseHTTPRequestHandler):
    state: State

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.state.seen.append(Seen(self.command, self.path, dict(self.headers.items()), body))

        def done() -> tuple[int, Any]:
            return self.state.answer(self.command, self.path, body)

        for place, (method, pattern, behaviour) in enumerate(self.state.planned):
            if method == self.command and re.search(pattern, self.path):
                del self.state.planned[place]
                behaviour(self, done)
                return
        code, data = done()
        self.send(code, json.dumps(data).encode(), {"Content-Type": "application/json"})

    do_GET = do_POST = do_PATCH = _any  # noqa: N815

    def send(self, code: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def status(code: int, body: bytes = b"{}", **headers: str) -> Behaviour:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler, _: handler.send(code, body, named)


def lost(handler: Handler, _: Any) -> None:
    """Closes the connection without a word, and has done nothing."""
    handler.close_connection = True


def done_and_lost(handler: Handler, done: Callable[[], Any]) -> None:
    """Does what was asked, and the answer never arrives."""
    done()
    handler.close_connection = True


def never(handler: Handler, _: Any) -> None:
    handler.state.closing.wait(60)


def slowly(handler: Handler, _: Any) -> None:
    """A letter at a time: no time-out between two letters ever comes."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not handler.state.closing.wait(0.05):
        try:
            handler.wfile.write(b"a")
            handler.wfile.flush()
        except OSError:
            return


def garbage(handler: Handler, _: Any) -> None:
    handler.wfile.write(b"\x00\xff I am no HTTP\r\n\r\n")


def huge(handler: Handler, _: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(40):
            handler.wfile.write(b" " * 2**20)
    except OSError:
        pass


@contextmanager
def served(**given: Any) -> Iterator[State]:
    """A server that is up, and its state."""
    state = State(**given)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"state": state}))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.closing.set()
        server.shutdown()
        server.server_close()


def cell(verdict: Verdict = Verdict.REGRESSED, n: int = 50, **given: Any) -> Cell:
    """A cell with a ratio of 0.8 where it regressed; ``ratio`` is (lower, upper)."""
    lower, upper = given.pop("ratio", (0.78, 0.82))
    judgements: tuple[Judgement, ...] = ()
    if verdict in (Verdict.REGRESSED, Verdict.PASS, Verdict.UNDECIDED, Verdict.IMPROVED):
        ratio = Interval((lower + upper) / 2, lower, upper, log_se=0.01, df=4.0, alpha=0.003, beta=0.05)
        judgements = (
            Judgement(
                metric="total_throughput",
                verdict=verdict,
                reason="as it is",
                median=800.0,
                rounds=3,
                spread=0.01,
                baseline=1000.0,
                ratio=ratio,
                tolerance=0.05,
            ),
        )
    data: dict[str, Any] = {
        "nodeid": f"perf_tests/test_tp1.py::test_load[{n}]",
        "topology": "tp1",
        "key": f"h200x1/default/n{n}",
        "label": f"tp1 default n={n}",
        "platform": "h200x1",
        "hardware": "1x-nvidia-h200",
        "verdict": verdict,
        "judgements": judgements,
        "failed": verdict.fails,
        "reproduce": f"pytest 'perf_tests/test_tp1.py::test_load[{n}]' --perf",
        **given,
    }
    return Cell(CellResult(**data))


def night(day: int, *cells: Cell, **given: Any) -> Document:
    """The session of a day."""
    name = given.pop("session", f"202612{day:02}.010000.abcd")
    given.setdefault("exitstatus", int(any(cell.result.failed for cell in cells)))
    return Document(session=name, created=f"2026-12-{day:02}T02:00:00+00:00", tool="0.1.0", cells=cells, **given)
