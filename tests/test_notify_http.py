"""The client of notices against a real server that answers well, badly, slowly and never."""

from __future__ import annotations

import email.utils
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.notify.channel import NotifyError, Unsure
from pytest_r1perf.notify.http import ATTEMPTS, Client, Timeouts
from pytest_r1perf.notify.limits import asked_wait
from pytest_r1perf.notify.url import checked
from tests.notify_server import TOKEN, Behaviour, FakeClock, State, garbage, huge, lost, never, served, slowly, status

SECRET = "/hook/T0/SECRET"


@pytest.fixture(name="server")
def _server() -> Iterator[State]:
    with served() as state:
        yield state


@pytest.fixture(name="clock")
def _clock() -> FakeClock:
    return FakeClock()


def client(server: State, clock: FakeClock, total_s: float = 60.0, read_s: float = 20.0) -> Client:
    return Client(server.url, clock, Timeouts(2.0, read_s, total_s), token=TOKEN)


@pytest.mark.parametrize("code", [429, 502, 503, 504])
def test_tries_again(server: State, clock: FakeClock, code: int) -> None:
    server.plan("GET", "", status(code), status(code))
    assert client(server, clock).ask("GET", "/user").status == 200
    assert len(server.seen) == 3
    first, second = clock.slept
    assert 0.5 <= first <= 1.0 <= second <= 2.0, "the wait grows, with jitter"


def test_gives_up_after_some_tries(server: State, clock: FakeClock) -> None:
    server.plan("GET", "", *[status(503)] * 20)
    assert client(server, clock).ask("GET", "/user").status == 503
    assert len(server.seen) == ATTEMPTS


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410, 422, 500])
def test_does_not_try_again(server: State, clock: FakeClock, code: int) -> None:
    server.plan("GET", "", status(code))
    assert client(server, clock).ask("GET", "/user").status == code
    assert (len(server.seen), clock.slept) == (1, [])


@pytest.mark.parametrize("limited", [status(429, Retry_After="17"), status(403, Retry_After="17")])
def test_waits_as_long_as_it_is_asked(server: State, clock: FakeClock, limited: Behaviour) -> None:
    server.plan("GET", "", limited)
    assert client(server, clock).ask("GET", "/user").status == 200
    assert 17 <= clock.slept[0] <= 18


def test_waits_to_a_date_and_to_the_reset(server: State, clock: FakeClock) -> None:
    server.plan("GET", "", status(429, Retry_After=email.utils.formatdate(time.time() + 20, usegmt=True)))
    reset = str(int(time.time()) + 40)
    server.plan("GET", "", status(403, X_RateLimit_Remaining="0", X_RateLimit_Reset=reset))
    assert client(server, clock).ask("GET", "/user").status == 200
    first, second = clock.slept
    assert 18 <= first <= 22
    assert first + second >= 39, "of the time that had gone by then"


def test_secondary_limit_without_a_time_is_a_minute(server: State, clock: FakeClock) -> None:
    server.plan("GET", "", status(403, b'{"message": "You have exceeded a secondary rate limit."}'))
    assert client(server, clock, total_s=120).ask("GET", "/user").status == 200
    assert 60 <= clock.slept[0] <= 61


def test_asked_for_longer_than_there_is_time(server: State, clock: FakeClock) -> None:
    server.plan("GET", "", status(429, Retry_After="3600"))
    assert client(server, clock).ask("GET", "/user").status == 429
    assert (len(server.seen), clock.slept) == (1, []), "never earlier than asked"


def test_lost_connections(server: State, clock: FakeClock) -> None:
    server.plan("GET", "", lost, garbage)
    assert client(server, clock).ask("GET", "/user").status == 200
    server.plan("POST", "", lost)
    with pytest.raises(Unsure, match="closed the connection, and may have done what it was asked"):
        client(server, clock).ask("POST", "/x", {})
    assert len(server.of("POST")) == 1


@pytest.mark.parametrize("code", [502, 504])
def test_a_post_that_may_be_done_is_not_repeated(server: State, clock: FakeClock, code: int) -> None:
    server.plan("POST", "", status(code))
    with pytest.raises(Unsure):
        client(server, clock).ask("POST", "/x", {})
    assert len(server.of("POST")) == 1


def test_a_post_that_was_refused_is_repeated(server: State, clock: FakeClock) -> None:
    server.plan("POST", "", status(429), status(503), status(201))
    assert client(server, clock).ask("POST", "/x", {}).status == 201


