"""Defaults that moved between SGLang releases, stated on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_r1perf.errors import DataError
from pytest_r1perf.sglang.pins import load_pins, pins_for
from pytest_r1perf.sglang.translate import NoteKind, translate
from tests.test_translate import NOTES_WINNER, PP2_CHAMPION, TP8_CHAMPION, Flags
from tests.tools.releases import RELEASES, parse, releases, table

OFF = {"enable_piecewise_cuda_graph": False, "enable_flashinfer_allreduce_fusion": False}


def pinned(flags: Flags, release: str, *, is_cpu: bool = False) -> Mapping[str, object]:
    return pins_for(flags, is_cpu=is_cpu, table=table(release)).flags


@pytest.mark.parametrize(
    ("flags", "release", "expected"),
    [
        (
            {"tp_size": 8},
            "0.5.20",
            {
                "random_seed": 2025,
                "schedule_policy": "fcfs",
                "attention_backend": "fa3",
                "mem_fraction_static": 0.87,
                "chunked_prefill_size": 8192,
                "cuda_graph_max_bs": 512,
                **OFF,
            },
        ),
        (
            {"tp_size": 2, "pp_size": 2},
            "0.5.9",  # prefill graphs and the fused all-reduce are off there unless asked for
            {
                "random_seed": 2025,
                "schedule_policy": "fcfs",
                "attention_backend": "fa3",
                "mem_fraction_static": 0.83,
                "chunked_prefill_size": 8192,
                "cuda_graph_max_bs": 256,
            },
        ),
        (
            {"tp_size": 4, "dp_size": 4, "enable_dp_attention": True},
            "0.5.22",
            {
                "random_seed": 2025,
                "schedule_policy": "fcfs",
                "attention_backend": "fa3",
                "mem_fraction_static": 0.87,
                "chunked_prefill_size": 8192,
                "cuda_graph_max_bs": 512,
                "load_balance_method": "round_robin",
                **OFF,
            },
        ),
        (TP8_CHAMPION, "0.5.17", {"random_seed": 2025, "attention_backend": "fa3"}),
        (
            PP2_CHAMPION,
            "0.5.17",
            {
                "random_seed": 2025,
                "schedule_policy": "fcfs",
                "attention_backend": "fa3",
                "cuda_graph_max_bs": 512,
                **OFF,
            },
        ),
    ],
)
def test_on_gpus(flags: Flags, release: str, expected: dict[str, object]) -> None:
    assert pinned(flags, release) == expected


@pytest.mark.parametrize("release", ["0.5.9", "0.5.20"])
def test_on_a_cpu(release: str) -> None:
    expected = {"random_seed": 2025, "schedule_policy": "fcfs", "attention_backend": "torch_native"}
    assert pinned({"device": "cpu", "tp_size": 2}, release, is_cpu=True) == expected


@pytest.mark.parametrize(
    ("given", "spared"),
    [
        ({"cuda_graph_max_bs_decode": 64}, "cuda_graph_max_bs"),
        ({"disable_cuda_graph": True}, "cuda_graph_max_bs"),
        ({"enforce_piecewise_cuda_graph": True}, "enable_piecewise_cuda_graph"),
        ({"cuda_graph_backend_prefill": "breakable"}, "enable_piecewise_cuda_graph"),
        ({"flashinfer_allreduce_fusion_backend": "trtllm"}, "enable_flashinfer_allreduce_fusion"),
    ],
)
def test_the_same_thing_said_in_another_way_is_no_pin(given: Flags, spared: str) -> None:
    flags = {"tp_size": 8, **given}
    assert spared in pinned({"tp_size": 8}, "0.5.20")
    assert spared not in pinned(flags, "0.5.20")
    pins = pins_for(flags, is_cpu=False, table=table("0.5.20"))
    parse("0.5.20", translate({**pins.flags, **flags}, {}, table("0.5.20")).argv)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("is_cpu", "flags"), [(False, {"tp_size": 8}), (False, NOTES_WINNER), (True, {"tp_size": 1})])
def test_every_release_takes_its_pins(release: str, is_cpu: bool, flags: Flags) -> None:
    """Nothing that the cell gives is touched; what is stated can be said and is in a note, what can't is in one too."""
    pins = pins_for(flags, is_cpu=is_cpu, table=table(release))
    assert pins.flags.keys().isdisjoint(flags)
    got = parse(release, translate(pins.flags, {}, table(release)).argv)
    assert got.random_seed == 2025
    assert [note.flag for note in pins.notes if note.kind is NoteKind.PINNED] == list(pins.flags)
    unsaid = [(note.flag, note.matters) for note in pins.notes if note.kind is NoteKind.DROPPED]
    no_fa3 = release == "0.4.3.post2" and not is_cpu and "attention_backend" not in flags
    assert unsaid == ([("attention_backend", True)] if no_fa3 else [])


def test_graphs_and_fusion_are_off_in_every_release_that_has_them_on() -> None:
    for release in releases("0.5.10"):
        got = parse(release, translate(pinned_flags(release), {}, table(release)).argv)
        assert got.enforce_disable_flashinfer_allreduce_fusion is True
        old = getattr(got, "disable_piecewise_cuda_graph", None) is True
        assert old or got.cuda_graph_backend_prefill == "disabled"


def pinned_flags(release: str) -> Flags:
    return pins_for({"tp_size": 8}, is_cpu=False, table=table(release)).flags


# --- the file


def test_every_pin_has_a_source() -> None:
    assert load_pins()
    sources = [value.source for pin in load_pins() for value in pin.values]
    assert all(sources)
    assert not [source for source in sources if "as above" in source], "it stands alone in a record"


GOOD = (
    "pins:\n  page_size:\n    values:\n      - {value: 64, when: {tp_size_at_least: 2, tp_size_below: 8}, source: x}\n"
)


def test_sizes_are_bounds(tmp_path: Path) -> None:
    path = tmp_path / "pins.yaml"
    path.write_text(GOOD)
    for tp, expected in ((1, {}), (2, {"page_size": 64}), (7, {"page_size": 64}), (8, {})):
        assert pins_for({"tp_size": tp}, is_cpu=True, table=table("0.5.9"), pins=load_pins(path)).flags == expected


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("source: x", "note: x", "key 'source' is missing"),
        ("value: 64", "values: 64", "key 'value' is missing"),
        ("tp_size_at_least", "tp_at_least", "key is not known"),
        ("tp_size_below: 8", "accelerator: tpu", "'tpu' is not known"),
        ("values:\n", "unless: page_size\n    values:\n", "must be a list of flags"),
        ("values:\n      - {value: 64,", "values:\n      - 64 #", "must be a list of {value, when, source}"),
        ("pins:", "pin:", "key is not known"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "pins.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(DataError, match=r"pins\.yaml:\d+: ") as refused:
        load_pins(path)
    assert says in str(refused.value)
