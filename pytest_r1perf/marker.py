"""The ``perf`` marker: its typed signature and the checks of its arguments.

This module is imported at every pytest start with the plugin installed: it imports nothing heavy.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_r1perf.errors import R1PerfError, did_you_mean
from pytest_r1perf.ownprocess import WARM, refuse_shared

if TYPE_CHECKING:
    from pytest_r1perf.catalog import Catalog
    from pytest_r1perf.load import Load
    from pytest_r1perf.recipe import FlagValue

MARKER_LINE = (
    "perf(topology, n, min_tokps=None, recipe=None, workload=None, metric='total_throughput', tolerance=None, "
    "platform=None, mode='offline' or 'engine' or 'serve', flags={}, env={}, timeout=None, rounds=None, "
    "quarantine_until=None, max_wall_time=None, kernel_caches='warm' or 'cold', request_rate=None, "
    "max_concurrency=None, slo={}, batch_size=None, input_len=None, output_len=None): "
    "measure SGLang at this topology and number of prompts n, and judge the result against min_tokps, max_wall_time "
    "and the stored baseline; the last six are a server's load (mode='serve'). "
    "Runs only when asked for: -m perf, --topology, --perf or an explicit node id."
)

DEFAULT_METRIC = "total_throughput"
DEFAULT_WORKLOAD = "sharegpt"
MODES = ("offline", "engine", "serve")
_SERVE_ONLY = ("batch_size", "input_len", "output_len", "request_rate", "max_concurrency", "slo")


@dataclass(frozen=True, slots=True)
class PerfSpec:
    """The checked arguments of one ``perf`` marker; see :func:`perf` for their meaning and units."""

    topology: str
    n: int | None = None
    min_tokps: float | None = None
    recipe: str | None = None
    workload: str = DEFAULT_WORKLOAD
    metrics: tuple[str, ...] = (DEFAULT_METRIC,)
    tolerance: float | None = None
    platform: str | None = None
    mode: str = "offline"
    flags: tuple[tuple[str, FlagValue], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = None
    rounds: tuple[int, int] | None = None
    quarantine_until: datetime.date | None = None
    load: Load | None = None
    max_wall_time: float | None = None
    kernel_caches: str = WARM

    @property
    def num_prompts(self) -> int | None:
        """N, which of a batch is its size; ``None`` where nothing says it."""
        return self.n if self.n is not None else getattr(self.load, "batch_size", None)


_AFTER_N = attrgetter(*[field.name for field in fields(PerfSpec)][2:])

ARGUMENTS = (
    "topology",
    "n",
    "min_tokps",
    "recipe",
    "workload",
    "metric",
    "tolerance",
    "platform",
    "mode",
    "flags",
    "env",
    "timeout",
    "rounds",
    "quarantine_until",
    "max_wall_time",
    "kernel_caches",
    *_SERVE_ONLY,
)
"""Names that the marker takes, and that a parametrized argument may override."""


def perf(
    topology: str,
    n: int | None = None,
    min_tokps: float | None = None,
    *,
    recipe: str | None = None,
    workload: str = DEFAULT_WORKLOAD,
    metric: str | Sequence[str] = DEFAULT_METRIC,
    tolerance: float | None = None,
    platform: str | None = None,
    mode: Literal["offline", "engine", "serve"] = "offline",
    flags: Mapping[str, FlagValue] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    rounds: str | None = None,
    quarantine_until: str | None = None,
    max_wall_time: float | None = None,
    kernel_caches: Literal["warm", "cold"] = "warm",
    request_rate: float | None = None,
    max_concurrency: int | None = None,
    slo: Mapping[str, float] | None = None,
    batch_size: int | None = None,
    input_len: int | None = None,
    output_len: int | None = None,
) -> pytest.MarkDecorator:
    """Mark a test as a performance test; the same as ``pytest.mark.perf(...)``, typed for editors.

    ::

        @perf(topology="tp8", n=7000, min_tokps=22000)
        def test_tp8_champion(): ...

    ``n`` is the number of prompts. ``min_tokps`` is a floor in the unit of the first ``metric`` (tok/s for
    the default ``total_throughput``: input + output tokens over the whole timed window). ``tolerance`` is a
    fraction: 0.05 lets the metric be 5 % worse than the baseline. ``platform`` pins the test to one platform:
    it is skipped on every other. ``flags`` are logical server flags (``{"max_running_requests": 8}``) over
    the recipe's. ``timeout`` is in seconds for one process, start-up included. ``rounds`` is ``"MIN:MAX"``
    processes. ``mode`` is ``"offline"``, SGLang's own benchmark in a fresh process each, ``"engine"``, several
    timed windows in one engine, which tests with the same server arguments share (docs/engine.md), or ``"serve"``,
    the same with a server and SGLang's own clients (docs/serve.md). A server's load is ``n`` requests, in traffic of
    ``request_rate`` a second with at most ``max_concurrency`` in flight, judged by an ``slo`` in ms
    (``{"ttft_ms": 2000}``) where one is given; or one batch of ``batch_size`` requests of ``input_len`` tokens,
    answered by ``output_len`` each.
    ``quarantine_until`` (``"2026-12-31"``) keeps a known-bad cell from failing up to that day.
    ``max_wall_time`` is the most that a whole process may take, in s, start-up included (docs/wall-time.md).
    ``kernel_caches="cold"`` gives every round empty kernel caches of its own (docs/warm-up.md).

    Mistakes are errors at collection.
    """
    given = {
        "n": n,
        "min_tokps": min_tokps,
        "recipe": recipe,
        "tolerance": tolerance,
        "platform": platform,
        "flags": flags,
        "env": env,
        "timeout": timeout,
        "rounds": rounds,
        "quarantine_until": quarantine_until,
        "max_wall_time": max_wall_time,
        "request_rate": request_rate,
        "max_concurrency": max_concurrency,
        "slo": slo,
        "batch_size": batch_size,
        "input_len": input_len,
        "output_len": output_len,
    }
    arguments: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if workload != DEFAULT_WORKLOAD:
        arguments["workload"] = workload
    if metric != DEFAULT_METRIC:
        arguments["metric"] = metric
    if mode != "offline":
        arguments["mode"] = mode
    if kernel_caches != WARM:
        arguments["kernel_caches"] = kernel_caches
    return pytest.mark.perf(topology=topology, **arguments)


def arguments_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The marker's arguments by name; positional ones are topology, n and min_tokps in that order."""
    positional = ("topology", "n", "min_tokps")
    if len(args) > len(positional):
        raise R1PerfError(
            f"perf() takes {', '.join(positional)} by position and got {len(args)} values; name the others"
        )
    named = dict(zip(positional, args, strict=False))
    for key, value in kwargs.items():
        if key in named:
            raise R1PerfError(f"perf() got {key!r} twice, by position and by name")
        if key not in ARGUMENTS:
            raise R1PerfError(f"perf() has no argument {key!r}; {did_you_mean(key, ARGUMENTS)}")
        named[key] = value
    return named


