"""What a rig says about itself, in its state folder: which SGLang it is for, and the versions that were imported."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_r1perf.rig.steps import STATE_FOLDER, write_atomically


def claimed_version(directory: Path) -> str | None:
    """The SGLang version that an install in ``directory`` was begun for; None if ``directory`` is no rig."""
    try:
        return (directory / STATE_FOLDER / "sglang-version").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def claim(directory: Path, version: str) -> None:
    """Note, before anything is installed, which SGLang version ``directory`` is for."""
    (directory / STATE_FOLDER).mkdir(parents=True, exist_ok=True)
    write_atomically(directory / STATE_FOLDER / "sglang-version", version)


def versions_file(directory: Path) -> Path:
    """Where the import check writes."""
    return directory / STATE_FOLDER / "versions.json"


def installed_versions(directory: Path) -> dict[str, str]:
    """The versions (sglang, torch, transformers, python) that the last import check saw; empty without one."""
    try:
        versions: dict[str, str] = json.loads(versions_file(directory).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return versions


def versions_line(directory: Path) -> str:
    """``installed_versions`` as text."""
    return ", ".join(f"{name} {version}" for name, version in installed_versions(directory).items())
