"""Issues of a nightly: the life of one, night by night, on a GitHub with a state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.document.model import Document
from pytest_r1perf.notify.channel import NotifyError
from pytest_r1perf.notify.github import LIMIT, github
from pytest_r1perf.notify.http import Timeouts
from pytest_r1perf.notify.issue import LABEL, PERMISSION, Issues
from pytest_r1perf.notify.issue_text import body as issue_body
from pytest_r1perf.notify.memory import begun, remembered
from pytest_r1perf.notify.standing import standings
from pytest_r1perf.notify.variables import GitHubVariables
from pytest_r1perf.report.gfm import units
from pytest_r1perf.verdict import Verdict
from tests.notify_server import REPOSITORY, TOKEN, FakeClock, State, cell, done_and_lost, lost, night, served, status

BAD = (
    *(Verdict.REGRESSED, Verdict.INVALID, Verdict.OOM, Verdict.HANG, Verdict.INFRA, Verdict.CONFIG, Verdict.CRASH),
    Verdict.OUTPUTS_CHANGED,
)
NO_ANSWER = (Verdict.UNDECIDED, Verdict.INCOMPARABLE, Verdict.NO_BASELINE, Verdict.STORED, Verdict.MEASURED)
EXPECTED = (Verdict.XFAIL, Verdict.XPASS)


@pytest.fixture(name="server")
def _server() -> Iterator[State]:
    with served() as state:
        state.labels.add(LABEL)
        yield state


def tell(server: State, document: Document, **given: Any) -> list[str]:
    made = github(
        GitHubVariables(REPOSITORY, server.url, TOKEN), FakeClock(), Timeouts(), permission=PERMISSION, in_actions=True
    )
    return list(Issues(made, **given).send(document))


def events(server: State) -> list[str]:
    """What people get a mail of: comments, in order."""
    return [one["body"].partition("\n")[2].strip().partition("\n")[0] for one in server.comments.values()]


def test_the_life_of_an_issue(server: State) -> None:
    assert tell(server, night(1, cell())) == ["issue #1 opened: https://github.test/i1"]
    issue = server.issues[1]
    assert issue["title"] == "perf: REGRESSED: tp1 default n=50 on h200x1"
    assert issue["labels"] == [{"name": LABEL}]
    assert "pytest 'perf_tests/test_tp1.py::test_load[50]' --perf" in issue["body"]

    for day in (2, 3):
        assert tell(server, night(day, cell(ratio=(0.77, 0.81)))) == [
            "issue #1 updated, nothing new: https://github.test/i1"
        ]
    assert events(server) == [], "every night the same is no news"
    assert "3 sessions. Nothing new since `20261201.010000.abcd`." in issue["body"]

    worse = cell(ratio=(0.5, 0.6))
    assert tell(server, night(4, worse)) == ["issue #1 updated, with a comment: https://github.test/i1"]
    assert events(server) == ["Still there, and not the same as before."]

    assert tell(server, night(5, cell(Verdict.UNDECIDED))) == [
        "issue #1 stays open: UNDECIDED is no verdict for or against: https://github.test/i1",
        "no cell is bad",
    ]
    assert issue["state"] == "open"

    assert tell(server, night(6, cell(Verdict.PASS)))[0] == (
        "issue #1 closed, since the cell passes: https://github.test/i1"
    )
    assert (issue["state"], issue["state_reason"]) == ("closed", "completed")
    assert tell(server, night(7, cell(Verdict.PASS))) == ["no cell is bad"]

    assert tell(server, night(8, cell(Verdict.HANG, hardware="none"))) == ["issue #1 reopened: https://github.test/i1"]
    assert (issue["state"], issue["title"]) == ("open", "perf: HANG: tp1 default n=50 on h200x1")
    assert events(server) == [
        "Still there, and not the same as before.",
        "Recovered, by a decided verdict.",
        "It is back.",
    ]
    assert len(server.issues) == 1


@pytest.mark.parametrize("verdict", list(Verdict))
def test_what_opens_and_what_closes(server: State, verdict: Verdict) -> None:
    assert {*BAD, *NO_ANSWER, *EXPECTED, Verdict.PASS, Verdict.IMPROVED} == set(Verdict)
    tell(server, night(1, cell(verdict)))
    assert len(server.issues) == (1 if verdict in BAD else 0)
    server.issues.clear()
    tell(server, night(1, cell()))
    tell(server, night(2, cell(verdict)))
    closes = verdict in (Verdict.PASS, Verdict.IMPROVED)
    assert [one["state"] for one in server.issues.values()] == ["closed" if closes else "open"]


def test_what_is_left_alone(server: State) -> None:
    quarantined = cell(quarantined=True, failed=False)
    pair = cell(against="old environment", n=60)
    assert tell(server, night(1, quarantined, pair)) == ["no cell that a nightly judges: no issue is touched"]
    assert server.seen == []
    tell(server, night(2, cell(), cell(n=60)))
    tell(server, night(3, cell(Verdict.PASS, against="old environment"), quarantined, cell(Verdict.PASS, n=70)))
    tell(server, night(4, cell(Verdict.PASS, failed=True)))
    assert [one["state"] for one in server.issues.values()] == ["open", "open"], "a pair, other cells, a failing body"


def test_two_tests_of_one_cell(server: State) -> None:
    tell(server, night(1, cell(Verdict.PASS), cell(), cell(Verdict.MEASURED)))
    assert len(server.issues) == 1
    tell(server, night(2, cell(Verdict.PASS), cell(Verdict.UNDECIDED)))
    assert server.issues[1]["state"] == "open"
    tell(server, night(3, cell(Verdict.PASS), cell(Verdict.MEASURED)))
    assert server.issues[1]["state"] == "closed"


def test_a_night_told_twice_or_too_late(server: State) -> None:
    tell(server, night(3, cell()))
    said = "issue #1 has this session or a later one already: https://github.test/i1"
    assert tell(server, night(3, cell())) == [said]
    assert tell(server, night(2, cell(Verdict.PASS)))[0] == said
    tell(server, night(5, cell(Verdict.PASS)))
    assert tell(server, night(4, cell())) == [said], "closed by a later night"
    assert server.issues[1]["state"] == "closed"
    assert tell(server, night(5, cell(Verdict.PASS)))[0] == said
    assert len(server.comments) == 1


def test_news_is_a_changed_version_or_cause_and_no_number(server: State) -> None:
    def broken(cause: str, *notes: str) -> Any:
        return cell(Verdict.CRASH, cause=cause, notes=notes)

    tell(server, night(1, broken("pid 17 died in /tmp/a after 12.5 s", "versions: sglang 0.5.9 -> 0.5.17")))
    tell(server, night(2, broken("pid 99 died in /tmp/b after 7 s", "versions: sglang 0.5.9 -> 0.5.17", "x: y")))
    assert events(server) == []
    tell(server, night(3, broken("pid 99 died in /tmp/b after 7 s", "versions: sglang 0.5.9 -> 0.5.18")))
    tell(server, night(4, broken("out of file descriptors", "versions: sglang 0.5.9 -> 0.5.18")))
    assert events(server) == ["Still there, and not the same as before."] * 2


def test_closed_by_a_person(server: State) -> None:
    tell(server, night(1, cell()))
    server.issues[1].update(state="closed", state_reason="not_planned")
    assert "was closed as not planned, and stays so although the cell is bad" in tell(server, night(2, cell()))[0]
    assert server.issues[1]["state"] == "closed"
    server.issues[1]["state_reason"] = "completed"
    tell(server, night(3, cell()))
    assert server.issues[1]["state"] == "open"


@pytest.mark.parametrize("spoilt", ["<!-- pytest-r1perf-memory: {} -->", "", '<!-- pytest-r1perf-memory: {"a": [ -->'])
def test_a_body_that_a_person_edited(server: State, spoilt: str) -> None:
    tell(server, night(1, cell()))
    lines = server.issues[1]["body"].split("\n")
    server.issues[1]["body"] = "\r\n".join([lines[0], spoilt, "note to self"])
    assert tell(server, night(2, cell())) == ["issue #1 updated, nothing new: https://github.test/i1"]
    assert remembered(server.issues[1]["body"]) is not None


def test_issues_of_others_and_pull_requests(server: State) -> None:
    (one,) = standings(night(1, cell()))
    server.add_issue(body=one.marker, labels=[LABEL], user={"login": "mallory"}, title="x")
    server.add_issue(body=one.marker, labels=[LABEL], pull_request={}, title="x")
    server.add_issue(body=f"like {one.marker}", labels=[LABEL], title="x")
    tell(server, night(2, cell()))
    assert len(server.issues) == 4
    assert server.of("PATCH") == []


def test_found_on_a_later_page(server: State) -> None:
    for number in range(70):
        server.add_issue(body=str(number), labels=[LABEL], title="x")
    tell(server, night(1, cell()))
    tell(server, night(2, cell()))
    assert len(server.issues) == 71


def test_no_more_than_some_are_opened(server: State) -> None:
    said = tell(server, night(1, *(cell(n=n) for n in range(500))), most_new=3)
    assert len(server.issues) == 3
    assert said[-1] == "497 more cells are bad, and have no issue: 3 a session are opened (--most)"


def test_label_is_made_first(server: State) -> None:
    server.labels.clear()
    assert tell(server, night(1, cell()))[0] == f"label made: {LABEL}"
    assert [one.path.rpartition("/")[2] for one in server.of("POST")] == ["labels", "issues"]


def test_no_permission_for_the_label_opens_nothing(server: State) -> None:
    server.labels.clear()
    server.plan("POST", "/labels", status(403))
    with pytest.raises(NotifyError, match="give the token the permission `issues: write`"):
        tell(server, night(1, cell()))
    assert server.issues == {}


def test_a_label_that_github_dropped_is_said(server: State) -> None:
    server.plan("POST", "/issues$", status(201, b'{"number": 9, "labels": [], "user": {"login": "x"}}'))
    with pytest.raises(NotifyError, match="issue #9 was opened without its label"):
        tell(server, night(1, cell()))


def test_an_issue_is_opened_once_though_the_answer_is_lost(server: State) -> None:
    server.plan("POST", "/issues$", done_and_lost)
    assert tell(server, night(1, cell())) == ["issue #1 opened: https://github.test/i1"]
    assert len(server.issues) == 1


def test_cut_off_between_comment_and_change(server: State) -> None:
    tell(server, night(1, cell()))
    server.plan("PATCH", "/issues/1", status(500))
    with pytest.raises(NotifyError):
        tell(server, night(2, cell(Verdict.PASS)))
    tell(server, night(2, cell(Verdict.PASS)))
    assert (server.issues[1]["state"], events(server)) == ("closed", ["Recovered, by a decided verdict."])


def test_one_that_fails_does_not_keep_the_others(server: State) -> None:
    tell(server, night(1, cell(n=1), cell(n=2)))
    server.plan("POST", "/issues/1/comments", status(403, b'{"message": "locked"}'), lost)
    with pytest.raises(NotifyError, match=r"403 to comment on issue #1 \(locked\)"):
        tell(server, night(2, cell(Verdict.PASS, n=1), cell(Verdict.PASS, n=2)))
    assert [one["state"] for one in server.issues.values()] == ["open", "closed"]


def test_one_that_is_locked_does_not_keep_a_new_one_from_being_opened(server: State) -> None:
    locked = status(403, b'{"message": "locked"}')
    tell(server, night(1, cell(n=1)))
    server.plan("POST", "/issues/1/comments", locked, locked)
    with pytest.raises(NotifyError, match=r"403 to comment on issue #1 \(locked\)"):
        tell(server, night(2, cell(Verdict.PASS, n=1), cell(n=2)))
    assert [one["title"] for one in server.issues.values()] == [
        "perf: REGRESSED: tp1 default n=1 on h200x1",
        "perf: REGRESSED: tp1 default n=2 on h200x1",
    ]
    server.plan("POST", "/issues$", status(422, b'{"message": "spam"}'))
    with pytest.raises(NotifyError, match=r"comment on issue #1 \(locked\).*; .*422 to open an issue \(spam\)"):
        tell(server, night(3, cell(Verdict.PASS, n=1), cell(n=3)))


def test_after_three_that_fail_nothing_more_is_tried(server: State) -> None:
    tell(server, night(1, *(cell(n=n) for n in range(4))))
    before = len(server.writes())
    server.plan("POST", "/comments", *[status(403, b'{"message": "locked"}')] * 4)
    with pytest.raises(NotifyError, match=r"issue #1 .*; .*issue #2 .*; .*issue #3 "):
        tell(server, night(2, *(cell(Verdict.PASS, n=n) for n in range(4)), cell(n=9)))
    assert len(server.writes()) == before + 3


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_any_text_keeps_marker_and_memory(session: str, label: str, cause: str) -> None:
    bad = cell(Verdict.CRASH, label=label, cause=f"{cause} -->", nodeid=cause)
    document = night(1, bad, session=session)
    (one,) = standings(document)
    memory = begun(bad, document.session)
    text = issue_body(one, memory, "")
    assert text.startswith(one.marker)
    assert remembered(text) == memory


@pytest.mark.parametrize("size", [5_000, 70_000, 300_000])
def test_body_is_within_githubs_limit(size: int) -> None:
    bad = cell(Verdict.CRASH, cause="é`\n" * size, reproduce="x" * size, notes=("env: " + "😀" * size,) * 9)
    (one,) = standings(night(1, bad))
    text = issue_body(one, begun(bad, "s"), "https://github.test/run")
    assert units(text) <= LIMIT
    assert text.startswith(one.marker)
    assert remembered(text) is not None


@pytest.mark.parametrize("label", ["", " ", "a,b", "x" * 51, "a\nb"])
def test_labels_that_github_does_not_take(label: str) -> None:
    with pytest.raises(NotifyError, match="--label is"):
        Issues(None, label)
