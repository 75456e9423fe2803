"""`r1perf stress run` as a user types it, on the fake SGLang: its client, its server, the user's r1perf.yaml."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from pytest_r1perf.sglang.server_kind import ServerGone, read_server
from pytest_r1perf.site import free_port
from tests.processes import wait_until
from tests.serves import FakeServing

ROOT = Path(__file__).parents[1]
COMMAND = """
import sys
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.stress.commands import stress_command
try:
    stress_command()
except R1PerfError as error:
    sys.exit(f"r1perf: {error}")
"""
GRID = ("--batch-sizes", "1,2", "--input-lens", "16", "--output-lens", "8")


@pytest.fixture(name="fake")
def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServing:
    monkeypatch.setenv("R1PERF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return FakeServing(tmp_path)


def start(fake: FakeServing, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", COMMAND, "run", "results", "--lease-dir", str(fake.root / "leases"), *arguments]
    return subprocess.Popen(command, cwd=fake.root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def stress(fake: FakeServing, *arguments: str) -> tuple[int, str]:
    process = start(fake, *arguments)
    said, _ = process.communicate(timeout=300)
    return process.returncode, said


@contextmanager
def serving(fake: FakeServing) -> Iterator[str]:
    """A server that is up; gives its address."""
    port = free_port()
    python, model = fake.root / "env" / "bin" / "python", fake.root / "model"
    command = [str(python), "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    url = f"http://127.0.0.1:{port}"

    def up() -> bool:
        try:
            return bool(read_server(url).model)
        except ServerGone:
            return False

    try:
        wait_until(up, "the server")
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def repeats(fake: FakeServing) -> dict[str, list[int]]:
    files = sorted((fake.root / "results").glob("*.jsonl"))
    return {
        path.stem: [json.loads(line)["r1perf"]["repeat"] for line in path.read_text().splitlines()] for path in files
    }


def test_a_server_that_is_up(fake: FakeServing) -> None:
    with serving(fake) as url:
        given = ("--base-url", url.removeprefix("http://"), "--platform", "cpu", *GRID, "--repeats", "2")
        code, said = stress(fake, *given)
        assert code == 0, said
        assert "2 cases x 2: 4 measured now, 0 were there, 0 cases skipped, 0 measurements missing" in said
        assert repeats(fake) == {"1-16-8": [1, 2], "2-16-8": [1, 2]}
        code, said = stress(fake, "--base-url", url, "--platform", "cpu")
        assert code == 0, said
        assert "2 cases x 2: 0 measured now, 4 were there" in said
        assert fake.clients[0]["proxy"].endswith("127.0.0.1")
        argv = fake.clients[0]["argv"]
        assert argv[argv.index("--base-url") + 1] == url
        assert "--skip-warmup" not in argv
    code, said = stress(fake, "--base-url", url, "--platform", "cpu")
    assert (code, said) == (1, f"r1perf: the server at {url} is not there: nothing answers there\n")


def test_a_server_of_our_own(fake: FakeServing) -> None:
    given = ("--platform", "cpu", "--topology", "tp1", *GRID, "--repeats", "2")
    code, said = stress(fake, *given)
    assert code == 0, said
    assert "2 cases x 2: 4 measured now" in said
    assert repeats(fake) == {"1-16-8": [1, 2], "2-16-8": [1, 2]}
    manifest = json.loads((fake.root / "results" / "sweep.json").read_text())
    assert len(manifest["starts"]) == 2
    assert manifest["conditions"]["prompts"].endswith(" bytes)"), "a data set's name may come to mean another file"
    digest = hashlib.sha256((fake.root / "data.json").read_bytes()).hexdigest()
    assert manifest["conditions"]["data set"] == f"sha256 {digest}"
    assert not any("--skip-warmup" in client["argv"] for client in fake.clients), "as in the guide's script"
    code, said = stress(fake, *given, "--no-warm-up")
    assert code == 1
    assert "with warm-up the client's own, not none: name a new folder" in said
    fake.nothing_left()


@pytest.mark.parametrize("own", [True, False])
def test_a_data_set_of_one_name_and_size_is_known_by_its_bytes(fake: FakeServing, own: bool) -> None:
    data = fake.root / "data.json"
    text = data.read_text()
    with contextlib.nullcontext("") if own else serving(fake) as url:
        server = ("--topology", "tp1") if own else ("--base-url", url)
        given = ("--platform", "cpu", *server, "--batch-sizes", "1", *GRID[2:], "--repeats", "1")
        code, said = stress(fake, *given)
        assert code == 0, said
        other = text.replace("word", "term")
        assert (len(other), other != text) == (len(text), True)
        data.write_text(other)
        code, said = stress(fake, *given)
        assert code == 1
        assert re.fullmatch(
            r"r1perf: \S+ holds a sweep with data set sha256 (\w{64}), not sha256 \w{64}: name a new folder, "
            r"or ask for sha256 \1\n",
            said,
        ), said
        data.write_text(text)
        code, said = stress(fake, *given)
        assert code == 0, said
        assert "0 measured now, 1 were there" in said


def test_a_data_set_on_another_host_is_known_by_its_bytes_there(
    fake: FakeServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = fake.root / "near"
    near.mkdir()
    (near / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    (near / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{near}:{os.environ['PATH']}")
    platforms = yaml.safe_load((fake.root / "r1perf.yaml").read_text())["platforms"]
    far = {**platforms["cpu"], "extends": "cpu", "launch": {"by": "ssh", "hosts": ["node1"]}}
    (fake.root / "r1perf.yaml").write_text(yaml.safe_dump({"platforms": {**platforms, "far": far}}))
    code, said = stress(
        fake, "--platform", "far", "--topology", "tp1", "--batch-sizes", "1", *GRID[2:], "--repeats", "1"
    )
    assert code == 0, said
    digest = hashlib.sha256((fake.root / "data.json").read_bytes()).hexdigest()
    conditions = json.loads((fake.root / "results" / "sweep.json").read_text())["conditions"]
    assert (conditions["prompts"], conditions["data set"]) == ("data set sharegpt", f"sha256 {digest}")
    fake.nothing_left()


def test_ctrl_c_ends_the_server_and_says_how_to_go_on(fake: FakeServing) -> None:
    fake.control(b2_16_8={"mode": "hang"})
    process = start(fake, "--platform", "cpu", "--topology", "tp1", *GRID, "--repeats", "1", "--order", "document")
    try:
        wait_until(lambda: any(client["cell"] == "b2-16-8" for client in fake.clients), "the second case")
        wait_until(lambda: (fake.root / "results" / "1-16-8.jsonl").exists(), "the first case's file")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert said.endswith("interrupted: what was measured is in results; run the same command again\n")
    assert repeats(fake) == {"1-16-8": [1]}
    fake.nothing_left()
    fake.control()
    code, said = stress(fake, "--platform", "cpu", "--topology", "tp1")
    assert code == 0, said
    assert "1 measured now, 1 were there" in said
