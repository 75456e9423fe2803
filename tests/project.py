"""A user's project for the plugin's own tests: a fake SGLang environment, model, data set, and ``r1perf.yaml``."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_r1perf.sglang.clientoptions import ClientKind
from tests.processes import wait_until
from tests.tools import client_releases
from tests.tools.releases import RELEASES, entries

# pytester takes modules away again that a run in this process imported. scipy cannot be loaded twice, and of our own
# modules two copies would live side by side, whose classes are not equal.
for _module in (
    "scipy.stats",
    "tabulate",
    *(
        f"pytest_r1perf.{name}"
        for name in (
            "assess",
            "devices",
            "engine.mode",
            "evidence",
            "lab",
            "launch.stop",
            "offline",
            "report.progress",
            "report.terminal",
            "serve.mode",
            "unused",
        )
    ),
):
    importlib.import_module(_module)

FAKE = Path(__file__).parent / "fake_sglang"

# What a test of the plugin must not depend on: other plugins' order and retries.
QUIET = ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")


def make_environment(folder: Path, *, control: Path, version: str | None = "0.5.20") -> Path:
    """A folder with ``bin/python`` that has the fake sglang of that version (none: a Python without sglang)."""
    site = folder / "site"
    if version is None:
        site.mkdir(parents=True)
    else:
        shutil.copytree(FAKE / "site", site, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(FAKE / "recorded.log", site)
        metadata = site / f"sglang-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        options = entries(version) if version in RELEASES else entries(RELEASES[-1])
        (site / "options.json").write_text(json.dumps(options))
        for kind, name in ((ClientKind.ONE_BATCH, "one_batch"), (ClientKind.SERVING, "serving")):
            known = version if version in client_releases.RELEASES else client_releases.RELEASES[-1]
            (site / f"{name}-options.json").write_text(json.dumps(client_releases.entries(kind, known)))
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    # -S: without site-packages a run takes 0.05 s, and nothing of the test environment is seen.
    python.write_text(
        f'#!/bin/sh\nexec env PYTHONPATH="{site}" FAKE_SGLANG_CONTROL="{control}" "{sys.executable}" -S "$@"\n'
    )
    python.chmod(0o755)
    return folder


def words(count: int) -> str:
    return " ".join(["word"] * count)


def sharegpt(rows: int, prompt: int = 20, answer: int = 30) -> str:
    """A data set in ShareGPT's format; the fake's tokenizer counts words."""
    turns = [{"from": "human", "value": words(prompt)}, {"from": "gpt", "value": words(answer)}]
    return json.dumps([{"id": str(number), "conversations": turns} for number in range(rows)])


class Project:
    """A pytester project whose perf tests run against the fake environment."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.root = pytester.path
        self.fake = self.root / "fake"
        self.control_file = self.fake / "control.json"
        self.baselines = self.root / "baselines"
        self.out = self.root / "out"
        self.dataset = self.root / "data.json"
        self.model = self.root / "model"
        monkeypatch.setenv("R1PERF_HOME", str(self.root / "home"))
        monkeypatch.setenv("HOME", str(self.root / "userhome"))  # kernel caches that others write are not ours
        for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_AUTO_NUM_WORKERS", "CI"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("COLUMNS", "600")
        self.fake.mkdir()
        self.control()
        self.environment = make_environment(self.root / "env", control=self.control_file)
        self.model.mkdir()
        (self.model / "config.json").write_text('{"architectures": ["DeepseekV3ForCausalLM"]}')
        (self.model / "tokenizer.json").write_text("{}")
        self.dataset.write_text(sharegpt(120))
        self.platform()
        self.ini = self.root / "pytest.ini"
        self.ini.write_text("[pytest]\nmarkers =\n    slow: takes long\nperf_lease_dir = leases\nperf_out = out\n")

    def platform(self, **changes: Any) -> None:
        """Write ``r1perf.yaml``: the cpu platform with the fake environment, two rounds, and ``changes``."""
        cpu: dict[str, Any] = {
            "model_path": str(self.model),
            "datasets": {"sharegpt": str(self.dataset)},
            "sglang": str(self.environment),
            "rounds": {"min": 2, "max": 2},
            "timeout_s": {"value": 60},
            "noise": None,
            **changes,
        }
        (self.root / "r1perf.yaml").write_text(yaml.safe_dump({"platforms": {"cpu": cpu}}))

    def control(self, default: Mapping[str, Any] | None = None, **cells: Mapping[str, Any]) -> None:
        """What the fake does: per cell (``n50``), and else ``default``."""
        self.control_file.write_text(json.dumps({"default": default or {}, "cells": cells}))

    def further_environment(
        self, name: str, *, version: str | None = "0.5.20", greedy: Mapping[str, Any] | None = None, **default: Any
    ) -> Path:
        """One more environment, with a control folder ``NAME-fake`` of its own whose default is given."""
        control = self.root / f"{name}-fake" / "control.json"
        control.parent.mkdir()
        control.write_text(json.dumps({"default": default, "cells": {}, "greedy": greedy or {}}))
        return make_environment(self.root / name, control=control, version=version)

    def slow_cell(self, cell: str = "n50", **settings: Any) -> None:
        """Settings for a cell with ``max_running_requests`` 8, whose name is no Python name."""
        data = json.loads(self.control_file.read_text())
        data["cells"][f"{cell}+max_running_requests=8"] = settings
        self.control_file.write_text(json.dumps(data))

    def write(self, text: str, name: str = "test_perf.py") -> Path:
        path = self.root / name
        path.write_text("from pytest_r1perf import perf\nimport pytest\n\n" + textwrap.dedent(text))
        return path

    def run(self, *args: str | Path) -> pytest.RunResult:
        """``pytest ARGS`` in this process."""
        return self.pytester.runpytest_inprocess(*QUIET, *args)

    def perf(self, *args: str | Path) -> pytest.RunResult:
        """``pytest --perf ARGS`` in this process."""
        return self.run("--perf", *args)

    def perf_subprocess(self, *args: str | Path) -> pytest.RunResult:
        """``pytest --perf ARGS`` in a process of its own, for xdist and what changes a process."""
        return self.pytester.runpytest_subprocess(*QUIET, "--perf", *args, timeout=240)

    @contextmanager
    def started(self, *args: str | Path) -> Iterator[subprocess.Popen[str]]:
        """``pytest --perf ARGS`` running beside us; killed in the end should the test fail."""
        command = [sys.executable, "-m", "pytest", *QUIET, "--perf", *map(str, args)]
        process = subprocess.Popen(
            command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def calls(self, cell: str | None = None, *, fake: Path | None = None) -> list[dict[str, Any]]:
        """The benchmark runs so far, of one cell or of all."""
        path = (fake or self.fake) / "calls.jsonl"
        if not path.exists():
            return []
        with path.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # a run that is writing holds it alone
            lines = [json.loads(line) for line in file]
        return [line for line in lines if cell is None or line["cell"] == cell]

    def spans(self) -> list[dict[str, Any]]:
        """When the runs that came to their end began and ended, in seconds since 1970."""
        return [json.loads(line) for line in (self.fake / "spans.jsonl").read_text().splitlines()]

    def parent_of(self, cell: str) -> int:
        """Who started the benchmark of a cell (on another node: the agent)."""
        (call,) = self.calls(cell)
        return int(Path(f"/proc/{call['pid']}/stat").read_text().rpartition(")")[2].split()[1])

    def reached(self, stage: str, calls: int = 1, *, fake: Path | None = None) -> None:
        """Wait until the fake's run number ``calls`` is in this stage; ``fake``: another environment's folder."""
        folder = fake or self.fake

        def there() -> bool:
            path = folder / "stage"
            return len(self.calls(fake=folder)) >= calls and path.exists() and path.read_text() == stage

        wait_until(there, f"stage {stage} of run {calls}")

    def leftovers(self) -> list[int]:
        """Processes of this project's runs that still live, whatever session they are in."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                environ = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0] if environ else "Z"
            except OSError:
                continue
            if b"R1PERF_RUN_ID=" in environ and os.fsencode(self.control_file) in environ and state != "Z":
                found.append(int(entry.name))
        return found

    def notes(self) -> list[Path]:
        """The notes of launches that may still have processes."""
        return list((self.root / "leases").glob("launches-*/*.json"))

    def nothing_left(self) -> None:
        """Nothing of the runs is left now: neither a process nor a note of a launch."""
        assert self.leftovers() == []
        assert self.notes() == []

    def nothing_left_soon(self) -> None:
        """The same after pytest was killed: its guard takes a moment."""
        wait_until(lambda: not self.leftovers(), "the end of every benchmark process", 30)
        wait_until(lambda: not self.notes(), "the end of the notes", 30)

    def records(self) -> list[dict[str, Any]]:
        """The whole lines of every session, oldest first."""
        found = []
        for path in sorted(self.out.glob("*/samples-*.jsonl")):
            for line in path.read_text().splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue
        return found

    def samples(self) -> list[dict[str, Any]]:
        return [line for line in self.records() if line["kind"] == "sample"]

    def baseline_file(self, topology: str = "tp1") -> Path:
        """The one file of this host's baselines."""
        (path,) = self.baselines.glob(f"*/{topology}.yaml")
        return path

    def stored(self, topology: str = "tp1") -> dict[str, Any]:
        data: dict[str, Any] = yaml.safe_load(self.baseline_file(topology).read_text())
        return data

    def edit(self, old: str, new: str, topology: str = "tp1") -> None:
        """Edit the baseline file by hand; the text must be there."""
        path = self.baseline_file(topology)
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def lines_with(result: pytest.RunResult, text: str) -> list[str]:
    """The output's lines that hold ``text``, without the padding."""
    return [line.strip() for line in result.outlines if text in line]


def verdicts(result: pytest.RunResult) -> list[str]:
    """The last column of the table at the end, row by row."""
    rows = []
    inside = False
    for line in result.outlines:
        inside = inside or "performance (r1perf)" in line
        found = re.match(
            r"\S.*\s{2,}(PASS|IMPROVED|BASELINE STORED|REGRESSED|UNDECIDED|INVALID|INCOMPARABLE|NO BASELINE|OOM|HANG"
            r"|OUTPUTS CHANGED|INFRA|CONFIG|CRASH|XFAIL|XPASS|MEASURED)$",
            line,
        )
        if inside and found:
            rows.append(found[1])
    return rows
