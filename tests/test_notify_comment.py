"""The comment on a pull request: once, whatever happens to the connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pytest_r1perf.notify.channel import NotifyError
from pytest_r1perf.notify.comment import PERMISSION, Comment
from pytest_r1perf.notify.github import LIMIT, github
from pytest_r1perf.notify.http import Timeouts
from pytest_r1perf.notify.variables import GitHubVariables
from pytest_r1perf.report.gfm import units
from pytest_r1perf.verdict import Verdict
from tests.notify_server import (
    REPOSITORY,
    TOKEN,
    Behaviour,
    FakeClock,
    State,
    cell,
    done_and_lost,
    huge,
    lost,
    night,
    served,
    status,
)

POSTS = r"/issues/12/comments$"
RUN = "https://github.test/acme/r1/actions/runs/7"


@pytest.fixture(name="server")
def _server() -> Iterator[State]:
    with served() as state:
        yield state


def comment(server: State, key: str = "summary", author: str | None = None, repository: str = REPOSITORY) -> Comment:
    made = github(
        GitHubVariables(repository, server.url, TOKEN),
        FakeClock(),
        Timeouts(),
        permission=PERMISSION,
        author=author,
        in_actions=True,
    )
    return Comment(made, 12, key, RUN)


def test_made_once_then_updated(server: State) -> None:
    assert list(comment(server).send(night(1, cell()))) == ["comment made: https://github.test/c1000"]
    assert list(comment(server).send(night(1, cell()))) == ["comment is as it was: https://github.test/c1000"]
    assert list(comment(server).send(night(2, cell(Verdict.PASS)))) == ["comment updated: https://github.test/c1000"]
    assert [one.method for one in server.writes()] == ["POST", "PATCH"]
    (there,) = server.comments.values()
    assert there["body"].startswith("<!-- pytest-r1perf: summary -->\n## Performance: none of 1 cell failed")
    assert RUN in there["body"]
    assert all(one.headers["Authorization"] == f"Bearer {TOKEN}" for one in server.seen)


def test_found_behind_many_others(server: State) -> None:
    for number in range(120):
        server.add_comment(12, f"talk {number}", "someone")
    list(comment(server).send(night(1, cell())))
    list(comment(server).send(night(2, cell())))
    assert len(server.comments) == 121
    assert {one.path.partition("page=")[2][-1] for one in server.of("GET", "/comments")} == {"1", "2", "3"}


def test_of_others_nothing_is_touched(server: State) -> None:
    server.add_comment(12, "<!-- pytest-r1perf: summary -->\nmine", "mallory")
    server.add_comment(12, "see\n<!-- pytest-r1perf: summary -->")
    server.add_comment(12, "<!-- pytest-r1perf: other -->")
    server.add_comment(13, "<!-- pytest-r1perf: summary -->")
    list(comment(server).send(night(1, cell())))
    assert [one.method for one in server.writes()] == ["POST"]
    list(comment(server, key="tp8").send(night(1, cell())))
    assert len(server.comments) == 6


def test_login_in_another_case_is_ours(server: State) -> None:
    server.add_comment(12, "<!-- pytest-r1perf: summary -->\r\nold", "Octo-Cat")
    list(comment(server, author="octo-cat").send(night(1, cell())))
    assert [one.method for one in server.writes()] == ["PATCH"]


def test_a_workflows_token_may_not_ask_who_it_is(server: State) -> None:
    server.user_status = 403
    list(comment(server).send(night(1, cell())))
    list(comment(server).send(night(2, cell())))
    assert len(server.comments) == 1


def test_an_author_that_is_not_the_tokens_is_said(server: State) -> None:
    said = list(comment(server, author="somebody").send(night(1, cell())))
    assert (
        said[1] == "it is not by somebody, so that the next time one more would be made: give --author with its login"
    )


@pytest.mark.parametrize("first", [done_and_lost, status(502), status(504), lost])
def test_a_create_of_which_nothing_is_known(server: State, first: Behaviour) -> None:
    server.plan("POST", POSTS, first)
    assert next(comment(server).send(night(1, cell()))).startswith("comment made: https://github.test/c1000")
    assert len(server.comments) == 1
    looked = [one.method for one in server.seen if "/comments" in one.path]
    assert looked == (["GET", "POST", "GET"] if first is done_and_lost else ["GET", "POST", "GET", "POST"])


def test_a_create_that_never_succeeds_ends(server: State) -> None:
    server.plan("POST", POSTS, *[lost] * 20)
    with pytest.raises(NotifyError, match="it was looked for and is not there yet"):
        list(comment(server).send(night(1, cell())))
    assert len(server.of("POST")) == 5


def test_a_comment_that_goes_meanwhile_is_made_again(server: State) -> None:
    list(comment(server).send(night(1, cell())))
    server.plan("PATCH", "", status(404))
    assert next(comment(server).send(night(2, cell()))).startswith("comment made")


def test_body_is_within_githubs_limit(server: State) -> None:
    cells = [cell(n=n, cause="é" * 500, notes=(f"env: {'😀' * 400}",)) for n in range(500)]
    text = comment(server).body(night(1, *cells))
    assert 20_000 < units(text) <= LIMIT


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (status(401), "answered 401 to read the comments of pull request #12: GITHUB_TOKEN is not valid here"),
        (
            status(403, b'{"message": "Resource not accessible by integration"}'),
            "(Resource not accessible by integration): give the token the permission `pull-requests: write`",
        ),
        (status(404), "acme/r1 or the number is not there"),
        (status(410), "answered 410"),
        (status(422, f'{{"message": "no {TOKEN}\\u001b[31m\\nx"}}'.encode()), "(no *** x): it took none"),
        (
            status(429, Retry_After="900"),
            "answered 429 to read the comments of pull request #12 and has no time now: run",
        ),
        (status(500, b"<html>"), "answered 500 to read the comments of pull request #12: try later"),
        (status(200, b"<html>captive portal</html>"), "something that is not GitHub's JSON: check GITHUB_API_URL"),
        (status(200, b"{}"), "something that is not GitHub's JSON"),
        (status(200, b"[" * 100_000), "something that is not GitHub's JSON"),
        (huge, "answered with more than 32 MiB"),
        (status(301, Location="https://elsewhere.test/x"), "a redirect to elsewhere.test"),
    ],
)
def test_one_sentence_that_says_what_to_do(server: State, behaviour: Behaviour, said: str) -> None:
    server.plan("GET", "/comments", behaviour)
    with pytest.raises(NotifyError) as caught:
        list(comment(server).send(night(1, cell())))
    assert said in str(caught.value)
    assert str(caught.value).startswith("127.0.0.1:")
    assert TOKEN not in str(caught.value)
    assert not {"\n", "\x1b"} & set(str(caught.value))
    assert server.writes() == []


@pytest.mark.parametrize(
    "answer", [None, 5, "text", [1, None, {"body": 7, "user": "x"}], [{"user": None, "body": None}]]
)
def test_lists_that_are_none(server: State, answer: Any) -> None:
    import json

    server.plan("GET", "/comments", status(200, json.dumps(answer).encode()))
    if isinstance(answer, list):
        assert next(comment(server).send(night(1, cell()))).startswith("comment made")
    else:
        with pytest.raises(NotifyError, match="not GitHub's JSON"):
            list(comment(server).send(night(1, cell())))


@pytest.mark.parametrize("key", ["", "a b", "a--b", "-->", "x" * 61, "a\n"])
def test_keys_that_would_end_the_marker(key: str) -> None:
    with pytest.raises(NotifyError, match="--key is"):
        Comment(None, 1, key)
