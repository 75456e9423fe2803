"""What ``mode="serve"`` says to its driver, and what it reads back: ``scripts/serve_driver.py`` is the other side.

The driver's file is read as :mod:`pytest_r1perf.sglang.driven` says; here is what a server's own lines hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pytest_r1perf.sglang import driven
from pytest_r1perf.sglang.driven import DrivenCell, Grammar, Report, TimedWindow, count_of, number_of, text_of
from pytest_r1perf.sglang.environment import SglangEnvironment
from pytest_r1perf.sglang.onefile import one_file
from pytest_r1perf.sglang.sampling import Inputs

RESULTS = "serve.jsonl"
"""The driver's file, in a round's folder."""

CLIENTS = "clients.txt"
"""What the clients printed, in a round's folder."""

ACCOUNT = "server.json"
"""What the server said of itself when it was ready, without secrets, in a round's folder."""

SCRIPT = "serve_driver.py"
MARK = "r1perf-serve: "

URL, RESULT = "@URL@", "@RESULT@"
"""Stand in a client's command for the server's address and the file of its row, which the driver knows."""

FAILED_REASONS = ("client", "skipped", "error", driven.FOREIGN, "died")
"""Why a cell failed: a client that ended badly, one that skipped the case, an exception. And why there is no server:
another one answers on its port, or it ended."""

_MODULE = "sglang.launch_server"


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell as the driver gets it: its name, its client's command, and how often that is run.

    ``discard`` windows come before the ``windows`` that count. ``result`` names the file of each window's row, with
    ``@N@`` for its number, the thrown away ones included.
    """

    id: str
    argv: tuple[str, ...]
    result: str
    windows: int
    discard: int

    @property
    def results(self) -> tuple[str, ...]:
        """The files of all rows, in the order of the windows."""
        return tuple(self.result.replace("@N@", str(number)) for number in range(self.discard + self.windows))


def planned(name: str, argv: Sequence[str], *, windows: int, discard: int) -> PlannedCell:
    """The driver's cell for a client's command."""
    return PlannedCell(name, tuple(argv), f"row-{name}-@N@.jsonl", windows, discard)


def server_command(
    environment: SglangEnvironment,
    server_arguments: Sequence[str],
    inputs: Inputs,
    *,
    rank: int = 0,
    rendezvous: str | None = None,
) -> tuple[str, ...]:
    """The argv of one rank's server, without address and name. ``server_arguments`` are translated already."""
    argv = [environment.python, "-m", _MODULE, "--model-path", inputs.model_path, *server_arguments]
    if rendezvous is not None:
        argv += ["--node-rank", str(rank), "--dist-init-addr", rendezvous]
    return tuple(argv)


def addressed(argv: Sequence[str], port: int | str, name: str | None = None) -> tuple[str, ...]:
    """The same on a port of its own host, and with the name by which it is known there."""
    return (
        *argv,
        *("--host", "127.0.0.1", "--port", str(port)),
        *(() if name is None else ("--served-model-name", name)),
    )


def driver_source() -> str:
    """The driver as one file that needs nothing beside it."""
    return one_file(SCRIPT, TELLING="telling.py")


def driver_command(
    environment: SglangEnvironment,
    server: Sequence[str],
    cells: Sequence[PlannedCell],
    *,
    avoid: Sequence[int] = (),
    port: int | None = None,
    inline: bool = False,
) -> tuple[str, ...]:
    """The argv of the driver that starts ``server`` and runs the cells' clients.

    It takes a port that is free on its host, none of ``avoid``, unless ``port`` says which. A server of one node is
    also told at which port its ranks meet; of several, they meet at the rendezvous. The driver is the file
    ``serve_driver.py`` in the working directory, or, ``inline``, the command has its source: on another host there is
    no such file.
    """
    script = ("-c", driver_source()) if inline else (SCRIPT,)
    plan = {
        "results": RESULTS,
        "clients": CLIENTS,
        "account": ACCOUNT,
        "server": list(server),
        "port": port,
        "avoid": list(avoid),
        "own_ranks_port": "--dist-init-addr" not in server and "--nccl-port" in environment.options,
        "cells": [asdict(cell) for cell in cells],
    }
    return (environment.python, *script, json.dumps(plan, separators=(",", ":")))


# -- what comes back -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window(TimedWindow):
    """One client's run; ``start`` and ``end`` are those of its process.

    ``written``: when its row was written, by the same clock (``None``: there is no such file). ``result``: the file.
    ``flushed``: whether the server emptied its cache before.
    """

    written: float | None
    result: str
    flushed: bool


CellReport: TypeAlias = DrivenCell[Window]
ServeReport: TypeAlias = Report[CellReport]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What our server says of itself; ``name`` is the one that we made up for it.

    ``max_total_num_tokens`` (tokens) and ``max_running_requests`` are of one DP rank where there are several, and
    ``None`` where this release doesn't tell.
    """

    name: str
    port: int
    version: str
    max_total_num_tokens: int | None
    max_running_requests: int | None
    dp_size: int


def read_report(path: Path, cells: Sequence[PlannedCell]) -> ServeReport:
    """What the driver told. No file is a server that never came up. Raises OSError when it can't be read."""
    return driven.read(path, cells, _GRAMMAR)


def server_of(report: ServeReport) -> ServerInfo:
    """What the server said of itself when it was ready."""
    return ServerInfo(**report.told)


def _told(line: Mapping[str, Any]) -> dict[str, Any]:
    name = text_of(line, "name")
    if line.get("answered") != name:
        driven.garbage(f"is of a server that calls itself {line.get('answered')!r}, and ours is {name!r}")
    version = line.get("version")
    if not isinstance(version, str):
        driven.garbage(f"has version {version!r}, which is no text")
    optional = {
        key: count_of(line, key) if line.get(key) is not None else None
        for key in ("max_total_num_tokens", "max_running_requests")
    }
    return {
        "name": name,
        "port": count_of(line, "port"),
        "version": version,
        "dp_size": count_of(line, "dp_size"),
        **optional,
    }


def _window(line: Mapping[str, Any]) -> Window:
    flushed = line.get("flushed")
    if not isinstance(flushed, bool):
        driven.garbage(f"has flushed {flushed!r}, which is neither true nor false")
    written = number_of(line, "written") if line.get("written") is not None else None
    return Window(**driven.when_of(line), written=written, result=text_of(line, "result"), flushed=flushed)


_GRAMMAR: Grammar[Window, CellReport] = Grammar(
    "server", FAILED_REASONS, lambda line: DrivenCell(), _window, DrivenCell(), _told
)
