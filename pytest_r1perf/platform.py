"""Platforms: a machine or cluster, what it holds, and how noisy it is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_r1perf.datafile import Section
from pytest_r1perf.deployment import Deployment, load_deployment
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.launchsettings import LaunchSettings, load_launch
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.recipe import FlagValue, load_env, load_flags


@dataclass(frozen=True, slots=True)
class Noise:
    """How much a platform's numbers move when nothing changes, as coefficients of variation.

    ``run_cv``: between processes of one session, from ``runs`` of them; ``session_cv``: between sessions
    (days, or hours apart), from ``sessions`` of them; it enters every comparison of two sessions. ``sample_cv``:
    between the timed windows of one engine, from ``samples`` of them, after the first ``discard`` were thrown
    away; ``host_cv``: between hosts of one model, from ``hosts`` of them. ``None`` where nothing was measured.
    """

    run_cv: float
    runs: int
    session_cv: float
    sessions: int
    source: str
    sample_cv: float | None = None
    samples: int | None = None
    discard: int = 1
    host_cv: float | None = None
    hosts: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """The night's false-alarm rate and how many cells share it (design: error control).

    ``missed`` is the other side: how often one cell's PASS may hide a drop that it is said to exclude.
    """

    per_night: float
    suite_size: int
    source: str
    missed: float = 0.025

    @property
    def per_cell(self) -> float:
        """One-sided error rate of one cell; independent of what is selected tonight."""
        return self.per_night / self.suite_size


@dataclass(frozen=True, slots=True)
class Platform:
    """A named machine. Numbers carry their source in the YAML.

    ``accelerator`` is the exact GPU name, or ``cpu``; ``gpus_per_node`` is ``None`` on a CPU, where the
    usable cores count instead. ``model_path``, ``sglang`` and the data sets' paths may hold ``$VARIABLES``
    and ``{r1perf_home}``. ``timeout_s`` ends a process that takes longer (seconds, start-up included).
    ``detect`` is the drop that a PASS excludes where that is more than the tolerance; ``windows`` is the number of
    timed windows of a cell in one engine; ``outputs_min_share`` the share of greedy tokens that two environments
    must have in common, ``None`` to report it only. ``deployment`` is what is served there in production; ``deployed``
    platforms have its model and traffic in place of the benchmark's (:func:`pytest_r1perf.deployment.deployed`).
    """

    name: str
    accelerator: str
    gpus_per_node: int | None
    nodes: int
    model_path: str
    datasets: Mapping[str, str]
    flags: Mapping[str, FlagValue]
    env: Mapping[str, str]
    tolerance: float
    rounds: tuple[int, int]
    noise: Noise | None
    error_rate: ErrorRate
    min_conclusive_n: int
    timeout_s: float
    ceilings: Mapping[str, float]
    default_recipes: Mapping[str, str]
    sglang: str | None
    share_host: bool
    launch: LaunchSettings
    source: str
    detect: float | None = None
    windows: int = 3
    outputs_min_share: float | None = None
    deployment: Deployment | None = None
    deployed: bool = False

    @property
    def is_cpu(self) -> bool:
        """Whether this platform runs without a GPU."""
        return self.accelerator == "cpu"


def load_platform(name: str, data: Section) -> Platform:
    """One entry of ``platforms:``."""
    accelerator = data.text("accelerator")
    ceilings: dict[str, float] = {}
    for metric, entry in data.section("ceilings").sections():
        if metric not in METRICS:
            entry.fail(f"metric {metric!r} is not known")
        ceilings[metric] = _sourced(entry)
    platform = Platform(
        name=name,
        accelerator=accelerator,
        gpus_per_node=None if accelerator == "cpu" else data.integer("gpus_per_node"),
        nodes=data.integer("nodes", 1),
        model_path=data.text("model_path"),
        datasets={key: data.section("datasets").text(key) for key in data.section("datasets")},
        flags=load_flags(data.section("flags")),
        env=load_env(data.section("env")),
        tolerance=_sourced(_needed(data, "tolerance"), below=1.0),
        rounds=_rounds(_needed(data, "rounds")),
        noise=_noise(data.section("noise")) if data.get("noise") is not None else None,
        error_rate=_error_rate(_needed(data, "error_rate")),
        min_conclusive_n=_sourced_count(_needed(data, "min_conclusive_n")),
        timeout_s=_sourced(_needed(data, "timeout_s")),
        ceilings=ceilings,
        default_recipes={key: data.section("default_recipes").text(key) for key in data.section("default_recipes")},
        sglang=data.optional_text("sglang"),
        share_host=data.flag("share_host"),
        launch=load_launch(data.section("launch")),
        source=data.text("source"),
        detect=_sourced(data.section("detect"), below=1.0) if data.get("detect") is not None else None,
        windows=_windows(data.section("engine")) if data.get("engine") is not None else 3,
        outputs_min_share=_min_share(data.section("outputs")) if data.get("outputs") is not None else None,
        deployment=load_deployment(data.section("deployment")) if data.get("deployment") is not None else None,
    )
    data.done()
    if platform.detect is not None and platform.detect < platform.tolerance:
        data.fail(f"{platform.detect:g} is below the tolerance {platform.tolerance:g}: leave it out", "detect")
    return platform


_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}|\{r1perf_home\}")
_OF_THIS_HOST = (None, "HOME", "USER")
"""Variables (``None``: our own home) that have another value on another host, whoever exports what."""


def expand(text: str, *, what: str, home: Path, elsewhere: bool = False) -> str:
    """``text`` with ``~``, ``{r1perf_home}`` and ``$VARIABLES`` filled in.

    ``elsewhere``: it is a path on other hosts. What stands for this host's user or home is refused then; other
    variables are the user's own, filled in here as everywhere.

    An unset variable raises :class:`R1PerfError` that names it and ``what`` wanted it.
    """

    def refused(part: str) -> R1PerfError:
        return R1PerfError(
            f"{what} is {text!r}, but {part} is this host's and the ranks run on others: give the path as it is on "
            f"the nodes, in the platform's entry of your r1perf.yaml"
        )

    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(2)
        if elsewhere and name in _OF_THIS_HOST:
            raise refused(match.group())
        if name is None:
            return str(home)
        try:
            return os.environ[name]
        except KeyError:
            raise R1PerfError(
                f"{what} is {text!r}, but the environment variable {name} is not set: export it, "
                f"or give the path in the platform's entry of your r1perf.yaml"
            ) from None

    filled = _VARIABLE.sub(value, text)
    if elsewhere and filled.startswith("~"):
        raise refused(filled.partition("/")[0])
    return str(Path(filled).expanduser())


def _needed(data: Section, key: str) -> Section:
    data.need(key)
    return data.section(key)


def _sourced(data: Section, *, below: float = float("inf")) -> float:
    value = data.number("value", below=below)
    data.text("source")
    data.done()
    return value


def _sourced_count(data: Section) -> int:
    value = data.integer("value")
    data.text("source")
    data.done()
    return value


def _rounds(data: Section) -> tuple[int, int]:
    low, high = data.integer("min"), data.integer("max")
    data.text("source")
    data.done()
    if high < low:
        data.fail(f"max {high} is below min {low}")
    return low, high


def _noise(data: Section) -> Noise:
    noise = Noise(
        run_cv=data.number("run_cv", below=1.0),
        runs=data.integer("runs", minimum=2),
        session_cv=data.number("session_cv", below=1.0),
        sessions=data.integer("sessions", minimum=2),
        source=data.text("source"),
        sample_cv=data.number("sample_cv", below=1.0) if data.get("sample_cv") is not None else None,
        samples=data.integer("samples", minimum=2) if data.get("samples") is not None else None,
        discard=data.integer("discard", 1, minimum=0),
        host_cv=data.number("host_cv", below=1.0) if data.get("host_cv") is not None else None,
        hosts=data.integer("hosts", minimum=2) if data.get("hosts") is not None else None,
    )
    data.done()
    return noise


def _windows(data: Section) -> int:
    windows = data.integer("windows", minimum=1)
    data.text("source")
    data.done()
    return windows


def _min_share(data: Section) -> float:
    share = data.number("min_share", below=1.0 + 1e-9)
    data.text("source")
    data.done()
    return share


def _error_rate(data: Section) -> ErrorRate:
    rate = ErrorRate(
        per_night=data.number("per_night", below=0.5),
        suite_size=data.integer("suite_size"),
        source=data.text("source"),
        missed=data.number("missed", below=0.5) if data.get("missed") is not None else 0.025,
    )
    data.done()
    return rate
