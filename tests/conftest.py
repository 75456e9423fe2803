"""Fixtures of the plugin's own tests."""

from __future__ import annotations

import pytest

from tests.project import Project


@pytest.fixture
def r1perf_project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a fake SGLang environment; nothing touches the user's home or other sessions."""
    return Project(pytester, monkeypatch)
