"""The table of one release's options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.sglang.options import OptionTable, from_probe
from tests.tools.releases import RELEASES, RefusedError, entries, parse, table


def test_lookup_is_by_the_whole_spelling() -> None:
    options = table("0.5.20")
    size = options.get("--tensor-parallel-size")
    assert size is not None
    assert size is options.get("--tp-size")
    assert size.names == ("--tp-size", "--tensor-parallel-size")
    assert (size.dest, size.default, size.takes_value) == ("tp_size", "1", True)
    assert options.get("--tp") is None  # argparse would take it
    assert options.get("--mem-frac") is None
    assert "--mem-fraction-static" in options


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("--tp-size", 8, None),
        ("--tp-size", "8", None),
        ("--tp-size", "eight", "its option --tp-size takes a whole number"),
        ("--tp-size", 0.5, "its option --tp-size takes a whole number"),
        ("--tp-size", True, "its option --tp-size takes a value"),
        ("--mem-fraction-static", 0.87, None),
        ("--mem-fraction-static", "most", "its option --mem-fraction-static takes a number"),
        ("--disable-radix-cache", True, None),
        ("--disable-radix-cache", False, None),
        ("--disable-radix-cache", 1, "its option --disable-radix-cache is a switch and takes no value"),
        ("--schedule-policy", "lof", None),
        ("--cuda-graph-bs-decode", "1 2 4", None),
        ("--cuda-graph-bs-decode", "1 two", "its option --cuda-graph-bs-decode takes a whole number"),
        ("--cuda-graph-bs-decode", " ", "its option --cuda-graph-bs-decode takes a value"),
        ("--model-checksum", True, None),  # with and without a value
        ("--schedule-polic", "lof", "it has no option --schedule-polic (nearest: --schedule-policy"),
        ("--zzz", True, "it has no option --zzz"),
    ],
)
def test_accepts(name: str, value: str | int | float | bool, says: str | None) -> None:
    reason = table("0.5.20").accepts(name, value)
    assert reason is None if says is None else reason is not None and reason.startswith(says)


def test_a_bad_choice_names_the_choices() -> None:
    reason = table("0.4.10.post2").accepts("--schedule-policy", "lof")
    assert reason == "its option --schedule-policy has no choice 'lof' (choices: lpm, random, fcfs, dfs-weight)"


def test_an_option_that_does_nothing_is_not_accepted() -> None:
    option = table("0.5.3").get("--enable-ep-moe")
    assert option is not None
    assert (option.deprecated, option.inert) == (True, True)
    assert table("0.5.3").usable("--enable-ep-moe") is None
    assert (
        table("0.5.3").accepts("--enable-ep-moe", True) == "its option --enable-ep-moe is deprecated and does nothing"
    )
    assert table("0.5.1").accepts("--enable-ep-moe", True) is None
    alias = table("0.5.19").get("--cuda-graph-max-bs")
    assert alias is not None
    assert (alias.deprecated, alias.inert) == (True, False)


def test_off_spelling() -> None:
    boolean = table("0.5.20").get("--dllm-fdfo")
    plain = table("0.5.20").get("--disable-radix-cache")
    assert boolean is not None
    assert plain is not None
    assert boolean.off_spelling == "--no-dllm-fdfo"
    assert plain.off_spelling is None


@pytest.mark.parametrize(
    ("version", "older"),
    [
        ("0.4.9.post6", True),
        ("0.4.10.post2", True),
        ("0.5.10", False),
        ("0.5.9", False),
        ("0.5.8", True),
        ("main", False),
    ],
)
def test_before_0_5_9(version: str, older: bool) -> None:
    assert OptionTable((), version).before("0.5.9") is older


@pytest.mark.parametrize("entry", [{}, {"opts": "--tp"}, {**entries("0.5.20")[0], "opts": None}, 3])
def test_a_malformed_probe_is_one_sentence(entry: object) -> None:
    with pytest.raises(R1PerfError, match=r"^the options of sglang 0\.5\.24 cannot be read"):
        from_probe("0.5.24", [entry])  # type: ignore[list-item]


NAMES = sorted({name for release in RELEASES for entry in entries(release) for name in entry["opts"]})


@given(
    release=st.sampled_from(RELEASES),
    name=st.sampled_from(NAMES),
    value=st.one_of(
        st.sampled_from(["1", "2.5", "x y", "auto", "fa3", "", "1 2 3", "none"]),
        st.integers(-3, 9),
        st.floats(0, 1),
        st.just(True),
    ),
)
def test_agrees_with_argparse(release: str, name: str, value: str | int | float | bool) -> None:
    """What the table takes, a real parser takes, and the other way round."""
    option = table(release).get(name)
    words = [] if value is True else str(value).split() if option is not None and option.many else [str(value)]
    try:
        parse(release, [name, *words])
        taken = True
    except RefusedError:
        taken = False
    if option is None:  # argparse may take an abbreviation; we never do
        assert table(release).accepts(name, value) is not None
    else:
        assert (table(release).accepts(name, value) is None) is taken
