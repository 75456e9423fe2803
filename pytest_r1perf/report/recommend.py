"""A recommendation for people: the stack, what it rests on, the command to run, and how to measure it again."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pytest_r1perf.metrics import METRICS
from pytest_r1perf.recommend.answer import Basis
from pytest_r1perf.report.numbers import interval, number

if TYPE_CHECKING:
    from pytest_r1perf.recipe import Published
    from pytest_r1perf.recommend.answer import Answer, Rival
    from pytest_r1perf.recommend.measured import Candidate

WIDTH = 110
_TITLES = {"throughput": "highest total throughput", "efficiency": "best efficiency", "reference": "reference"}


def answer_lines(answer: Answer, command: str) -> list[str]:
    """One answer; ``command`` is how to run it where nothing was measured."""
    decision = answer.decision
    title = decision.intent if decision is not None else _TITLES[answer.goal]
    lines = [f"{title} on {answer.gpus} GPUs: {answer.recipe} (topology {answer.topology.name})"]
    lines += _measured(answer) if answer.best is not None else list(_published(answer))
    if decision is not None and decision.note:
        lines += _wrapped(decision.note)
    best = answer.best
    recorded = str(best.entry.provenance.get("command") or "") if best is not None else ""
    if recorded or command:
        lines += ["", "run it, as its baseline was recorded:" if recorded else "run it:", f"  {recorded or command}"]
    else:
        lines += ["", *_wrapped("its baseline has no command line, and no recipe is called so: run its test")]
    platform = f" --perf-platform {answer.platform}" if answer.platform else ""
    lines += [
        "",
        "every node's command, and whether it fits:",
        f"  r1perf plan --topology {answer.topology.name}{platform}",
    ]
    if best is None:
        lines += ["", "measure it, and keep the result:"]
        lines.append(f"  pytest -m perf --topology {answer.topology.name}{platform} --perf-update-new")
    return lines


def _measured(answer: Answer) -> list[str]:
    best = answer.best
    assert best is not None
    lines = _wrapped(f"measured: {_figure(best)}{_gpus(best, answer.gpus)}, {_where(best)}")
    for rival in answer.rivals:
        lines += _wrapped(f"at the same load: {_rival(rival, answer)}")
    if answer.decision is None:
        lines += _wrapped("the guide has no line for this goal on so many GPUs: the best that was measured")
    elif answer.agrees:
        lines += _wrapped(f"the guide says the same ({answer.decision.source})")
    else:
        lines += _wrapped(
            f"the guide says {answer.decision.recipe}, and that was measured too ({answer.decision.source})"
        )
    if answer.published is not None and answer.decision is not None:
        lines += _wrapped(f"published for {answer.decision.recipe}: {_published_figure(answer.published)}")
    return lines


def _published(answer: Answer) -> Iterator[str]:
    assert answer.basis is Basis.PUBLISHED
    if answer.published is not None:
        gpus = answer.topology.gpus_used
        per_gpu = f", {number(answer.published.value / gpus)} a GPU" if _is_rate(answer.published) else ""
        yield from _wrapped(f"published, not measured here: {_published_figure(answer.published)}{per_gpu}")
        if answer.published.assumed:
            yield from _wrapped(f"assumed: {answer.published.assumed}")
    else:
        yield from _wrapped("published without a figure, not measured here")
    if answer.decision is not None:
        yield from _wrapped(answer.decision.source)


def _is_rate(published: Published) -> bool:
    return METRICS[published.metric].unit == "tok/s"


def _published_figure(published: Published) -> str:
    return f"{published.metric} {number(published.value)} {METRICS[published.metric].unit} at N = {published.n}"


def _figure(one: Candidate) -> str:
    limits = one.interval
    value = interval(limits) if limits is not None else number(one.mean)
    rounds = "1 round" if len(one.values) == 1 else f"{len(one.values)} rounds"
    level = ", 95 %" if limits is not None else ""
    return f"{one.metric} {value} {METRICS[one.metric].unit} at N = {one.n} ({rounds}{level})"


def _gpus(one: Candidate, gpus: int) -> str:
    """How many of the GPUs make the figure, where not all do: the others are free for more of the same."""
    used = one.topology.gpus_used
    return f" on {used} of the {gpus} GPUs" if used < gpus else ""


def _versions(one: Candidate) -> Mapping[str, object]:
    versions = one.entry.provenance.get("versions")
    return versions if isinstance(versions, Mapping) else {}


def _release(one: Candidate) -> str:
    return str(_versions(one).get("sglang", "of no recorded version"))


def _where(one: Candidate) -> str:
    named = _versions(one)
    packages = ", ".join(f"{name} {named[name]}" for name in ("sglang", "torch") if name in named)
    date = str(one.entry.provenance.get("date", ""))[:10]
    return ", ".join(filter(None, (date, packages, f"{one.path}: {one.entry.key}")))


def _rival(rival: Rival, answer: Answer) -> str:
    one, ratio = rival.candidate, rival.ratio
    assert answer.best is not None
    release = _release(one)
    other = f", with SGLang {release}" if release != _release(answer.best) else ""
    said = f"{one.topology.name} {one.recipe}: {_figure(one)}{_gpus(one, answer.gpus)}{other}"
    if ratio is None:
        return f"{said}; one round a side says nothing about the spread"
    sure = "surely less" if ratio.lower > 1 else "not shown to be less"
    return f"{said}; the first over it {interval(ratio)}: {sure}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