def check(arguments: Mapping[str, Any], catalog: Catalog) -> PerfSpec:
    """The checked arguments; :class:`R1PerfError` with one sentence for the first mistake."""
    from pytest_r1perf.load import load_of, refuse_unmeasured
    from pytest_r1perf.metrics import metric_named

    arguments = {key: value for key, value in arguments.items() if value is not None or key == "topology"}
    if "topology" not in arguments:
        raise R1PerfError("perf() needs a topology, e.g. perf(topology='tp8', n=5000)")
    topology = catalog.topology(_text(arguments, "topology"))
    recipe = catalog.recipe(_text(arguments, "recipe")) if arguments.get("recipe") is not None else None
    if recipe is not None and recipe.topology not in (None, topology.name, topology.reference):
        raise R1PerfError(f"recipe {recipe.name!r} is for topology {recipe.topology!r}, not for {topology.name!r}")
    workload = catalog.workload(_text(arguments, "workload")) if "workload" in arguments else None
    platform = catalog.platform(_text(arguments, "platform")) if arguments.get("platform") is not None else None
    metrics = _metrics(arguments.get("metric", DEFAULT_METRIC))
    first, *others = [metric_named(name) for name in metrics]
    if arguments.get("min_tokps") is not None and first.better < 0:
        raise R1PerfError(f"min_tokps is a floor, and of {first.name} less is better: name a throughput first")
    mode = arguments.get("mode", "offline")
    if mode not in MODES:
        raise R1PerfError(f"mode {mode!r} is not in this version; {did_you_mean(str(mode), MODES)}")
    load = load_of(arguments, mode)
    for metric in (first, *others):
        refuse_unmeasured(metric, mode, load)
    max_wall_time, timeout_s = _positive(arguments, "max_wall_time"), _positive(arguments, "timeout")
    kernel_caches = _text(arguments, "kernel_caches") if "kernel_caches" in arguments else WARM
    refuse_shared(
        mode,
        (first, *others),
        max_wall_time=max_wall_time,
        kernel_caches=kernel_caches,
        timeout_s=timeout_s,
    )
    return PerfSpec(
        topology=topology.name,
        n=_whole(arguments, "n"),
        min_tokps=_positive(arguments, "min_tokps"),
        recipe=recipe.name if recipe else None,
        workload=workload.name if workload else DEFAULT_WORKLOAD,
        metrics=metrics,
        tolerance=_fraction(arguments, "tolerance"),
        platform=platform.name if platform else None,
        mode=mode,
        flags=_flags(arguments),
        env=_env(arguments),
        timeout_s=timeout_s,
        rounds=parse_rounds(arguments["rounds"]) if arguments.get("rounds") is not None else None,
        quarantine_until=_date(arguments, "quarantine_until"),
        load=load,
        max_wall_time=max_wall_time,
        kernel_caches=kernel_caches,
    )


