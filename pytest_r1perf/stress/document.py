"""The guide's result format: seven keys, one object a line, and its two formulas.

    {"run_name": "default", "batch_size": 1, "input_len": 128, "output_len": 256, "latency": 8.6279,
     "output_throughput": 29.67, "overall_throughput": 44.51}

SGLang 0.4.3 writes exactly this. Every release since writes more keys, and from 0.4.6.post5 on its output_throughput
divides by the latency less the time to the first token; here both are recomputed from tokens and latency
(:func:`pytest_r1perf.sglang.one_batch.guide_row`).
"""

from __future__ import annotations

import json
from pathlib import Path

from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.sglang.one_batch import guide_row
from pytest_r1perf.stress.folder import contents
from pytest_r1perf.stress.manifest import write_whole
from pytest_r1perf.stress.rows import Row


def convert(source: Path, target: Path, *, repeat: int | None = None) -> tuple[int, int, tuple[str, ...]]:
    """Write a sweep's folder in the guide's format: how many files and rows, and what of the source was left out.

    A row a line, one line a repeat; ``repeat`` takes one of them. Nothing that is there is overwritten: raises
    :class:`R1PerfError` where the target holds any of the files, or can't be written.
    """
    found = contents(source)
    left = [f"{case.name}.jsonl {file.flaw.sentence}" for case, file in found.files.items() if file.flaw is not None]
    left += [f"{case.name}: skipped: {file.skip.reason}" for case, file in found.files.items() if file.skip is not None]
    texts: dict[str, list[str]] = {}
    for case, file in found.files.items():
        rows = [row for at, row in enumerate(file.rows, 1) if file.flaw is None and repeat in (None, _repeat(at, row))]
        if rows:
            texts[f"{case.name}.jsonl"] = [json.dumps(guide_row(row.result)) for row in rows]
    if not texts:
        what = "" if repeat is None else f" of repeat {repeat}"
        raise R1PerfError(f"{source}: no row{what} to convert")
    present = sorted(name for name in texts if (target / name).exists())
    if present:
        raise R1PerfError(f"{target}: {present[0]} is there already, and is not overwritten: name a new folder")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, lines in texts.items():
            write_whole(target / name, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise R1PerfError(f"{target}: cannot be written ({error.strerror or error})") from None
    return len(texts), sum(map(len, texts.values())), tuple(left)


def _repeat(at: int, row: Row) -> int:
    """The n-th unmarked row is its case's n-th repeat, as in a report."""
    return at if row.mark is None else row.mark.repeat
