"""Pages in a real browser: they open quietly, ask nobody for anything, and can be read on a phone and in the dark."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from pytest_r1perf.exports.html import text
from pytest_r1perf.report.html.page import MOST_DRAWN
from tests.browser import documents, sweeps
from tests.browser.conftest import Opened

Show = Callable[..., Opened]

OUTSIDE = """
() => {
  document.querySelectorAll("details").forEach(one => one.open = true);
  const found = [];
  for (const svg of document.querySelectorAll("svg[role=img]")) {
    const around = svg.parentElement.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const own = text.getBoundingClientRect();
      if (own.left < around.left - 3 || own.right > around.right + 3 || own.top < around.top - 3)
        found.push(svg.getAttribute("aria-label").slice(0, 40) + ": " + text.textContent);
    }
  }
  return found;
}
"""
COVERED = """
() => {
  document.querySelectorAll("details").forEach(one => one.open = true);
  const found = [];
  for (const svg of document.querySelectorAll("svg[role=img]")) {
    const texts = [...svg.querySelectorAll("text")].map(one => [one.textContent, one.getBoundingClientRect()]);
    texts.forEach(([name, a], place) => texts.slice(place + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 3 && down > 4) found.push(name + " / " + other);
    }));
  }
  return found;
}
"""
CONTRAST = """
() => {
  const light = name => {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(one => one / 255)
      .map(one => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    probe.remove();
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const paper = light("paper");
  return Object.fromEntries(["ink", "muted", "a", "b", "good", "bad", "link"].map(name => {
    const [high, low] = [light(name), paper].sort((a, b) => b - a);
    return [name, (high + 0.05) / (low + 0.05)];
  }));
}
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        "whole": text(documents.whole()),
        "pair": text(documents.pair()),
        "empty": text(documents.document([])),
        "stress": sweeps.page(tmp_path_factory.mktemp("sweep")),
    }


@pytest.fixture(scope="module")
def many() -> str:
    return text(documents.many(500))


@pytest.mark.parametrize("name", ["whole", "pair", "empty", "stress"])
def test_a_page_opens_quietly_and_asks_for_nothing(pages: dict[str, str], name: str, show: Show) -> None:
    opened = show(pages[name])
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [opened.page.url]
    assert opened.page.locator("h1").count() == 1


def test_the_policy_keeps_a_page_from_asking(pages: dict[str, str], show: Show) -> None:
    opened = show(pages["whole"])
    opened.page.evaluate(
        """() => new Promise(done => {
          addEventListener("securitypolicyviolation", done, {once: true});
          const image = new Image(); image.src = "http://127.0.0.1:9/x"; document.body.append(image);
        })"""
    )
    with pytest.raises(Exception, match="Content Security Policy"):
        opened.page.add_script_tag(content="window.bad = 1")


def test_odd_names_are_text_and_nothing_else(pages: dict[str, str], show: Show) -> None:
    page = show(pages["whole"]).page
    shown = page.locator("article.failed h3").first.inner_text()
    assert shown.startswith(
        "a|b <img src=x onerror=alert(1)> & \"quotes\" 'and' \U0001f680 red </script><!-- $x$ #010101"
    )
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("whole", "total_throughput by round"),
        ("whole", "total_throughput by night"),
        ("whole", "round 2: telemetry of 8 GPUs"),
        ("whole", "ablation: total_throughput, step by step"),
        ("whole", "scaling: total_throughput per GPU"),
        ("whole", "total_throughput by load"),
        ("whole", "interaction: total_throughput over neither"),
        ("whole", "spread: total_throughput"),
        ("whole", "sweep: total_throughput (tok/s)"),
        ("pair", "new / old environment, all cells"),
        ("stress", "output_throughput by batch size"),
        ("stress", "correlation with output_throughput"),
    ],
)
def test_a_chart_is_there_with_a_title_and_alternative_text(
    pages: dict[str, str], name: str, title: str, show: Show
) -> None:
    page = show(pages[name]).page
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.locator("figcaption", has_text=title).first.is_visible()
    chart = page.get_by_role("img", name=title).first
    assert chart.is_visible()
    told = chart.get_attribute("aria-label")
    assert re.search(r"\d", told.removeprefix(title))  # it says values, not only what it is
    assert chart.locator("text").count() >= 3


