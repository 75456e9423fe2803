"""The text of a plan: what would run, what it takes, and what is wrong with it."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence

from pytest_r1perf.antipatterns import RuleKind
from pytest_r1perf.memory import GIB, Fit, MemoryEstimate
from pytest_r1perf.plan import PlannedCommand, PlannedTest
from pytest_r1perf.preflight.finding import Severity

_LEAST_WIDTH = 80
_COLUMN = 14
_HIDDEN = "***"
_EXPECTED = {
    RuleKind.SLOWER: "expected to lose (xfail)",
    RuleKind.OOM: "expected to run out of memory (xfail)",
    RuleKind.REJECTED: "SGLang refuses it",
    RuleKind.ADVISORY: "advice",
}


def render(plans: Sequence[PlannedTest], width: int) -> str:
    """The whole plan; commands keep their own lines, whatever the width, so that they can be copied."""
    width = max(width, _LEAST_WIDTH)
    parts = ["\n".join(_test(plan, width)) for plan in plans]
    return "\n\n".join([*parts, "\n".join(_total(plans, width))]) + "\n"


def fit_sentence(fit: Fit | None, max_tokens: int | None) -> str:
    """What a workload means for the KV cache, for :attr:`PlannedTest.fits`."""
    if fit is None or max_tokens is None:
        return "not known: it takes the model's config.json, the GPU's memory and the sampled workload"
    if max_tokens <= 0:
        return "no: by the estimate no room is left for a KV cache"
    if not fit.longest_fits:
        return f"no: the longest request does not fit into {max_tokens:,} tokens"
    if fit.all_at_once:
        return f"all {fit.requests:,} requests at once"
    return f"about {fit.at_once:,} of {fit.requests:,} requests at once, the others queue (normal)"


def _test(plan: PlannedTest, width: int) -> list[str]:
    lines = [plan.nodeid, *_row("cell", plan.cell, width), *_row("key", plan.key, width)]
    if plan.skip is not None:
        lines += _row("skipped", plan.skip, width)
    for command in plan.commands:
        lines += _command(command, alone=len(plan.commands) == 1)
    if any(_HIDDEN in value for command in plan.commands for value in command.env.values()):
        lines += _row("", f"{_HIDDEN} stands for a secret: put it in before you paste the command", width)
    for number, note in enumerate(plan.notes):
        lines += _row("translated" if number == 0 else "", note, width)
    allocated = "" if plan.gpus_allocated is None else f" of {plan.gpus_allocated} allocated"
    lines += _row(plan.unit, f"{plan.gpus_used} used{allocated}", width)
    lines += _memory(plan.memory, width)
    lines += _row("fit", plan.fits, width)
    lines += _row("rounds", _rounds(plan.rounds), width)
    time = plan.expected_from if plan.expected_s is None else f"{_duration(plan.expected_s)} ({plan.expected_from})"
    lines += _row("time", time, width)
    lines += _row("baseline", str(plan.baseline) if plan.baseline is not None else "none stored", width, whole=True)
    for number, rule in enumerate(plan.antipatterns):
        title = f": {rule.title}" if rule.title else ""
        text = f"{rule.id}, {rule.kind.value}, {_EXPECTED[rule.kind]}{title}"
        lines += _row("anti-pattern" if number == 0 else "", text, width)
    for finding in plan.findings:
        lines += _row(finding.severity.value.upper(), f"{finding.rule}: {finding.text}", width)
    return lines


def _row(title: str, text: str, width: int, *, whole: bool = False) -> list[str]:
    """``title`` in its column, ``text`` beside it, folded at the width unless it has to stay ``whole``."""
    head = f"  {title:<{_COLUMN}}"
    if whole:
        return [head + text]
    return textwrap.wrap(
        text,
        width=width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]


def _command(command: PlannedCommand, *, alone: bool) -> list[str]:
    """A title, then the command over several lines that a shell reads as one."""
    on = f"on {command.host}" if alone else f"rank {command.rank} on {command.host}"
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(command.env.items())]
    words.append("")
    for argument in command.argv:
        quoted = shlex.quote(argument)
        if argument.startswith("--"):
            words.append(quoted)
        else:
            words[-1] = f"{words[-1]} {quoted}".strip()
    found = [f"  {'command':<{_COLUMN}}{on}"]
    return found + [f"    {word} \\" for word in words[:-1]] + [f"    {words[-1]}"]


def _memory(memory: MemoryEstimate | None, width: int) -> list[str]:
    if memory is None:
        return _row("memory", "not estimated: it takes the model's config.json and the GPU's memory", width)
    rows = [
        ("a GPU", memory.gpu_bytes, ""),
        ("weights", memory.weights_bytes_per_gpu, ""),
        ("KV cache", memory.free_for_kv, _kv(memory)),
        ("left over", memory.outside_bytes, f"for activations and about {_gib(memory.graph_bytes)} GiB of graphs"),
    ]
    found = [
        f"  {'memory' if number == 0 else '':<{_COLUMN}}{name:<10}{_gib(value):>8} GiB{'  ' if note else ''}{note}"
        for number, (name, value, note) in enumerate(rows)
    ]
    for text in memory.assumed:
        found += _row("", text, width)
    return found


def _kv(memory: MemoryEstimate) -> str:
    pools = "" if memory.pools == 1 else f" in each of {memory.pools} pools"
    return f"{memory.max_tokens:,} tokens{pools}, {memory.kv_bytes_per_token_per_gpu:,} bytes each on a GPU"


def _gib(value: int) -> str:
    return f"{value / GIB:,.1f}"


def _rounds(rounds: tuple[int, int]) -> str:
    low, high = rounds
    count = f"{low}" if low == high else f"{low} to {high}"
    return f"{count} process{'' if high == 1 else 'es'}"


def _duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _total(plans: Sequence[PlannedTest], width: int) -> list[str]:
    running = [plan for plan in plans if plan.runs]
    low, high = sum(plan.rounds[0] for plan in running), sum(plan.rounds[1] for plan in running)
    known = [plan.expected_s for plan in running if plan.expected_s is not None]
    unknown = len(running) - len(known)
    time = _duration(sum(known)) if known else "unknown"
    if known and unknown:
        time += f", and {unknown} never run here"
    stopped = [
        f"{count} {word}"
        for count, word in (
            (sum(plan.refused for plan in plans), "refused"),
            (sum(plan.skip is not None for plan in plans), "skipped"),
        )
        if count
    ]
    tests = ", ".join([f"{len(plans)} test{'' if len(plans) == 1 else 's'}", f"{len(running)} would run", *stopped])
    warnings = sum(finding.severity is Severity.WARN for plan in plans for finding in plan.findings)
    return [
        "total",
        *_row("tests", tests, width),
        *_row("processes", f"{low}" if low == high else f"{low} to {high}", width),
        *_row("time", time, width),
        *_row("warnings", str(warnings), width),
    ]
