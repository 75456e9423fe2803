"""The page of a session, from its document."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from pytest_r1perf.document.model import Document, Environment
from pytest_r1perf.report.html.canvas import Canvas, Chart, refuse_missing
from pytest_r1perf.report.html.cells import CellView, details, overview
from pytest_r1perf.report.html.charts.forest import Ratio, forest_charts
from pytest_r1perf.report.html.plain import finite, line, plain
from pytest_r1perf.report.terminal import legend
from pytest_r1perf.verdict import Verdict

MOST_DRAWN = 60
"""Cells whose charts are drawn: failed and open ones first. A cell takes about 0.1 s and 20 kB."""
_ORDER = (
    Verdict.REGRESSED, Verdict.OUTPUTS_CHANGED, Verdict.INVALID, Verdict.OOM, Verdict.HANG, Verdict.CRASH,
    Verdict.CONFIG, Verdict.INFRA, Verdict.XPASS, Verdict.UNDECIDED, Verdict.IMPROVED, Verdict.INCOMPARABLE,
    Verdict.NO_BASELINE, Verdict.XFAIL, Verdict.MEASURED, Verdict.STORED, Verdict.PASS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Count:
    """How many cells ended so; ``kind`` as in :class:`CellView`."""

    verdict: str
    cells: int
    kind: str
    first: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A line that differs between two environments or more."""

    name: str
    values: tuple[str, ...]


def page(document: Document) -> str:
    """The whole file. Raises :class:`R1PerfError` where jinja2 or matplotlib is missing."""
    refuse_missing()
    canvas = Canvas()
    views = [overview(cell, place) for place, cell in enumerate(document.cells, 1)]
    views.sort(key=lambda view: (not view.cell.result.failed, _ORDER.index(view.cell.result.verdict)))
    wanted = sorted(views, key=lambda view: not view.eventful)[:MOST_DRAWN]
    drawn = {view.id for view in wanted}
    full = [replace(view, **details(canvas, document, view.cell, drawn=view.id in drawn)) for view in views]
    return render(
        "session.html.j2",
        title=f"{headline(document)} - session {document.session}",
        document=document,
        headline=headline(document),
        counts=_counts(full),
        views=full,
        failed=[view for view in full if view.cell.result.failed or not view.cell.result.verdict.decided],
        undrawn=len(full) - len(drawn),
        forest=_forest(canvas, full),
        legend=legend([cell.result for cell in document.cells]),
        environments=document.environments,
        differences=_differences(document.environments),
    )


def headline(document: Document) -> str:
    """The verdict of the session in a few words."""
    if not document.cells:
        return document.trouble
    failed = document.failed
    if failed:
        kinds = Counter(cell.result.verdict.value for cell in failed)
        told = ", ".join(f"{count} {name}" for name, count in kinds.most_common())
        return f"{len(failed)} of {len(document.cells)} cells failed: {told}"
    if document.trouble:
        return f"{document.trouble}; none of {len(document.cells)} cells failed"
    undecided = [cell for cell in document.cells if not cell.result.verdict.decided]
    if undecided:
        return f"none of {len(document.cells)} cells failed, {len(undecided)} could not be decided"
    return f"none of {len(document.cells)} cells failed"


def render(template: str, **values: Any) -> str:
    """A template of this package, with everything that it shows escaped, and the style and script in it."""
    import jinja2
    from markupsafe import Markup

    def shown(value: object) -> object:
        if isinstance(value, (Markup, jinja2.Undefined)):
            return value
        return "" if value is None else plain(value)

    here = files(__package__)
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (here / "templates" / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["line"] = line
    environment.filters["svg"] = lambda chart: Markup(chart.svg)
    style = (here / "templates" / "page.css").read_text(encoding="utf-8")
    script = (here / "templates" / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        f"base-uri 'none'; form-action 'none'"
    )
    text = environment.get_template(template).render(
        style=Markup(style),
        script=Markup(script),
        policy=policy,
        **values,
    )
    return f"{text.rstrip()}\n"


def _counts(views: Sequence[CellView]) -> list[Count]:
    found = Counter(view.verdict for view in views)
    first: dict[str, CellView] = {}
    for view in views:
        first.setdefault(view.verdict, view)
    return [Count(name, found[name], view.kind, view.id) for name, view in first.items()]


def _forest(canvas: Canvas, views: Sequence[CellView]) -> list[Chart]:
    """Every ratio of the session, and of two environments the one of all cells together."""
    from pytest_r1perf.suite import suite_ratio

    results = [view.cell.result for view in views]
    ratios, tolerances = [], set()
    for result in results:
        for item in result.judgements:
            if item.ratio is None or item.gate or finite(item.ratio.estimate) is None:
                continue
            name = result.label if len(result.judgements) == 1 else f"{result.label}: {item.metric}"
            ratios.append(Ratio(name, item.ratio.estimate, item.ratio.lower, item.ratio.upper))
            tolerances.add(item.tolerance)
    if not ratios:
        return []
    side_by_side = any(result.side_by_side for result in results)
    suite = suite_ratio(results) if side_by_side else None
    if suite is not None:
        whole = f"all {suite.cells} cells together"
        ratios.insert(0, Ratio(whole, suite.ratio.estimate, suite.ratio.lower, suite.ratio.upper, whole=True))
    title = "new / old environment, all cells" if side_by_side else "this run / baseline, all cells"
    tolerance = tolerances.pop() if len(tolerances) == 1 else None
    return forest_charts(canvas, title, "ratio in the better direction, above 1 is better", ratios, tolerance)


def _differences(environments: Sequence[Environment]) -> list[Difference]:
    """What is not the same in all of them, versions first."""
    if len(environments) < 2:
        return []
    found = []
    for group in ("versions", "host", "env"):
        own: list[Mapping[str, Any]] = [getattr(environment, group) for environment in environments]
        for name in dict.fromkeys(name for one in own for name in one):
            values = tuple(str(one.get(name, "absent")) for one in own)
            if len(set(values)) > 1:
                found.append(Difference(name, values))
    return found
