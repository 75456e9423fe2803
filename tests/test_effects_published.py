"""Figures of documents beside measured ones: how they are read, and what is said of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.published import Published, published_from, set_beside
from pytest_r1perf.statistics import Interval


def measured(lower: float, estimate: float, upper: float) -> Interval:
    return Interval(estimate, lower, upper, 0.01, 10, 0.01, 0.01)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("+7.5 %", 1.075, 1.075),
        ("+7.5%", 1.075, 1.075),
        ("-78%", 0.22, 0.22),
        ("−18.5 %", 0.815, 0.815),
        ("~-69%", 0.31, 0.31),
        ("36 to 43 %", 1.36, 1.43),
        ("-34 to -40 %", 0.60, 0.66),
        ("-34% to -40%", 0.60, 0.66),
        ("2.8x", 2.8, 2.8),
        ("0.1×", 0.1, 0.1),
        ("< 2.4 %", 0.0, 1.024),
        ("up to +20.6 %", 0.0, 1.206),
        ("up to ~-78%", 0.22, math.inf),
        ("up to 0.1x", 0.1, math.inf),
        ("< -5 %", 0.0, 0.95),
        ("at least 5 %", 1.05, math.inf),
        ("> 2x", 2.0, math.inf),
    ],
)
def test_figures_are_read(text: str, low: float, high: float) -> None:
    found = published_from(text)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.text == text


@pytest.mark.parametrize("text", ["", "much", "7.5", "22,854 tok/s", "+7.5 % more", "-100 %", "-300 %"])
def test_what_is_no_figure_is_refused(text: str) -> None:
    with pytest.raises(R1PerfError, match="published="):
        published_from(text)


@pytest.mark.parametrize(
    ("text", "interval", "words"),
    [
        ("+7.5 %", (1.05, 1.07, 1.09), "not contradicted here: within the interval"),
        ("+7.5 %", (0.90, 1.00, 1.10), "open here: neither it nor no effect at all is excluded"),
        ("1x", (0.90, 1.00, 1.10), "not contradicted here: within the interval"),
        ("+7.5 %", (1.08, 1.10, 1.12), "surely more here"),
        ("+7.5 %", (0.99, 1.00, 1.01), "surely less here"),
        ("36 to 43 %", (1.37, 1.40, 1.42), "holds here"),
        ("36 to 43 %", (1.30, 1.40, 1.50), "open here: they overlap"),
        ("36 to 43 %", (1.10, 1.20, 1.30), "surely less here"),
        ("< 2.4 %", (1.00, 1.01, 1.02), "holds here"),
        ("< 2.4 %", (1.00, 1.02, 1.04), "open here: the interval reaches across it"),
        ("< 2.4 %", (1.03, 1.04, 1.05), "does not hold here: surely more"),
        ("at least 5 %", (0.99, 1.00, 1.01), "does not hold here: surely less"),
        ("up to -78 %", (0.45, 0.50, 0.55), "holds here"),
        ("up to -78 %", (0.08, 0.10, 0.12), "does not hold here: surely less"),
    ],
)
def test_whether_it_holds_is_said_in_words(text: str, interval: tuple[float, float, float], words: str) -> None:
    assert published_from(text).against(measured(*interval)) == words


def test_figures_go_to_their_parts() -> None:
    parts = {"ab": measured(1.05, 1.07, 1.09), "expected": measured(1.02, 1.03, 1.04)}
    alone = set_beside("+7.5 %", parts, "ab")
    assert [(said.of, said.text) for said in alone] == [("ab", "+7.5 %")]
    figure = Published("+2.9 %", 1.029, 1.029, "the guide, key interaction signals")
    both = set_beside({"ab": "+9.9 %", "expected": figure}, parts, "ab")
    assert [(said.of, said.holds) for said in both] == [
        ("ab", "surely less here"),
        ("expected", "not contradicted here: within the interval"),
    ]
    assert both[1].source == "the guide, key interaction signals"
    assert set_beside(None, parts, "ab") == ()
    with pytest.raises(R1PerfError, match=r"no such part here; did you mean 'expected'\? \(known: ab, expected\)"):
        set_beside({"expectd": "+2.9 %"}, parts, "ab")


def test_a_figure_of_something_else_is_printed_and_not_judged() -> None:
    figure = replace(published_from("+7.5 %"), aside="of another model")
    (said,) = set_beside(figure, {"ab": measured(1.2, 1.25, 1.3)}, "ab")
    assert (said.text, said.holds) == ("+7.5 %", "of another model")
