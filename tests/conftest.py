"""Fixtures of the plugin's own tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from pytest_r1perf.rig.home import DEFAULT_SGLANG_VERSION, interpreter, rig_dir
from pytest_r1perf.rig.install import rig_state
from tests.project import Project
from tests.rig.bench import HOME, Rig

settings.register_profile("ours", deadline=None)  # a busy machine is no finding
settings.load_profile("ours")

OLDER_SGLANG_VERSION = "0.5.9"


@pytest.fixture
def r1perf_project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a fake SGLang environment; nothing touches the user's home or other sessions."""
    return Project(pytester, monkeypatch)


@pytest.fixture(scope="session")
def rig_python() -> Path:
    """The interpreter of the installed default rig; skips without one, fails under R1PERF_REQUIRE_RIG=1."""
    directory = rig_dir(DEFAULT_SGLANG_VERSION)
    state = rig_state(directory)
    if not state.startswith("complete"):
        reason = f"{directory} is {state} (`r1perf rig install`)"
        if os.environ.get("R1PERF_REQUIRE_RIG") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return interpreter(directory)


@pytest.fixture(scope="session")
def older_rig_python() -> Path:
    """The interpreter of a rig with an older SGLang, whose flags are named otherwise."""
    return _installed(OLDER_SGLANG_VERSION, "R1PERF_REQUIRE_RIGS")


def _installed(version: str, required: str) -> Path:
    directory = rig_dir(version)
    state = rig_state(directory)
    if not state.startswith("complete"):
        reason = f"{directory} is {state} (`r1perf rig install --sglang-version {version}`)"
        if os.environ.get(required) == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return interpreter(directory)


@pytest.fixture
def rig(pytester: pytest.Pytester, rig_python: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setenv("R1PERF_HOME", str(HOME))
    monkeypatch.setenv("COLUMNS", "600")
    return Rig(pytester, rig_python)
