"""Fixtures of the tests that run the real SGLang in the CPU rig."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_r1perf.rig.dataset import make_dataset
from pytest_r1perf.rig.home import DEFAULT_SGLANG_VERSION
from pytest_r1perf.rig.model import make_model
from pytest_r1perf.rig.pins import load_pins
from pytest_r1perf.rig.steps import clean_environment

RunInRig = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def run_in_rig(rig_python: Path) -> RunInRig:
    """Run the rig's Python with arguments, in its environment and ``extra_env``; returns the finished process."""

    def run(*arguments: object, extra_env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        pins = load_pins(DEFAULT_SGLANG_VERSION)
        return subprocess.run(
            [str(rig_python), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=clean_environment({**pins.environment, **(extra_env or {})}),
        )

    return run


@pytest.fixture(scope="session")
def weighted_model(rig_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("weighted"), dtype="float32", weights=True, python=rig_python)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dataset") / "sharegpt-like.json"
    make_dataset(path, num_conversations=50, mean_output_tokens=20)
    return path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))
