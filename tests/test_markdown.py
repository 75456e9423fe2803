"""The Markdown summary: what it says, that it is GitHub's Markdown whatever a name holds, and that it fits."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import cmarkgfm  # type: ignore[import-untyped]
import pytest
from cmarkgfm.cmark import Options  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf.report.fitted import Part, Section, fit
from pytest_r1perf.report.gfm import block, code, row, table_head, units, words
from pytest_r1perf.report.markdown import LEAST, LIMIT, summary
from pytest_r1perf.report.spark import spark, trend_spark
from pytest_r1perf.statistics import Interval
from pytest_r1perf.verdict import Verdict
from tests.documents import NOW, cell, document, environment, judgement, samples, trend
from tests.project import Project

EVIL = (
    "a|b", "a\\|b", "a|b@c.de", "<script>alert(1)</script>", "</details>", "&amp; & &#35;", "`tick`", "``",
    "*b* _i_ ~~s~~", "\"q\"'q'",
    "🚀 emoji :tada:", "two\nlines", "\n\n# heading", "@octocat", "@org/team", "#123", "GH-123", "octo/repo#12",
    "\x1b[31mred\x1b[0m", "\x1b]8;;http://evil\x07link\x1b]8;;\x07", "[x](http://e.vil)", "![x](http://e.vil/x.png)",
    "https://github.com/o/r/issues/1", "www.evil.com", "me@evil.com", "deadbeefcafe", "<!-- x -->", "- item", "1. one",
    "\u202egnp.exe", "\ud800", "", " ", "```\nfence\n```", "x" * 5000, "$x^2$", "\\", "a\\",
)  # fmt: skip
_VOID = {"br", "hr", "img", "input"}


class Page(HTMLParser):
    """Rendered Markdown: tags, texts of code and of everything else, table rows."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        html = cmarkgfm.github_flavored_markdown_to_html(markdown, options=Options.CMARK_OPT_UNSAFE)
        self.tags: list[str] = []
        self.codes: list[str] = []
        self.prose = ""
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.tags.append(tag)
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "code":
            self.codes.append("")
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_comment(self, data: str) -> None:  # noqa: ARG002
        self.tags.append("comment")

    def handle_data(self, data: str) -> None:
        if "code" in self._open:
            self.codes[-1] += data
        else:
            self.prose += data
        if "td" in self._open or "th" in self._open:
            self.rows[-1][-1] += data


def nothing_happens(page: Page) -> None:
    """No tag but ours, and outside code nothing that GitHub would make a link, a mention or an emoji of."""
    ours = {"h2", "h3", "p", "strong", "em", "ul", "li", "code", "pre", "details", "summary"}
    ours |= {"table", "thead", "tbody", "tr", "th", "td", "span"}
    assert set(page.tags) <= ours
    assert "@" not in page.prose
    assert not re.search(r"#\d|\bGH-\d|https?:|www\.|:\w+:|\b[0-9a-f]{7,40}\b", page.prose)


# What is printable is shown as it is; the rest is made harmless before, and has examples of its own above.
printable = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" "), max_size=40)
evil = st.one_of(printable, st.sampled_from(EVIL), st.text("`|\\<>&*_@#:[](){}~!$-+.0123abc ", max_size=30))


