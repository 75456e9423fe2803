"""What ``r1perf check-parity`` reads: sessions, baseline files or folders of them, and result files of SGLang's own."""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_r1perf import baseline, records
from pytest_r1perf.compare.cells import Side
from pytest_r1perf.compare.sides import SIDES, read_both_sides, read_side
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.load import Batch, Traffic
from pytest_r1perf.parity.check import NOT_SET, Item, check
from pytest_r1perf.parity.recorded import Recorded, command_of, of_baseline, of_measured
from pytest_r1perf.sglang.bench_serving import read_serving_lines
from pytest_r1perf.sglang.one_batch import read_one_batch_lines
from pytest_r1perf.sglang.result import read_result_lines

_YAML = (".yaml", ".yml")
_FEW = 6
"""Up to so many cells are listed in an error."""


@dataclass(frozen=True, slots=True)
class Cells:
    """One of the two inputs: the cells that were meant, and in sentences what of it was left out."""

    name: str
    cells: tuple[Recorded, ...]
    problems: tuple[str, ...] = ()


def read_cells(given: str) -> Cells:
    """The cells of ``PATH``, ``PATH:CELL``, or of one side of a session, ``PATH:old[:CELL]``.

    ``CELL`` is a cell's key or ``TOPOLOGY/KEY``, and may hold ``*``. Raises :class:`R1PerfError` when nothing is there,
    or when no cell is called so.
    """
    path, side, selected = _split(given)
    found = _all_of(path, side, given)
    if selected is None:
        return found
    cells = tuple(cell for cell in found.cells if _is_called(cell, selected))
    if not cells:
        raise R1PerfError(f"{given}: no cell is called {selected!r} (known: {_called(found.cells)})")
    return replace(found, cells=cells)


def read_both(given: str) -> tuple[Cells, Cells] | None:
    """The two sides of a session that compared two environments; ``None`` where it holds no two."""
    path, side, selected = _split(given)
    if side is not None or selected is not None or path.suffix in _YAML or _folder_of_baselines(path):
        return None
    try:
        old, new = read_both_sides(given)
    except R1PerfError:
        return None
    return _with_provenance(old, path, "old"), _with_provenance(new, path, "new")


def pairs(a: Cells, b: Cells) -> tuple[list[tuple[Recorded, Recorded]], list[str]]:
    """Which cells are held against each other: the only one of each, or those of the same name; and who is left over.

    Raises :class:`R1PerfError` when no cell is in both, or when one of them is in an input twice.
    """
    if len(a.cells) == len(b.cells) == 1:
        return [(a.cells[0], b.cells[0])], []
    there = {(cell.topology, cell.key): cell for cell in b.cells}
    found = [(cell, there[cell.topology, cell.key]) for cell in a.cells if (cell.topology, cell.key) in there]
    for side in (a, b):
        counts = Counter((cell.topology, cell.key) for cell in side.cells)
        twice = next((cell for cell, _ in found if counts[cell.topology, cell.key] > 1), None)
        if twice is not None:
            raise R1PerfError(
                f"{side.name}: {_called([twice])} is in several of its files (of several hardware): give one file"
            )
    if not found:
        raise R1PerfError(
            f"no cell is both in {a.name} ({_called(a.cells)}) and in {b.name} ({_called(b.cells)}): name one of each, "
            f"as PATH:CELL"
        )
    matched = {(cell.topology, cell.key) for cell, _ in found}
    left = [
        f"only in {name}: {cell.name}"
        for name, side in (("A", a), ("B", b))
        for cell in side.cells
        if (cell.topology, cell.key) not in matched
    ]
    return found, left


def between(a: str, b: str | None) -> list[tuple[Recorded, Recorded, tuple[Item, ...]]]:
    """The items of every cell that is in both inputs of a comparison, matched as :func:`compare.cells.compare` does.

    ``b`` is ``None`` where ``a`` holds both sides. Raises :class:`R1PerfError` as the readers do.
    """
    both = read_both(a) if b is None else (read_cells(a), read_cells(b))
    if both is None:
        return []
    there = {(cell.topology, cell.key): cell for cell in both[1].cells}
    met = [(cell, there[cell.topology, cell.key]) for cell in both[0].cells if (cell.topology, cell.key) in there]
    return [(one, other, check(one, other)) for one, other in met]


def _split(given: str) -> tuple[Path, str | None, str | None]:
    """The longest beginning that is a path, the side, and the cell's name."""
    if Path(given).exists():
        return Path(given), None, None
    for at in (number for number in range(len(given) - 1, 0, -1) if given[number] == ":"):
        if Path(given[:at]).exists():
            side, _, rest = given[at + 1 :].partition(":")
            if side in SIDES:
                return Path(given[:at]), side, rest or None
            return Path(given[:at]), None, given[at + 1 :]
    raise R1PerfError(
        f"{given}: does not exist: give a session's folder, an output directory, a samples-*.jsonl or a baseline file, "
        f"also with :CELL behind it"
    )


