"""Timing two commands in turn: A B A B ..., so that a drifting machine hits both alike."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pairs:
    """Wall seconds of both commands, one pair a round."""

    first: tuple[float, ...]
    second: tuple[float, ...]

    def report(self, names: tuple[str, str]) -> str:
        """Medians, ranges, and the median of the pairwise ratio and difference."""
        ratios = [a / b for a, b in zip(self.first, self.second, strict=True)]
        gaps = [1000 * (a - b) for a, b in zip(self.first, self.second, strict=True)]
        lines = [
            f"{name}: median {statistics.median(values):.3f} s, range {min(values):.3f} to {max(values):.3f} s"
            for name, values in zip(names, (self.first, self.second), strict=True)
        ]
        lines.append(
            f"ratio {names[0]} / {names[1]}: median {statistics.median(ratios):.3f}, "
            f"range {min(ratios):.3f} to {max(ratios):.3f} ({len(ratios)} pairs)"
        )
        lines.append(
            f"difference: median {statistics.median(gaps):.1f} ms, range {min(gaps):.1f} to {max(gaps):.1f} ms"
        )
        return "\n".join(lines)


def time_pairs(first: Sequence[str], second: Sequence[str], *, cwd: Path, pairs: int) -> Pairs:
    """Run both once unmeasured, then ``pairs`` times in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(pairs + 1):
        for command, own in zip((first, second), times, strict=True):
            started = time.perf_counter()
            done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise SystemExit(f"{command} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            if number:
                own.append(time.perf_counter() - started)
    return Pairs(tuple(times[0]), tuple(times[1]))
