"""The comment on a pull request: made once, then updated, and found again by a marker that nobody sees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_r1perf.document.model import Document
from pytest_r1perf.notify.channel import NotifyError
from pytest_r1perf.notify.github import LIMIT, GitHub, Item, is_by, link, starts_with
from pytest_r1perf.report.gfm import units

KEY = "summary"
PERMISSION = "pull-requests: write"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._]*(-[A-Za-z0-9._]+)*")


@dataclass(frozen=True, slots=True)
class Comment:
    """One comment a pull request and ``key``; ``github`` is ``None`` where it is only shown."""

    github: GitHub | None
    pull_request: int
    key: str = KEY
    run_url: str = ""

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key) or len(self.key) > 60:
            raise NotifyError(f"--key is {self.key!r}: give letters, digits, dots and single hyphens, 60 at most")

    @property
    def marker(self) -> str:
        """The first line of the comment."""
        return f"<!-- pytest-r1perf: {self.key} -->"

    def body(self, document: Document) -> str:
        """The summary, cut to what GitHub takes."""
        from pytest_r1perf.report.markdown import LIMIT as SUMMARY_LIMIT
        from pytest_r1perf.report.markdown import summary

        head = f"{self.marker}\n"
        tail = f"\n[The workflow's run]({self.run_url})\n" if self.run_url else ""
        room = min(SUMMARY_LIMIT, LIMIT - units(head) - units(tail))
        return head + summary(document, limit=room) + tail

    def shown(self, document: Document) -> Iterator[str]:
        """The comment's text."""
        yield f"comment on a pull request (made, or updated where it is there):\n{self.body(document)}"

    def send(self, document: Document) -> Iterator[str]:
        """Make it, or update the one that is there."""
        assert self.github is not None
        body = self.body(document)
        author = self.github.author()
        there = self._there(self.github, author)
        if there is not None:
            if _same(there.get("body"), body):
                yield f"comment is as it was: {link(there)}"
                return
            doing = "update the comment"
            changed = self.github.update(f"/issues/comments/{there.get('id')}", {"body": body}, doing)
            if changed is not None:
                yield f"comment updated: {link(changed)}"
                return
        made = self.github.create(
            self._comments,
            {"body": body},
            f"comment on pull request #{self.pull_request}",
            lambda: self._there(self.github, author),
        )
        yield f"comment made: {link(made)}"
        if not is_by(made, author):
            yield f"it is not by {author}, so that the next time one more would be made: give --author with its login"

    @property
    def _comments(self) -> str:
        return f"/issues/{self.pull_request}/comments"

    def _there(self, github: GitHub | None, author: str) -> Item | None:
        """The oldest one, should there ever be two."""
        assert github is not None
        doing = f"read the comments of pull request #{self.pull_request}"
        ours = (item for item in github.pages(self._comments, doing) if starts_with(item, self.marker))
        return next((item for item in ours if is_by(item, author)), None)


def _same(there: object, body: str) -> bool:
    return isinstance(there, str) and there.replace("\r\n", "\n").strip() == body.strip()
