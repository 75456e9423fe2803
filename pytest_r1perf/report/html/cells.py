"""What the page says of one cell: sentences, numbers, charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_r1perf.document.model import Cell, Document, Sample
from pytest_r1perf.metrics import METRICS
from pytest_r1perf.report.html.canvas import Canvas, Chart
from pytest_r1perf.report.html.charts.rounds import Round, rounds_chart
from pytest_r1perf.report.html.charts.strips import strips_chart
from pytest_r1perf.report.html.charts.trend import event_sentence, trend_chart
from pytest_r1perf.report.html.effects import effect_charts, promise, published_lines
from pytest_r1perf.report.html.plain import finite, finite_ones
from pytest_r1perf.report.message import describe
from pytest_r1perf.report.numbers import interval, number, percent
from pytest_r1perf.report.terminal import reached
from pytest_r1perf.verdict import Judgement, Verdict

MOST_STRIPS = 12
"""Rounds of a cell whose telemetry is drawn."""
MOST_EVENTS = 60
"""Events of a cell's logs that are listed."""
_UNEVENTFUL = frozenset({Verdict.PASS, Verdict.MEASURED, Verdict.XFAIL, Verdict.STORED})


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the overview: one metric of one cell."""

    metric: str
    median: str
    reference: str
    ratio: str
    bound: str


@dataclass(frozen=True, slots=True)
class EffectView:
    """An effect with its charts; ``text`` is shown where there are none."""

    sentence: str
    charts: tuple[Chart, ...]
    text: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoundView:
    """A round's line: its values as text, and its telemetry's strip."""

    name: str
    time: str
    side: str
    values: Mapping[str, str]
    wall: str
    windows: int
    discarded: int
    log: str
    remarks: tuple[str, ...]
    strip: Chart | None = None


@dataclass(frozen=True, slots=True)
class CellView:
    """Everything of a cell that the template shows, as texts."""

    id: str
    name: str
    verdict: str
    kind: str
    cell: Cell
    sentences: tuple[str, ...]
    changed: tuple[str, ...]
    rows: tuple[Row, ...]
    eventful: bool
    drawn: bool = False
    charts: tuple[Chart, ...] = ()
    effects: tuple[EffectView, ...] = ()
    rounds: tuple[RoundView, ...] = ()
    metrics: tuple[str, ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    left_out: tuple[str, ...] = ()
    trend_lines: tuple[str, ...] = ()
    reached: str = ""


def overview(cell: Cell, place: int) -> CellView:
    """A cell without its details."""
    result = cell.result
    kind = "bad" if result.failed else "good" if result.verdict in (Verdict.PASS, Verdict.IMPROVED) else "open"
    return CellView(
        id=f"cell-{place}",
        name=result.label or cell.name,
        verdict=result.verdict.value,
        kind=kind,
        cell=cell,
        sentences=tuple(_sentences(cell)),
        changed=result.changed,
        rows=tuple(_rows(cell)),
        eventful=result.failed or result.quarantined or result.verdict not in _UNEVENTFUL or bool(result.effects),
    )


def details(canvas: Canvas, document: Document, cell: Cell, *, drawn: bool) -> dict[str, Any]:
    """The rest of a :class:`CellView`, by field; charts only where they are ``drawn``."""
    result = cell.result
    metrics = tuple(dict.fromkeys([*(item.metric for item in result.judgements), *result.medians])) or _first(cell)
    events = [
        {**event, "round": number_of} for number_of, sample in enumerate(cell.samples, 1) for event in sample.events
    ]
    left_out = []
    shown = MOST_EVENTS if drawn else 0
    if len(events) > shown:
        left_out.append(f"{len(events) - shown}{' more' if shown else ''} events of the logs are not listed here")
    with_readings = sum(one.readings is not None for one in cell.samples)
    if drawn and with_readings > MOST_STRIPS:
        left_out.append(f"telemetry of the first {MOST_STRIPS} of {with_readings} rounds is drawn; --json has all")
    charts: list[Chart | None] = []
    if drawn:
        charts += [rounds_chart(canvas, name, _rounds(document, cell, name), _judged(cell, name), result.against)
                   for name in metrics[:4]]  # fmt: skip
        if cell.trend is not None:
            charts.append(trend_chart(canvas, cell.trend))
    return {
        "drawn": drawn,
        "charts": tuple(chart for chart in charts if chart is not None),
        "effects": tuple(_effect(canvas, effect, drawn) for effect in result.effects),
        "rounds": tuple(_round_views(canvas, document, cell, metrics[:4], drawn)),
        "metrics": metrics[:4],
        "events": tuple(events[:shown]),
        "left_out": tuple(left_out),
        "trend_lines": tuple(_trend_lines(cell.trend)),
        "reached": reached(result.ceilings) if result.ceilings else "",
    }


def _sentences(cell: Cell) -> list[str]:
    """How much and how sure; the cause where no metric has said it."""
    result = cell.result
    found = [_described(item, result.against) for item in result.judgements]
    if result.cause and all(item.reason != result.cause for item in result.judgements):
        found.append(result.cause)
    return found


def _rows(cell: Cell) -> list[Row]:
    result = cell.result
    rows = [
        Row(
            item.metric,
            _with_unit(item.median, item.metric),
            shown_number(item.baseline, ""),
            _ratio(item),
            shown_number(item.floor, ""),
        )
        for item in result.judgements
    ]
    if rows:
        return rows
    name = next(iter(result.medians), None)
    if name is None:
        return [Row("", "", "", "", "")]
    return [Row(name, _with_unit(result.medians[name], name), "", "", "")]


def shown_number(value: object, otherwise: str = "not a number") -> str:
    """A number of a document for people; a file has ``null`` where it was none."""
    known = finite(value)
    return otherwise if known is None else number(known)


def _with_unit(value: object, metric: str) -> str:
    unit = METRICS[metric].unit if metric in METRICS else ""
    return f"{shown_number(value)} {unit}".strip()


def _ratio(item: Judgement) -> str:
    return "" if item.ratio is None or finite(item.ratio.estimate) is None else interval(item.ratio)


def _described(item: Judgement, against: str) -> str:
    try:
        return describe(item, against)
    except (TypeError, ValueError):  # null where a number was endless or none
        return f"{item.metric} {item.verdict.value}: median {shown_number(item.median)}; {item.reason}"


def _first(cell: Cell) -> tuple[str, ...]:
    for sample in cell.samples:
        for name in ("total_throughput", *sample.metrics):
            if name in sample.metrics:
                return (name,)
    return ()


def _judged(cell: Cell, metric: str) -> Judgement | None:
    return next((item for item in cell.result.judgements if item.metric == metric), None)


def _side(document: Document, sample: Sample) -> str:
    if 0 <= sample.environment < len(document.environments):
        return document.environments[sample.environment].side or ""
    return ""


def _rounds(document: Document, cell: Cell, metric: str) -> list[Round]:
    return [
        Round(
            sample.metrics[metric],
            tuple(finite_ones(window.get(metric) for window in sample.windows)),
            _side(document, sample) == "old",
        )
        for sample in cell.samples
        if metric in sample.metrics
    ]


def _round_views(
    canvas: Canvas, document: Document, cell: Cell, metrics: Sequence[str], drawn: bool
) -> list[RoundView]:
    views, strips = [], 0
    for sample in cell.samples:
        side = _side(document, sample)
        name = f"{side} round {sample.round}".strip()
        strip = strips_chart(canvas, name, sample.readings) if drawn and strips < MOST_STRIPS else None
        strips += strip is not None
        views.append(
            RoundView(
                name=name,
                time=sample.time[:19].replace("T", " "),
                side=side,
                values={metric: shown_number(sample.metrics.get(metric)) for metric in metrics},
                wall=shown_number(sample.wall_s),
                windows=len(sample.windows),
                discarded=sample.discarded,
                log=sample.log,
                remarks=sample.remarks,
                strip=strip,
            )
        )
    return views


def _effect(canvas: Canvas, effect: Mapping[str, Any], drawn: bool) -> EffectView:
    charts = effect_charts(canvas, effect) if drawn else []
    text = effect.get("text") or ()
    return EffectView(
        sentence=str(effect.get("sentence", effect.get("kind", ""))),
        charts=tuple(charts),
        text="\n".join(map(str, text)) if not isinstance(text, str) else text,
        notes=tuple(line for line in [*published_lines(effect), promise(effect)] if line) if charts else (),
    )


def _trend_lines(trend: Mapping[str, Any] | None) -> list[str]:
    if trend is None:
        return []
    nights, needed = trend.get("nights"), trend.get("nights_needed")
    lines = [f"trend over {nights} nights: {trend.get('state')}" + (f" ({needed} are needed)" if needed else "")]
    against = trend.get("against_baseline") or {}
    if finite(against.get("estimate")) is not None:
        lines.append(f"the latest nights are {percent(against['estimate'])} of the pinned baseline")
    return [*lines, *map(event_sentence, trend.get("events", ())), *map(str, trend.get("notes", ()))]
