"""A process from its start to its timed window, by the clock of the supervision: how long each step of it took."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_r1perf.ownprocess import STARTUP_TIME, WALL_TIME
from pytest_r1perf.sglang.events import EventKind
from pytest_r1perf.sglang.facts import LogFacts, Phase

_STEPS: Mapping[Phase, str] = {
    Phase.START: "process and imports",
    Phase.ARGUMENTS: "workers and model",
    Phase.LOAD_WEIGHTS: "weights",
    Phase.KV_CACHE: "KV cache",
    Phase.CUDA_GRAPHS: "CUDA graphs",
    Phase.READY: "workload",
    Phase.WARMUP: "warm-up requests",
}
"""What a process does from the line that begins a phase to the next such line."""

MIN_STEP_S = 0.25
"""Shorter steps are not told: the log is looked at five times a second."""


@dataclass
class Startup:
    """When a process was started and when each phase of its log was first seen, in s of the monotonic clock.

    A line is seen at the next of five looks a second, so every time is up to 0.3 s late (on another host, with its
    way here on top). ``window`` is when the timed window was seen to begin, ``None`` where it was over by that look.
    """

    started: float = 0.0
    began: dict[Phase, float] = field(default_factory=dict)
    window: float | None = None

    def seen(self, facts: LogFacts) -> None:
        """Take what the log says by now; phases that came between two looks have the time of the second."""
        now = time.monotonic()
        for mark in facts.phases:
            self.began.setdefault(mark.phase, now)
        if facts.phase is Phase.BENCHMARK and self.window is None:
            self.window = now

    def metrics(self, wall_s: float, window_s: float) -> dict[str, float]:
        """The process's own metrics: ``wall_time`` and ``startup_time``, in s.

        ``window_s`` is how long the timed window was: a log without the line that begins it leaves what the whole
        process has beside the window.
        """
        at = self.began.get(Phase.BENCHMARK)
        if at is not None:
            startup_s = min(at - self.started, wall_s)
        else:
            startup_s = wall_s - window_s if wall_s > window_s else wall_s
        return {WALL_TIME: wall_s, STARTUP_TIME: startup_s}

    def steps(self) -> dict[str, float]:
        """Seconds of each step up to the timed window, in their order; those too short to be told are left out."""
        if Phase.BENCHMARK not in self.began:
            return {}
        # The first phase is there with the first look, the process since its start.
        times = sorted({**self.began, Phase.START: self.started}.items())
        found = {
            _STEPS[phase]: after - at
            for (phase, at), (_, after) in itertools.pairwise(times)
            if phase < Phase.BENCHMARK
        }
        return {name: round(seconds, 1) for name, seconds in found.items() if seconds >= MIN_STEP_S}

    def events(self, facts: LogFacts) -> list[dict[str, object]]:
        """For the round's record: the steps, and the log's own lines about compilation with how often each came."""
        steps = self.steps()
        text = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in steps.items())
        own = {"kind": "start-up", "text": text, "line_no": 0, "count": 1, "effect": "remark", "seconds": steps}
        return [own] * bool(steps) + [event.plain() for event in facts.events if event.kind is EventKind.JIT]
