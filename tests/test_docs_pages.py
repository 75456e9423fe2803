"""What the pages say is so: examples are planned, sentences are the code's, every verdict is there, Sphinx builds."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.sglang.facts import Phase
from pytest_r1perf.verdict import Verdict
from tests.doccommands import ROOT, blocks
from tests.project import Project, verdicts

DOCS = ROOT / "docs"


def _table(page: str, heading: str) -> dict[str, str]:
    """First column to the rest, of the table under a heading."""
    text = (DOCS / page).read_text(encoding="utf-8").partition(f"{heading}\n")[2]
    rows = re.findall(r"^\| ([^|]+?) \| (.+) \|$", re.split(r"^#", text, maxsplit=1, flags=re.M)[0], re.M)
    return {name: rest for name, rest in rows if name not in ("verdict", "---")}


def test_every_verdict_says_what_to_do() -> None:
    rows = _table("verdicts.md", "## What to do")
    assert set(rows) == {item.value for item in Verdict}, "each member of Verdict has a row of its own in verdicts.md"
    assert all(len(row) > 20 for row in rows.values())


def test_every_verdict_says_when() -> None:
    named = {word for name in _table("verdicts.md", "# Verdicts") for word in name.split(", ")}
    assert named == {item.value for item in Verdict}


def test_every_phase_of_a_hang_has_a_way_out() -> None:
    named = [word for name in _table("troubleshooting.md", "## HANG") for word in name.split(", ")]
    assert named[1:] == [phase.name for phase in Phase]


def _examples() -> list[str]:
    return [block.text for block in blocks(DOCS / "writing-tests.md") if block.language == "python"]


def test_the_examples_are_collected_and_planned(r1perf_project: Project) -> None:
    """In one pytest: each block of writing-tests.md a file, with the YAML of the page."""
    (data,) = [block.text for block in blocks(DOCS / "writing-tests.md") if block.language == "yaml"]
    (r1perf_project.root / "r1perf.yaml").write_text(data)
    written = _examples()
    for number, text in enumerate(written):
        (r1perf_project.root / f"test_example_{number}.py").write_text(text)
    marked = sum(text.count("@perf(") for text in written)
    collected = r1perf_project.perf("--collect-only", "-q", "--perf-platform", "h200x8")
    assert collected.ret == 0, collected.stdout.str()
    found = [line for line in collected.outlines if re.match(r"test_example_\d+\.py::test_\w+", line)]
    assert marked == 15
    assert len(found) == marked + 2 + 1  # a parametrized three, a parametrized two

    planned = r1perf_project.perf("--perf-plan", "--perf-platform", "h200x8")
    text = planned.stdout.str()
    for line in found:
        assert line.strip() in text
    assert "REFUSE" not in text
    assert "tiny-chunks" in text


def test_the_first_failure_is_one(r1perf_project: Project) -> None:
    (text,) = [block.text for block in blocks(DOCS / "getting-started.md") if block.language == "python"]
    (r1perf_project.root / "test_floor.py").write_text(text)
    result = r1perf_project.perf("test_floor.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert verdicts(result) == ["REGRESSED"]
    assert "surely below the floor" in result.stdout.str()


def test_every_key_is_read() -> None:
    catalog = load_catalog([DOCS / "every-key.yaml"])
    assert catalog.platform("my-box").launch.hosts == ("gpu01", "gpu02")


@cache
def _generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_generate"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_code_says() -> None:
    assert _generate().stale() == [], "run `python docs/generate.py` and commit what it writes"


def test_a_stale_reference_is_seen(tmp_path: Path) -> None:
    for name, text in _generate().pages().items():
        (tmp_path / name).write_text(text.replace("`--perf-gate`", "`--perf-gates`"))
    (tmp_path / "old.md").write_text("# Old\n")
    assert _generate().stale(tmp_path) == ["old.md", "options.md", "verdicts.md"]


def test_every_number_in_the_reference_has_a_unit() -> None:
    found = {path for keys in _generate().keys().values() for path, key in keys.items() if "number" in key.kind}
    assert found == set(_generate().UNITS), "docs/generate.py: UNITS has a unit for every number, and for nothing else"


def test_the_example_has_every_key() -> None:
    """What a reader asks for and the example lacks would be a mapping without keys in the reference."""
    found = _generate().keys()
    empty = {
        path.rpartition(".")[2]
        for keys in found.values()
        for path, key in keys.items()
        if key.kind == "mapping" and not any(other.startswith(f"{path}.") for other in keys)
    }
    assert empty == {"flags", "env"}  # whose keys are SGLang's


@cache
def _said_by_the_code() -> tuple[str, ...]:
    """Every text in the package, f-strings with a gap for each value."""
    found: list[str] = []
    for path in sorted((ROOT / "pytest_r1perf").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


def _sentences() -> list[tuple[int, str]]:
    return [
        (block.line, line)
        for block in blocks(DOCS / "troubleshooting.md")
        if block.language == "text"
        for line in block.lines
    ]


def _missing(sentence: str) -> list[str]:
    """Pieces between the gaps that no text of the code has."""
    pieces = [piece for piece in (part.strip() for part in sentence.split("...")) if len(piece) > 3]
    assert pieces, f"{sentence!r} has no words"
    return [piece for piece in pieces if not any(piece in said for said in _said_by_the_code())]


@pytest.mark.parametrize(("line", "sentence"), _sentences())
def test_a_sentence_is_the_codes_own(line: int, sentence: str) -> None:
    assert _missing(sentence) == [], f"docs/troubleshooting.md:{line}: the code says no such thing any more"


def test_a_sentence_of_nobody_is_seen() -> None:
    assert _missing("... is leased by ...; wait for it, or go home") == ["; wait for it, or go home"]


def test_every_page_is_in_the_table_of_contents() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    listed: list[str] = []
    for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.S):
        listed += [line for line in block.splitlines() if line and not line.startswith(":")]
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")} - {"index"}
    assert sorted(listed) == sorted(pages), "each page once in docs/index.md"


def test_sphinx_has_no_complaint(tmp_path: Path) -> None:
    pytest.importorskip("myst_parser", reason="pip install 'pytest-r1perf[docs]'")
    options = ("-q", "-W", "--keep-going", "-n", "-d", tmp_path / "cache")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, DOCS, tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert built.stderr == ""
    first = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert 'href="getting-started.html"' in first
