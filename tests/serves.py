"""A serve mode without pytest around it, on the fake SGLang or a real one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pytest_r1perf.cell import Cell, cell_of
from pytest_r1perf.gpu.nvml import NvmlAbsent
from pytest_r1perf.gpuwatch import GpuWatch
from pytest_r1perf.marker import check
from pytest_r1perf.measurement import Measurement, Problem, Sample
from pytest_r1perf.serve.mode import ServeMode
from tests.engines import Bench, bench
from tests.project import make_environment, sharegpt

BATCH: Mapping[str, Any] = {"batch_size": 4, "input_len": 128, "output_len": 16}


def cell(made: Bench, *, topology: str = "tp1", timeout_s: float = 60, **arguments: Any) -> Cell:
    """The cell of ``perf(mode="serve", ...)`` on the cpu platform."""
    spec = check({"topology": topology, "mode": "serve", "timeout": timeout_s, **arguments}, made.catalog)
    return cell_of(spec, made.catalog.platform("cpu"), made.catalog)


def serve_mode(
    made: Bench, siblings: Sequence[Cell] = (), *, windows: int = 2, discard: int = 1, port: int | None = None
) -> ServeMode:
    """Rounds of servers; what became of siblings is in the bench's ``kept``, by their label."""

    def keep(measurement: Measurement, outcome: Sample | Problem, nodeid: str) -> None:
        made.kept.append((measurement, outcome, nodeid))

    return ServeMode(
        site=made.site,
        environment=made.environment,
        folder=made.folder,
        watch=lambda uuids: GpuWatch(NvmlAbsent("this is a CPU"), uuids, lambda text: None),
        show=lambda cell, number, now: made.shown.append((cell.key, number, now)),
        siblings=lambda cell, number: [(other, other.label) for other in siblings],
        keep=keep,
        caches=lambda env: made.caches,
        windows=windows,
        discard=discard,
        port=port,
    )


class FakeServing:
    """A folder with a fake SGLang, and what it is told."""

    def __init__(self, root: Path, *, remote: bool = False, version: str = "0.5.20") -> None:
        self.root = root
        self.folder = root / "fake"
        self.folder.mkdir()
        self.control_file = self.folder / "control.json"
        self.control()
        python = make_environment(root / "env", control=self.control_file, version=version) / "bin" / "python"
        model = root / "model"
        model.mkdir()
        (model / "config.json").write_text('{"architectures": ["DeepseekV3ForCausalLM"]}')
        (model / "tokenizer.json").write_text("{}")
        dataset = root / "data.json"
        dataset.write_text(sharegpt(60))
        cpu = {"model_path": str(model), "datasets": {"sharegpt": str(dataset)}, "sglang": str(python)}
        (root / "r1perf.yaml").write_text(yaml.safe_dump({"platforms": {"cpu": cpu}}))
        self.bench: Bench = bench(root, python, root / "r1perf.yaml", remote=remote)

    def control(self, server: Mapping[str, Any] | None = None, **cells: Mapping[str, Any]) -> None:
        """What the server does, and the clients of each cell (``b4_128_16`` for a batch)."""
        named = {name.replace("_", "-"): settings for name, settings in cells.items()}
        self.control_file.write_text(json.dumps({"cells": named, "server": server or {}}))

    def round(
        self, own: Mapping[str, Any], *siblings: Mapping[str, Any], **settings: Any
    ) -> tuple[Measurement, Sample | Problem]:
        """One round of a cell, with others that could share its server."""
        mode = serve_mode(self.bench, [cell(self.bench, **other) for other in siblings], **settings)
        return mode.round(mode.prepare(cell(self.bench, **own)), 1)

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def servers(self) -> list[dict[str, Any]]:
        return self.lines("servers.jsonl")

    @property
    def clients(self) -> list[dict[str, Any]]:
        return self.lines("clients.jsonl")

    def kept(self) -> dict[str, Sample | Problem]:
        return {nodeid: outcome for _, outcome, nodeid in self.bench.kept}

    def nothing_left(self) -> None:
        for entry in Path("/proc").iterdir():
            try:
                environ = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0] if environ else "Z"
            except OSError:
                continue
            ours = b"R1PERF_RUN_ID=" in environ and os.fsencode(self.control_file) in environ
            assert not ours or state == "Z", entry.name

    def said(self) -> str:
        """Everything that the rounds wrote as text: logs, commands, the driver's own file; not the clients' rows."""
        texts = [
            path.read_text(errors="replace")
            for path in sorted(self.bench.folder.rglob("*"))
            if path.is_file() and not path.name.startswith("row-")
        ]
        return "\n".join(texts)
