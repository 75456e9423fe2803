"""Links between README.md, docs/ and files of the repository lead somewhere, anchors included."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.doccommands import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")


def _without_code(text: str) -> str:
    text = re.sub(r"^([ \t]*)(`{3,}).*?^\1\2", "", text, flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", lambda found: "" if "](" in found[0] else found[0], text)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and MyST make them; a second of one name gets -1."""
    found: list[str] = []
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*$", _without_code(page.read_text(encoding="utf-8")), flags=re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


def broken(page: Path) -> list[str]:
    """Each link of a page that leads nowhere, with the reason. Addresses of the web are not asked."""
    wrong = []
    for target in _LINK.findall(_without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / unquote(name)).resolve() if name else page
        if not path.exists():
            wrong.append(f"{target}: there is no such file")
        elif name and not path.is_relative_to(ROOT):
            wrong.append(f"{target}: is outside of the repository")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            wrong.append(f"{target}: {path.name} has no such heading")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `x` two\n\n[a](no.md) [b](#one-x-two) [c](#two) `[d](code.md)`\n\n```\n[e](code.md)\n```\n")
    assert anchors(page) == {"one-x-two"}
    found = broken(page)
    assert [line.partition(":")[0] for line in found] == ["no.md", "#two"]
