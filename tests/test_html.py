"""The HTML page as text: what is in it, what it survives, and what it never reads. tests/browser looks at it."""

from __future__ import annotations

import dataclasses
import html
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from pytest_r1perf.document.file import as_json, read_document
from pytest_r1perf.document.model import Cell, Readings, Sample
from pytest_r1perf.exports.html import text
from pytest_r1perf.report.html.canvas import Canvas
from pytest_r1perf.report.html.charts.dots import Dots, dots_chart
from pytest_r1perf.report.html.charts.forest import MOST_ROWS, Ratio, forest_charts
from pytest_r1perf.report.html.charts.loads import AtLoad, crossings_of
from pytest_r1perf.report.html.charts.rounds import Round, rounds_chart
from pytest_r1perf.report.html.charts.strips import strips_chart
from pytest_r1perf.report.html.charts.trend import trend_chart, version_marks
from pytest_r1perf.report.html.effects import effect_charts
from pytest_r1perf.report.html.plain import line, plain
from pytest_r1perf.statistics import Interval
from pytest_r1perf.verdict import Verdict
from tests.browser import documents, sweeps

_CANVAS = Canvas()
VOID = ("meta", "link", "br", "hr", "img", "input")


class Tags(HTMLParser):
    """Elements that are open, and every attribute that was seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: str) -> Tags:
    """The page's tags; every one of them is closed in its order."""
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    return tags


