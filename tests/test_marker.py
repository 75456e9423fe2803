"""The marker's checks, called directly; what collection makes of an error is tested with the selection."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest

from pytest_r1perf import perf
from pytest_r1perf.catalog import Catalog, load_catalog
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.marker import ARGUMENTS, MARKER_LINE, PerfSpec, arguments_of, check, parse_rounds


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def test_defaults(catalog: Catalog) -> None:
    spec = check({"topology": "tp8"}, catalog)
    assert spec == PerfSpec("tp8")
    assert (spec.metrics, spec.workload, spec.mode) == (("total_throughput",), "sharegpt", "offline")


def test_everything(catalog: Catalog) -> None:
    spec = check(
        {
            "topology": "tp8",
            "n": 7000,
            "min_tokps": 22000,
            "recipe": "tp8-champion",
            "workload": "sharegpt-like",
            "metric": ["output_throughput", "total_latency"],
            "tolerance": 0,
            "platform": "h200x8",
            "mode": "offline",
            "flags": {"--max-running-requests": 8, "disable_radix_cache": True},
            "env": {"B": "2", "A": "1"},
            "timeout": 60,
            "rounds": "3:8",
            "quarantine_until": "2026-12-31",
        },
        catalog,
    )
    assert spec == PerfSpec(
        topology="tp8",
        n=7000,
        min_tokps=22000.0,
        recipe="tp8-champion",
        workload="sharegpt-like",
        metrics=("output_throughput", "total_latency"),
        tolerance=0.0,
        platform="h200x8",
        flags=(("disable_radix_cache", True), ("max_running_requests", 8)),
        env=(("A", "1"), ("B", "2")),
        timeout_s=60.0,
        rounds=(3, 8),
        quarantine_until=datetime.date(2026, 12, 31),
    )


def test_none_is_the_default_of_every_argument_but_the_topology(catalog: Catalog) -> None:
    """A parametrized argument may say "as usual" with None."""
    nothing = dict.fromkeys(name for name in ARGUMENTS if name != "topology")
    assert check({"topology": "tp8", **nothing}, catalog) == PerfSpec("tp8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topology": "pp3"}, "topology 'pp3' is not known; did you mean 'pp2'?"),
        ({"topology": 8}, "topology must be a name in quotes, got 8"),
        ({"topology": None}, "topology must be a name in quotes, got None"),
        ({"n": 0}, "n must be a whole number of prompts above 0, got 0"),
        ({"n": -5}, "n must be a whole number of prompts above 0, got -5"),
        ({"n": 5.0}, "n must be a whole number of prompts above 0, got 5.0"),
        ({"n": "5"}, "n must be a whole number of prompts above 0, got '5'"),
        ({"n": True}, "n must be a whole number of prompts above 0, got True"),
        ({"min_tokps": "22k"}, "min_tokps must be a number, got '22k'"),
        ({"min_tokps": float("nan")}, "min_tokps must be a number, got nan"),
        ({"min_tokps": float("inf")}, "min_tokps must be a number, got inf"),
        ({"min_tokps": 10**400}, "min_tokps must be a number, got 1000"),
        ({"min_tokps": True}, "min_tokps must be a number, got True"),
        ({"min_tokps": 0}, "min_tokps must be above 0, got 0"),
        ({"min_tokps": -1.5}, "min_tokps must be above 0, got -1.5"),
        ({"min_tokps": 5, "metric": "total_latency"}, "min_tokps is a floor, and of total_latency less is better"),
        ({"tolerance": 1}, "tolerance must be a fraction from 0 to below 1 (0.05 is 5 %), got 1"),
        ({"tolerance": -0.01}, "tolerance must be a fraction from 0 to below 1"),
        ({"tolerance": 5}, "tolerance must be a fraction from 0 to below 1"),
        ({"tolerance": "5%"}, "tolerance must be a number, got '5%'"),
        ({"recipe": "tp8-champ"}, "recipe 'tp8-champ' is not known; did you mean 'tp8-champion'?"),
        ({"recipe": "pp2-champion"}, "recipe 'pp2-champion' is for topology 'pp2', not for 'tp8'"),
        ({"workload": "sharegp"}, "workload 'sharegp' is not known; did you mean 'sharegpt'?"),
        ({"workload": 5}, "workload must be a name in quotes, got 5"),
        ({"platform": "h200"}, "platform 'h200' is not known; did you mean 'h200x"),
        ({"metric": "total_troughput"}, "metric 'total_troughput' is not known; did you mean 'total_throughput'?"),
        ({"metric": []}, "metric must be a name or a list of names, got []"),
        ({"metric": ["total_latency", 5]}, "metric must be a name or a list of names"),
        ({"metric": {"total_latency"}}, "metric must be a name or a list of names"),
        ({"metric": ["total_latency"] * 2}, "metric names one metric twice"),
        ({"mode": "server"}, "mode 'server' is not in this version; did you mean 'serve'?"),
        ({"mode": ["offline"]}, "mode ['offline'] is not in this version"),
        ({"flags": ["--x"]}, "flags must be a mapping with text keys"),
        ({"flags": {1: 2}}, "flags must be a mapping with text keys"),
        ({"flags": {"tp-size": 4}}, "flags['tp-size'] belongs to the topology: choose or define another topology"),
        ({"flags": {"--tp": 4}}, "flags['--tp'] belongs to the topology"),
        ({"flags": {"seed": 4}}, "flags['seed'] belongs to the workload"),
        ({"flags": {"x": None}}, "flags['x'] must be a text, a number, True or False, got None"),
        ({"flags": {"x": float("nan")}}, "flags['x'] must be a text, a number, True or False, got nan"),
        ({"flags": {"--": 1}}, "flags['--'] is no name"),
        ({"flags": {"a-b": 1, "--a_b": 2}}, "flags['--a_b'] names one flag twice"),
        ({"env": {"X": 1}}, "env['X'] must be a text, got 1"),
        ({"env": {"A=B": "1"}}, "env['A=B'] is no name of an environment variable"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "1"}}, "env['CUDA_VISIBLE_DEVICES'] belongs to the plugin, which gives each"),
        ({"env": {"R1PERF_RUN_ID": "x"}}, "env['R1PERF_RUN_ID'] belongs to the plugin, which finds a run's processes"),
        ({"env": {"": "1"}}, "env[''] is no name of an environment variable"),
        ({"env": {"X": "a\0b"}}, "env['X'] must be a text"),
        ({"timeout": 0}, "timeout must be above 0, got 0"),
        ({"timeout": "1h"}, "timeout must be a number, got '1h'"),
        ({"rounds": "8:3"}, "rounds must be MIN:MAX with 1 <= MIN <= MAX, e.g. 3:8, got '8:3'"),
        ({"quarantine_until": "31.12.2026"}, "quarantine_until must be a day like '2026-12-31', got '31.12.2026'"),
        ({"quarantine_until": 20261231}, "quarantine_until must be a day like '2026-12-31', got 20261231"),
        ({"quarantine_until": datetime.datetime(2026, 12, 31)}, "quarantine_until must be a day like"),
    ],
)
def test_mistakes(catalog: Catalog, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(R1PerfError, match=f"^{re.escape(message)}") as caught:
        check({"topology": "tp8", "n": 100, **changes}, catalog)
    assert "\n" not in str(caught.value)


def test_a_missing_topology(catalog: Catalog) -> None:
    with pytest.raises(R1PerfError, match=r"^perf\(\) needs a topology, e\.g\."):
        check({"n": 5}, catalog)


def test_a_recipe_of_the_reference_topology_is_taken(catalog: Catalog) -> None:
    """tp8-ep8 is measured against tp8: with tp8's champion, so that only the experts' layout differs."""
    assert check({"topology": "tp8-ep8", "n": 5000, "recipe": "tp8-champion"}, catalog).recipe == "tp8-champion"
    assert check({"topology": "tp8", "n": 5000, "recipe": "default"}, catalog).recipe == "default"


def test_a_date_object(catalog: Catalog) -> None:
    day = datetime.date(2026, 12, 31)
    assert check({"topology": "tp8", "quarantine_until": day}, catalog).quarantine_until == day


@pytest.mark.parametrize(("text", "expected"), [("5", (5, 5)), (5, (5, 5)), ("3:8", (3, 8)), ("1:1", (1, 1))])
def test_rounds(text: object, expected: tuple[int, int]) -> None:
    assert parse_rounds(text) == expected


@pytest.mark.parametrize("text", ["", "0", "0:5", "5:3", "a", "1:b", "-1", "1:2:3", "2.5", 2.5, True, [3, 8], ":"])
def test_rounds_refused(text: object) -> None:
    with pytest.raises(R1PerfError, match=r"^rounds must be MIN:MAX"):
        parse_rounds(text)


# -- arguments by position and name -------------------------------------------------------------------------


def test_positions() -> None:
    assert arguments_of(("tp8", 7000, 22000), {"tolerance": 0.1}) == {
        **{"topology": "tp8", "n": 7000, "min_tokps": 22000, "tolerance": 0.1}
    }
    assert arguments_of((), {}) == {}


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("tp8", 1, 2, 3), {}, "perf() takes topology, n, min_tokps by position and got 4 values"),
        (("tp8",), {"topology": "pp2"}, "perf() got 'topology' twice, by position and by name"),
        ((), {"topolgy": "tp8"}, "perf() has no argument 'topolgy'; did you mean 'topology'?"),
        ((), {"N": 5}, "perf() has no argument 'N'"),
    ],
)
def test_wrong_arguments(args: tuple[object, ...], kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(R1PerfError, match=f"^{re.escape(message)}"):
        arguments_of(args, kwargs)


def test_the_decorator_and_the_mark_are_the_same(catalog: Catalog) -> None:
    typed = perf(
        "tp8",
        7000,
        22000,
        recipe="tp8-champion",
        workload="sharegpt-like",
        metric=("output_throughput",),
        tolerance=0.1,
        platform="h200x8",
        flags={"x": 1},
        env={"X": "1"},
        timeout=5,
        rounds="3:8",
        quarantine_until="2026-12-31",
    ).mark
    plain = pytest.mark.perf(
        "tp8",
        7000,
        22000,
        recipe="tp8-champion",
        workload="sharegpt-like",
        metric=("output_throughput",),
        tolerance=0.1,
        platform="h200x8",
        flags={"x": 1},
        env={"X": "1"},
        timeout=5,
        rounds="3:8",
        quarantine_until="2026-12-31",
    ).mark
    assert typed.name == plain.name == "perf"
    assert check(arguments_of(typed.args, typed.kwargs), catalog) == check(
        arguments_of(plain.args, plain.kwargs), catalog
    )
    assert check(arguments_of((), perf("tp8").mark.kwargs), catalog) == PerfSpec("tp8")


def test_the_printed_signature_names_every_argument_of_this_version() -> None:
    """``pytest --markers`` against the arguments."""
    signature = MARKER_LINE.split("): ")[0].removeprefix("perf(")
    assert {part.partition("=")[0] for part in signature.split(", ")} == set(ARGUMENTS)