@settings(deadline=None, max_examples=200)
@given(text=st.one_of(printable, st.text("`|\\<>&*_@#[]~!$ a1", max_size=30)))
@pytest.mark.parametrize("where", ["line", "table", "item"])
def test_code_shows_any_text_as_it_is(where: str, text: str) -> None:
    made = code(text)
    markdown = {
        "line": f"**x** {made}: y",
        "table": f"{table_head(['a', 'b'])}\n{row([made, 'y'])}\n",
        "item": f"- {made}",
    }[where]
    page = Page(markdown)
    expected = " ".join(text.split())
    if expected:
        assert page.codes == [expected]
    if where == "table":
        assert page.rows[1] == [expected or "-", "y"]
    ours = {"p", "strong", "code", "span", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"}
    assert set(page.tags) <= ours


@settings(deadline=None, max_examples=200)
@given(text=evil)
def test_words_are_words_or_code(text: str) -> None:
    page = Page(f"cause: {words(text)}")
    nothing_happens(page)
    shown = page.codes[0] if page.codes else page.prose.strip().removeprefix("cause:").strip()
    if text.isprintable() and len(text) < 100 and text.strip():
        assert shown == " ".join(text.split())


@settings(deadline=None)
@given(lines=st.lists(st.text("`~ab|<&@#\\ ", min_size=1, max_size=12), min_size=1, max_size=5))
def test_a_block_shows_its_lines_as_they_are(lines: list[str]) -> None:
    page = Page(f"before\n\n{block(chr(10).join(lines), 'sh')}\n\nafter")
    assert page.codes == ["".join(f"{line}\n" for line in lines)]
    assert page.tags == ["p", "pre", "code", "p"]


def evil_document(texts: list[str], verdicts: list[Verdict]) -> str:
    place = iter(range(10**6))

    def text() -> str:
        return texts[next(place) % len(texts)]

    cells = [
        cell(
            verdict,
            label=text(),
            platform=text(),
            cause=text(),
            reproduce=text(),
            log=text(),
            against=text() or "baseline",
            notes=(f"versions: sglang: {text()} -> {text()}", f"round 1: {text()}", text()),
            outputs=(text(), text()),
            effects=({"kind": "x", "sentence": text(), "text": [text(), text()]},),
            quarantined=verdict is Verdict.HANG,
            judgements=() if verdict in (Verdict.OOM, Verdict.HANG) else None,
            trend=trend(
                [1.0, 2.0, 3.0],
                state=text(),
                events=[
                    {
                        "kind": text(), "before": NOW.isoformat(), "after": NOW.isoformat(),
                        "size": {"estimate": -0.1}, "causes": [text(), text()],
                    }
                ],
            ),
        )
        for verdict in verdicts
    ]  # fmt: skip
    environments = [
        environment("old", text(), hardware=text(), host={text(): text()}, env={text(): text()}),
        environment("new", text(), versions={text(): text()}),
    ]
    return summary(
        document(
            *cells,
            environments=environments,
            session=text(),
            tool=text(),
            arguments=(text(), text()),
            suite=(text(),),
            errors=(text(),),
            unused=(text(),),
            updated=(text(),),
        )
    )


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(evil, min_size=1, max_size=12),
    verdicts=st.lists(st.sampled_from(list(Verdict)), min_size=1, max_size=4),
)
def test_nothing_that_a_name_holds_does_anything(texts: list[str], verdicts: list[Verdict]) -> None:
    markdown = evil_document(texts, verdicts)
    nothing_happens(Page(markdown))
    markdown.encode()  # no half of a pair is left


def test_every_evil_name_beside_every_verdict() -> None:
    for text in EVIL:
        page = Page(evil_document([text], list(Verdict)))
        nothing_happens(page)
        widths = [len(cells) for cells in page.rows]
        assert set(widths) <= {3, 9, 10}, text


