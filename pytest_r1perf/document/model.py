"""The document: everything that is reported of one session, in the order in which it is read.

It is made of the session's record (:mod:`pytest_r1perf.document.build`) or of a file that ``--perf-json`` wrote
(:mod:`pytest_r1perf.document.file`), and never of live objects, so that a report can be made again later and elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_r1perf.results import CellResult

_INTERRUPTED = 2
"""pytest's exit status."""

FORMAT = 1
"""Version of the document; :mod:`pytest_r1perf.document.file` reads older ones and refuses newer ones."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where rounds were measured: ``side`` of a comparison or ``None``, the hardware's key, host settings, versions.

    ``env`` are the variables that the benchmark was given; nothing else of the process's environment is in a record.
    """

    side: str | None = None
    hardware: str = ""
    host: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def sglang(self) -> str:
        """SGLang's version, or ``?``."""
        return str(self.versions.get("sglang", "?"))


@dataclass(frozen=True, slots=True)
class Readings:
    """Telemetry of one round over all its GPUs, thinned: one value a moment, ``None`` where none was read.

    ``at`` are seconds from the first reading; ``sm_mhz`` is the lowest GPU's, ``temperature_c`` the hottest one's,
    ``power_w`` and ``memory_mib`` are sums.
    """

    gpus: int
    at: tuple[float, ...]
    sm_mhz: tuple[float | None, ...] = ()
    power_w: tuple[float | None, ...] = ()
    temperature_c: tuple[float | None, ...] = ()
    memory_mib: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One round: a process, engine or server. ``environment`` is its place in :attr:`Document.environments`.

    ``metrics`` are in the units of :mod:`pytest_r1perf.metrics`; ``windows`` are the timed windows of a shared engine
    or server. ``events`` are what its log told: ``kind``, ``text``, ``count``, ``line_no``, ``effect``.
    """

    round: int
    time: str
    metrics: Mapping[str, float]
    environment: int = 0
    windows: tuple[Mapping[str, float], ...] = ()
    discarded: int = 0
    wall_s: float = 0.0
    command: tuple[str, ...] = ()
    log: str = ""
    remarks: tuple[str, ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    readings: Readings | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """A process that gave no number, or one that was thrown away as warm-up (``verdict`` is then empty)."""

    side: str | None
    verdict: str
    cause: str
    log: str = ""
    time: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One result with what it rests on. ``trend`` is :func:`pytest_r1perf.history.trend.as_dict`, or ``None``."""

    result: CellResult
    samples: tuple[Sample, ...] = ()
    broken: tuple[Broken, ...] = ()
    trend: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """Topology and key: what a cell is called over sessions."""
        return f"{self.result.topology} {self.result.key}"


@dataclass(frozen=True, slots=True)
class Document:
    """A session. ``arguments`` are pytest's; ``exitstatus`` is ``None`` where the session never came to its end.

    ``suite`` is the ratio of all cells of two environments, as a sentence. ``errors`` are sentences, e.g. a baseline
    that could not be written; ``unused`` baseline entries that no test means; ``updated`` baseline files written.
    """

    session: str
    created: str
    tool: str
    exitstatus: int | None = None
    arguments: tuple[str, ...] = ()
    environments: tuple[Environment, ...] = ()
    cells: tuple[Cell, ...] = ()
    suite: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[Cell, ...]:
        """Cells whose test failed."""
        return tuple(cell for cell in self.cells if cell.result.failed)

    @property
    def trouble(self) -> str:
        """Why the session is not green whatever its cells say, in a few words; empty where only they tell.

        A test can fail beside its cell: what could not run under ``--perf-gate``, a body's own assertion, the suite's
        ratio, a baseline or report that could not be written.
        """
        if self.exitstatus is None:
            return "the session did not come to its end"
        if self.exitstatus == _INTERRUPTED:
            return "the session was interrupted"
        if not self.cells:
            return "no cell was measured"
        if not any(cell.result.verdict.decided for cell in self.cells):
            return "nothing was decided"
        if self.exitstatus and not self.failed:
            return f"the session failed all the same (exit status {self.exitstatus})"
        return ""
