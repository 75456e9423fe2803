"""A session's results into baseline files: at the end, by pytest itself and never by a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from pytest_r1perf import baseline
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.hardware import Hardware
from pytest_r1perf.results import CellResult
from pytest_r1perf.verdict import Verdict


def store_baselines(
    results: Iterable[CellResult], root: Path, hardware_of: Callable[[str], Hardware | None], *, only_missing: bool
) -> tuple[list[Path], list[str]]:
    """Store every BASELINE STORED result; gives the files written, and a sentence for each that could not be.

    ``hardware_of`` gives this host's hardware for a platform's name.
    """
    files: dict[tuple[str, str], dict[str, baseline.Baseline]] = {}
    for result in results:
        if result.verdict is Verdict.STORED and result.entry is not None:
            files.setdefault((result.platform, result.topology), {})[result.key] = baseline.Baseline(
                key=result.key,
                samples={name: tuple(values) for name, values in result.entry["samples"].items()},
                protocol=result.entry["protocol"],
                provenance=result.entry["provenance"],
            )
    written: list[Path] = []
    errors: list[str] = []
    for (platform, topology), entries in files.items():
        try:
            hardware = hardware_of(platform)
            if hardware is None:
                raise R1PerfError(f"this host has no device of platform {platform!r} any more: nothing is stored")
            written.append(baseline.store(root, hardware, topology, entries, only_missing=only_missing))
        except R1PerfError as error:
            errors.append(str(error))
    return written, errors