def test_a_regression_says_how_much_how_sure_what_changed_and_how_to_repeat_it() -> None:
    slow = cell(
        Verdict.REGRESSED,
        label="tp8 champion n=5000",
        notes=(
            "resolved: chunked_prefill_size: 8192 -> 4096", "versions: sglang: 0.5.11 -> 0.5.12",
            "round 1: clocks fell", "round 3: clocks fell",
        ),
        reproduce="pytest 'test_perf.py::test[5000]' --perf",
        log="out/log.txt",
        trend=trend(
            [100.0, 101.0, 100.0, 80.0, 81.0],
            state="STEP",
            events=[
                {
                    "kind": "step", "before": "2026-11-28T22:15:00.250000+00:00",
                    "after": "2026-11-29T22:15:00.250000+00:00", "size": {"estimate": -0.2},
                    "causes": ["sglang a -> b"],
                }
            ],
        ),
    )  # fmt: skip
    text = summary(document(slow, cell(), environments=[environment("old", "0.5.11"), environment("new", "0.5.12")]))
    first = text.partition("<details>")[0]
    assert first.startswith("## Performance: 1 of 2 cells failed: 1 REGRESSED; the others: 1 PASS\n")
    assert "`tp8 champion n=5000` on `h200x8`" in first
    assert "**-14.8 % [-15.5 %, -7.4 %]**: 16,082 tok/s, baseline 18,876 tok/s, tolerance 5.0 %" in first
    assert "wrong with probability 0.0033 at most" in first
    assert first.index("versions: `sglang: 0.5.11 -> 0.5.12`") < first.index("resolved: `chunked_prefill_size")
    assert "```sh\npytest 'test_perf.py::test[5000]' --perf\n```" in first
    assert "`███│▁▁`" in first
    assert "step 2026-11-29 of -20.0 %, with `sglang a -> b`" in first
    assert "`clocks fell` (rounds 1, 3)" in first
    assert "| `sglang` | `0.5.11` | `0.5.12` |" in first
    assert "torch" not in first.partition("### What differs")[2]


def test_a_latency_is_told_in_its_own_direction() -> None:
    # Half as fast: the ratio in the better direction is 0.5, the latency is twice as long.
    twice = judgement(
        Verdict.REGRESSED, "ttft_ms", median=200.0, baseline=100.0, ratio=Interval(0.5, 0.4, 0.8, 0.1, 3.0, 0.01, 0.025)
    )
    text = summary(document(cell(Verdict.REGRESSED, judgements=[twice])))
    assert "ttft_ms **+100 % [+25.0 %, +150 %]**: 200 ms, baseline 100 ms, less is better" in text


def test_what_is_open_says_what_it_could_have_seen() -> None:
    more = cell(Verdict.UNDECIDED, judgements=[judgement(Verdict.UNDECIDED, rounds_needed=12)])
    never = cell(Verdict.UNDECIDED, label="other", judgements=[judgement(Verdict.UNDECIDED)])
    text = summary(document(more, never))
    assert text.startswith("## Performance: nothing was decided of 2 cells: 2 UNDECIDED\n")
    assert text.count("a drop of 18 % would have been seen (95 % power)") == 2
    assert "; 12 rounds would decide it" in text
    assert "; more rounds alone would not decide it" in text


@pytest.mark.parametrize(
    ("verdict", "title"),
    [
        (Verdict.OOM, "Not measured"), (Verdict.HANG, "Not measured"), (Verdict.INVALID, "Not measured"),
        (Verdict.XPASS, "Failed"), (Verdict.OUTPUTS_CHANGED, "Failed"), (Verdict.IMPROVED, "Improved"),
        (Verdict.NO_BASELINE, "Not compared"), (Verdict.INCOMPARABLE, "Not compared"), (Verdict.XFAIL, "Anti-patterns"),
    ],
)  # fmt: skip
def test_every_verdict_has_its_place_with_its_cause(verdict: Verdict, title: str) -> None:
    one = cell(verdict, cause="it ran out of rope")
    text = summary(document(one)).partition("<details>")[0]
    below = text.partition(f"### {title}\n")[2]
    assert f"**{verdict.value}** `tp8 champion n=100`" in below
    if verdict is not Verdict.IMPROVED:
        assert "it ran out of rope" in below


def test_a_failed_body_is_a_failure_whatever_the_verdict() -> None:
    text = summary(document(cell(Verdict.PASS, failed=True)))
    assert text.startswith("## Performance: 1 of 1 cell failed: 1 PASS\n")
    assert "### Failed\n\n**PASS** `tp8 champion n=100`" in text


def test_nothing_measured_and_an_interrupted_session() -> None:
    text = summary(document(exitstatus=None, environments=()))
    assert text.startswith("## Performance: no cell was measured\n")
    assert "did not come to its end" in text


