"""Follow the decode reports: ``#running-req: N, ... gen throughput (token/s): X, #queue-req: N``.

0.4.3 to 0.5.3 write ``Decode batch.``, later versions ``Decode batch[ [iteration]],``. The reports are one
scheduler's, so they are summed over DP ranks; the PP and TP ranks of a DP rank decode the same requests and
replace each other. A DP rank that has run dry reports no more, so its last numbers stay in the sums: near
the end of a run the requests counted as running are too many.
"""

from __future__ import annotations

import re

from pytest_r1perf.sglang.facts import Decode, DecodePoint

MAX_POINTS = 512
LINE = re.compile(
    rb"(?:\[([^\[\]]{0,120})\] ?)?(?:Decode batch).*?#running-req: (\d{1,9})"
    rb".*?gen throughput \(token/s\): (\d{1,12}(?:\.\d{1,9})?)(?:.*?#queue-req: (\d{1,9}))?"
)
_DP = re.compile(rb" (DP\d{1,4})\b")
_TIME = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?")

# line number, prefix, running, queued, tok/s: a plain tuple, since a long log has a million of them
_Sum = tuple[int, bytes, int, int, float]


class DecodeReader:
    """Keeps the latest report of each DP rank and at most `MAX_POINTS` evenly spaced sums."""

    def __init__(self) -> None:
        self._ranks: dict[bytes, tuple[int, int, float]] = {}
        self._sums: list[_Sum] = []
        self._latest: _Sum | None = None
        self._stride = 1
        self._lines = 0
        self._eager = 0

    def feed(self, line: bytes, line_no: int) -> None:
        """Take one line that holds ``Decode batch``; one that cannot be read is passed over."""
        found = LINE.search(line)
        if found is None:
            return
        prefix, running, throughput, queued = found.groups()
        report = (int(running), int(queued or 0), float(throughput))
        prefix = prefix or b""
        rank = _DP.search(prefix) if b" DP" in prefix else None
        self._ranks[rank[1] if rank else b""] = report
        if len(self._ranks) > 1:
            ranks = self._ranks.values()
            report = (sum(r[0] for r in ranks), sum(r[1] for r in ranks), sum(r[2] for r in ranks))
        self._latest = (line_no, prefix, *report)
        if self._lines % self._stride == 0:
            if len(self._sums) == MAX_POINTS:
                del self._sums[1::2]
                self._stride *= 2
            if self._lines % self._stride == 0:
                self._sums.append(self._latest)
        self._lines += 1
        if b" graph: False" in line and b"cpu graph" not in line:  # a CPU has no other state
            self._eager += 1

    @property
    def decode(self) -> Decode:
        """The reports so far."""
        latest = _point(self._latest) if self._latest else None
        return Decode(latest, tuple(map(_point, self._sums)), self._lines, self._eager)


def _point(total: _Sum) -> DecodePoint:
    line_no, prefix, running, queued, throughput = total
    time = _TIME.match(prefix)
    return DecodePoint(line_no, time[0].decode() if time else None, running, queued, throughput)
