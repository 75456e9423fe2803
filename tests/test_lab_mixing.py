"""What differs between cells: as a step's name, as a load's order, as a warning."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.cell import Cell, cell_of
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.marker import check
from pytest_r1perf.measurement import Measurement
from pytest_r1perf.mixing import changed, load_of, mixed, pace

CATALOG = load_catalog([])


def cell(platform: str = "h200x16", **arguments: Any) -> Cell:
    spec = check({"topology": "tp8", "n": 5000, **arguments}, CATALOG)
    return cell_of(spec, CATALOG.platform(platform), CATALOG)


def measurement(protocol: dict[str, object] | None = None, platform: str = "h200x16", **arguments: Any) -> Measurement:
    return Measurement(cell(platform, **arguments), protocol=protocol or {})


PLAIN = {"recipe": "default"}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {"flags": {"schedule_policy": "lof"}}, "+ schedule_policy=lof"),
        ({}, {"flags": {"disable_radix_cache": True}}, "+ disable_radix_cache"),
        ({"flags": {"disable_radix_cache": True}}, {}, "- disable_radix_cache"),
        ({"flags": {"disable_radix_cache": True}}, {"flags": {"disable_radix_cache": False}}, "- disable_radix_cache"),
        ({}, {"flags": {"disable_radix_cache": False}}, "nothing"),
        ({"flags": {"max_running_requests": 8}}, {"flags": {"max_running_requests": 9}}, "+ max_running_requests=9"),
        ({}, {"n": 7000}, "n=5000 -> n=7000"),
        ({}, {"env": {"NCCL_ALGO": "Ring"}}, "+ NCCL_ALGO=Ring"),
        ({"env": {"NCCL_ALGO": "Ring"}}, {}, "- NCCL_ALGO"),
        ({}, {"topology": "tp16", "mode": "engine"}, "tp8 -> tp16 offline -> engine"),
        ({}, {"kernel_caches": "cold"}, "+ kernel_caches=cold"),
        ({}, {"recipe": "tp8-champion"}, "recipe default -> tp8-champion"),
    ],
)
def test_a_step_is_named_after_what_changed(before: dict[str, Any], after: dict[str, Any], words: str) -> None:
    assert changed(cell(**{**PLAIN, **before}), cell(**{**PLAIN, **after})) == words


def test_a_secret_is_in_no_steps_name() -> None:
    assert "hunter2" not in changed(cell(), cell(env={"HF_TOKEN": "hunter2"}))


def test_loads_are_ordered_by_n_and_then_by_how_fast_they_come() -> None:
    asked: list[dict[str, Any]] = [
        {"n": 200},
        {"n": 200, "request_rate": 8.0},
        {"n": 200, "request_rate": 4.0},
        {"n": 200, "request_rate": 4.0, "max_concurrency": 2},
        {"n": 100},
    ]
    cells = [cell(mode="serve", **arguments) for arguments in asked]
    assert [load_of(one) for one in sorted(cells, key=pace)] == [
        "n=100",
        "n=200 rate=4 concurrency=2",
        "n=200 rate=4",
        "n=200 rate=8",
        "n=200",
    ]


def test_everything_that_is_mixed_is_said_once() -> None:
    one = measurement({"tp_size": 8, "num_prompts": 5000, "page_size": 1, "mode": "offline"})
    other = {"tp_size": 16, "num_prompts": 7000, "page_size": 64, "mode": "engine"}
    two = measurement(other, topology="tp16", n=7000, mode="engine")
    assert mixed([one, two]) == (
        "mixed topologies in one comparison: tp8 and tp16",
        "mixed modes in one comparison: offline and engine",
        "mixed loads in one comparison: n=5000 and n=7000",
        "the protocols differ: page_size 1 -> 64",
    )
    assert "loads" not in " ".join(mixed([one, two], loads=False))
    assert mixed([one, one]) == ()


def test_two_platforms_are_refused() -> None:
    with pytest.raises(R1PerfError, match="are of different platforms: they cannot be compared"):
        mixed([measurement(), measurement(platform="h200x8")])
