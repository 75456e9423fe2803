"""GitHub's REST API, as far as it is needed: pages, who we are, create once, update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from pytest_r1perf.notify.channel import NotifyError, Unsure
from pytest_r1perf.notify.clock import Clock
from pytest_r1perf.notify.http import ATTEMPTS, Answer, Client, Timeouts
from pytest_r1perf.notify.limits import asked_wait, is_refused_for_now
from pytest_r1perf.notify.variables import GitHubVariables
from pytest_r1perf.report.plain import clipped, plain

LIMIT = 65_536
"""Characters in the body of a comment or an issue."""
ACTIONS = "github-actions[bot]"
"""Who writes with the token of a workflow."""
PAGE = 50
MOST_PAGES = 200
PAUSE_S = 1.0
"""Between two requests that write, as GitHub asks ("Best practices for using the REST API")."""

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GitHub:
    """One repository. ``permission`` is what the token needs, as a workflow's ``permissions`` say it."""

    client: Client
    repository: str
    permission: str
    given_author: str | None = None
    in_actions: bool = False

    def author(self) -> str:
        """Whose comments and issues are ours. A workflow's token may not ask who it is."""
        if self.given_author:
            return self.given_author
        answer = self.client.ask("GET", "/user")
        if answer.status == 403 and not is_refused_for_now(answer.status, answer.headers, answer.body):
            if self.in_actions:
                return ACTIONS
            raise NotifyError(f"{self.client.host} does not say whose token it is (403): give --author LOGIN")
        login = self._ok(answer, "ask whose token it is").get("login")
        if not isinstance(login, str):
            raise self._garbage(answer)
        return login

    def pages(self, path: str, doing: str, **query: str) -> Iterator[Item]:
        """Everything that a list has."""
        for page in range(1, MOST_PAGES + 1):
            asked = urlencode({**query, "per_page": PAGE, "page": page})
            answer = self.client.ask("GET", f"{self._root}{path}?{asked}")
            items = self._checked(answer, doing).data()
            if not isinstance(items, list):
                raise self._garbage(answer)
            yield from (item for item in items if isinstance(item, dict))
            if len(items) < PAGE:
                return
        raise NotifyError(
            f"{self.client.host} has more than {MOST_PAGES * PAGE:,} to {doing}: too many to look through"
        )

    def create(self, path: str, data: Item, doing: str, look: Callable[[], Item | None]) -> Item:
        """Create once: where it is not known whether it was, ``look`` finds it, or it is tried again."""
        for attempt in range(ATTEMPTS):
            self.client.space(PAUSE_S)
            try:
                return self._ok(self.client.ask("POST", self._root + path, data), doing)
            except Unsure as error:
                waited = self.client.pause(attempt)
                found = look() if self.client.left() > 0 else None
                if found is not None:
                    return found
                if not waited:
                    raise NotifyError(
                        f"{error}; it was looked for and is not there yet: run the same again later"
                    ) from None
        raise AssertionError("the last attempt returns or raises")

    def update(self, path: str, data: Item, doing: str) -> Item | None:
        """Change what is there; ``None`` where it no longer is."""
        self.client.space(PAUSE_S)
        answer = self.client.ask("PATCH", self._root + path, data)
        if answer.status in (404, 410):
            return None
        return self._ok(answer, doing)

    def is_there(self, path: str, doing: str) -> bool:
        """Whether something is."""
        answer = self.client.ask("GET", self._root + path)
        return answer.status != 404 and self._checked(answer, doing).status == 200

    @property
    def _root(self) -> str:
        return f"/repos/{self.repository}"

    def _ok(self, answer: Answer, doing: str) -> Item:
        data = self._checked(answer, doing).data()
        if not isinstance(data, dict):
            raise self._garbage(answer)
        return data

    def _checked(self, answer: Answer, doing: str) -> Answer:
        if answer.status not in (200, 201):
            raise NotifyError(self._sentence(answer, doing))
        return answer

    def _garbage(self, answer: Answer) -> NotifyError:
        return NotifyError(
            f"{self.client.host} answered {answer.status} with something that is not GitHub's JSON: "
            "check GITHUB_API_URL"
        )

    def _sentence(self, answer: Answer, doing: str) -> str:
        host, status = self.client.host, answer.status
        if is_refused_for_now(status, answer.headers, answer.body):
            wait = asked_wait(status, answer.headers, answer.body, self.client.clock.now())
            when = f"in {wait:.0f} s" if wait is not None else "later"
            return f"{host} answered {status} to {doing} and has no time now: run the same again {when}"
        data = answer.data()
        told = data.get("message") if isinstance(data, dict) else None
        said = (
            f" ({clipped(plain(self.client.scrubbed(told)).replace(chr(10), ' '), 160)})"
            if isinstance(told, str)
            else ""
        )
        advice = {
            401: "GITHUB_TOKEN is not valid here, or has expired: make a new one",
            403: f"give the token the permission `{self.permission}`; one of a fork's pull request never has it",
            404: f"{self.repository} or the number is not there, or the token may not see it: check both, and its "
            f"permission `{self.permission}`",
            410: "issues are switched off, or it was deleted: see the repository's settings",
            422: "it took none of the text or the number: check the number and the label",
        }.get(status, "try later, and look at the server's status" if status >= 500 else "check GITHUB_API_URL")
        return f"{host} answered {status} to {doing}{said}: {advice}"


def github(
    variables: GitHubVariables,
    clock: Clock,
    timeouts: Timeouts,
    *,
    permission: str,
    author: str | None = None,
    in_actions: bool = False,
) -> GitHub:
    """A client of the repository that the variables name."""
    client = Client(variables.api, clock, timeouts, token=variables.token, accept="application/vnd.github+json")
    return GitHub(client, variables.repository, permission, author, in_actions)


def is_by(item: Item, author: str) -> bool:
    """Whether somebody wrote it; logins are the same in any case."""
    user = item.get("user")
    login = user.get("login") if isinstance(user, dict) else None
    return isinstance(login, str) and login.lower() == author.lower()


def starts_with(item: Item, marker: str) -> bool:
    """Whether a body begins with our marker: one that is quoted further down is somebody's text."""
    body = item.get("body")
    return isinstance(body, str) and body.lstrip().startswith(marker)


def link(item: Item) -> str:
    """Where a person sees it."""
    return clipped(plain(str(item.get("html_url", ""))).replace("\n", " "), 200)
