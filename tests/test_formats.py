"""Formats of a document: how they are found, and what a fault of one costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_r1perf import exports
from pytest_r1perf.document.model import Document
from pytest_r1perf.document.output import Wanted, wanted, write
from pytest_r1perf.errors import R1PerfError

EMPTY = Document(session="20261201.000000.0000", created="2026-12-01T00:00:00+00:00", tool="0")


@pytest.fixture
def more_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "formats"
    folder.mkdir()
    monkeypatch.setattr(exports, "__path__", [*exports.__path__, str(folder)])
    return folder


def test_a_new_format_is_one_new_file(more_formats: Path, tmp_path: Path) -> None:
    (more_formats / "session_name.py").write_text("def text(document): return document.session")
    assert "session-name" in exports.formats()
    assert write(EMPTY, [wanted("--perf-export", "session-name=out.txt", tmp_path)]) == []
    assert (tmp_path / "out.txt").read_text() == EMPTY.session


def test_a_format_that_is_not_known_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(R1PerfError, match=r"^--perf-export jsn=x: format 'jsn' is not known; did you mean 'json'\?"):
        wanted("--perf-export", "jsn=x", tmp_path)


@pytest.mark.parametrize("text", ["json", "json=", "=x"])
def test_format_and_file_are_both_needed(tmp_path: Path, text: str) -> None:
    with pytest.raises(R1PerfError, match=r"^--perf-export"):
        wanted("--perf-export", text, tmp_path)


def test_a_fault_of_a_format_costs_only_its_file(more_formats: Path, tmp_path: Path) -> None:
    (more_formats / "broken_one.py").write_text("def text(document): return 1 / 0")
    reports = [Wanted(name, tmp_path / name, "--perf-export") for name in ("broken-one", "json")]
    (error,) = write(EMPTY, reports)
    assert error.endswith("could not be made (ZeroDivisionError: division by zero): a fault of ours")
    assert (tmp_path / "json").is_file()
    assert not (tmp_path / "broken-one").exists()
