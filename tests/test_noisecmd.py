"""``r1perf noise``: real sessions of the fake SGLang, and records written by hand."""

from __future__ import annotations

import json
import math
import random
import re
import signal
import statistics as plain
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pytest_r1perf.catalog import load_catalog
from pytest_r1perf.cli import cli
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.noise.commands import noise_command
from pytest_r1perf.platform import Noise
from tests.processes import wait_until
from tests.project import QUIET, Project

if "noise" not in cli.commands:
    cli.add_command(noise_command)

ONE = """
@perf(topology="tp1", n=50)
def test_a(): ...
"""
SPEEDS = [4400, 4600, 4500, 4450, 4550, 4700, 4650, 4800, 4750, 4600]


def noise(*args: str | Path) -> str:
    """The output of ``r1perf noise``; a refusal is raised."""
    result = CliRunner().invoke(cli, ["noise", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def stored(path: Path = Path("r1perf.yaml"), platform: str = "cpu") -> Noise:
    found = load_catalog([path]).platform(platform).noise
    assert found is not None
    return found


# -- measured -----------------------------------------------------------------------------------------------


@pytest.fixture
def project(r1perf_project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(r1perf_project.root)
    r1perf_project.control({"speed": SPEEDS, "jitter": 0})
    r1perf_project.write(ONE)
    user = r1perf_project.root / "r1perf.yaml"
    user.write_text(f"# ours\n{user.read_text()}# the end\n")
    return r1perf_project


def measured(*args: str) -> str:
    return noise("test_perf.py::test_a", *args, "--", *QUIET)


def test_it_is_measured_and_written(project: Project) -> None:
    before = Path("r1perf.yaml").read_text()
    output = measured("--runs", "10", "--blocks", "2")
    logs = [math.log(speed) for speed in SPEEDS]
    one, two = logs[:5], logs[5:]
    within = (plain.variance(one) + plain.variance(two)) / 2
    between = (plain.fmean(one) - plain.fmean(two)) ** 2 / 2 - within / 5
    found = stored()
    assert found.run_cv == pytest.approx(math.sqrt(within), rel=0.005)
    assert found.session_cv == pytest.approx(math.sqrt(between), rel=0.005)
    assert (found.runs, found.sessions, found.sample_cv, found.host_cv) == (9, 2, None, None)
    assert "10 processes in 2 sessions" in found.source
    assert "r1perf noise --platform cpu --runs 10 --blocks 2 test_perf.py::test_a" in found.source
    assert re.search(rf"between rounds of a session \(1 window each\) +run_cv +{math.sqrt(within):.2%} ", output)
    after = Path("r1perf.yaml").read_text()
    assert after.startswith("# ours\n")
    assert after.endswith("# the end\n")
    old, new = yaml.safe_load(before), yaml.safe_load(after)
    assert old["platforms"]["cpu"].pop("noise") is None
    assert new["platforms"]["cpu"].pop("noise")["runs"] == 9
    assert old == new
    # The same records again, by their folder; now the file has a noise that rests on as many.
    (folder,) = Path(".r1perf/noise").iterdir()
    again = noise("--from", folder)
    assert stored().run_cv == found.run_cv
    assert f"run_cv: {found.run_cv:.3g} -> {found.run_cv:.3g}" in again
    project.nothing_left()


def test_a_cell_that_breaks_is_no_noise(project: Project) -> None:
    before = Path("r1perf.yaml").read_bytes()
    project.control({"speed": SPEEDS, "mode": ["ok"] * 3 + ["oom"] * 20})
    with pytest.raises(R1PerfError, match=r"tp1 cpu/default/sharegpt/n50/offline: OOM: .*; nothing is written"):
        measured()
    assert len(project.calls()) == 4  # no second session after that
    assert Path("r1perf.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("test_perf.py::test_none",), "pytest ended with status 4"),
        (("test_perf.py", "-k", "nothing"), "pytest ended with status 5"),
        (("test_perf.py", "--runs", "9"), "--runs 9: noise takes 10 processes at least"),
        (("test_perf.py", "--blocks", "6"), "--blocks 6: each session needs two of the 10 runs"),
        (("test_perf.py", "--platform", "cpus"), "platform 'cpus' is not known; did you mean 'cpu'"),
        (("test_perf.py", "--metric", "throughput"), "metric 'throughput' is not known"),
    ],
)
def test_wrong_input_measures_nothing(project: Project, args: tuple[str, ...], said: str) -> None:
    before = Path("r1perf.yaml").read_bytes()
    with pytest.raises(R1PerfError, match=said):
        noise(*args, "--", *QUIET)
    assert Path("r1perf.yaml").read_bytes() == before
    assert project.calls() == []


def test_without_tests_nothing_is_measured(project: Project) -> None:
    with pytest.raises(R1PerfError, match="name the perf tests to measure"):
        noise("--runs", "12")
    assert project.calls() == []


def test_sigterm_ends_what_it_measures(project: Project) -> None:
    project.control({"mode": "hang"})
    main = "from pytest_r1perf.cli import cli, main; from pytest_r1perf.noise.commands import noise_command; "
    command = [sys.executable, "-c", f"{main}cli.add_command(noise_command); main()", "noise", "test_perf.py"]
    with subprocess.Popen([*command, "--", *QUIET], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: len(project.calls()) == 1, "the first process", 60)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert process.wait() == 1
    assert "r1perf: interrupted: nothing is written; what was measured lies in" in said
    project.nothing_left_soon()


# -- recorded -----------------------------------------------------------------------------------------------


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


def record(
    out: Path,
    session: str,
    rounds: Sequence[Any],
    *,
    platform: str = "h200x8",
    topology: str = "tp8",
    mode: str = "offline",
    host: str = "node1",
    day: int = 1,
) -> None:
    """A session's file. A round is a value, or the list of its windows' values."""
    folder = out / session
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = [{"format": 1, "kind": "start", "session": session}]
    for number, value in enumerate(rounds, 1):
        windows = [{"total_throughput": one} for one in value] if isinstance(value, list) else []
        whole = math.exp(plain.fmean(map(math.log, value))) if isinstance(value, list) else value
        lines.append(
            {
                "format": 1,
                "kind": "sample",
                "time": f"2026-11-{day:02d}T01:{number:02d}:00+00:00",
                "nodeid": "test_r1.py::test_tp8",
                "topology": topology,
                "cell": f"{platform}/tp8-champion/sharegpt/n5000/{mode}",
                "platform": platform,
                "hardware": "nvidia-h200-x8",
                "host": {"hostname": host},
                "versions": {"sglang": "0.5.20"},
                "workload": "d",
                "round": number,
                "metrics": {"total_throughput": whole},
                "windows": windows,
                "wall_s": 60.0,
                "protocol": {},
            }
        )
    with (folder / f"samples-{host}-{topology}-{mode}.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def nights(out: Path, count: int = 4, rounds: int = 5, **more: Any) -> None:
    rng = random.Random(count)
    for night in range(count):
        level = 20000 * math.exp(rng.gauss(0, 0.01))
        values = [level * math.exp(rng.gauss(0, 0.02)) for _ in range(rounds)]
        record(out, f"2026110{night + 1}.010000.aaaa", values, day=night + 1, **more)


def test_nights_tell_sessions_and_hosts(out: Path) -> None:
    for number, host in enumerate(("node1", "node2", "node3")):
        rng = random.Random(number)
        for night in range(3):
            values = [(20000 + 3000 * number) * math.exp(rng.gauss(0, 0.01)) for _ in range(4)]
            record(out, f"{host}.{night}", values, host=host, day=night + 1)
    output = noise("--platform", "h200x8", "--from", out)
    found = stored(platform="h200x8")
    assert 0.005 < found.run_cv < 0.015
    # Logarithms of 20,000, 23,000 and 26,000: a standard deviation of 0.131.
    assert found.host_cv == pytest.approx(0.131, abs=0.01)
    assert (found.runs, found.hosts) == (28, 3)
    assert "2026-11-01 to 2026-11-03, node1 (nvidia-h200-x8), node2" in found.source
    assert "between hosts" in output
    assert "36 processes" in output


def test_windows_tell_samples_and_the_discard(out: Path) -> None:
    rng = random.Random(5)
    for night in range(2):
        rounds = []
        for _ in range(6):
            level = 20000 * math.exp(rng.gauss(0, 0.03))
            windows = [level * math.exp(rng.gauss(0, 0.02)) for _ in range(8)]
            rounds.append([windows[0] * 0.3, windows[1] * 0.6, *windows[2:]])
        record(out, f"night{night}", rounds, mode="engine", day=night + 1)
    output = noise("--platform", "h200x8", "--from", out)
    found = stored(platform="h200x8")
    assert found.discard == 2
    assert found.sample_cv == pytest.approx(0.02, rel=0.25)
    assert found.samples == 61
    assert found.run_cv == pytest.approx(math.sqrt(0.03**2 + 0.02**2 / 6), rel=0.5)
    assert "discard: the first 2 windows of an engine, learned from 12 processes of 8 windows" in output


def test_a_bad_line_is_left_out_and_told(out: Path) -> None:
    nights(out)
    (file, *_) = sorted(out.glob("*/*.jsonl"))
    text = file.read_text().splitlines()
    broken = text[2].replace(text[2][text[2].index('"total_throughput": ') + 20 :].partition("}")[0], "NaN")
    file.write_text("\n".join([*text[:2], broken, *text[3:], '{"kind": "sam']))
    output = noise("--platform", "h200x8", "--from", out)
    assert "19 processes" in output
    assert f"{file}:3: a sample without" in output
    assert f"{file}:7: cut short" in output


def test_cold_first_processes_are_told(out: Path) -> None:
    rng = random.Random(2)
    for night in range(3):
        values = [20000 * math.exp(rng.gauss(0, 0.01)) for _ in range(5)]
        record(out, f"night{night}", [values[0] * 0.8, *values[1:]], day=night + 1)
    output = noise("--platform", "h200x8", "--from", out)
    assert re.search(r"- the first process of a session is unlike the others: -(19|20|21)\.\d%", output)


def test_a_dry_run_writes_nothing(out: Path) -> None:
    nights(out)
    output = noise("--platform", "h200x8", "--from", out, "--dry-run")
    assert "r1perf.yaml: platforms.h200x8.noise would be written\n  run_cv: 0.0" in output
    assert not Path("r1perf.yaml").exists()


def test_what_rests_on_more_is_kept_unless_forced(out: Path) -> None:
    nights(out)
    noise("--platform", "h200x8", "--from", out)
    first = stored(platform="h200x8")
    assert first.runs == 17
    nights(out.with_name("few"), count=3)
    few = ("--platform", "h200x8", "--from", out.with_name("few"))
    before = Path("r1perf.yaml").read_bytes()
    with pytest.raises(R1PerfError, match="rests on runs: 17, this measurement on 13: nothing is written"):
        noise(*few)
    assert Path("r1perf.yaml").read_bytes() == before
    assert "runs: 17 -> 13" in noise(*few, "--force")
    assert stored(platform="h200x8").runs == 13


def test_one_session_keeps_the_session_cv_that_was_there(out: Path) -> None:
    nights(out, count=1, rounds=12)
    with pytest.raises(R1PerfError, match="'h200x8' has no session_cv yet, and one session tells none"):
        noise("--platform", "h200x8", "--from", out)
    assert not Path("r1perf.yaml").exists()
    Path("lab.yaml").write_text(
        "platforms:\n  h200x8:\n    noise: {run_cv: 0.1, runs: 5, session_cv: 0.07, sessions: 6, source: guessed}\n"
    )
    noise("--platform", "h200x8", "--from", out, "--write", "lab.yaml")
    found = stored(Path("lab.yaml"), "h200x8")
    assert (found.runs, found.session_cv, found.sessions) == (12, 0.07, 6)
    assert found.source.endswith("session_cv from before: guessed")


def test_the_package_s_figures_are_another_machine_s(out: Path) -> None:
    nights(out, platform="cpu")
    assert "run_cv: 0.042 -> " in noise("--from", out)
    assert stored().runs == 17


def test_a_session_cv_from_more_sessions_stays(out: Path) -> None:
    nights(out, platform="cpu")
    output = noise("--from", out)
    packaged = load_catalog().platform("cpu").noise
    assert packaged is not None
    assert (stored().session_cv, stored().sessions) == (packaged.session_cv, packaged.sessions)
    assert stored().source.endswith(f"; session_cv from before: {packaged.source}")
    assert "- session_cv stays 0.032: it is from 10 sessions, the one measured here is " in output
    noise("--from", out, "--force")
    assert stored().sessions == 4
    assert stored().session_cv != packaged.session_cv


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--platform", "h200x16"), r"out: no samples of platform 'h200x16' \(they are of h200x8\)"),
        (("--metric", "request_throughput"), "no samples with metric 'request_throughput'; the cells are: tp8 h200x8/"),
        (("--cell", "tp1 "), "no samples with --cell 'tp1 '; the cells are: tp8 h200x8/tp8-champion/"),
        (("--write", "none/r1perf.yaml"), "none/r1perf.yaml: cannot be written"),
    ],
)
def test_what_is_not_recorded_is_said(out: Path, args: tuple[str, ...], said: str) -> None:
    nights(out)
    with pytest.raises(R1PerfError, match=said):
        noise("--platform", "h200x8", "--from", "out", *args)
    assert not Path("r1perf.yaml").exists()


def test_too_few_and_none(out: Path) -> None:
    nights(out, count=3, rounds=3)
    with pytest.raises(R1PerfError, match="only 9 processes are recorded: noise takes 10 at least"):
        noise("--platform", "h200x8", "--from", out)
    with pytest.raises(R1PerfError, match=r"nowhere: no samples of platform 'h200x8'"):
        noise("--platform", "h200x8", "--from", "nowhere")


def test_single_windows_and_several_do_not_mix(out: Path) -> None:
    nights(out)
    record(out, "engines", [[20000.0, 20100.0, 19900.0]] * 5, mode="engine")
    with pytest.raises(R1PerfError, match="some cells have one window a process and others several"):
        noise("--platform", "h200x8", "--from", out)
    assert "20 processes" in noise("--platform", "h200x8", "--from", out, "--cell", "offline")


def test_a_user_s_file_that_is_wrong_is_said_before_anything_is_measured(out: Path) -> None:
    nights(out)
    Path("r1perf.yaml").write_text("platforms: [\n")
    with pytest.raises(R1PerfError, match=r"r1perf.yaml:\d: file: not valid YAML"):
        noise("--platform", "h200x8", "--from", out)
    assert Path("r1perf.yaml").read_text() == "platforms: [\n"
