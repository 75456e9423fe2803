"""The page of a stress sweep, of a folder as the guide's own script writes it, with three repeats."""

from __future__ import annotations

import json
import random
from pathlib import Path

from pytest_r1perf.report.html.stress import stress_page
from pytest_r1perf.stress.analysis import analyse
from pytest_r1perf.stress.cases import grid
from pytest_r1perf.stress.folder import contents


def page(folder: Path, repeats: int = 3) -> str:
    """Of a grid of 5 x 2 x 3 cases."""
    luck = random.Random(6)
    for case in grid((1, 4, 8, 16, 32), (128, 512), (256, 1024, 8192)):
        rows = []
        for _ in range(repeats):
            latency = case.output_len * (0.02 + 0.001 * case.batch_size) * luck.uniform(1, 1.05)
            tokens = case.batch_size * case.output_len
            rows.append(
                {
                    "run_name": "default",
                    "batch_size": case.batch_size,
                    "input_len": case.input_len,
                    "output_len": case.output_len,
                    "latency": round(latency, 4),
                    "output_throughput": round(tokens / latency, 2),
                    "overall_throughput": round((tokens + case.batch_size * case.input_len) / latency, 2),
                }
            )
        (folder / f"{case.name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = contents(folder)
    return stress_page(found, analyse(found), folder.name)
