"""CSV for Apache Otava and JSON for github-action-benchmark; the first is read by the real Otava."""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_r1perf import exports
from pytest_r1perf.document.model import Document
from pytest_r1perf.errors import R1PerfError
from pytest_r1perf.exports import writer
from pytest_r1perf.rig.home import home
from pytest_r1perf.verdict import Verdict
from tests.documents import NOW, cell, document, environment, judgement, samples, trend
from tests.project import Project

OTAVA = "0.8.0"


def rows_of(document: Document) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(writer("csv")(document))))


def entries_of(document: Document, format: str = "github-action-benchmark") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(writer(format)(document))
    return found


# -- CSV ---------------------------------------------------------------------------------------------------


def test_a_row_has_all_digits_and_all_metrics() -> None:
    measured = samples({"total_throughput": [100.0, 400.0], "ttft_ms": [12.345678901234567]})
    (row,) = rows_of(document(cell(Verdict.REGRESSED, samples=measured)))
    assert float(row["total_throughput"]) == pytest.approx(200.0, rel=1e-15)  # the geometric mean
    assert row["ttft_ms"] == "12.345678901234567"
    assert row["goodput"] == ""
    assert row["branch"] == "8x-nvidia-h200 tp8 h200x8/champion/sharegpt/tp8 champion n=100/engine"
    assert row["time"] == "2026-11-30T22:15:00.250+00:00"
    assert (row["version"], row["verdict"], row["rounds"]) == ("0.5.20", "REGRESSED", "2")
    assert row["session"] == "20261130.221500.ab12"


def test_the_nights_before_come_from_the_trend_and_this_session_once() -> None:
    earlier = trend([90.0, None, 95.5, 100.0])  # the last is this session's own night
    nights = rows_of(document(cell(samples=samples({"total_throughput": [100.0]}), trend=earlier)))
    assert [row["total_throughput"] for row in nights] == ["90.0", "95.5", "100.0"]
    assert [bool(row["session"]) for row in nights] == [False, False, True]
    times = [datetime.datetime.fromisoformat(row["time"]) for row in nights]
    assert times == sorted(times)


def test_only_the_new_side_and_what_was_measured() -> None:
    both = samples({"total_throughput": [50.0]}) + samples({"total_throughput": [70.0]}, place=1)
    environments = [environment("old", "0.5.11"), environment("new", "0.5.12")]
    (row,) = rows_of(document(cell(samples=both), environments=environments))
    assert (row["total_throughput"], row["version"]) == ("70.0", "0.5.12")
    numbers = samples({"total_throughput": [50.0]})
    for verdict in (Verdict.INVALID, Verdict.OOM, Verdict.CRASH):
        assert rows_of(document(cell(verdict, samples=numbers))) == []
    nothing = samples({"total_throughput": [math.nan, math.inf, -1.0, 0.0]})
    assert rows_of(document(cell(samples=nothing))) == []


def test_a_measurement_that_tests_share_has_one_row() -> None:
    numbers = samples({"total_throughput": [50.0]})
    assert (
        len(rows_of(document(cell(samples=numbers), cell(samples=numbers), cell(label="other", samples=numbers)))) == 2
    )


@settings(deadline=None, max_examples=60)
@given(label=st.text(max_size=30), session=st.text(max_size=30))
def test_a_row_is_one_line_whatever_a_name_holds(label: str, session: str) -> None:
    made = document(cell(label=label, samples=samples({"total_throughput": [50.0]})), session=session)
    text = writer("csv")(made)
    assert len(text.splitlines()) == 2
    text.encode()
    (row,) = rows_of(made)
    assert row["total_throughput"]
    assert None not in row


# -- Otava -------------------------------------------------------------------------------------------------

Otava = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def otava() -> Otava:
    """Runs Otava from an environment of its own, since it pins NumPy and brings 43 packages: made once (20 s).

    ``R1PERF_OTAVA`` names an installed one. Skips where it can't be installed.
    """
    folder = home() / "tools" / f"otava-{OTAVA}-py{sys.version_info.major}{sys.version_info.minor}"
    command = Path(os.environ.get("R1PERF_OTAVA", folder / "bin" / "otava"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder}.lock"):
        if not command.exists():
            install(folder)

    def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if name not in ("BRANCH", "OTAVA_CONFIG")}
        return subprocess.run(
            [str(command), *map(str, arguments)],
            cwd=cwd, capture_output=True, text=True, check=False, timeout=120, env=environ,
        )  # fmt: skip

    return run


def install(folder: Path) -> None:
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(folder / "bin" / "pip"), "install", "--quiet", f"apache-otava=={OTAVA}"],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            pytest.skip(f"apache-otava {OTAVA} cannot be installed here: {last}")


def documented(language: str, beginning: str) -> str:
    """The block of docs/exports.md in that language that begins so."""
    page = (Path(__file__).parent.parent / "docs" / "exports.md").read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (block,) = [block for block in found if block.startswith(beginning)]
    return str(block)


