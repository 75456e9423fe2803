"""A cell over nights, with the changes that its trend found and the versions that changed."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_r1perf.metrics import METRICS
from pytest_r1perf.report.html.canvas import Canvas, Chart, box, plain_ticks, span
from pytest_r1perf.report.html.plain import finite, line
from pytest_r1perf.report.html.svg import ROLES
from pytest_r1perf.report.numbers import number

METRIC = "total_throughput"
"""What :mod:`pytest_r1perf.document.build` asks trends of."""
_VERSION = re.compile(r"^[\w.\-]+ \S+ -> \S+")


def trend_chart(canvas: Canvas, trend: Mapping[str, Any]) -> Chart | None:
    """``None`` below two nights: a point is no trend."""
    nights = _nights(trend)
    if len(nights) < 2:
        return None
    events = [(event, when) for event in trend.get("events", ()) if (when := _time(event.get("after"))) is not None]
    marks = version_marks(trend)
    ends = span([value for _, value in nights], 0.15)
    with canvas.draw(f"{METRIC} by night", _told(trend, nights, marks), 2.9) as drawing:
        axes = box(drawing, left=0.76, bottom=0.98, top=0.3)
        axes.grid(axis="y")
        axes.plot(
            [when for when, _ in nights], [value for _, value in nights], "o-", ms=4, lw=0.8, color=ROLES["ink"],
            label="night",
        )  # fmt: skip
        for kind, style, colour in (("step", "-", "bad"), ("drift", "-.", "bad"), ("bad night", "", "b")):
            label: str | None = kind
            for event, when in events:
                if event.get("kind") == kind:
                    _event(axes, event, when, nights, style, ROLES[colour], label)
                    label = None
        label = "version changed"
        for place, (when, text) in enumerate(marks):
            axes.axvline(when, color=ROLES["a"], lw=1.1, ls=":", label=label)
            near = axes.get_xaxis_transform()
            if place >= len(marks) - 3:  # more would cover each other
                axes.text(when, 1.02, text, transform=near, ha="right", fontsize=8, color=ROLES["a"])
            label = None
        axes.set_ylim(*ends)
        _dates(axes, nights)
        plain_ticks(axes.yaxis)
        axes.set_ylabel(f"{METRIC} ({METRICS[METRIC].unit})")
        axes.set_xlabel("date")
        drawing.figure.legend(loc="lower center", ncols=3, bbox_to_anchor=(0.5, 0.0), borderaxespad=0.2)
    return drawing.chart


def version_marks(trend: Mapping[str, Any]) -> list[tuple[datetime.datetime, str]]:
    """Nights on which SGLang's version changed.

    From the versions of all nights where the trend has them, else from what its events say of their causes.
    """
    times, versions = list(trend.get("times") or ()), list(trend.get("versions") or ())
    found = []
    if versions and len(versions) == len(times):
        for before, after, time in zip(versions, versions[1:], times[1:], strict=False):
            when = _time(time)
            if before != after and when is not None:
                found.append((when, line(after or "?", 24)))
        return found
    for event in trend.get("events", ()):
        when = _time(event.get("after"))
        causes = [str(cause) for cause in event.get("causes", ()) if _VERSION.match(str(cause))]
        if when is not None and causes and "(on " not in causes[0]:
            name, _, after = causes[0].partition(" -> ")
            package = name.split(" ")[0]
            found.append((when, line(after if package == "sglang" else f"{package} {after}", 24)))
    return found


def event_sentence(event: Mapping[str, Any]) -> str:
    """``step -5.0 % between 2026-11-01 and 2026-11-02: sglang 0.5.9 -> 0.5.20``."""
    size = event.get("size") or {}
    estimate = finite(size.get("estimate"))
    told = f" {estimate:+.1%}".replace("%", " %") if estimate is not None else ""
    before, after = str(event.get("before", ""))[:10], str(event.get("after", ""))[:10]
    when = f"on {after}" if before == after else f"between {before} and {after}"
    sure = "" if event.get("sure", True) else " (not sure)"
    causes = "; ".join(str(cause) for cause in event.get("causes", ()))
    return line(f"{event.get('kind', 'change')}{told} {when}{sure}: {causes or 'nothing is known to have changed'}")


def _event(
    axes: Any,
    event: Mapping[str, Any],
    when: datetime.datetime,
    nights: Sequence[tuple[datetime.datetime, float]],
    style: str,
    colour: str,
    label: str | None,
) -> None:
    if event.get("kind") == "bad night":
        value = next((value for time, value in nights if time == when), None)
        if value is not None:
            axes.plot([when], [value], "x", ms=9, mew=2, color=colour, label=label)
        return
    if event.get("kind") == "drift":
        start = _time(event.get("before")) or when
        axes.axvspan(start, when, color=colour, alpha=0.14, lw=0, label=label)
        return
    axes.axvline(when, color=colour, lw=1.6, ls=style, label=label)


def _dates(axes: Any, nights: Sequence[tuple[datetime.datetime, float]]) -> None:
    """Few, whole dates: matplotlib's own would turn to hours within one night."""
    places = sorted({round(part * (len(nights) - 1) / 3) for part in range(4)})
    chosen = [nights[place][0] for place in places]
    form = "%m-%d" if len({when.date() for when in chosen}) == len(chosen) else "%m-%d %H:%M"
    axes.set_xticks(chosen, [f"{when:{form}}" for when in chosen])


def _nights(trend: Mapping[str, Any]) -> list[tuple[datetime.datetime, float]]:
    pairs = zip(trend.get("times") or (), trend.get("means") or (), strict=False)
    found = [(_time(time), finite(value)) for time, value in pairs]
    return [(when, value) for when, value in found if when is not None and value is not None]


def _time(text: object) -> datetime.datetime | None:
    try:
        when = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return when if when.tzinfo is not None else when.replace(tzinfo=datetime.timezone.utc)


def _told(
    trend: Mapping[str, Any],
    nights: Sequence[tuple[datetime.datetime, float]],
    marks: Sequence[tuple[datetime.datetime, str]],
) -> str:
    values = [value for _, value in nights]
    told = [
        f"{len(nights)} nights from {nights[0][0]:%Y-%m-%d} to {nights[-1][0]:%Y-%m-%d}, from {number(min(values))} "
        f"to {number(max(values))} {METRICS[METRIC].unit}, the latest {number(values[-1])}: {trend.get('state', '')}"
    ]
    told += [event_sentence(event) for event in trend.get("events", ())]
    told += [f"version {text} from {when:%Y-%m-%d}" for when, text in marks]
    return "; ".join(told)
