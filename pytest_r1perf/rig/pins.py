"""The pins of ``data/rig.yaml``: what a rig of one SGLang version is made of, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from pytest_r1perf.errors import R1PerfError, did_you_mean

PINS_FILE = Path(__file__).parents[1] / "data" / "rig.yaml"


@dataclass(frozen=True, slots=True)
class Pins:
    """One SGLang version's requirements (pip's syntax), the environment its processes need, and sizes in MB."""

    sglang: str
    requirements: tuple[str, ...]
    without_dependencies: tuple[str, ...]
    environment: Mapping[str, str]
    verified_python: str
    download_mb: int
    disk_mb: int
    margin_mb: int


def known_versions(path: Path = PINS_FILE) -> tuple[str, ...]:
    """The SGLang versions that have pins, the newest first."""
    return tuple(yaml.safe_load(path.read_text(encoding="utf-8"))["versions"])


def load_pins(version: str, path: Path = PINS_FILE) -> Pins:
    """The pins of one SGLang version.

    Raises:
        R1PerfError: the version has none; names those that have.
    """
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    own = data["versions"].get(version)
    if own is None:
        raise R1PerfError(f"SGLang {version!r} has no CPU rig; {did_you_mean(version, data['versions'])}")
    size = data["size"]
    return Pins(
        sglang=version,
        requirements=(*data["requirements"], *own["requirements"]),
        without_dependencies=(f"sglang=={version}", *data["without_dependencies"]),
        environment=data["environment"],
        verified_python=data["python"]["verified"],
        download_mb=size["download_mb"],
        disk_mb=size["disk_mb"],
        margin_mb=size["margin_mb"],
    )
