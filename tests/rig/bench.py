"""A project whose perf tests run the real SGLang on the CPU rig."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from pytest_r1perf.rig.home import home

HOME = home()
"""Where the rig lies; pytester gives every test a home of its own."""

QUIET = ("-p", "no:randomly", "-p", "no:cacheprovider", "--perf", "-rs")


class Rig:
    """A project on the real rig."""

    def __init__(self, pytester: pytest.Pytester, python: Path) -> None:
        self.pytester = pytester
        self.root = pytester.path
        self.python = python
        (self.root / "pytest.ini").write_text("[pytest]\nperf_lease_dir = leases\nperf_out = out\n")

    def write(self, text: str) -> None:
        (self.root / "test_perf.py").write_text("import pytest\nfrom pytest_r1perf import perf\n\n" + text)

    def platform(self, **changes: object) -> None:
        (self.root / "r1perf.yaml").write_text(yaml.safe_dump({"platforms": {"cpu": changes}}))

    def run(self, *args: str) -> pytest.RunResult:
        """With the rig's SGLang, unless the arguments name another."""
        return self.pytester.runpytest_subprocess(*QUIET, "--sglang", str(self.python), *args, timeout=500)

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "pytest", *QUIET, "--sglang", str(self.python)]
        process = subprocess.Popen(command, cwd=self.root, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.root.glob("out/*/*/round-*/log.txt"))

    def processes(self) -> list[int]:
        """SGLang processes of this project: by their working directory, which a renamed process keeps."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    folder = str((entry / "cwd").readlink())
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    continue
                if folder.startswith(str(self.root / "out")) and state != "Z":
                    found.append(int(entry.name))
        return found
