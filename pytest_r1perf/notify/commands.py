"""The command line of notices: ``r1perf notify``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.notify.channel import Channel, NotifyError

F = TypeVar("F", bound=Callable[..., Any])


@click.group("notify")
def notify_group() -> None:
    """Tell people of a session: a pull request's comment, issues of a nightly, a webhook.

    SOURCE is a session's folder, a file that --perf-json wrote, or an output directory, of which the newest session is
    taken (default: .r1perf). What can't be told is one sentence on stderr, and the exit status stays 0: a night is not
    red because a chat was down. --strict exits with 1 then. Secrets are read from the environment only.
    """


def _common(function: F) -> F:
    for option in reversed(
        (
            click.argument("source", type=click.Path(path_type=Path), default=Path(".r1perf")),
            click.option("--dry-run", is_flag=True, help="Print what would be sent; asks nobody, needs no variable."),
            click.option("--strict", is_flag=True, help="Exit with 1 where it could not be told."),
            click.option(
                "--deadline", default="2m", show_default=True, metavar="TIME", help="For everything, retries included."
            ),
            click.option(
                "--baselines", type=click.Path(path_type=Path), default=Path("baselines"), help="For the trends."
            ),
        )
    ):
        function = option(function)
    return function


_repository = click.option("--repository", metavar="OWNER/NAME", help="Default: $GITHUB_REPOSITORY.")
_author = click.option("--author", metavar="LOGIN", help="Whose the token is, where GitHub does not say (an App's).")


@notify_group.command("github-comment")
@_common
@click.option("--pr", type=click.IntRange(min=1), metavar="NUMBER", help="Default: that of the workflow's event.")
@click.option("--key", default="summary", show_default=True, help="One comment a key: for several reports.")
@_repository
@_author
def comment_command(pr: int | None, key: str, repository: str | None, author: str | None, **common: Any) -> None:
    """Comment on a pull request: made once, then updated.

    Needs GITHUB_TOKEN with `pull-requests: write`.

    Example: r1perf notify github-comment --pr 12 perf.json
    """
    from pytest_r1perf.notify.comment import PERMISSION, Comment

    def make(link: str, deadline_s: float) -> Channel:
        if common["dry_run"]:
            return Comment(None, pr or 0, key, link)
        from pytest_r1perf.notify.variables import pull_request

        github = _github(repository, author, PERMISSION, deadline_s)
        return Comment(github, pr or pull_request(os.environ), key, link)

    _tell(make, **common)


@notify_group.command("github-issue")
@_common
@click.option("--label", default="perf-regression", show_default=True, help="Of our issues; made where it is missing.")
@click.option("--most", type=click.IntRange(min=1), default=10, show_default=True, help="Issues to open in one go.")
@_repository
@_author
def issue_command(label: str, most: int, repository: str | None, author: str | None, **common: Any) -> None:
    """Issues of a nightly: one a cell that regressed or broke, closed when it passes again.

    Needs GITHUB_TOKEN with `issues: write`.

    Example: r1perf notify github-issue reports/report.json
    """
    from pytest_r1perf.notify.issue import PERMISSION, Issues

    def make(link: str, deadline_s: float) -> Channel:
        github = None if common["dry_run"] else _github(repository, author, PERMISSION, deadline_s)
        return Issues(github, label, link, most)

    _tell(make, **common)


@notify_group.command("webhook")
@_common
@click.option(
    "--when", type=click.Choice(["always", "failed"]), default="always", show_default=True, help="What is worth it."
)
def webhook_command(when: str, **common: Any) -> None:
    """One JSON to a webhook, with a text that Slack shows.

    Needs R1PERF_WEBHOOK_URL, an https address, which is a secret.

    Example: r1perf notify webhook --when failed
    """
    from pytest_r1perf.notify.clock import SystemClock
    from pytest_r1perf.notify.http import Client, Timeouts
    from pytest_r1perf.notify.variables import repository_of, webhook_url
    from pytest_r1perf.notify.webhook import Webhook

    def make(link: str, deadline_s: float) -> Channel:
        client = None
        if not common["dry_run"]:
            client = Client(webhook_url(os.environ), SystemClock(), Timeouts(total_s=deadline_s))
        return Webhook(client, when == "failed", link, repository_of(os.environ))

    _tell(make, **common)


def _github(repository: str | None, author: str | None, permission: str, deadline_s: float) -> Any:
    from pytest_r1perf.notify.clock import SystemClock
    from pytest_r1perf.notify.github import github
    from pytest_r1perf.notify.http import Timeouts
    from pytest_r1perf.notify.variables import github_variables

    return github(
        github_variables(os.environ, repository),
        SystemClock(),
        Timeouts(total_s=deadline_s),
        permission=permission,
        author=author,
        in_actions=os.environ.get("GITHUB_ACTIONS") == "true",
    )


def _tell(
    make: Callable[[str, float], Channel], *, source: Path, dry_run: bool, strict: bool, deadline: str, baselines: Path
) -> None:
    """Whatever goes wrong is one sentence; of an error of our own only the kind, since its text may hold a secret."""
    from pytest_r1perf.document.source import document_from
    from pytest_r1perf.notify.variables import run_url
    from pytest_r1perf.options import parse_time

    try:
        channel = make(run_url(os.environ), parse_time(deadline, "--deadline") or 120.0)
        document = document_from(source, baselines)
        for line in channel.shown(document) if dry_run else channel.send(document):
            click.echo(line.encode("utf-8", "backslashreplace").decode())
        return
    except (R1PerfError, NotifyError, click.UsageError) as error:
        said = str(error)
    except Exception as error:
        said = f"stopped by an error of its own ({type(error).__name__}): report it with the command that you typed"
    click.echo(f"r1perf notify: {said}", err=True)
    sys.exit(1 if strict else 0)