def test_every_chart_has_an_alternative_text(pages: dict[str, str], show: Show) -> None:
    for html in pages.values():
        page = show(html).page
        assert page.locator("svg").count() == page.locator("figure > svg[role=img][aria-label*='. ']").count()


@pytest.mark.parametrize("name", ["whole", "pair", "stress"])
def test_ids_are_unique_and_links_lead_somewhere(pages: dict[str, str], name: str, show: Show) -> None:
    page = show(pages[name]).page
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))
    links = page.evaluate("[...document.querySelectorAll('a')].map(one => one.getAttribute('href'))")
    used = page.evaluate("[...document.querySelectorAll('use')].map(one => one.getAttribute('href'))")
    clips = re.findall(r"url\((#[^)]*)\)", pages[name])
    assert links
    assert {link for link in [*links, *used, *clips] if link.removeprefix("#") not in ids} == set()


def test_a_link_opens_the_cell_that_it_leads_to(pages: dict[str, str], show: Show) -> None:
    page = show(pages["whole"]).page
    cell = page.locator("details.cell", has_text="serve n=500").first
    assert cell.get_attribute("open") is None
    page.locator("table.cells a", has_text="serve n=500").click()
    cell.locator("figure").first.wait_for(state="visible")
    assert cell.locator("summary").evaluate("one => one.getBoundingClientRect().top < innerHeight")


@pytest.mark.parametrize("name", ["whole", "pair", "empty", "stress"])
def test_a_phone_does_not_scroll_sideways(pages: dict[str, str], name: str, show: Show) -> None:
    page = show(pages[name], width=360).page
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("name", ["whole", "pair", "stress"])
@pytest.mark.parametrize("width", [360, 1280])
def test_letters_of_charts_are_inside_and_apart(pages: dict[str, str], name: str, width: int, show: Show) -> None:
    page = show(pages[name], width=width).page
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate(COVERED) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_can_be_read(pages: dict[str, str], scheme: str, show: Show) -> None:
    page = show(pages["whole"], color_scheme=scheme).page
    paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") is (scheme == "light")
    ratios = page.evaluate(CONTRAST)
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}  # WCAG 2.1, 1.4.3, level AA
    letters = page.locator("svg text").first.evaluate("one => getComputedStyle(one).fill")
    assert letters == page.evaluate("getComputedStyle(document.documentElement).color")


def test_a_command_is_copied(pages: dict[str, str], show: Show) -> None:
    page = show(pages["whole"], permissions=["clipboard-read", "clipboard-write"]).page
    command = page.locator("article.failed .command").first
    command.locator("button").click()
    command.get_by_text("copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "pytest 'perf_tests/test_tp8.py::test_regressed' --perf"


def test_without_a_script_everything_is_there_but_the_buttons(pages: dict[str, str], show: Show) -> None:
    page = show(pages["whole"], java_script_enabled=False).page
    assert page.locator("button").count() == 0
    assert page.locator("article.failed .command code").first.is_visible()
    page.locator("details.cell", has_text="serve n=500").first.locator("summary").first.click()
    assert page.locator("details.cell", has_text="serve n=500").first.locator("figure").first.is_visible()


def test_printing_shows_what_was_closed(pages: dict[str, str], show: Show) -> None:
    page = show(pages["whole"], color_scheme="dark").page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0
    assert page.pdf().startswith(b"%PDF")


def test_500_cells_open_within_3_s(many: str, show: Show) -> None:
    """The issue's own bound, by the browser's clock; the best of three, since the machine has other work."""
    assert len(many) < 8_000_000

    def seconds() -> float:
        opened = show(many)
        assert opened.said == []
        painted = opened.page.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
        )
        return float(painted) / 1000

    assert any(seconds() < 3 for _ in range(3))


def test_of_500_cells_the_failed_ones_are_drawn(many: str, show: Show) -> None:
    page = show(many, width=360).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("details.cell[id^=cell-]").count() == 500
    drawn = page.evaluate(
        "[...document.querySelectorAll('details.cell')].filter(one => one.querySelector('figure')).map(one =>"
        " one.querySelector('.badge').textContent)"
    )
    assert len(drawn) == MOST_DRAWN
    assert drawn.count("REGRESSED") == 50
    assert page.locator("#cells > .note").inner_text().startswith("Charts of 60 cells are drawn")
