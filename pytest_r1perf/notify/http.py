"""The HTTP client of all channels: deadlines, retries, and no secret in anything that it says.

- A redirect is never followed: neither the token nor the body goes to a host that nobody named.
- Tried again: 429 and 503, GitHub's rate limits (403), 502, 504, and connections that fail; no earlier than the server
  asks (``Retry-After``, ``x-ratelimit-reset``), and not at all where it asks for longer than there is time.
- A POST of which nobody knows whether it was carried out (502, 504, a time-out, a lost connection) is not repeated
  here: :class:`~pytest_r1perf.notify.channel.Unsure` tells the caller, who may look.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_r1perf.notify.channel import NotifyError, Unsure
from pytest_r1perf.notify.clock import Clock
from pytest_r1perf.notify.limits import asked_wait, is_refused_for_now
from pytest_r1perf.notify.url import host_of, is_loopback
from pytest_r1perf.report.plain import clipped, plain
from pytest_r1perf.results import finite

ATTEMPTS = 5
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
"""Of our own back-off, which doubles. What a server asks for may be longer."""
MOST_BYTES = 32 * 2**20
"""Of an answer: 50 comments of 65,536 characters, each written as six (``\\u0000``), are 19 MiB."""
_CHUNK = 2**16


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, between two pieces of an answer, and of everything that a channel asks, retries included."""

    connect_s: float = 10.0
    read_s: float = 30.0
    total_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """``headers`` have lower-case names."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)

    def data(self) -> Any:
        """The JSON in it; ``None`` where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class _Failed:
    """No answer: why, whether the request may have been carried out, and whether another try may help."""

    why: str
    unsure: bool = True
    again: bool = True