def with_n(spec: PerfSpec, n: object) -> PerfSpec:
    """The same at another number of prompts."""
    if spec.n is None and spec.num_prompts is not None:
        raise R1PerfError(f"n={n!r} and batch_size={spec.num_prompts} are two loads: parametrize batch_size instead")
    return PerfSpec(spec.topology, _whole({"n": n}, "n"), *_AFTER_N(spec))


def parse_rounds(text: object) -> tuple[int, int]:
    """``"3:8"`` is (3, 8); ``"5"`` is (5, 5)."""
    low, _, high = str(text).partition(":")
    try:
        bounds = int(low), int(high or low)
    except ValueError:
        bounds = (0, 0)
    if not 1 <= bounds[0] <= bounds[1]:
        raise R1PerfError(f"rounds must be MIN:MAX with 1 <= MIN <= MAX, e.g. 3:8, got {text!r}")
    return bounds


def _text(arguments: Mapping[str, Any], key: str) -> str:
    value = arguments[key]
    if not isinstance(value, str):
        raise R1PerfError(f"{key} must be a name in quotes, got {value!r}")
    return value


def _number(arguments: Mapping[str, Any], key: str) -> float | None:
    from pytest_r1perf.datafile import is_finite_number

    value = arguments.get(key)
    if value is None:
        return None
    if not is_finite_number(value):
        raise R1PerfError(f"{key} must be a number, got {value!r}")
    return float(value)


def _positive(arguments: Mapping[str, Any], key: str) -> float | None:
    value = _number(arguments, key)
    if value is not None and value <= 0:
        raise R1PerfError(f"{key} must be above 0, got {arguments[key]!r}")
    return value


def _fraction(arguments: Mapping[str, Any], key: str) -> float | None:
    value = _number(arguments, key)
    if value is not None and not 0 <= value < 1:
        raise R1PerfError(f"{key} must be a fraction from 0 to below 1 (0.05 is 5 %), got {arguments[key]!r}")
    return value


def _whole(arguments: Mapping[str, Any], key: str) -> int | None:
    value = arguments.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise R1PerfError(f"{key} must be a whole number of prompts above 0, got {value!r}")
    return value


def _metrics(value: object) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (tuple, list)) or not names or not all(isinstance(name, str) for name in names):
        raise R1PerfError(f"metric must be a name or a list of names, got {value!r}")
    if len(set(names)) < len(names):
        raise R1PerfError(f"metric names one metric twice: {list(names)!r}")
    return tuple(names)


def _flags(arguments: Mapping[str, Any]) -> tuple[tuple[str, FlagValue], ...]:
    from pytest_r1perf.childenv import is_secret
    from pytest_r1perf.recipe import owner_of

    value = _mapping(arguments, "flags")
    flags: dict[str, FlagValue] = {}
    for key, item in value.items():
        name = key.lstrip("-").replace("-", "_")
        owner = owner_of(name)
        if not name or name in flags:
            raise R1PerfError(f"flags[{key!r}] {'names one flag twice' if name else 'is no name'}")
        if owner is not None:
            raise R1PerfError(f"flags[{key!r}] belongs to {owner}")
        if is_secret(name):
            raise R1PerfError(f"flags[{key!r}] looks like a secret, and a command line is seen by all: use env")
        if not isinstance(item, (str, int, float)) or (isinstance(item, float) and not math.isfinite(item)):
            raise R1PerfError(f"flags[{key!r}] must be a text, a number, True or False, got {item!r}")
        flags[name] = item
    return tuple(sorted(flags.items()))


def _env(arguments: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    from pytest_r1perf.recipe import env_refused

    value = _mapping(arguments, "env")
    for key, item in value.items():
        refused = env_refused(key)
        if refused is not None:
            raise R1PerfError(f"env[{key!r}] {refused}")
        if not key or "=" in key or "\0" in key:
            raise R1PerfError(f"env[{key!r}] is no name of an environment variable")
        if not isinstance(item, str) or "\0" in item:
            raise R1PerfError(f"env[{key!r}] must be a text, got {item!r}")
    return tuple(sorted(value.items()))


def _mapping(arguments: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = arguments.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise R1PerfError(f"{key} must be a mapping with text keys, got {value!r}")
    return value


def _date(arguments: Mapping[str, Any], key: str) -> datetime.date | None:
    value = arguments.get(key)
    if value is None or (isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)):
        return value
    try:
        return datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise R1PerfError(f"{key} must be a day like '2026-12-31', got {value!r}") from None