def _is_called(cell: Recorded, name: str) -> bool:
    return any(fnmatch.fnmatchcase(text, name) for text in (cell.key, f"{cell.topology}/{cell.key}"))


def _all_of(path: Path, side: str | None, given: str) -> Cells:
    if path.suffix in _YAML or _folder_of_baselines(path):
        return _baselines(path)
    if path.is_file():
        own = _own_results(path)
        if own:
            return Cells(given, own)
    return _with_provenance(read_side(f"{path}:{side}" if side else str(path)), path, side)


def _folder_of_baselines(path: Path) -> list[Path]:
    return sorted([*path.glob("*/*.yaml"), *path.glob("*.yaml")]) if path.is_dir() else []


def _baselines(path: Path) -> Cells:
    files = _folder_of_baselines(path) or [path]
    cells = []
    for one in files:
        file = baseline.load(one)
        for entry in file.cells.values():
            cell = of_baseline(file.topology, entry)
            cells.append(replace(cell, name=f"{one}: {cell.key}") if len(files) > 1 else cell)
    if not cells:
        raise R1PerfError(f"{path}: has no cell: give another baseline file")
    return Cells(str(path), tuple(cells))


def _with_provenance(found: Side, path: Path, side: str | None) -> Cells:
    """The cells of a session with what each of their rounds says of its command line and its environment."""
    rounds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in _lines(path):
        if line.get("kind") == "sample" and (line.get("side") or None) == side:
            rounds.setdefault((str(line.get("topology")), str(line.get("cell"))), []).append(line)
    cells = []
    for key, measured in found.cells.items():
        own = rounds.get(key, [])
        said = [line for line in own if command_of(line.get("command")) and isinstance(line.get("env"), dict)]
        first: Mapping[str, Any] = said[0] if said else own[0] if own else {}
        envs = [env for env in map(_env_of, said or own) if env is not None]
        one = of_measured(measured, command_of(first.get("command")), _of_all(envs) if envs else None)
        cells.append(replace(one, runs_without=len(own) - len(said)))
    return Cells(found.name, tuple(cells), found.problems)


def _env_of(line: Mapping[str, Any]) -> dict[str, str] | None:
    """A round's environment: what was found on the other host, and what we gave over it."""
    env, there = line.get("env"), line.get("env_there")
    if not isinstance(env, dict):
        return None
    return {str(name): str(value) for name, value in {**(there if isinstance(there, dict) else {}), **env}.items()}


def _of_all(envs: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """One environment of all rounds: a session that was resumed may have had another, and then has both values."""
    names = dict.fromkeys(name for env in envs for name in env)
    return {name: " or ".join(dict.fromkeys(env.get(name, NOT_SET) for env in envs)) for name in names}


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """The whole lines of a session; of an output directory those of its newest one, as ``read_side`` has it."""
    if path.is_dir() and next(path.glob("samples-*.jsonl"), None) is None:
        path = records.sessions(path)[-1].path
    if path.is_dir():
        yield from records.lines(records.SessionFolder(path))
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield line


def _own_results(path: Path) -> tuple[Recorded, ...]:
    """The rows that SGLang's benchmarks wrote by themselves: they hold the load, and nothing else of the checklist."""
    try:
        offline = [line.result for line in read_result_lines(path) if line.result is not None]
        batches = [line.result for line in read_one_batch_lines(path) if line.result is not None]
        served = [line.result for line in read_serving_lines(path) if line.result is not None]
    except OSError as error:
        raise R1PerfError(f"{path}: cannot be read ({error.strerror or error})") from None
    loads: list[dict[str, object]] = [
        *({"mode": "offline", "num_prompts": row.successful_requests} for row in offline),
        *(_served(row.batch_size, Batch(row.batch_size, row.input_len, row.output_len)) for row in batches),
        *(_served(row.completed, Traffic(row.request_rate, row.max_concurrency)) for row in served),
    ]
    unique = {json.dumps(load): load for load in loads}
    return tuple(Recorded(_row_name(path, load), "", protocol=load) for load in unique.values())


def _served(n: int, load: Batch | Traffic) -> dict[str, object]:
    """As :meth:`pytest_r1perf.serve.mode.ServeMode.own_protocol` records a load; an slo is in no such file."""
    return {"mode": "serve", "num_prompts": n, **({"load": " ".join(load.parts)} if load.parts else {})}


def _row_name(path: Path, load: Mapping[str, object]) -> str:
    return f"{path.name} " + " ".join(f"{name}={value}" for name, value in load.items() if name != "mode")


def _called(cells: Sequence[Recorded]) -> str:
    """What ``PATH:CELL`` would name them by, a few of many."""
    names = [f"{cell.topology}/{cell.key}" if cell.key else cell.name for cell in cells]
    return ", ".join([*names[:_FEW], *([f"and {len(names) - _FEW} more"] if len(names) > _FEW else [])])