class Client:
    """Asks one server. ``token`` is sent as a bearer's; with no token ``base`` itself is the secret.

    Neither is in any message, nor in anything that is sent as a body.
    """

    def __init__(self, base: str, clock: Clock, timeouts: Timeouts, *, token: str = "", accept: str = "*/*") -> None:
        self.base = base
        self.host = host_of(base)
        self.clock = clock
        self.timeouts = timeouts
        self._token = token
        self._accept = accept
        self._spaced: float | None = None
        self._ends = clock.monotonic() + timeouts.total_s

    def __repr__(self) -> str:
        return f"Client({self.host})"

    def ask(self, method: str, path: str = "", data: Mapping[str, Any] | None = None) -> Answer:
        """The answer, whatever its status, once there is no reason to try again.

        Raises :class:`Unsure` for a POST that may have been carried out, else :class:`NotifyError` where there is no
        answer, or a redirect.
        """
        for attempt in range(ATTEMPTS):
            came = self._once(method, path, data)
            if isinstance(came, _Failed):
                if method == "POST" and came.unsure:
                    raise Unsure(f"{self.host} {came.why}, and may have done what it was asked, or not")
                if not came.again or not self.pause(attempt):
                    raise NotifyError(f"{self.host} {came.why}: check the address and the network, or try later")
                continue
            if 300 <= came.status < 400:
                raise NotifyError(self._redirected(came))
            if method == "POST" and came.status in (502, 504):
                raise Unsure(f"{self.host} answered {came.status}, and may have done what it was asked, or not")
            again = came.status in (502, 504) or is_refused_for_now(came.status, came.headers, came.body)
            if not again or not self.pause(attempt, asked_wait(came.status, came.headers, came.body, self.clock.now())):
                return came
        raise AssertionError("the last attempt returns or raises")

    def pause(self, attempt: int, asked: float | None = None) -> bool:
        """Wait before another try, counted from 0; ``False`` where there is none left, or no time for it."""
        if attempt + 1 >= ATTEMPTS:
            return False
        own = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt) * (0.5 + self.clock.jitter() / 2)
        wait = own if asked is None else asked + self.clock.jitter()
        if wait >= self.left():
            return False
        self.clock.sleep(wait)
        return True

    def space(self, seconds: float) -> None:
        """Wait until the last call of this is ``seconds`` ago."""
        if self._spaced is not None:
            since = self.clock.monotonic() - self._spaced
            self.clock.sleep(max(0.0, min(seconds - since, self.left())))
        self._spaced = self.clock.monotonic()

    def left(self) -> float:
        """Seconds to the deadline."""
        return self._ends - self.clock.monotonic()

    def scrubbed(self, text: str) -> str:
        """Without the secret, should a server or a log have told it back."""
        return text.replace(self._token or self.base, "***")

    def _redirected(self, answer: Answer) -> str:
        try:
            to = host_of(answer.headers.get("location", ""))
        except ValueError:
            to = "None"
        where = f" to {clipped(plain(to), 60)}" if to not in ("None", self.host) else ""
        return (
            f"{self.host} answered {answer.status}, a redirect{where}, which is not followed since a secret would go "
            "with it: give the address that it leads to"
        )

    def _once(self, method: str, path: str, data: Mapping[str, Any] | None) -> Answer | _Failed:
        left = self.left()
        if left <= 0:
            return _Failed(f"did not answer in {self.timeouts.total_s:g} s", unsure=False, again=False)
        # Looking a name up, and an answer that comes letter by letter, know no time-out: leaving a thread is one.
        came: queue.SimpleQueue[Answer | _Failed] = queue.SimpleQueue()
        limit = (min(self.timeouts.connect_s, left), min(self.timeouts.read_s, left))
        payload = None if data is None else self.scrubbed(json.dumps(finite(data), allow_nan=False)).encode()
        work: Callable[[], None] = lambda: came.put(self._exchange(method, path, payload, limit))  # noqa: E731
        threading.Thread(target=work, daemon=True).start()
        try:
            return came.get(timeout=left)
        except queue.Empty:
            return _Failed(f"did not answer in {self.timeouts.total_s:g} s", again=False)

    def _exchange(self, method: str, path: str, payload: bytes | None, limit: tuple[float, float]) -> Answer | _Failed:
        import requests

        logging.getLogger("urllib3").setLevel(logging.CRITICAL)  # at DEBUG it logs paths, and a webhook's is a secret
        headers = {"User-Agent": "pytest-r1perf", "Accept": self._accept, "Accept-Encoding": "identity"}
        if payload is not None:
            headers["Content-Type"] = "application/json"
        try:
            with requests.Session() as session:
                # What stays on this host goes through no proxy; else the environment's proxy and certificates hold.
                session.trust_env = not (self.base.startswith("http:") and is_loopback(self.base))
                with session.request(
                    method,
                    self.base + path,
                    data=payload,
                    headers=headers,
                    auth=self._sign,  # also where there is no token: else a .netrc would be asked
                    timeout=limit,
                    allow_redirects=False,
                    stream=True,
                ) as response:
                    return _read(response)
        except Exception as error:
            return _failure(error)

    def _sign(self, request: Any) -> Any:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _read(response: Any) -> Answer | _Failed:
    taken = bytearray()
    for chunk in response.iter_content(_CHUNK):
        taken += chunk
        if len(taken) > MOST_BYTES:
            return _Failed(f"answered with more than {MOST_BYTES // 2**20} MiB", again=False)
    return Answer(response.status_code, {key.lower(): value for key, value in response.headers.items()}, bytes(taken))


def _failure(error: Exception) -> _Failed:
    """Of an exception only its kind is told: its text has the address."""
    import requests
    import urllib3

    if isinstance(error, requests.exceptions.SSLError):
        return _Failed("has no certificate that this host trusts (REQUESTS_CA_BUNDLE)", unsure=False, again=False)
    if isinstance(error, (requests.exceptions.ConnectTimeout, requests.exceptions.ProxyError)):
        return _Failed("cannot be reached", unsure=False)
    if isinstance(error, requests.exceptions.Timeout):
        return _Failed("did not answer in time")
    if isinstance(error, requests.exceptions.ConnectionError):
        reason = getattr(error.args[0], "reason", None) if error.args else None
        if isinstance(reason, urllib3.exceptions.NewConnectionError):
            return _Failed("cannot be reached", unsure=False)
        if isinstance(reason, urllib3.exceptions.TimeoutError) or "timed out" in str(error):
            return _Failed("did not answer in time")
        return _Failed("closed the connection")
    if isinstance(error, requests.exceptions.RequestException):
        return _Failed("answered with something that is not HTTP")
    return _Failed(f"could not be asked ({type(error).__name__})", again=False)
