"""Read SGLang's log as it grows, in bounded memory.

The log is the benchmark's stdout and stderr in one file: several processes, progress bars that end in
``\\r``, colours, and lines of other processes in the middle of a line. So nothing is anchored at the start
of a line, and prefixes are searched for. Facts come from SGLang 0.4.3.post2 to 0.5.23.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from pytest_r1perf.sglang import server_args, table
from pytest_r1perf.sglang.cause_reader import BEGIN, PREFIX, CauseReader
from pytest_r1perf.sglang.cause_rules import CAUSE_RULES
from pytest_r1perf.sglang.decode import DecodeReader
from pytest_r1perf.sglang.deepgemm import CompilingReader
from pytest_r1perf.sglang.events import EVENT_RULES, Event, EventKind, match_event, shorten
from pytest_r1perf.sglang.facts import LogFacts, Phase, PhaseMark, Progress
from pytest_r1perf.sglang.told import ToldReader

__all__ = ["LogFacts", "LogReader", "Phase", "Progress", "progress", "read_log"]

MAX_LINE = 1 << 17  # bytes; the longest line that matters, `server_args=`, has 17 KB (30 KB in newer versions)
# Other lines are searched this far: patterns with several `.*` are slow on a long line that nearly matches.
_SEARCHED = 1 << 13
TAIL_LINES = 40
TAIL_CHARS = 500
MAX_EVENTS_A_KIND = 16
MAX_JIT = 8
_READ_SIZE = 1 << 18
# Lines without a needle repeat with other numbers (access logs, progress bars), and 150 needles take 6 us: remember
# the shapes. No needle has a digit, so two lines of one shape hold the same needles.
_DULL_SHAPES = 4096
_DULL_LENGTH = 400
_DIGITS_TO_0 = bytes.maketrans(b"123456789", b"000000000")

# The whole of an ordinary progress line, so that nothing else can be hidden in it. Most of a log is such
# lines.
_ORDINARY = re.compile(
    rb"\[[^\[\]]{19,120}\] (Prefill|Decode) batch(?: ?\[\d+\])?[.,] [-#A-Za-z0-9:.,()/% ]*[\d%],? ?\Z"
)
_ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_CAPACITY = re.compile(r"max_total_num_tokens=(\d{1,15}), chunked_prefill_size=(-?\d{1,15}|None)")
_MAX_RUNNING = re.compile(r"max_running_requests=(\d{1,15})")
_CONTEXT = re.compile(r"context_len=(\d{1,15})")
_LOAD_END = re.compile(r"Load weight end\. elapsed=(\d+(?:\.\d+)?) s")
_INPUT = re.compile(r"#Input tokens: (\d{1,15})(?!\d)")
_OUTPUT = re.compile(r"#Output tokens: (\d{1,15})(?!\d)")
_RETRACTED = re.compile(r"#retracted_reqs: (\d{1,9})")
_RANK = re.compile(r"\bDP\d+\b")
_NOT_WORDS = re.compile(r"[^A-Za-z]+")  # two events that differ in numbers only, as a progress bar does, are one

# Which line starts which phase. Piecewise and prefill graphs have their own "Capture ... begin" lines.
_PHASES: tuple[tuple[str, re.Pattern[str], Phase], ...] = tuple(
    (needle, re.compile(pattern), phase)
    for needle, pattern, phase in (
        ("Load weight begin", r"Load weight begin", Phase.LOAD_WEIGHTS),
        ("KV Cache is allocated", r"KV Cache is allocated", Phase.KV_CACHE),
        ("KV cache allocated", r"KV cache allocated", Phase.KV_CACHE),
        ("Memory pool end", r"Memory pool end", Phase.KV_CACHE),
        ("apture ", r"Capture .*(?i:cuda graph) begin", Phase.CUDA_GRAPHS),
        ("max_total_num_tokens=", r"max_total_num_tokens=\d", Phase.READY),
        ("fired up and ready", r"The server is fired up and ready to roll", Phase.READY),
        ("Warmup...", r"Warmup\.\.\.", Phase.WARMUP),
        ("Benchmark...", r"Benchmark\.\.\.", Phase.BENCHMARK),
        ("kill_process_tree", r"kill_process_tree called", Phase.SHUTDOWN),
        ("SIGTERM received", r"SIGTERM received", Phase.SHUTDOWN),
        ("SIGQUIT received", r"SIGQUIT received", Phase.SHUTDOWN),
        ("sigquit", r"[Rr]eceived sigquit", Phase.SHUTDOWN),
    )
)
_DECODE = b"Decode batch"


def _minimal(needles: Iterable[str]) -> tuple[str, ...]:
    """``needles`` without those that hold another one: the shorter finds all that the longer does."""
    kept: list[str] = []
    for needle in sorted(set(needles), key=len):
        if not any(shorter in needle for shorter in kept):
            kept.append(needle)
    return tuple(kept)


_NEEDLES = _minimal(
    [
        "server_args=",
        "Load weight end",
        "put tokens: ",
        "Decode batch",
        BEGIN,
        *(needle for needle, _, _ in _PHASES),
        *(needle for rule in EVENT_RULES for needle in rule.needles),
        *(needle for rule in CAUSE_RULES for needle in rule.needles),
        *table.NEEDLES,
    ]
)


class LogReader:
    """Takes a log in pieces of any size; `facts` may be asked for at any time.

    Lines are counted by ``\\n`` from 1, as editors do; ``\\r`` ends a progress bar's line but not a counted
    one. A line of more than 128 KiB is cut there.
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._line_no = 1
        self._last = b""  # the line's last part that holds anything: what a terminal would show
        self._stamp: str | None = None
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._dull: set[bytes] = set()
        self._marks = [PhaseMark(Phase.START, 1, None)]
        self._args_line = b""
        self._args: dict[str, object] | None = None
        self._input_tokens: int | None = None
        self._output_tokens: int | None = None
        self._numbers: dict[str, int] = {}
        self._load_weight_s: float | None = None
        self._told = ToldReader()
        self._compiling = CompilingReader()
        self._retracted: dict[str, dict[str, tuple[int, int]]] = {}
        self._decode = DecodeReader()
        self._events: dict[tuple[EventKind, str], Event] = {}
        self._event_counts: dict[EventKind, int] = {}
        self._jit: list[Event] = []
        self._causes = CauseReader()
        self._table = table.TableReader()

    def feed(self, data: bytes) -> None:
        """Take the next piece of the log."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            if self._pending:
                self._hold(line)
                line = bytes(self._pending)
                self._pending.clear()
            if b"\r" in line:
                for part in line.split(b"\r"):
                    self._part(part[:MAX_LINE])
            else:
                self._part(line[:MAX_LINE])
            if self._last:
                self._tail.append(self._last)
                self._last = b""
            else:
                self._causes.blank()
            self._line_no += 1
        if rest:
            self._hold(rest)

    def close(self) -> None:
        """Take what is left as the last line: a killed process ends its log anywhere."""
        if self._pending:
            self.feed(b"\n")
        elif self._last:
            self._tail.append(self._last)
            self._last = b""

    def _hold(self, data: bytes) -> None:
        """Keep a piece of an unfinished line, up to `MAX_LINE`; progress bars are read at once."""
        *parts, rest = data.split(b"\r")
        for part in parts:
            self._pending += part[: MAX_LINE - len(self._pending)]
            self._part(bytes(self._pending))
            self._pending.clear()
        self._pending += rest[: MAX_LINE - len(self._pending)]

    def _part(self, line: bytes) -> None:
        if not line:
            return
        self._last = line[: 4 * TAIL_CHARS]
        ordinary = _ORDINARY.match(line)
        if ordinary:
            self._stamp = None
            if ordinary[1] == b"Decode":
                self._decode.feed(line, self._line_no)
            return
        if self._causes.wants_all or not self._is_dull(line):
            self._notable(line)
            self._stamp = None
            return
        # "[2026-11-30 09:43:01] \nBenchmark...": the stamp of the next line stands alone.
        self._stamp = None
        if line[:1] == b"[" and len(line) < 120:
            bare = PREFIX.fullmatch(line.decode("ascii", "replace").rstrip() + " ")
            self._stamp = bare[1] if bare else None

    def _is_dull(self, line: bytes) -> bool:
        """True when ``line`` holds nothing that is looked for."""
        shape = line.translate(_DIGITS_TO_0) if len(line) <= _DULL_LENGTH else b""
        if shape and shape in self._dull:
            return True
        text = line.decode("latin-1")  # needles are ASCII, and str is searched three times as fast as bytes
        for needle in _NEEDLES:
            if needle in text:
                return False
        if shape:
            if len(self._dull) >= _DULL_SHAPES:
                self._dull.clear()
            self._dull.add(shape)
        return True

    def _notable(self, line: bytes) -> None:
        if b"\x1b" in line:
            line = _ANSI.sub(b"", line)
        text = line.decode("utf-8", "replace")
        if server_args.MARKER.search(text):
            self._args_line, self._args = line, None
            self._told.arguments()
            self._enter(Phase.ARGUMENTS, text)
            return
        line, text = line[:_SEARCHED], text[:_SEARCHED]
        if _DECODE in line:
            self._decode.feed(line, self._line_no)
        for needle, pattern, phase in _PHASES:
            if needle in text and pattern.search(text):
                self._enter(phase, text)
        self._read_numbers(text)
        self._told.feed(text)
        self._compiling.feed(text)
        if self._table.feed(text):
            self._enter(Phase.RESULT, text)
        kind = match_event(text)
        if kind is not None:
            self._event(kind, text)
        self._causes.feed(text, self._line_no, self._phase)

    @property
    def _phase(self) -> Phase:
        return self._marks[-1].phase

    def _enter(self, phase: Phase, text: str) -> None:
        """Go on to ``phase``; never back, because ranks reach the same line at different times."""
        if phase <= self._phase:
            return
        found = PREFIX.search(text)
        self._marks.append(PhaseMark(phase, self._line_no, (found[1] if found else None) or self._stamp))
        if phase is not Phase.SHUTDOWN:  # that one may be our own doing
            self._compiling.went_on()
        if phase is Phase.BENCHMARK:
            self._decode = DecodeReader()  # what came before is the warm-up's

    def _read_numbers(self, text: str) -> None:
        capacity = _CAPACITY.search(text)
        if capacity:
            self._numbers["max_total_num_tokens"] = int(capacity[1])
            if capacity[2] != "None":
                self._numbers["chunked_prefill_size"] = int(capacity[2])
            for name, pattern in (("max_running_requests", _MAX_RUNNING), ("context_len", _CONTEXT)):
                found = pattern.search(text)
                if found:
                    self._numbers[name] = int(found[1])
        loaded = _LOAD_END.search(text)
        if loaded:
            self._load_weight_s = max(self._load_weight_s or 0.0, float(loaded[1]))
        if self._input_tokens is None and (found := _INPUT.search(text)):
            self._input_tokens = int(found[1])
        if self._output_tokens is None and (found := _OUTPUT.search(text)):
            self._output_tokens = int(found[1])

    def _event(self, kind: EventKind, text: str) -> None:
        prefix = PREFIX.search(text)
        ranks = (prefix[2] or "") if prefix else ""
        body = shorten(text[prefix.end() :] if prefix else text)
        if kind is EventKind.RETRACTION and (found := _RETRACTED.search(text)):
            group = self._retracted.setdefault((_RANK.findall(ranks) or [""])[0], {})
            times, reqs = group.get(ranks, (0, 0))
            group[ranks] = (times + 1, reqs + int(found[1]))
        event = Event(kind, body, self._line_no)
        if kind is EventKind.JIT and self._phase is Phase.BENCHMARK and len(self._jit) < MAX_JIT:
            self._jit.append(event)
        key = (kind, _NOT_WORDS.sub(" ", body))
        known = self._events.get(key)
        if known is not None:
            self._events[key] = Event(kind, known.text, known.line_no, known.count + 1)
        elif self._event_counts.get(kind, 0) < MAX_EVENTS_A_KIND:
            self._events[key] = event
            self._event_counts[kind] = self._event_counts.get(kind, 0) + 1

    @property
    def facts(self) -> LogFacts:
        """What the complete lines so far say (after `close`: all lines)."""
        if self._args is None:
            self._args = server_args.parse_server_args(self._args_line.decode("utf-8", "replace"))
        pair = (self._input_tokens, self._output_tokens)
        by_dp_group = [max(ranks.values()) for ranks in self._retracted.values()]
        return LogFacts(
            phase=self._phase,
            phases=tuple(self._marks),
            server_args=dict(self._args),
            workload_tokens=(pair[0], pair[1]) if pair[0] is not None and pair[1] is not None else None,
            max_total_num_tokens=self._numbers.get("max_total_num_tokens"),
            chunked_prefill_size=self._numbers.get("chunked_prefill_size"),
            max_running_requests=self._numbers.get("max_running_requests"),
            context_len=self._numbers.get("context_len"),
            load_weight_s=self._load_weight_s,
            attention_backend=self._told.attention_backend(self._args.get("attention_backend")),
            kv_cache_dtype=self._told.kv_cache_dtype,
            model_dtype=self._told.model_dtype,
            captured=dict(self._told.captured),
            retracted_reqs=sum(reqs for _, reqs in by_dp_group),
            retractions=sum(times for times, _ in by_dp_group),
            decode=self._decode.decode,
            jit_in_benchmark=tuple(self._jit),
            compiling=self._compiling.compiling,
            events=tuple(self._events.values()),
            causes=self._causes.causes(self._phase),
            table=self._table.table,
            tail=tuple(line.decode("utf-8", "replace")[:TAIL_CHARS] for line in self._tail),
            lines=self._line_no - 1,
        )


def read_log(path: Path) -> LogFacts:
    """The facts of the whole log at ``path``, read in pieces.

    Raises OSError when it cannot be read.
    """
    reader = LogReader()
    with path.open("rb") as file:
        while data := file.read(_READ_SIZE):
            reader.feed(data)
    reader.close()
    return reader.facts


def progress(facts: LogFacts, num_prompts: int) -> Progress:
    """How much of ``num_prompts`` is done: those that neither run nor wait, by the latest decode report.

    An estimate: requests that have not reached the scheduler yet count as done, and see `decode` for DP
    ranks. 0 before the first report of the timed window, 1 once the result is printed. Raises ValueError for
    a number below 1.
    """
    if num_prompts < 1:
        raise ValueError(f"num_prompts is {num_prompts}; give at least 1")
    latest = facts.decode.latest
    throughput = latest.gen_throughput if latest else None
    if facts.phase is Phase.RESULT:
        done = num_prompts
    elif facts.phase >= Phase.BENCHMARK and latest:
        done = min(max(num_prompts - latest.running_reqs - latest.queue_reqs, 0), num_prompts)
    else:
        done = 0
    return Progress(facts.phase, done, done / num_prompts, throughput)