def words(page: str) -> str:
    """What the page says, without its tags."""
    body = page.partition("<body>")[2].rpartition("<script>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


@pytest.fixture(scope="module")
def whole() -> str:
    return text(documents.whole())


@pytest.fixture(scope="module")
def canvas() -> Canvas:
    return Canvas()


# --- the page


def test_a_page_loads_nothing(whole: str) -> None:
    tags = parsed(whole)
    assert {tag for tag, _ in tags.seen} & {"img", "iframe", "object", "embed", "form", "base"} == set()
    for tag, attributes in tags.seen:
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,")), tag
        assert not any(name.startswith("on") for name in attributes)
    style = whole.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [one["content"] for tag, one in tags.seen if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "script-src 'sha256-" in policy


def test_the_first_screen_says_what_failed_how_much_why_and_how_to_repeat_it(whole: str) -> None:
    said = words(whole)
    first = said.partition("All cells, those that failed first")[0]
    assert "2 of 5 cells failed: 1 REGRESSED, 1 OOM" in first
    assert "ratio 0.920 [0.892, 0.948], tolerance 5.0 %" in first
    assert "versions: sglang: 0.5.17 -> 0.5.20" in first
    assert "command: --chunked-prefill-size 4096 -> 8192" in first
    assert "pytest 'perf_tests/test_tp8.py::test_regressed' --perf" in first
    assert first.index("REGRESSED") < first.index("CUDA out of memory")


def test_odd_names_are_said_as_they_are_without_their_colours(whole: str) -> None:
    assert "\x1b" not in whole
    assert "a|b <img src=x onerror=alert(1)> & \"quotes\" 'and' \U0001f680 red </script><!-- $x$ #010101" in words(
        whole
    )
    assert whole.count("</script>") == 1
    assert "onerror=alert(1)>" not in whole


def test_a_session_without_cells() -> None:
    said = words(text(documents.document([], exitstatus=None)))
    assert "No cell of this session has a verdict" in said
    assert "the session did not come to its end" in said
    assert "Nothing was measured, so no environment is known" in said


def test_numbers_that_are_none_do_not_end_it(tmp_path: Path) -> None:
    endless = Interval(math.nan, 0.0, math.inf, math.inf, 0.0, 0.1, 0.1)
    changes: dict[str, Any] = {"ratio": endless, "mean": endless, "baseline": math.nan, "floor": math.inf}
    item = documents.judgement(Verdict.UNDECIDED, 1.0, **changes)
    half = dataclasses.replace(item, metric="output_throughput", ratio=Interval(1.0, 0.0, math.inf, 1, 1, 0.1, 0.1))
    result = documents.result(Verdict.UNDECIDED, math.nan, judgements=(item, half), medians={"tokps_per_gpu": math.inf})
    holes = Readings(8, (0.0, 1.0), (None, None), (math.nan, 5.0), (math.inf, None), ())
    samples = tuple(
        Sample(number, "", {"total_throughput": value, "output_throughput": 100.0}, readings=holes, wall_s=math.nan)
        for number, value in enumerate((math.nan, math.inf, -math.inf, 20000.0), 1)
    )
    history = documents.trend(means=[math.nan] * 24)
    document = documents.document([Cell(result, samples, (), history)], [documents.environment()])
    parsed(text(document))
    path = tmp_path / "report.json"
    path.write_text(as_json(document))
    read = text(read_document(path))
    parsed(read)
    assert "not a number" in words(read)


def test_a_document_out_of_a_file_gives_the_same_page(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(as_json(documents.pair()), encoding="utf-8")
    assert text(read_document(path)) == text(documents.pair())


def test_two_environments_have_a_forest_and_what_differs() -> None:
    page = text(documents.pair())
    assert "new / old environment, all cells" in page
    said = words(page)
    assert "all 12 cells together" in said
    assert "What differs between them" in said
    table = said.partition("What differs between them")[2]
    assert table.split()[:6] == ["name", "old", "new", "sglang", "0.5.9", "0.5.20"]


def test_a_page_is_made_in_a_process_of_its_own_and_no_log_is_opened(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    os.mkfifo(log)  # to read it is to wait for ever
    samples = (dataclasses.replace(documents.sample(1, 20000), log=str(log)),)
    cells = [Cell(documents.result(Verdict.PASS, log=str(log)), samples)]
    (tmp_path / "report.json").write_text(as_json(documents.document(cells, [documents.environment()])))
    program = "from pytest_r1perf.cli import main; main()"
    command = [sys.executable, "-c", program, "report", "report.json", "--html", "perf.html"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    page = (tmp_path / "perf.html").read_text(encoding="utf-8")
    parsed(page)
    assert str(log) in page


@pytest.mark.parametrize("name", ["jinja2", "matplotlib"])
def test_without_the_extra_it_says_what_to_install(name: str) -> None:
    program = (
        f"import sys; sys.modules[{name!r}] = None\n"
        "from pytest_r1perf.exports import writer\n"
        "from pytest_r1perf.errors import R1PerfError\n"
        "from pytest_r1perf.document.model import Document\n"
        "try: writer('html')(Document('s', 'now', '1'))\n"
        "except R1PerfError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told == f"an HTML report needs {name}, not installed here: pip install 'pytest-r1perf[html]'\n"


def test_a_plain_import_does_not_cost_matplotlib() -> None:
    program = "import sys, pytest_r1perf.exports.html; print('matplotlib' in sys.modules, 'jinja2' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told == "False False\n"


def test_missing_readings_are_said() -> None:
    samples = (documents.sample(1, 20010), documents.sample(2, 19990))
    page = text(documents.document([Cell(documents.result(Verdict.REGRESSED, 0.9), samples)]))
    assert "No telemetry was kept of these rounds" in words(page)


def test_a_sweep_has_its_conclusions_and_charts(tmp_path: Path) -> None:
    page = sweeps.page(tmp_path, repeats=1)
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert titles[:2] == ["output_throughput by batch size", "correlation with output_throughput"]
    assert "batch size is the dominant factor" in words(page)
    parsed(page)


# --- charts


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=40))
def test_a_chart_is_well_formed_whatever_a_name_is(name: str) -> None:
    chart = dots_chart(_CANVAS, name, "x (1)", [Dots(name, (1.0, 2.0), 1.5)])
    root = ElementTree.fromstring(chart.svg.encode())
    assert root.get("role") == "img"
    assert root.get("aria-label", "").startswith(f"{line(name)}. ")
    shown = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert line(name, 56) in [*shown, ""] or not line(name)


def test_two_charts_share_no_id(canvas: Canvas) -> None:
    both = [forest_charts(canvas, "t", "a", [Ratio("x", 1.0, 0.9, 1.1)])[0].svg for _ in range(2)]
    ids = [set(re.findall(r' id="([^"]*)"', svg)) for svg in both]
    assert ids[0]
    assert ids[0] & ids[1] == set()
    for svg, own in zip(both, ids, strict=True):
        assert set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg)) <= {(one, "") for one in own} | {
            ("", one) for one in own
        }


def test_a_forest_goes_on_in_the_next_figure(canvas: Canvas) -> None:
    ratios = [Ratio(f"cell {place}", 1.0 + place / 1000, 0.9, math.inf) for place in range(2 * MOST_ROWS + 1)]
    charts = forest_charts(canvas, "all", "ratio", [*ratios, Ratio("broken", math.nan, 0.0, math.inf)])
    assert [chart.title for chart in charts] == ["all, 1 of 3", "all, 2 of 3", "all, 3 of 3"]
    assert "cell 60: 1.060 [0.900, ...]" in charts[-1].svg
    assert "broken" not in charts[-1].svg


def test_rounds_are_drawn_where_the_axis_says_they_are(canvas: Canvas) -> None:
    """The floor's line is as far below the baseline's as 1,000 are of the 2,000 between two rounds."""
    judged = dataclasses.replace(documents.judgement(Verdict.PASS, 1.0), ratio=None)
    chart = rounds_chart(canvas, "total_throughput", [Round(19000.0), Round(21000.0)], judged, "baseline")
    assert chart is not None
    lines = re.findall(r'd="M ([\d.]+) ([\d.]+) L ([\d.]+) ([\d.]+)" clip-path[^>]*stroke-dasharray', chart.svg)
    heights = [float(top) for _, top, _, bottom in lines if top == bottom]
    marker = r'<use href="#[^"]*" x="[\d.]+" y="([\d.]+)" style="fill: var\(--ink\); stroke: var\(--ink\)"/>'
    places = [float(y) for y in re.findall(marker, chart.svg)][:2]
    low, high = max(places), min(places)
    baseline, floor = heights
    assert floor - baseline == pytest.approx((low - high) / 2, abs=0.2)
    assert floor == pytest.approx(low, abs=0.2)
    assert "2 rounds from 19,000 to 21,000 tok/s; baseline 20,000, tolerance 5.0 %; floor 19,000" in chart.svg


def test_a_limit_of_a_latency_has_its_band_the_other_way(canvas: Canvas) -> None:
    judged = documents.judgement(Verdict.PASS, 1.0, metric="ttft_ms", baseline=100.0, floor=150.0, mean=None)
    chart = rounds_chart(canvas, "ttft_ms", [Round(100.0), Round(101.0)], judged, "baseline")
    assert chart is not None
    assert "limit 150 ms" in chart.svg


def test_no_chart_of_nothing(canvas: Canvas) -> None:
    assert rounds_chart(canvas, "total_throughput", [Round(math.nan)], None, "baseline") is None
    assert trend_chart(canvas, documents.trend(1)) is None
    assert strips_chart(canvas, "round 1", None) is None
    assert strips_chart(canvas, "round 1", Readings(1, (0.0, 1.0), (None, None))) is None
    assert effect_charts(canvas, {"kind": "of another version"}) == []
    assert effect_charts(canvas, {"kind": "ablation", "points": [], "metric": "total_throughput"}) == []


def test_a_loss_is_told_without_colour(canvas: Canvas) -> None:
    ablation = documents.effects()[0].as_dict()
    (chart,) = effect_charts(canvas, ablation)
    assert chart.svg.count("fill: url(#") == 1  # the one step that lost is hatched
    assert "-4.0 %" in chart.svg


def test_crossings() -> None:
    def at(*wins: bool | None) -> list[AtLoad]:
        return [AtLoad(f"n={place}", (1.0,), (1.0,), one) for place, one in enumerate(wins)]

    assert crossings_of(at(False, None, True, True)) == [(0, 2)]
    assert crossings_of(at(True, False, True)) == [(0, 1), (1, 2)]
    assert crossings_of(at(None, True, None)) == []


def test_a_trend_marks_versions_and_changes(canvas: Canvas) -> None:
    history = documents.trend()
    assert [(when.isoformat(), version) for when, version in version_marks(history)] == [
        ("2026-11-13T02:00:00+00:00", "0.5.20")
    ]
    known = documents.trend(3, versions=["0.5.9", "0.5.17", "0.5.17"], events=[])
    assert [(f"{when:%d}", version) for when, version in version_marks(known)] == [("02", "0.5.17")]
    chart = trend_chart(canvas, history)
    assert chart is not None
    assert "step -8.0 % between 2026-11-12 and 2026-11-13: sglang 0.5.17 -&gt; 0.5.20" in chart.svg
    for word in ("step", "bad night", "version changed", "0.5.20", "date"):
        assert f">{word}</text>" in chart.svg


# --- texts


@given(st.text())
def test_plain_texts_can_stand_on_a_page(given_text: str) -> None:
    shown = plain(given_text)
    shown.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    assert plain(shown) == shown


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"])), st.integers(2, 30))
def test_a_line_is_cut_visibly(given_text: str, most: int) -> None:
    shown = line(given_text, most)
    assert len(shown) <= most
    assert shown == given_text or shown.endswith("\u2026")


def test_colour_codes_go() -> None:
    assert plain("\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07") == "red link"
    assert plain("\udc80") == "?"
