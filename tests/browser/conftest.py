"""A real headless Chromium: Debian's or whichever is installed, driven by Playwright, which downloads nothing.

Without one these tests are skipped, unless ``R1PERF_REQUIRE_BROWSER=1`` says that they must run (CI does).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass
class Opened:
    """A page in the browser, and what it said and asked for since it was opened."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    def missing(what: str) -> None:
        if os.environ.get("R1PERF_REQUIRE_BROWSER"):
            pytest.fail(f"R1PERF_REQUIRE_BROWSER=1, and {what} is missing")
        pytest.skip(f"{what} is missing (pip install playwright; apt-get install chromium)")

    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        missing("a Chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright")
    root = os.geteuid() == 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if root else [])
        yield browser
        browser.close()


@pytest.fixture
def show(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """``show(html, width=..., **options of a context)`` opens a page from a file."""
    contexts: list[Any] = []

    def show(html: str, *, width: int = 1280, **options: Any) -> Opened:
        path = tmp_path / f"page-{len(contexts)}.html"
        path.write_text(html, encoding="utf-8")
        context = chromium.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        opened = Opened(context.new_page())

        def dismissed(dialog: Any) -> None:
            opened.said.append("a dialog")
            dialog.dismiss()

        opened.page.on("console", lambda message: opened.said.append(message.text))
        opened.page.on("pageerror", lambda error: opened.said.append(str(error)))
        opened.page.on("dialog", dismissed)
        opened.page.on("request", lambda request: opened.asked.append(request.url))
        opened.page.goto(path.as_uri())
        return opened

    yield show
    for context in contexts:
        context.close()