@pytest.mark.parametrize("behaviour", [never, slowly])
def test_ends_at_its_deadline(server: State, clock: FakeClock, behaviour: Behaviour) -> None:
    server.plan("GET", "", *[behaviour] * ATTEMPTS)
    with pytest.raises(NotifyError, match=r"127\.0\.0\.1:\d+ did not answer in"):
        client(server, clock, total_s=0.4).ask("GET", SECRET)


def test_read_timeout(server: State, clock: FakeClock) -> None:
    server.plan("GET", "", never)
    assert client(server, clock, read_s=0.2).ask("GET", "/user").status == 200


def test_huge_answer(server: State, clock: FakeClock) -> None:
    server.plan("GET", "", huge)
    with pytest.raises(NotifyError, match="answered with more than 32 MiB"):
        client(server, clock).ask("GET", "/user")
    assert len(server.seen) == 1


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
def test_no_redirect_is_followed(server: State, clock: FakeClock, code: int, method: str) -> None:
    with served() as other:
        server.plan(method, "", status(code, Location=f"{other.url}/steal"))
        with pytest.raises(NotifyError) as caught:
            client(server, clock).ask(method, SECRET, {"text": "x"})
        assert other.seen == []
        assert f"answered {code}, a redirect to {other.url.removeprefix('http://')}" in str(caught.value)


def test_nobody_there(clock: FakeClock) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NotifyError, match="cannot be reached: check the address") as caught:
            Client(url, clock, Timeouts(), token=TOKEN).ask("POST", SECRET, {})
    assert len(clock.slept) == ATTEMPTS - 1
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_secrets_leave_only_in_their_header(
    server: State, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with served() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        asked = client(server, clock)
        asked.ask("POST", "/x", {"text": f"a log with {TOKEN} in it"})
        Client(server.url + SECRET, clock, Timeouts()).ask("POST", data={"text": f"see {server.url}{SECRET}"})
        assert proxy.seen == []
    first, second = server.seen
    assert first.headers["Authorization"] == f"Bearer {TOKEN}"
    assert first.data == {"text": "a log with *** in it"}
    assert "Authorization" not in second.headers
    assert second.data == {"text": "see ***"}
    assert TOKEN not in repr(asked) + repr(vars(asked).get("headers"))


def test_body_is_json_without_nan(server: State, clock: FakeClock) -> None:
    client(server, clock).ask("POST", "/x", {"a": float("nan"), "b": [float("inf")], "c": "\ud800 <é>"})
    assert server.seen[0].data == {"a": None, "b": [None], "c": "\ud800 <é>"}


@given(st.text(max_size=60), st.text(max_size=30))
def test_any_header_is_a_wait_or_none(after: str, reset: str) -> None:
    headers = {"retry-after": after, "x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}
    wait = asked_wait(429, headers, b"", 1_700_000_000.0)
    assert wait is None or 0 <= wait < 1e11


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/SECRET",
        "ftp://example.com/SECRET",
        "https:///SECRET",
        "https://user:SECRET@example.com/",
        "http://127.0.0.1@example.com/SECRET",
        "http://example.com\\@127.0.0.1/SECRET",
        "https://exa mple.com/SECRET",
        "https://example.com/SECRET\nHost: x",
        "https://example.com:port/SECRET",
        "https://[::1/SECRET",
        "https://exämple.com/SECRET",
        "http://127.0.0.1.example.com/SECRET",
        "SECRET",
    ],
)
def test_refused_addresses(url: str) -> None:
    with pytest.raises(NotifyError, match="THE_VARIABLE") as caught:
        checked("THE_VARIABLE", url)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["https://example.com/x?y=z", "http://127.0.0.1:8/x", "http://localhost/", "http://[::1]:8/"]
)
def test_taken_addresses(url: str) -> None:
    assert checked("THE_VARIABLE", f" {url}\n") == url


def test_a_proxy_is_used_and_a_netrc_is_not(
    server: State, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine hooks.test login a password b\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, server.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Client("http://hooks.test/hook", clock, Timeouts()).ask("POST", data={})
    Client("http://hooks.test/api", clock, Timeouts(), token=TOKEN).ask("GET", "/user")
    hook, api = server.seen
    assert hook.path == "http://hooks.test/hook"
    assert "Authorization" not in hook.headers
    assert api.headers["Authorization"] == f"Bearer {TOKEN}"
