"""The webhook's one JSON: what a chat shows, and our own fields."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pytest_r1perf.notify.channel import NotifyError, Unsure
from pytest_r1perf.notify.http import Client, Timeouts
from pytest_r1perf.notify.webhook import MOST_TEXT, Webhook
from pytest_r1perf.verdict import Verdict
from tests.notify_server import (
    Behaviour,
    FakeClock,
    State,
    cell,
    done_and_lost,
    garbage,
    lost,
    never,
    night,
    served,
    status,
)

PATH = "/services/T000/B000/SECRETSECRET"
NASTY = 'a|b <!channel> & "q" `tick` @here 😀 \x1b[31mred\x1b[0m </script>'


@pytest.fixture(name="server")
def _server() -> Iterator[State]:
    with served() as state:
        yield state


def webhook(server: State, *, only_failed: bool = False) -> Webhook:
    client = Client(server.url + PATH, FakeClock(), Timeouts(read_s=0.3))
    return Webhook(client, only_failed, "https://github.test/acme/r1/actions/runs/7", "acme/r1")


def test_what_is_sent(server: State) -> None:
    server.plan("POST", PATH, status(200, b"ok"))
    document = night(1, cell(Verdict.PASS, n=1), cell(n=2), exitstatus=1)
    assert list(webhook(server).send(document)) == [f"webhook of {server.url.removeprefix('http://')} told"]
    (seen,) = server.seen
    assert (seen.path, seen.headers["Content-Type"]) == (PATH, "application/json")
    data = seen.data
    assert sorted(data) == ["r1perf", "text"], "a receiver may refuse fields that it does not know: ours are in one"
    assert data["text"].startswith(
        "*1 of 2 cells failed*: 1 REGRESSED, 1 PASS\n```\nREGRESSED: tp1 default n=2 on h200x1"
    )
    assert "reproduce: pytest 'perf_tests/test_tp1.py::test_load[2]' --perf" in data["text"]
    ours = data["r1perf"]
    assert (ours["format"], ours["failed"], ours["verdicts"]) == (1, 1, {"PASS": 1, "REGRESSED": 1})
    assert [one["verdict"] for one in ours["cells"]] == ["REGRESSED", "PASS"], "the failed ones first"
    assert ours["cells"][0]["metrics"][0]["upper"] == 0.82


def test_names_that_may_hold_anything(server: State) -> None:
    bad = cell(label=NASTY, platform=NASTY, cause=NASTY, reproduce=NASTY, nodeid="\ud800", ratio=(0.1, float("inf")))
    server.plan("POST", PATH, status(200))
    list(webhook(server).send(night(1, bad, exitstatus=None)))
    data = server.seen[0].data
    inside = data["text"].split("```")[1]
    assert data["text"].count("```") == 2
    assert not {"<", ">", "`", "\x1b"} & set(inside), "nothing that a chat reads as a call or a colour"
    assert "&lt;!channel&gt; &amp;" in inside
    assert data["r1perf"]["cells"][0]["metrics"][0]["upper"] is None
    assert json.loads(next(iter(Webhook(None).shown(night(1, bad)))))["r1perf"]["failed"] == 1


def test_500_cells(server: State) -> None:
    payload = webhook(server).payload(night(1, *(cell(n=n, cause="x" * 10_000) for n in range(500))))
    assert len(payload["text"]) <= MOST_TEXT
    assert payload["text"].splitlines()[-2].startswith("and 49")
    assert (len(payload["r1perf"]["cells"]), payload["r1perf"]["cells_left_out"]) == (100, 400)
    assert len(json.dumps(payload)) < 300_000


def test_nothing_measured(server: State) -> None:
    assert webhook(server).text(night(1)).startswith("*no cell was measured*: nothing measured")


def test_only_what_failed(server: State) -> None:
    server.plan("POST", PATH, status(200))
    assert "nothing is sent" in next(iter(webhook(server, only_failed=True).send(night(1, cell(Verdict.PASS)))))
    assert server.seen == []
    list(webhook(server, only_failed=True).send(night(1, cell())))
    assert len(server.seen) == 1


@pytest.mark.parametrize("behaviour", [lost, done_and_lost, garbage, never, status(502), status(504)])
def test_never_sent_twice_where_it_may_have_arrived(server: State, behaviour: Behaviour) -> None:
    server.plan("POST", PATH, behaviour)
    with pytest.raises(Unsure, match="may have done what it was asked, or not") as caught:
        list(webhook(server).send(night(1, cell())))
    assert len(server.seen) == 1
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410, 413, 418, 429, 500, 503])
def test_errors_never_name_the_address(server: State, code: int) -> None:
    server.plan("POST", PATH, *[status(code, f"no such {PATH}".encode())] * 9)
    with pytest.raises(NotifyError, match=f"^the webhook's 127.0.0.1:\\d+ answered {code}") as caught:
        list(webhook(server).send(night(1, cell())))
    assert "SECRET" not in str(caught.value)


def test_a_redirect_to_another_host_gets_nothing(server: State) -> None:
    with served() as other:
        server.plan("POST", PATH, status(307, Location=f"{other.url}{PATH}"))
        with pytest.raises(NotifyError, match="a redirect to 127") as caught:
            list(webhook(server).send(night(1, cell())))
        assert other.seen == []
    assert "SECRET" not in str(caught.value)
