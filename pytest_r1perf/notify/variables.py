"""What is read from the environment: secrets, and where a workflow of GitHub runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_r1perf.notify.channel import NotifyError
from pytest_r1perf.notify.url import checked
from pytest_r1perf.report.plain import clipped, plain

API = "https://api.github.com"
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/(?!\.{1,2}$)[A-Za-z0-9._-]+")
_PULL = re.compile(r"refs/pull/(\d+)/")
_SERVER = re.compile(r"[A-Za-z0-9.:/_-]+")
_RUN = re.compile(r"\d{1,20}")


@dataclass(frozen=True, slots=True)
class GitHubVariables:
    """Where to write, and as whom."""

    repository: str
    api: str
    token: str = field(repr=False)


def github_variables(env: Mapping[str, str], repository: str | None = None) -> GitHubVariables:
    """Of ``$GITHUB_TOKEN``, ``$GITHUB_REPOSITORY`` (or ``repository``) and ``$GITHUB_API_URL``.

    Raises :class:`NotifyError` for the first that is missing or wrong.
    """
    token = env.get("GITHUB_TOKEN", "").strip()
    if not token:
        raise NotifyError("GITHUB_TOKEN is not set: in a workflow give the step `GITHUB_TOKEN: ${{ github.token }}`")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise NotifyError("GITHUB_TOKEN has a blank, a line end or another character that no token has: copy it again")
    how = "--repository" if repository else "GITHUB_REPOSITORY"
    name = repository or env.get("GITHUB_REPOSITORY", "")
    if not name:
        raise NotifyError("GITHUB_REPOSITORY is not set: give --repository OWNER/NAME")
    if not _REPOSITORY.fullmatch(name):
        raise NotifyError(f"{how} is {_said(name)}, which is not of the form OWNER/NAME: give --repository OWNER/NAME")
    return GitHubVariables(name, checked("GITHUB_API_URL", env.get("GITHUB_API_URL") or API).rstrip("/"), token)


def webhook_url(env: Mapping[str, str]) -> str:
    """``$R1PERF_WEBHOOK_URL``, which is a secret; :class:`NotifyError` where it is missing or wrong."""
    url = env.get("R1PERF_WEBHOOK_URL", "")
    if not url.strip():
        raise NotifyError("R1PERF_WEBHOOK_URL is not set: set it to the webhook's address, which is a secret")
    return checked("R1PERF_WEBHOOK_URL", url)


def pull_request(env: Mapping[str, str]) -> int:
    """The number of the pull request that the workflow runs for, from ``$GITHUB_EVENT_PATH`` or ``$GITHUB_REF``.

    Raises :class:`NotifyError` where the event has none.
    """
    path = env.get("GITHUB_EVENT_PATH", "")
    event: Any = {}
    if path:
        try:
            event = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            raise NotifyError(
                f"GITHUB_EVENT_PATH is {_said(path)}, which is no readable JSON: give --pr NUMBER"
            ) from None
    numbers = [*_numbers(event), *(int(text) for text in _PULL.findall(env.get("GITHUB_REF", "")))]
    if not numbers:
        kind = env.get("GITHUB_EVENT_NAME", "")
        about = f"the event {_said(kind)} has no pull request" if kind else "no pull request is known"
        raise NotifyError(f"{about}: give --pr NUMBER")
    return numbers[0]


def repository_of(env: Mapping[str, str]) -> str:
    """``$GITHUB_REPOSITORY``; empty where it is not there or not of its form."""
    name = env.get("GITHUB_REPOSITORY", "")
    return name if _REPOSITORY.fullmatch(name) else ""


def run_url(env: Mapping[str, str]) -> str:
    """The workflow's run; empty where this is none, or where a variable is not what GitHub sets."""
    server, run, repository = env.get("GITHUB_SERVER_URL", ""), env.get("GITHUB_RUN_ID", ""), repository_of(env)
    if not _RUN.fullmatch(run) or not repository or not _SERVER.fullmatch(server):
        return ""
    try:
        return f"{checked('GITHUB_SERVER_URL', server).rstrip('/')}/{repository}/actions/runs/{run}"
    except NotifyError:
        return ""


def _numbers(event: Any) -> list[int]:
    """Of the events pull_request(_target, _review), issue_comment on a pull request, and workflow_run."""
    if not isinstance(event, dict):
        return []
    issue, run = event.get("issue"), event.get("workflow_run")
    places = [event.get("pull_request")]
    if isinstance(issue, dict) and "pull_request" in issue:
        places.append(issue)
    if isinstance(run, dict) and isinstance(run.get("pull_requests"), list):
        places += run["pull_requests"]
    found = [place.get("number") for place in places if isinstance(place, dict)]
    return [number for number in found if isinstance(number, int) and not isinstance(number, bool) and number > 0]


def _said(text: str) -> str:
    return repr(clipped(plain(text), 80))