def nights(slow_since: int, count: int = 24, *, label: str = "tp8 champion n=100", noise: float = 0.001) -> list[str]:
    """The files of so many sessions, a night each, the last one now; a tenth slower from the given one on."""
    now = datetime.datetime.now(datetime.timezone.utc)
    texts = []
    for night in range(count):
        slow = 0.9 if night >= slow_since else 1.0
        wave = 1 + noise * math.sin(7.0 * night)
        began = now - datetime.timedelta(days=count - night)
        numbers = {"total_throughput": [1000.0 * slow * wave], "ttft_ms": [50.0 * wave]}
        one = cell(label=label, samples=samples(numbers, began=began))
        texts.append(
            writer("csv")(document(one, session=f"night-{night}", environments=[environment(sglang=f"0.5.{night}")]))
        )
    return texts


def appended(texts: list[str]) -> str:
    return texts[0] + "".join(text.partition("\n")[2] for text in texts[1:])


@pytest.mark.rig
def test_the_real_otava_finds_a_step_in_appended_nights(otava: Otava, tmp_path: Path) -> None:
    mixed = [*nights(12), *nights(99, label='steady, "quoted" | n=7')]
    (tmp_path / "perf.csv").write_text(appended(mixed))
    (tmp_path / "otava.yaml").write_text(documented("yaml", "tests:"))
    names = sorted({row["branch"] for row in csv.DictReader(io.StringIO(appended(mixed)))})

    def analysed(branch: str) -> list[dict[str, Any]]:
        done = otava(
            "analyze", "--config-file", "otava.yaml", "r1perf", "--branch", branch, "--output", "json", cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["r1perf"]
        return found

    steady, stepped = analysed(names[0]), analysed(names[1])
    assert steady == []
    (group,) = stepped
    (change,) = group["changes"]
    assert change["metric"] == "total_throughput"
    assert float(change["forward_change_percent"]) == pytest.approx(-10, abs=1)
    assert group["attributes"] == {"session": "night-12", "version": "0.5.12"}
    # It refuses to mix series, so that nobody does by mistake.
    mixed_up = otava("analyze", "--config-file", "otava.yaml", "r1perf", cwd=tmp_path)
    assert "multiple branches" in mixed_up.stderr + mixed_up.stdout


@pytest.mark.rig
def test_the_real_otava_finds_a_step_in_one_documents_trend(otava: Otava, tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)
    means = [1000.0 * (0.9 if night >= 14 else 1.0) * (1 + 0.001 * math.sin(7.0 * night)) for night in range(24)]
    one = cell(samples=samples({"total_throughput": [means[-1]]}, began=now), trend=trend(means, last=now))
    (tmp_path / "perf.csv").write_text(writer("csv")(document(one)))
    (tmp_path / "otava.yaml").write_text(documented("yaml", "tests:"))
    done = otava(
        "analyze", "--config-file", "otava.yaml", "r1perf", "--metrics", "total_throughput", "--output", "json",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (group,) = json.loads(done.stdout)["r1perf"]
    assert [change["metric"] for change in group["changes"]] == ["total_throughput"]
    day = datetime.datetime.fromtimestamp(group["time"], datetime.timezone.utc).date()
    assert day == (now - datetime.timedelta(days=23 - 14)).date()


# -- github-action-benchmark -------------------------------------------------------------------------------


def test_a_file_has_one_direction() -> None:
    both = cell(
        judgements=[judgement(), judgement(metric="ttft_ms")],
        samples=samples({"total_throughput": [100.0, 121.0], "ttft_ms": [20.0, 20.0], "tpot_ms": [1.0, 1.0]}),
    )
    (more,) = entries_of(document(both))
    (less,) = entries_of(document(both), "github-action-benchmark-smaller")
    assert more["name"] == "8x-nvidia-h200 tp8 h200x8/champion/sharegpt/tp8 champion n=100/engine total_throughput"
    assert (more["unit"], less["unit"]) == ("tok/s", "ms")
    assert more["value"] == pytest.approx(110.0, rel=1e-14)
    assert less["name"].endswith(" ttft_ms")


def test_an_entry_is_what_the_action_takes() -> None:
    one = cell(
        Verdict.REGRESSED,
        samples=samples({"total_throughput": [100.0, 101.0, 99.0, 100.5]}),
        reproduce="pytest 'a b'",
        against="old environment",
    )
    (entry,) = entries_of(document(one))
    # src/extract.ts at v1.22.0: name, value, unit; range and extra may be there. src/extractRangeInfo.ts: its form.
    assert {name: type(value) for name, value in entry.items()} == {
        "name": str, "unit": str, "value": float, "range": str, "extra": str,
    }  # fmt: skip
    found = re.fullmatch(r"± (\d.*)", entry["range"])
    assert found
    # By hand: s = 0.8539 of four, t(3, 0.975) = 3.1824: half a width of 1.36.
    assert float(found[1]) == pytest.approx(1.36, abs=0.03)
    lines = entry["extra"].splitlines()
    assert lines[0] == "REGRESSED, 4 rounds, session 20261130.221500.ab12"
    assert lines[1] == "ratio to the old environment (18,876): 0.852 [0.845, 0.926]"
    assert "sglang 0.5.20, torch 2.11.0" in lines
    assert "reproduce: pytest 'a b'" in lines


def test_one_round_has_no_range_and_no_number_is_no_entry() -> None:
    (entry,) = entries_of(document(cell(samples=samples({"total_throughput": [100.0]}))))
    assert "range" not in entry
    bad = samples({"total_throughput": [math.nan, math.inf, 0.0]})
    assert (
        entries_of(document(cell(samples=bad), cell(Verdict.INVALID, samples=samples({"total_throughput": [1.0]}))))
        == []
    )


def test_a_cell_without_a_baseline_has_its_medians_metric() -> None:
    first = cell(
        Verdict.MEASURED, judgements=(), medians={"ttft_ms": 20.0},
        samples=samples({"ttft_ms": [20.0], "tpot_ms": [1.0]}),
    )  # fmt: skip
    (entry,) = entries_of(document(first), "github-action-benchmark-smaller")
    assert entry["name"].endswith(" ttft_ms")


@settings(deadline=None, max_examples=60)
@given(label=st.text(max_size=40), number=st.floats())
def test_a_name_stays_within_the_actions_table(label: str, number: float) -> None:
    """The action writes names between backticks into a table without a look at them (src/write.ts)."""
    made = document(cell(label=label, samples=samples({"total_throughput": [1.5, number]})))
    text = writer("github-action-benchmark")(made)
    text.encode()
    (entry,) = json.loads(text, parse_constant=pytest.fail)
    assert not set("`|\n\r\x1b") & set(entry["name"])
    assert all(line.isprintable() or "\u200c" in line or "\u200d" in line for line in entry["extra"].splitlines())


# -- together ----------------------------------------------------------------------------------------------


def test_of_a_real_session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(pytester, monkeypatch)
    project.write('@perf(topology="tp1", n=50)\ndef test_one(): ...\n')
    arguments = [
        "--perf-rounds", "2:2", "--perf-export", "csv=perf.csv", "--perf-export", "github-action-benchmark=more.json",
        "--perf-export", "github-action-benchmark-smaller=less.json",
    ]  # fmt: skip
    project.perf(*arguments)
    project.perf(*arguments)
    first, second = [
        [sample["metrics"]["total_throughput"] for sample in project.samples() if sample["time"] in times]
        for times in _times_by_session(project)
    ]
    table = list(csv.DictReader((project.root / "perf.csv").open(newline="")))
    assert [float(row["total_throughput"]) for row in table] == pytest.approx(
        [math.sqrt(math.prod(first)), math.sqrt(math.prod(second))], rel=1e-12
    )
    (entry,) = json.loads((project.root / "more.json").read_text())
    assert entry["value"] == pytest.approx(math.sqrt(math.prod(second)), rel=1e-12)
    assert json.loads((project.root / "less.json").read_text()) == []


def _times_by_session(project: Project) -> list[set[str]]:
    found = []
    for folder in sorted(path for path in project.out.iterdir() if path.is_dir()):
        lines = [json.loads(line) for path in folder.glob("samples-*.jsonl") for line in path.read_text().splitlines()]
        found.append({line["time"] for line in lines if line["kind"] == "sample"})
    return [times for times in found if times]


def test_a_third_format_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_verdicts.py").write_text(documented("python", '"""Verdicts only'))
    monkeypatch.setattr(exports, "__path__", [*exports.__path__, str(tmp_path)])
    assert "only-verdicts" in exports.formats()
    made = document(cell(label="n=5"))
    assert writer("only-verdicts")(made) == "PASS\ttp8 h200x8/champion/sharegpt/n=5/engine\n"
    monkeypatch.delitem(sys.modules, "pytest_r1perf.exports.only_verdicts")
    with pytest.raises(R1PerfError, match="did you mean 'csv'"):
        writer("cvs")


def test_the_documented_way_to_append(tmp_path: Path) -> None:
    lines = documented("sh", "r1perf report --export csv=perf.csv").splitlines()
    for day in (0, 1):
        began = NOW + datetime.timedelta(days=day)
        one = cell(
            samples=samples({"total_throughput": [100.0 + day]}, began=began), trend=trend([7.0] * 5, last=began)
        )
        text = writer("csv")(document(one, session=f"night-{day}"))
        (tmp_path / "perf.csv").write_text(text)
        if day == 0:
            (tmp_path / "history.csv").write_text(text.partition("\n")[0] + "\n")
        subprocess.run(["sh", "-c", lines[1]], cwd=tmp_path, check=True)
    with (tmp_path / "history.csv").open(newline="") as file:
        assert [(row["session"], row["total_throughput"]) for row in csv.DictReader(file)] == [
            ("night-0", "100.0"),
            ("night-1", "101.0"),
        ]


def test_every_format_has_a_first_line() -> None:
    assert {"csv", "markdown", "json", "github-action-benchmark", "github-action-benchmark-smaller"} <= set(
        exports.formats()
    )
