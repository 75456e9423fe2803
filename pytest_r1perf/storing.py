"""A session's results into baseline files: at the end, by pytest itself and never by a worker."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytest_r1perf import baseline
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.results import CellResult, MeasuredOn
from pytest_r1perf.verdict import Verdict


def store_baselines(results: Iterable[CellResult], root: Path, *, only_missing: bool) -> tuple[list[Path], list[str]]:
    """Store every BASELINE STORED result; gives the files written, and a sentence for each that could not be.

    Each goes under the hardware that it was measured on, which need not be this host's.
    """
    files: dict[tuple[MeasuredOn, str], dict[str, baseline.Baseline]] = {}
    errors: list[str] = []
    for result in results:
        if result.verdict is not Verdict.STORED or result.entry is None:
            continue
        hardware = result.measured_on
        if hardware is None:
            errors.append(f"{result.label}: the hardware that it was measured on is not known: nothing is stored")
            continue
        files.setdefault((hardware, result.topology), {})[result.key] = baseline.Baseline(
            key=result.key,
            samples={name: tuple(values) for name, values in result.entry["samples"].items()},
            protocol=result.entry["protocol"],
            provenance=result.entry["provenance"],
        )
    written: list[Path] = []
    for (hardware, topology), entries in files.items():
        try:
            written.append(baseline.store(root, hardware, topology, entries, only_missing=only_missing))
        except R1PerfError as error:
            errors.append(str(error))
    return written, errors
