"""GitHub issues on a nightly: one a cell, opened when it is bad, quiet while nothing is new, closed when it passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from pytest_r1perf.document.model import Document
from pytest_r1perf.notify import issue_text
from pytest_r1perf.notify.channel import NotifyError
from pytest_r1perf.notify.github import GitHub, Item, is_by, link, starts_with
from pytest_r1perf.notify.memory import begun, closing, gone_on, remembered, safe
from pytest_r1perf.notify.standing import Standing, State, standings

LABEL = "perf-regression"
PERMISSION = "issues: write"
MOST_NEW = 10
"""Issues that one session opens: when everything is slow there is one cause, and 500 issues tell it to nobody."""
_MOST_ERRORS = 3
_KEPT_CLOSED = ("not_planned", "duplicate")
"""Reasons that a person gave to close one although the cell is bad."""


@dataclass(frozen=True, slots=True)
class Issues:
    """All issues of a repository with ``label``; ``github`` is ``None`` where they are only shown."""

    github: GitHub | None
    label: str = LABEL
    run_url: str = ""
    most_new: int = MOST_NEW

    def __post_init__(self) -> None:
        if not self.label.strip() or not self.label.isprintable() or "," in self.label or len(self.label) > 50:
            raise NotifyError(f"--label is {self.label[:60]!r}: give 1 to 50 letters without a comma")

    def shown(self, document: Document) -> Iterator[str]:
        """For each cell what would be written, whatever issues there are."""
        found = standings(document)
        for one in found:
            if one.state is State.BAD:
                text = issue_text.body(one, begun(one.cell, document.session), self.run_url)
                title = issue_text.title(one.cell)
                yield f"issue (opened, updated or reopened), label {self.label}: {title}\n{text}"
            elif one.state is State.GOOD:
                yield f"issue of {issue_text.title(one.cell)}: closed with a comment if it is open"
        if not any(one.state is not State.OPEN for one in found):
            yield "no cell is decided: no issue would be touched"

    def send(self, document: Document) -> Iterator[str]:
        """Bring every cell's issue to what this session says of it."""
        found = standings(document)
        if not found:
            yield "no cell that a nightly judges: no issue is touched"
            return
        assert self.github is not None
        author = self.github.author()
        ours = self._ours(author)
        new: list[Standing] = []
        errors: list[NotifyError] = []
        for one in found:
            there = next((item for item in ours if starts_with(item, one.marker)), None)
            if there is not None:
                try:
                    yield from self._followed(one, there, document, author)
                except NotifyError as error:  # one locked issue must keep no other from being closed or opened
                    errors.append(error)
                    if len(errors) >= _MOST_ERRORS:
                        raise _joined(errors) from None
            elif one.state is State.BAD:
                new.append(one)
        try:
            if new and self._label_made():
                yield f"label made: {self.label}"
            for one in new[: self.most_new]:
                yield self._opened(one, document, author)
        except NotifyError as error:
            raise _joined([*errors, error]) from None
        if len(new) > self.most_new:
            more = len(new) - self.most_new
            yield f"{more} more cells are bad, and have no issue: {self.most_new} a session are opened (--most)"
        if not new and not any(one.state is State.BAD for one in found):
            yield "no cell is bad"
        if errors:
            raise _joined(errors)

    def _followed(self, one: Standing, there: Item, document: Document, author: str) -> Iterator[str]:
        """A cell that has an issue."""
        number, is_open = there.get("number"), there.get("state") == "open"
        memory = remembered(there.get("body"))
        name = f"issue #{number}"
        if memory is not None and memory.has(document.session) and one.state is not State.OPEN:
            yield f"{name} has this session or a later one already: {link(there)}"
            return
        if one.state is State.OPEN:
            if is_open:
                yield f"{name} stays open: {one.cell.result.verdict.value} is no verdict for or against: {link(there)}"
        elif one.state is State.GOOD:
            if is_open:
                marker = _event(document, "recovered")
                self._comment(there, marker, issue_text.recovered(one.cell, marker, self.run_url), author)
                closed = {"state": "closed", "state_reason": "completed"}
                self._change(there, {**closed, "body": closing(str(there.get("body")), document.session)})
                yield f"{name} closed, since the cell passes: {link(there)}"
        elif is_open:
            now, is_news = (
                gone_on(memory, one.cell, document.session) if memory else (begun(one.cell, document.session), False)
            )
            if is_news:
                marker = _event(document, "news")
                self._comment(there, marker, issue_text.went_on(one.cell, marker, self.run_url), author)
            text = issue_text.body(one, now, self.run_url)
            self._change(there, {"body": text, "title": issue_text.title(one.cell)})
            yield f"{name} updated, {'with a comment' if is_news else 'nothing new'}: {link(there)}"
        elif there.get("state_reason") in _KEPT_CLOSED:
            reason = str(there.get("state_reason")).replace("_", " ")
            yield f"{name} was closed as {reason}, and stays so although the cell is bad: {link(there)}"
        else:
            marker = _event(document, "back")
            self._comment(there, marker, issue_text.came_back(one.cell, marker, self.run_url), author)
            text = issue_text.body(one, begun(one.cell, document.session), self.run_url)
            self._change(there, {"state": "open", "body": text, "title": issue_text.title(one.cell)})
            yield f"{name} reopened: {link(there)}"

    def _opened(self, one: Standing, document: Document, author: str) -> str:
        assert self.github is not None
        text = issue_text.body(one, begun(one.cell, document.session), self.run_url)
        data = {"title": issue_text.title(one.cell), "body": text, "labels": [self.label]}
        made = self.github.create(
            "/issues",
            data,
            "open an issue",
            lambda: next((item for item in self._ours(author) if starts_with(item, one.marker)), None),
        )
        if not any(_name(label) == self.label.lower() for label in made.get("labels") or ()):
            raise NotifyError(
                f"issue #{made.get('number')} was opened without its label, by which it is found: give it "
                f"{self.label!r}, and the token the permission `{PERMISSION}`"
            )
        if not is_by(made, author):
            raise NotifyError(
                f"issue #{made.get('number')} is not by {author}, so that it would not be found again: give --author "
                "with its login"
            )
        return f"issue #{made.get('number')} opened: {link(made)}"

    def _ours(self, author: str) -> list[Item]:
        """The oldest first, pull requests left out: to GitHub they are issues, too."""
        assert self.github is not None
        query = {"labels": self.label, "state": "all", "sort": "created", "direction": "asc"}
        items = self.github.pages("/issues", "read the issues", **query)
        return [item for item in items if is_by(item, author) and "pull_request" not in item]

    def _label_made(self) -> bool:
        """Before the first issue: GitHub drops, without a word, a label that it can't make."""
        assert self.github is not None
        path, doing = f"/labels/{quote(self.label, safe='')}", f"make the label {self.label!r}"
        if self.github.is_there(path, doing):
            return False
        data = {"name": self.label, "color": "b60205", "description": "A performance cell that is worse or broken"}
        self.github.create(
            "/labels", data, doing, lambda: {} if self.github and self.github.is_there(path, doing) else None
        )
        return True

    def _comment(self, there: Item, marker: str, text: str, author: str) -> None:
        """Once a session and event, also where the command was cut off and is run again."""
        assert self.github is not None
        path = f"/issues/{there.get('number')}/comments"

        def look() -> Item | None:
            assert self.github is not None
            items = self.github.pages(path, "read the comments")
            return next((item for item in items if starts_with(item, marker) and is_by(item, author)), None)

        if look() is None:
            self.github.create(path, {"body": text}, f"comment on issue #{there.get('number')}", look)

    def _change(self, there: Item, data: Item) -> None:
        assert self.github is not None
        if self.github.update(f"/issues/{there.get('number')}", data, f"change issue #{there.get('number')}") is None:
            raise NotifyError(f"issue #{there.get('number')} was deleted meanwhile: run the same again")


def _event(document: Document, kind: str) -> str:
    return f"<!-- pytest-r1perf: {kind} {safe(document.session)} -->"


def _joined(errors: list[NotifyError]) -> NotifyError:
    return NotifyError("; ".join(dict.fromkeys(map(str, errors))))


def _name(label: object) -> str:
    name = label.get("name") if isinstance(label, dict) else label
    return str(name).lower()
