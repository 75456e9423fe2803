"""Read the table that the offline benchmark prints after its JSON line.

The labels are the same from 0.4.3.post2 to 0.5.23, but for ``Last generation throughput`` (absent in 0.4.3).
Rows are ``"{:<40} {:<10}"`` with two decimals. Other processes write to the same file, so a label counts
wherever in a line it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER = "Offline Throughput Benchmark Result"

_COUNTS = {
    "Successful requests:": "successful_requests",
    "Total input tokens:": "total_input_tokens",
    "Total generated tokens:": "total_output_tokens",
}
_RATES = {
    "Benchmark duration (s):": "total_latency",
    "Last generation throughput (tok/s):": "last_gen_throughput",
    "Request throughput (req/s):": "request_throughput",
    "Input token throughput (tok/s):": "input_throughput",
    "Output token throughput (tok/s):": "output_throughput",
    "Total token throughput (tok/s):": "total_throughput",
}
_REQUIRED = {*_COUNTS.values(), *_RATES.values()} - {"last_gen_throughput"}
# The value, then the padding, the end of the line, or another process's timestamp.
_COUNT = re.compile(r"\s+(-?\d+)(?=\s|$|\[)")
_RATE = re.compile(r"\s+(-?(?:\d+\.\d\d|inf|nan))(?=\s|$|\[)")
_FOOTER = re.compile(r"={40,}\s*$")

NEEDLES = (HEADER, "=" * 40, *_COUNTS, *_RATES)


@dataclass(frozen=True, slots=True)
class Table:
    """The printed result, fields named as in the JSON line; seconds, tok/s and req/s with two decimals.

    ``complete``: every row of 0.4.3 was read and the closing rule seen. ``garbled`` names rows that are
    there and could not be read, or that came twice with different values. ``headers`` counts tables; one
    process prints one.
    """

    successful_requests: int | None = None
    total_latency: float | None = None
    total_input_tokens: int | None = None
    total_output_tokens: int | None = None
    last_gen_throughput: float | None = None
    request_throughput: float | None = None
    input_throughput: float | None = None
    output_throughput: float | None = None
    total_throughput: float | None = None
    complete: bool = False
    garbled: tuple[str, ...] = ()
    headers: int = 1


class TableReader:
    """Collects the rows line by line."""

    def __init__(self) -> None:
        self._headers = 0
        self._footer = False
        self._counts: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._garbled: dict[str, None] = {}

    def feed(self, text: str) -> bool:
        """Take one line; True when it holds the header."""
        if HEADER in text:
            self._headers += 1
            return True
        if not self._headers:
            return False  # bench_serving and others print rows of the same names
        for label, key in _COUNTS.items():
            if label in text:
                found = _COUNT.match(text, text.index(label) + len(label))
                self._put(self._counts, key, int(found[1]) if found else None)
        for label, key in _RATES.items():
            if label in text:
                found = _RATE.match(text, text.index(label) + len(label))
                self._put(self._rates, key, float(found[1]) if found else None)
        if _FOOTER.search(text):
            self._footer = True
        return False

    def _put(self, rows: dict[str, int] | dict[str, float], key: str, value: float | None) -> None:
        if value is None or (key in rows and rows[key] != value):
            self._garbled[key] = None
        else:
            rows[key] = value  # type: ignore[assignment]  # counts get int, rates float: see feed

    @property
    def table(self) -> Table | None:
        """The table so far, None before its header."""
        if not self._headers:
            return None
        known = {*self._counts, *self._rates}
        return Table(
            successful_requests=self._counts.get("successful_requests"),
            total_latency=self._rates.get("total_latency"),
            total_input_tokens=self._counts.get("total_input_tokens"),
            total_output_tokens=self._counts.get("total_output_tokens"),
            last_gen_throughput=self._rates.get("last_gen_throughput"),
            request_throughput=self._rates.get("request_throughput"),
            input_throughput=self._rates.get("input_throughput"),
            output_throughput=self._rates.get("output_throughput"),
            total_throughput=self._rates.get("total_throughput"),
            complete=self._footer and known >= _REQUIRED and not self._garbled,
            garbled=tuple(self._garbled),
            headers=self._headers,
        )
