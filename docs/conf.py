"""Sphinx: `python docs/generate.py && python -m sphinx -W --keep-going -n docs build/docs`.

Pages are plain Markdown that is read on GitHub as well: links between them, to the README and to files of the
repository work in both. The reference is made from the code by generate.py.
"""

from __future__ import annotations

import os
import posixpath
import re
from importlib.metadata import version as _installed
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "pytest-r1perf"
author = "The pytest-r1perf developers"
release = version = _installed("pytest-r1perf")
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["build"]
html_theme = "alabaster"
html_theme_options = {"description": "Is it still fast?", "page_width": "1100px", "sidebar_width": "230px"}
html_copy_source = False
html_show_sourcelink = False
# A page's anchors are GitHub's, so that a link to a heading is one link in both.
myst_heading_anchors = 4
# What is fenced as text is output of programs; other languages are checked by their lexers.
highlight_language = "text"

REPOSITORY = os.environ.get("R1PERF_DOCS_REPOSITORY", "")
"""Where links out of docs/ (to ../README.md, ../perf_tests) lead in the built pages, e.g. a `.../blob/main` URL; a file
URL of this checkout unless it is given."""
_OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)\s]*)\)")
_ROOT = Path(__file__).resolve().parent.parent


def _outside(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Links that leave docs/ become links to the repository; Sphinx has no page for them."""
    here = posixpath.dirname(docname)

    def absolute(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", here, match[1]))
        if target.startswith("docs/"):
            return match[0]
        base = REPOSITORY or _ROOT.as_uri()
        return f"]({base.rstrip('/')}/{target})"

    source[0] = _OUTSIDE.sub(absolute, source[0])


def setup(app: Sphinx) -> None:
    """Mend links before a page is parsed."""
    app.connect("source-read", _outside)
