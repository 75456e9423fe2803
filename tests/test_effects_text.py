"""Effects on a terminal of 80 columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf import procedures
from pytest_r1perf.effects import BrokenPoint, Effect, Point
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.procedures import Basis
from pytest_r1perf.report.effects import gain, lines, signed

BASIS = Basis(METRICS["total_throughput"], 0.00125)
JITTER = (0.0, 0.002, -0.002)


def point(label: str, mean: float, *, n: int = 7000, gpus: int = 8, topology: str = "tp8", rounds: int = 3) -> Point:
    return Point(label, topology, gpus, n, f"n={n}", tuple(mean * (1 + JITTER[place]) for place in range(rounds)))


PATH = [
    point("tp8 baseline n=7000", 12021),
    point("+ mem_fraction_static=0.87", 14000),
    point("+ schedule_policy=lof", 14100),
    point("+ decode_attention_backend=flashinfer + enable_flashinfer_allreduce_fusion", 15000),
    point("- enable_piecewise_cuda_graph", 14400),
    point("+ cuda_graph_max_bs=2048", 22854),
]


def test_a_waterfall_is_drawn() -> None:
    found = procedures.ablation(PATH, BASIS, {"total": "+90.1 %"})
    text = lines(found)
    assert max(map(len, text)) <= 80
    assert text[0].startswith("ablation in total_throughput: +90.1 % [")
    (axis,) = [line for line in text if line.strip().startswith("|-")]
    first, last = axis.index("|"), axis.rindex("|")
    rows = {line[2:first].rpartition("  ")[0].rpartition("  ")[0].strip(): line for line in text[2:9]}
    bars = {name: line[first : last + 1] for name, line in rows.items()}
    assert list(bars)[:3] == ["tp8 baseline n=7000", "+ mem_fraction_static=0.87", "+ schedule_policy=lof"]
    assert list(bars)[3].startswith("+ decode_attention")
    assert list(bars)[-2:] == ["+ cuda_graph_max_bs=2048", "total"]
    # From 9,313 (a quarter of the range below the least) to 22,854; the first and the total are whole bars.
    start, whole = bars["tp8 baseline n=7000"].rstrip(), bars["total"].rstrip()
    assert set(start) == set(whole) == {"="}
    assert len(whole) == last - first + 1
    assert len(start) == round(len(whole) * (12021 - 9313) / (22854 - 9313))
    # A step begins where the one before ended; a loss has minus signs and goes back.
    step = bars["+ mem_fraction_static=0.87"]
    assert step.strip() == "+" * len(step.strip())
    assert step.index("+") == len(start)
    (loss,) = [bar for name, bar in bars.items() if name.startswith("- enable")]
    assert loss.strip() == "-" * len(loss.strip())
    assert bars["+ cuda_graph_max_bs=2048"].rstrip().endswith("+")
    assert len(bars["+ cuda_graph_max_bs=2048"].rstrip()) == len(whole)
    assert "-4.0 % [" in rows[next(name for name in rows if name.startswith("- enable"))]
    assert any("total: +90.1 %: not contradicted here" in line for line in text)


def test_a_step_that_is_not_sure_has_a_question_mark() -> None:
    found = procedures.ablation([PATH[0], point("+ nothing", 12030), PATH[-1]], BASIS)
    text = lines(found)
    (line,) = [line for line in text if "+ nothing" in line]
    assert line.endswith("?")
    (line,) = [line for line in text if line.startswith("  + cuda_graph")]
    assert not line.endswith("?")
    assert text[0].startswith("ablation")


def test_a_factorial_table() -> None:
    cells = [point(label, mean) for label, mean in (("base", 20000), ("+ lof", 20300), ("+ fi", 20280), ("x", 21500))]
    base, a, b, ab = cells
    found = procedures.interaction(base, a, b, ab, BASIS, {"ab": "+7.5 %", "expected": "+2.9 %"})
    text = "\n".join(lines(found, 200))
    assert "neither" in text
    assert "linear expectation of both" in text
    assert "+7.5 % [" in text
    assert "+2.9 % [" in text
    assert "together surely more than one by one" in text
    assert "published: expected: +2.9 %: not contradicted here" in text
    assert "the 5 intervals hold together: any lower end is wrong with probability 0.00125 at most" in text


def test_a_load_curve_shows_the_crossing() -> None:
    pairs = [
        (point("off", mean, n=n), point("on", 20000, n=n))
        for n, mean in ((1000, 19000), (5000, 20010), (7000, 22000), (10000, 24120))
    ]
    found = procedures.by_load(pairs, BASIS, "up to +20.6 %", a="tp8 off", b="tp8 on")
    text = lines(found)
    rows = [line for line in text if line.strip().startswith("n=")]
    assert [row.split()[-1] for row in rows] == ["b", "?", "a", "a"]
    assert rows[0].index("*") < rows[0].index("|")
    assert rows[3].index("*") > rows[3].index("|")
    assert len({row.index("|") for row in (rows[0], rows[2], rows[3])}) == 1
    assert "the sign changes between n=1000 and n=7000" in " ".join(part.strip() for part in text)


def test_a_grid_names_what_broke_in_its_cell() -> None:
    cells: list[Point | BrokenPoint] = [
        point("0.83/256", 20000),
        point("0.83/2048", 22000),
        point("0.87/256", 21990),
        BrokenPoint("mem_fraction_static=0.87 cuda_graph_max_bs=2048", "OOM", "CUDA out of memory. " * 9),
    ]
    found = procedures.grid({"mem_fraction_static": [0.83, 0.87], "cuda_graph_max_bs": [256, 2048]}, cells, BASIS)
    text = lines(found)
    (low,) = [line for line in text if line.strip().startswith("0.83")]
    (high,) = [line for line in text if line.strip().startswith("0.87")]
    assert low.split() == ["0.83", "20,000", "22,000*"]
    assert high.split() == ["0.87", "21,990~", "OOM"]
    assert "mem_fraction_static down, cuda_graph_max_bs across" in "\n".join(text)
    assert any(line.endswith("...") and ": OOM: CUDA out" in line for line in text)
    assert "1 of 4 cells broke (OOM)" in " ".join(part.strip() for part in text)


def test_a_wide_grid_is_drawn_in_parts() -> None:
    sizes = [256 * step for step in range(1, 13)]
    cells = [point(f"{row}/{size}", 20000 + size + row) for row in (0, 50000) for size in sizes]
    found = procedures.grid({"mem_fraction_static": [0.83, 0.87], "cuda_graph_max_bs": sizes}, cells, BASIS)
    text = lines(found)
    assert max(map(len, text)) <= 80
    heads = [line.split() for line in text if line.split() and line.split()[0].isdigit()]
    assert [int(size) for head in heads for size in head] == sizes
    assert len(heads) > 1
    assert sum(line.count("*") for line in text if line.strip().startswith("0.87")) == 1


def test_a_scaling_table() -> None:
    cells = [
        point("tp8 tp8-champion n=7000", 22854),
        point("pp2 pp2-champion n=7000", 29426, gpus=16, topology="pp2"),
        point("tp16 tp16-reference n=8000", 21416, gpus=16, topology="tp16", n=8000),
    ]
    basis = Basis(METRICS["total_throughput"], 0.00125, mixed=("mixed topologies in one comparison: tp8 and pp2",))
    text = lines(procedures.scaling(cells, basis))
    joined = "\n".join(text)
    # The guide's own figures a GPU: 22,854 / 8, 29,426 / 16 and 21,416 / 16 (the rounds are symmetric about them).
    for figure in ("2,857 [", "1,839 [", "1,338 ["):
        assert figure in joined
    assert "0.644 [" in joined
    assert "mixed topologies in one comparison: tp8 and pp2" in joined


def test_a_gain_that_says_nothing_is_dots() -> None:
    shown = [signed(value) for value in (0.0754, -0.2, 1.5, 20.0, math.inf)]
    assert shown == ["+7.5 %", "-20.0 %", "+150 %", "...", "..."]
    two = [point("a", 100.0, rounds=2), point("b", 200.0, rounds=2)]
    text = lines(procedures.ablation(two, Basis(BASIS.metric, 1e-9)))
    assert "+100 % [-" in text[0]
    assert ", ...]" in text[0]


def effects(means: Sequence[float], name: str) -> list[Effect]:
    points = [point(f"{name} {place}", mean, n=50 + place) for place, mean in enumerate(means)]
    pairs = [(one, point("other", 100.0, n=one.num_prompts)) for one in points]
    grid: list[Point | BrokenPoint] = [*points[:-1], BrokenPoint(name, "HANG", "no answer " * 30)]
    return [
        procedures.comparison(points[0], points[1], BASIS),
        procedures.interaction(points[0], points[1], points[2], points[3], BASIS),
        procedures.ablation(points, BASIS),
        procedures.scaling(points, BASIS),
        procedures.by_load(pairs, BASIS, a=name, b="other"),
        procedures.spread(points, BASIS),
        procedures.grid({"mem_fraction_static": [1, 2], "cuda_graph_max_bs": [1, 2]}, grid[-4:], BASIS),
    ]


@given(
    st.lists(st.floats(min_value=1000, max_value=50_000), min_size=4, max_size=7),
    st.sampled_from(["tp8", "tp4-dp4-pp2-one-node notes-winner-one-node n=2000 load_balance_method=round_robin"]),
    st.sampled_from([40, 80, 120]),
)
@settings(max_examples=30)
def test_nothing_is_wider_than_the_terminal(means: list[float], name: str, width: int) -> None:
    for effect in effects(means, name):
        for line in lines(effect, width):
            assert len(line) <= max(80, width), line
            assert line == line.rstrip()


@pytest.mark.parametrize("place", range(7))
def test_an_effects_text_is_its_sentence(place: int) -> None:
    effect = effects([100, 110, 120, 130], "x")[place]
    assert str(effect)
    assert "\n" not in str(effect)
    assert " ".join(part.strip() for part in effect.lines(600)).startswith(str(effect))


def test_a_waterfall_of_a_latency_has_the_sign_of_its_gain() -> None:
    latency = Basis(METRICS["ttft_ms"], 0.00125)
    found = procedures.ablation([point("slow", 200), point("+ better", 100), point("+ worse", 150)], latency)
    rows = {line.split("  ")[1].strip(): line for line in lines(found) if line.startswith("  + ")}
    assert "++++" in rows["+ better"]
    assert "+100 % [" in rows["+ better"]
    assert "----" in rows["+ worse"]
    assert "-33.3 % [" in rows["+ worse"]


def test_a_gain_of_ten_times_and_more_is_a_number() -> None:
    """The published collapse of a small micro-batch, the other way round."""
    found = procedures.comparison(point("auto", 20000), point("16", 1600), BASIS)
    assert gain(found.ratio).startswith("12.5x [")