def test_numbers_that_are_none() -> None:
    nan = math.nan
    odd = judgement(
        Verdict.REGRESSED, median=nan, spread=math.inf, baseline=0.0, detectable=nan,
        ratio=Interval(nan, 0.0, math.inf, nan, nan, 0.1, 0.1), floor=math.inf,
        mean=Interval(nan, nan, math.inf, nan, nan, 0.1, 0.1),
    )  # fmt: skip
    zero = judgement(Verdict.REGRESSED, "ttft_ms", ratio=Interval(0.0, 0.0, 0.0, nan, nan, 0.1, 0.1))
    strange = cell(Verdict.REGRESSED, judgements=[odd, zero], trend=trend([None, nan, math.inf, 5.0, 1e308, -1e308]))
    nothing_happens(Page(summary(document(strange, cell(Verdict.OOM, judgements=(), medians={"ttft_ms": nan})))))


def many(count: int) -> list[str]:
    verdicts = [Verdict.REGRESSED, Verdict.UNDECIDED, Verdict.IMPROVED, Verdict.OOM, Verdict.XFAIL, *[Verdict.PASS] * 5]
    cells = [
        cell(
            verdicts[number % len(verdicts)],
            label=f"tp8 champion n={number} max_running_requests=4096",
            notes=tuple(f"versions: package-{place}: 1 -> 2" for place in range(10)),
            trend=trend([float(1 + place % 7) for place in range(60)]),
            cause="because",
        )
        for number in range(count)
    ]
    made = document(*cells)
    text = summary(made)
    assert summary(made) == text
    return [text, summary(made, limit=5000), summary(made, limit=20_000), summary(made, limit=10**9)]


def test_500_cells_fit_and_say_what_was_left_out() -> None:
    texts = many(500)
    for text, limit in zip(texts, [LIMIT, 5000, 20_000, 10**9], strict=True):
        assert units(text) <= limit
        page = Page(text)
        nothing_happens(page)
        assert page.tags.count("details") == text.count("</details>")
        head = text.splitlines()[0]
        assert head.startswith(
            "## Performance: 100 of 500 cells failed: 50 REGRESSED, 50 OOM; the others: 50 UNDECIDED"
        )
        assert "n=0 max_running_requests=4096` on `h200x8`: total_throughput **-14.8 %" in text
    whole = texts[3]
    assert "Left out" not in whole
    assert whole.count("\n| ") > 500
    last = texts[0].splitlines()[-1]
    assert re.fullmatch(
        r"_Left out to keep within 65,000 characters: .*rows of total_throughput \(\d+ of 500\).*_", last
    )
    assert units(texts[0]) > 0.9 * LIMIT


def test_what_is_left_out_first_is_what_matters_least() -> None:
    slow = cell(Verdict.REGRESSED, notes=tuple(f"round 1: note {place} {'x' * 80}" for place in range(30)))
    made = document(slow, *(cell(label=f"n={place}") for place in range(20)))
    whole = summary(made)
    assert "note 29" in whole
    less = summary(made, limit=units(whole) - 1)
    assert "note 29" not in less
    assert less.count("| PASS |") == 20
    least = summary(made, limit=LEAST)
    assert "pytest test_perf.py --perf" in least
    assert "| PASS |" not in least
    with pytest.raises(ValueError, match="limit must be at least"):
        summary(made, limit=LEAST - 1)


@settings(deadline=None, max_examples=40)
@given(
    limit=st.integers(LEAST, 12_000),
    texts=st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=300), min_size=1, max_size=4),
)
def test_no_limit_is_exceeded(limit: int, texts: list[str]) -> None:
    cells = [cell(verdict, label=text, cause=text, reproduce=text) for text in texts for verdict in Verdict]
    text = summary(document(*cells, session=texts[0], errors=tuple(texts)), limit=limit)
    assert len(text.encode("utf-16-le")) // 2 <= limit
    Page(text)


