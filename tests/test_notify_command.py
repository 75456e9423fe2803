"""`r1perf notify` as it is typed: exit statuses, variables, and where secrets may not be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_r1perf.document.file import as_json
from pytest_r1perf.notify.commands import notify_group
from pytest_r1perf.verdict import Verdict
from tests.notify_server import REPOSITORY, TOKEN, State, cell, never, night, served, status

SECRET = "SECRETSECRET"
KINDS = ("github-comment", "github-issue", "webhook")
CLEAN = dict.fromkeys(
    (
        *("GITHUB_TOKEN", "GITHUB_REPOSITORY", "GITHUB_API_URL", "GITHUB_SERVER_URL", "GITHUB_RUN_ID", "GITHUB_REF"),
        *("GITHUB_EVENT_PATH", "GITHUB_EVENT_NAME", "GITHUB_ACTIONS", "R1PERF_WEBHOOK_URL"),
    )
)


@pytest.fixture(name="server")
def _server() -> Iterator[State]:
    with served() as state:
        yield state


@pytest.fixture(name="report")
def _report(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(as_json(night(1, cell())))
    return path


def typed(*arguments: object, **env: str) -> tuple[int, str, str]:
    ran = CliRunner().invoke(notify_group, [str(one) for one in arguments], env={**CLEAN, **env})
    return ran.exit_code, ran.stdout, ran.stderr


def workflow(server: State, **env: str) -> dict[str, str]:
    return {"GITHUB_TOKEN": TOKEN, "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_API_URL": server.url, **env}


def as_a_process(*arguments: str | Path, **env: str) -> tuple[int, str]:
    """All that it says; `DEBUG` logging of every library, as a curious person would switch it on."""
    code = "import logging; logging.basicConfig(level=logging.DEBUG)\n"
    code += "from pytest_r1perf.notify.commands import notify_group; notify_group()"
    clean = {name: value for name, value in os.environ.items() if name not in CLEAN}
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**clean, "PYTHONPATH": str(Path(__file__).parents[1]), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr


def test_a_pull_request_of_the_event(server: State, report: Path, tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 12}}))
    env = workflow(server, GITHUB_EVENT_PATH=str(event), GITHUB_SERVER_URL="https://github.test", GITHUB_RUN_ID="77")
    assert typed("github-comment", report, **env)[:2] == (0, "comment made: https://github.test/c1000\n")
    assert "https://github.test/acme/r1/actions/runs/77" in server.comments[1000]["body"]
    assert server.comments[1000]["issue"] == 12


@pytest.mark.parametrize(
    ("event", "number"),
    [
        ({"issue": {"number": 5, "pull_request": {}}}, 5),
        ({"workflow_run": {"pull_requests": [{"number": 6}]}}, 6),
        ({"issue": {"number": 5}}, None),
        ({"pull_request": {"number": "7; rm -rf /"}}, None),
        ({"workflow_run": {"pull_requests": []}}, None),
        ([1], None),
    ],
)
def test_events(server: State, report: Path, tmp_path: Path, event: object, number: int | None) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(event))
    env = workflow(server, GITHUB_EVENT_PATH=str(path), GITHUB_EVENT_NAME="push")
    code, _, said = typed("github-comment", report, **env)
    assert code == 0
    if number is None:
        assert said == "r1perf notify: the event 'push' has no pull request: give --pr NUMBER\n"
    assert [one["issue"] for one in server.comments.values()] == ([] if number is None else [number])


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("github-comment", {"GITHUB_TOKEN": ""}, "GITHUB_TOKEN is not set"),
        ("github-issue", {"GITHUB_TOKEN": f"{TOKEN}\nX: y"}, "GITHUB_TOKEN has a blank, a line end or another"),
        ("github-issue", {"GITHUB_REPOSITORY": ""}, "GITHUB_REPOSITORY is not set: give --repository OWNER/NAME"),
        (
            "github-issue",
            {"GITHUB_REPOSITORY": "acme/../x"},
            "GITHUB_REPOSITORY is 'acme/../x', which is not of the form",
        ),
        ("github-issue", {"GITHUB_REPOSITORY": "acme/.."}, "which is not of the form OWNER/NAME"),
        ("github-issue", {"GITHUB_API_URL": "http://evil.test"}, "GITHUB_API_URL is not https"),
        ("github-issue", {"GITHUB_API_URL": "no url"}, "GITHUB_API_URL is no URL"),
        (
            "github-comment",
            {"GITHUB_EVENT_PATH": "/nowhere"},
            "GITHUB_EVENT_PATH is '/nowhere', which is no readable JSON",
        ),
        ("github-comment", {}, "no pull request is known: give --pr NUMBER"),
        ("webhook", {}, "R1PERF_WEBHOOK_URL is not set"),
        ("webhook", {"R1PERF_WEBHOOK_URL": f"http://evil.test/{SECRET}"}, "R1PERF_WEBHOOK_URL is not https"),
        ("webhook", {"R1PERF_WEBHOOK_URL": f"{SECRET}"}, "R1PERF_WEBHOOK_URL is no https URL"),
    ],
)
def test_variables_that_are_missing_or_wrong(
    server: State, report: Path, kind: str, given: dict[str, str], said: str
) -> None:
    env = workflow(server, **given)
    code, out, err = typed(kind, report, **env)
    assert (code, out) == (0, "")
    assert err.startswith(f"r1perf notify: {said}") or said in err
    assert err.count("\n") == 1
    assert typed(kind, report, "--strict", **env)[0] == 1
    assert SECRET not in err
    assert TOKEN not in err
    assert server.seen == []


@pytest.mark.parametrize("url", ["javascript:alert(1)", "https://x.test/](http://evil.test", "http://evil.test"])
def test_a_wrong_link_is_left_out(server: State, report: Path, url: str) -> None:
    env = workflow(server, GITHUB_SERVER_URL=url, GITHUB_RUN_ID="7")
    assert typed("github-comment", report, "--pr", "12", **env)[0] == 0
    assert "workflow's run" not in server.comments[1000]["body"]


@pytest.mark.parametrize("kind", KINDS)
def test_dry_run_needs_nothing_and_asks_nobody(report: Path, kind: str) -> None:
    code, out, err = typed(kind, report, "--dry-run", "--strict")
    assert (code, err) == (0, "")
    assert "tp1 default n=50" in out
    assert "REGRESSED" in out


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_that_is_not_there(server: State, tmp_path: Path, kind: str) -> None:
    env = workflow(server, R1PERF_WEBHOOK_URL=server.url)
    given = (kind, tmp_path / "none", *(["--pr", "1"] if kind == "github-comment" else []))
    code, _, err = typed(*given, **env)
    assert (code, err.count("\n")) == (0, 1)
    assert "there is no such file or folder" in err
    assert typed(*given, "--strict", **env)[0] == 1


def test_a_mistake_in_the_call_is_one(report: Path) -> None:
    assert typed("github-comment", report, "--pr", "0")[0] == 2
    assert typed("webhook", report, "--token", "x")[0] == 2, "no secret on a command line, where `ps` shows it"


@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_in_anything_that_is_said(server: State, report: Path, kind: str) -> None:
    hook = f"{server.url}/{SECRET}?token={SECRET}"
    server.plan("POST", "", status(403, f"{hook} {TOKEN}".encode()))
    server.plan("GET", "", status(403, json.dumps({"message": f"Bearer {TOKEN} {hook}"}).encode()))
    more = ["--pr", "12"] if kind == "github-comment" else []
    env = workflow(server, R1PERF_WEBHOOK_URL=hook)
    code, said = as_a_process(kind, report, "--strict", *more, **env)
    assert code == 1, said
    assert "403" in said
    assert TOKEN not in said
    assert SECRET not in said
    assert "Traceback" not in said


def test_a_server_that_never_answers_does_not_hold_the_run_up(server: State, report: Path) -> None:
    server.plan("GET", "", *[never] * 9)
    code, said = as_a_process("github-issue", report, "--deadline", "0.5s", **workflow(server))
    assert code == 0
    assert "did not answer in 0.5 s" in said


def test_issue_from_a_file(server: State, report: Path) -> None:
    assert typed("github-issue", report, **workflow(server))[0] == 0
    assert server.issues[1]["title"] == "perf: REGRESSED: tp1 default n=50 on h200x1"
    report.write_text(as_json(night(2, cell(Verdict.PASS))))
    typed("github-issue", report, **workflow(server))
    assert server.issues[1]["state"] == "closed"