@settings(deadline=None)
@given(
    shapes=st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 60)), max_size=6),
    limit=st.integers(200, 900),
)
def test_sections_are_whole_and_within_the_limit(shapes: list[tuple[list[int], int]], limit: int) -> None:
    sections = [
        Section(
            f"s{at}",
            tuple(Part(f"[{at}.{place}{'p' * (60 - 10 * place)}]", rank) for place, rank in enumerate(ranks)),
            f"<{at}{'o' * fill}>\n",
            f"\n</{at}{'c' * fill}>",
        )
        for at, (ranks, fill) in enumerate(shapes)
    ]
    text = fit("first", sections, limit, len, lambda what: f"out: {what}")
    assert len(text) <= limit
    assert text.startswith("first\n")
    shown = 0
    for at, section in enumerate(sections):
        there = [part.text in text for part in section.parts]
        shown += sum(there)
        assert (section.opening in text) == (section.closing in text) == any(there)
        for rank in range(4):  # of one rank the first
            of_rank = [is_shown for is_shown, part in zip(there, section.parts, strict=True) if part.rank == rank]
            assert of_rank == sorted(of_rank, reverse=True)
        assert re.search(rf"out: .*\bs{at}\b", text) or all(there)
    assert ("out: " in text) == (shown < sum(len(section.parts) for section in sections))


def test_a_spark_shows_gaps_and_change_points() -> None:
    assert spark([1.0, 2.0, None, 8.0], changes=[3]) == "▁▂·│█"
    assert spark([]) == ""
    assert spark([math.nan, math.inf]) == "··"
    assert spark([5.0, 5.0]) in ("▄▄", "▅▅")
    # The latest values, scaled among themselves; a change at the first one shown is none.
    assert spark([100.0, 1.0, 8.0], changes=[1], width=2) == "▁█"
    # 0.4 % is noise, not a fall from the top to the bottom.
    assert len(set(spark([1000.0, 996.0]))) < 3
    assert "█" not in spark([1000.0, 996.0])


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats()), max_size=80), st.sets(st.integers(-2, 90)), st.integers(1, 60))
def test_a_spark_takes_any_number(values: list[float | None], changes: set[int], width: int) -> None:
    drawn = spark(values, changes=changes, width=width)
    assert len(drawn.replace("│", "")) == min(len(values), width)
    assert drawn.count("·") == sum(value is None or not math.isfinite(value) for value in values[-width:])


def test_the_spark_of_a_trend_knows_nights_without_a_session() -> None:
    made = trend([10.0, 10.0, 10.0, 5.0])
    made["times"] = [f"2026-11-{day:02}T01:00:00+00:00" for day in (1, 2, 3, 12)]
    step = {"kind": "step", "before": made["times"][2], "after": made["times"][3]}
    bad = {"kind": "bad night", "before": made["times"][1], "after": made["times"][1]}
    assert trend_spark({**made, "events": [step, bad]}) == "███·│▁"
    drift = {"kind": "drift", "before": made["times"][0], "after": made["times"][3]}
    assert trend_spark({**made, "events": [drift]}) == "█│██·▁"
    assert trend_spark({}) == ""


def test_of_a_real_session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(pytester, monkeypatch)
    project.write(
        """
        @perf(topology="tp1", n=50)
        @pytest.mark.parametrize("name", ["a|b <i> `c` #7 @you"])
        def test_one(name): ...

        @perf(topology="tp1", n=60, min_tokps=10**9)
        def test_two(): ...
        """
    )
    project.perf("--perf-update", "--perf-rounds", "2:2", "-k", "test_one")
    result = project.perf("--perf-markdown", "summary.md", "--perf-json", "perf.json", "--perf-rounds", "2:2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = (project.root / "summary.md").read_text()
    nothing_happens(Page(text))
    assert text.startswith("## Performance: 1 of 2 cells failed: 1 REGRESSED; the others: 1 ")
    assert "```sh\npytest test_perf.py::test_two" in text
    assert "floor 1,000,000,000" in text
    told = json.loads((project.root / "perf.json").read_text())
    assert f"session `{told['session']}`" in text
    # Made again from the file, it is the same text.
    from pytest_r1perf.document.file import read_document

    assert summary(read_document(Path(project.root / "perf.json"))) == text


def test_a_sample_is_not_needed() -> None:
    made = document(cell(samples=samples({"total_throughput": [1.0, 2.0]})))
    assert summary(made) == summary(document(cell()))
